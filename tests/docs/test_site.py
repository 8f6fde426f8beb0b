"""The documentation as a site: every page is reached, and no link leads out of it. `make docs` builds it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the site is built from."""
    target = tmp_path_factory.mktemp("site")
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / '.ci')!r}); from pathlib import Path; import site_sources\n"
        f"site_sources.main(Path({str(target / 'docs')!r}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    return target / "docs"


def _pages(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, dict) else nav
    return set().union(*map(_pages, parts))


def test_every_page_is_in_the_navigation(sources: Path) -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    there = {path.name for path in sources.glob("*.md")} | {"examples/index.md"}
    assert _pages(nav) == there


def test_every_example_has_a_page(sources: Path) -> None:
    listed = (sources / "examples" / "index.md").read_text()
    for path in (ROOT / "examples").glob("*.py"):
        assert path.read_text() in (sources / "examples" / f"{path.stem}.md").read_text()
        assert f"[{path.name}]({path.stem}.md)" in listed


def test_links_lead_to_what_is_there(sources: Path) -> None:
    missing = [
        f"{page.name}: {link}"
        for page in sources.rglob("*.md")
        for link in re.findall(r"\]\(([^)#\s]+)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
        if ("://" not in link and not (page.parent / link).resolve().is_relative_to(sources.resolve()))
        or ("://" not in link and not (page.parent / link).exists())
    ]
    assert missing == []
