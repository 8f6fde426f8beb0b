"""What the page on testing says about pytest works when it is copied into a new project.

Each way of running async tests is a heading with a configuration and a test file under it. They are copied into an
empty folder together with the workflow that all of them test, and pytest is run there as a user would run it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import FENCE, ROOT, as_pattern, file_name
from tests.environment import clean_environment
from tests.patience import PATIENCE

# Plugins that come with this repository's environment; a new project has none of them.
FOREIGN = ("-p", "no:xdist", "-p", "no:pytest_cov", "-p", "no:hypothesispytest")
WITHOUT_PYTEST_ASYNCIO = ("-p", "no:asyncio")


@dataclass(frozen=True)
class Way:
    """A way of running async tests."""

    heading: str
    arguments: tuple[str, ...]
    event_loops: int
    """On how many event loops each test is run."""


WAYS = [
    # The plugin of anyio stays: whoever installs workflow_sdk has it.
    Way("pytest-asyncio, strict mode", (), 1),
    Way("pytest-asyncio, auto mode", (), 1),
    Way("The plugin of anyio", WITHOUT_PYTEST_ASYNCIO, 2),
]

SECTION = re.search(r"^## With pytest\n(.*?)^## ", (ROOT / "docs" / "testing.md").read_text(), re.MULTILINE | re.DOTALL)


def parts() -> dict[str, str]:
    """The section: what follows each of its headings. The beginning is under an empty one."""
    assert SECTION is not None
    beginning, *others = re.split(r"^### (.*)\n", SECTION[1], flags=re.MULTILINE)
    return {"": beginning, **dict(zip(others[::2], others[1::2], strict=True))}


def files(part: str) -> dict[str, str]:
    """The files that are shown in a part of the section."""
    found: dict[str, str] = {}
    for block in FENCE.finditer(part):
        name = "pyproject.toml" if block["language"] == "toml" else file_name(block["body"])
        if name is not None:
            found[name] = block["body"]
    return found


def run_pytest(folder: Path, *arguments: str) -> str:
    """What `python -m pytest` prints in a folder, where nothing is known of this repository but what is installed."""
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", *FOREIGN, *arguments],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )
    printed = finished.stdout + finished.stderr
    assert finished.returncode == 0, printed
    return printed


def test_every_way_is_on_the_page() -> None:
    assert [heading for heading in parts() if files(parts()[heading])] == ["", *(way.heading for way in WAYS)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.heading)
def test_the_files_of_the_page_are_a_project_whose_tests_pass(way: Way, tmp_path: Path) -> None:
    project = files(parts()[""]) | files(parts()[way.heading])
    assert "test_trials.py" in project
    for name, source in project.items():
        (tmp_path / name).write_text(source)
    count = project["test_trials.py"].count("async def test_") * way.event_loops
    assert count

    assert f"= {count} passed in " in run_pytest(tmp_path, *way.arguments)

    printed = run_pytest(tmp_path, *way.arguments, "--crash-everywhere", "-rA")
    assert f"= {count} passed in " in printed
    [shown] = [
        block["body"]
        for block in FENCE.finditer(parts()["The runtime killed at every commit"])
        if block["language"] == "text"
    ]
    lines = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    assert re.fullmatch(as_pattern(shown).replace("7", r"\d+"), lines, re.DOTALL), printed
    assert lines.count("passed also when killed at each of ") == count
