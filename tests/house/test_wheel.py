"""What users install: the wheel holds the two packages and nothing else, and works away from the sources."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(
        command, cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False, timeout=5 * PATIENCE
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    run(sys.executable, "-m", "pip", "install", *options, "--target", target, wheel, cwd=target)
    return target


def python(installed: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run `program` where only the installed wheel is in reach, and its dependencies."""
    # -I leaves out the working directory and the user's settings. The sources are on the path all the same, by the
    # editable install's .pth file, so they are taken off before anything is imported.
    isolated = (
        "import sys; from pathlib import Path\n"
        f"root = Path({str(ROOT)!r})\n"
        "sys.path[:] = [p for p in sys.path if Path(p).resolve() not in (root, root / 'drivers')]\n"
        f"sys.path.insert(0, {str(installed)!r})\n"
    )
    command = [sys.executable, "-I", "-c", isolated + program]
    return subprocess.run(
        command, cwd=installed, env=clean_environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def test_the_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {
        "workflow_sdk",
        "workflow_drivers",
        "workflow_sdk-0.1.0.dist-info",
    }
    assert {"workflow_sdk/py.typed", "workflow_drivers/py.typed"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".db"))]


def test_the_wheel_is_well_formed(wheel: Path) -> None:
    top = "workflow_sdk,workflow_drivers"
    run(sys.executable, "-m", "check_wheel_contents", "--toplevel", top, wheel, cwd=wheel.parent)


def test_the_installed_wheel_can_be_imported(installed: Path) -> None:
    result = python(
        installed,
        "import workflow_sdk, workflow_drivers.foundationdb, workflow_drivers.memory, workflow_drivers.sqlite\n"
        "print(workflow_sdk.__file__)\n"
        "print(workflow_drivers.__path__[0])\n",
    )
    assert result.returncode == 0, result.stderr
    engine, drivers = result.stdout.split()
    assert Path(engine).is_relative_to(installed)
    assert Path(drivers).is_relative_to(installed)


def test_the_installed_wheel_announces_its_drivers(installed: Path) -> None:
    result = python(
        installed,
        "from importlib.metadata import distributions\n"
        f"(found,) = distributions(name='workflow-sdk', path=[{str(installed)!r}])\n"
        "for point in found.entry_points.select(group='workflow_sdk.drivers'):\n"
        "    print(point.name, callable(point.load()))\n",
    )
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.splitlines()) == {"fdb True", "memory True", "sqlite True"}


def test_nobody_can_import_the_source_root_by_its_name(installed: Path) -> None:
    result = python(installed, "import drivers")
    assert result.returncode != 0
    assert "ModuleNotFoundError: No module named 'drivers'" in result.stderr
