"""A release takes the notes into the changelog, and leaves everything committed and tagged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "release.py"

CHANGELOG = """# Changelog

## [Unreleased]

To become 0.2.0.

### Fixed

- A defect.

## [0.1.0] - 2026-01-01

### Added

- Everything.
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A small project under git."""
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n\n[tool.x]\nversion = "9"\n')
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "README.md").write_text("How to.\n")
    (tmp_path / "changelog.d" / "one.added.md").write_text("A feature,\nin two lines.\n")
    (tmp_path / "changelog.d" / "two.fixed.md").write_text("Another defect.\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.email", "test@localhost")
    git(tmp_path, "config", "user.name", "test")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def git(root: Path, *command: str) -> str:
    return subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True).stdout


def release(root: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), version]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_a_release(clone: Path) -> None:
    done = release(clone, "0.2.0")
    assert done.returncode == 0, done.stderr
    page = (clone / "CHANGELOG.md").read_text()
    date = page.split("## [0.2.0] - ")[1][:10]
    new = (
        f"## [Unreleased]\n\n## [0.2.0] - {date}\n\n### Added\n\n- A feature,\n  in two lines.\n\n"
        "### Fixed\n\n- Another defect.\n- A defect.\n\n## [0.1.0]"
    )
    assert new in page
    assert page.startswith("# Changelog\n")
    assert page.endswith("- Everything.\n")
    project = (clone / "pyproject.toml").read_text()
    assert 'version = "0.2.0"' in project
    assert 'version = "9"' in project, "only that of the project"
    assert [path.name for path in (clone / "changelog.d").iterdir()] == ["README.md"]
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "tag").split() == ["v0.2.0"]
    assert "there is a tag v0.2.0 already" in release(clone, "0.2.0").stderr


@pytest.mark.parametrize(
    ("version", "stray", "says"),
    [("0.2", None, "three numbers"), ("0.2.0", "three.md", "three.md is no note"), ("", None, "three numbers")],
)
def test_what_is_in_the_way_is_said(clone: Path, version: str, stray: str | None, says: str) -> None:
    if stray is not None:
        (clone / "changelog.d" / stray).write_text("?\n")
        git(clone, "add", "--all")
        git(clone, "commit", "--quiet", "--message", "stray")
    before = (clone / "CHANGELOG.md").read_text()
    done = release(clone, version)
    assert done.returncode != 0
    assert says in done.stderr
    assert (clone / "CHANGELOG.md").read_text() == before


def test_a_release_needs_a_clean_clone(clone: Path) -> None:
    (clone / "new").write_text("")
    assert "not committed" in release(clone, "0.2.0").stderr


def test_the_notes_of_this_project_can_be_read() -> None:
    program = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import release; from pathlib import Path\n"
    program += f"release.with_release(Path({str(ROOT / 'CHANGELOG.md')!r}).read_text(), "
    program += f"release.read_notes(Path({str(ROOT / 'changelog.d')!r})), '9.9.9', '2026-01-01')"
    subprocess.run([sys.executable, "-c", program], check=True)
