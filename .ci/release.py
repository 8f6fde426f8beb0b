"""Make a release: `python .ci/release.py 0.2.0`, in a clean clone. The changelog, the version, a commit and a tag."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

KINDS = ("Added", "Changed", "Fixed", "Removed", "Security")
NOTE = re.compile(r"^[\w.-]+\.(added|changed|fixed|removed|security)\.md$")
VERSION = re.compile(r"^\d+\.\d+\.\d+$")
HEADING = "## [Unreleased]"


def main(root: Path, version: str) -> None:
    """Make it, or say what is in the way."""
    if not VERSION.match(version):
        raise SystemExit(f"a version is three numbers, as in VERSION=0.2.0, not {version!r}")
    if _git(root, "status", "--porcelain"):
        raise SystemExit("there are changes that are not committed")
    if _git(root, "tag", "--list", f"v{version}"):
        raise SystemExit(f"there is a tag v{version} already")
    notes = read_notes(root / "changelog.d")
    page = root / "CHANGELOG.md"
    page.write_text(with_release(page.read_text(), notes, version, f"{datetime.now(UTC):%Y-%m-%d}"))
    project = root / "pyproject.toml"
    project.write_text(re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', project.read_text(), count=1))
    for path in (root / "changelog.d").iterdir():
        if NOTE.match(path.name):
            path.unlink()
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "--message", f"Release {version}")
    _git(root, "tag", f"v{version}")
    print(f"v{version} is committed and tagged; `git push --follow-tags` has it published")


def read_notes(folder: Path) -> dict[str, list[str]]:
    """The notes, by their kind, each as an item of a list."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.iterdir()):
        match = NOTE.match(path.name)
        if match is None and path.name != "README.md":
            raise SystemExit(f"{path.name} is no note: see changelog.d/README.md")
        if match is not None:
            lines = path.read_text().strip().splitlines()
            found.setdefault(match[1].capitalize(), []).append("- " + "\n  ".join(lines))
    return found


def with_release(page: str, notes: dict[str, list[str]], version: str, date: str) -> str:
    """The changelog, with what was not released before as this release."""
    if page.count(HEADING) != 1:
        raise SystemExit(f"CHANGELOG.md has to have one {HEADING!r}")
    before, rest = page.split(HEADING)
    end = rest.find("\n## [")
    body, after = (rest, "") if end < 0 else (rest[:end], rest[end:])
    body = re.sub(r"\nTo become [\d.]+\.\n", "", body)
    sections = {title: text.strip() for title, text in re.findall(r"(?ms)^### (\w+)\n(.*?)(?=^### |\Z)", body)}
    for title, items in notes.items():
        sections[title] = "\n".join([*items, sections.get(title, "")]).strip()
    order = [title for title in KINDS if title in sections] + [title for title in sections if title not in KINDS]
    written = "\n\n".join(f"### {title}\n\n{sections[title]}" for title in order)
    return f"{before}{HEADING}\n\n## [{version}] - {date}\n\n{written}\n{after}"


def _git(root: Path, *command: str) -> str:
    result = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True)
    return result.stdout.strip()


if __name__ == "__main__":
    main(Path.cwd(), sys.argv[1] if len(sys.argv) > 1 else "")
