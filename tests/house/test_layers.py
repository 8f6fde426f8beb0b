"""The contracts of import-linter hold, and each of them notices when it is broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]

# What a careless change would add, by the id of the contract that has to object.
BREACHES = {
    "layers": ("workflow_sdk/errors.py", "import workflow_sdk.driver"),
    "core": ("workflow_sdk/rows/location.py", "import time"),
    "features": ("workflow_sdk/features/retention.py", "import workflow_sdk.features.replay_check"),
    "cli": ("workflow_sdk/cli/output.py", "import workflow_sdk.rows.wire"),
    "testing": ("workflow_sdk/testing/contract.py", "import workflow_sdk.rows.wire"),
    "drivers": ("drivers/workflow_drivers/memory.py", "import workflow_sdk.rows"),
    "engine": ("workflow_sdk/driver.py", "import workflow_drivers.memory"),
    "independence": ("drivers/workflow_drivers/memory.py", "import workflow_drivers.sqlite"),
}


def lint(root: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    chosen = [argument for contract in contracts for argument in ("--contract", contract)]
    # import-linter reads the packages that it could import. The editable install has the sources on the path; they give
    # way, so that a copy is never read together with its original.
    program = (
        "import sys; from pathlib import Path\n"
        f"sources = (Path({str(ROOT)!r}), Path({str(ROOT / 'drivers')!r}))\n"
        "sys.path[:] = ['.', 'drivers', *(p for p in sys.path if Path(p).resolve() not in sources)]\n"
        "from importlinter.cli import lint_imports_command; lint_imports_command()\n"
    )
    command = [sys.executable, "-c", program, "--no-cache", *chosen]
    return subprocess.run(
        command, cwd=root, env=clean_environment(), capture_output=True, text=True, check=False, timeout=5 * PATIENCE
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The house, to be broken."""
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "workflow_sdk", tmp_path / "workflow_sdk", ignore=without)
    shutil.copytree(ROOT / "drivers", tmp_path / "drivers", ignore=without)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_kept() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken" in result.stdout


@pytest.mark.parametrize("contract", BREACHES)
def test_a_breach_is_seen(contract: str, copy: Path) -> None:
    file, line = BREACHES[contract]
    path = copy / file
    path.write_text(path.read_text() + f"\n{line}\n")
    result = lint(copy, contract)
    assert result.returncode == 1, result.stdout + result.stderr
    assert " 1 broken" in result.stdout
