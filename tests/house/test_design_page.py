"""The diagrams of docs/design.md are those of the sources, and the places that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.diagrams import PAGE, with_diagrams

ROOT = Path(__file__).parents[2]
PAGES = ["CONTRIBUTING.md", "SECURITY.md", "docs/design.md", "tests/README.md", "changelog.d/README.md"]


def test_the_diagrams_are_those_of_the_sources() -> None:
    page = PAGE.read_text()
    assert page == with_diagrams(page), "`python -m tests.diagrams` brings them up to date"


@pytest.mark.parametrize("page", PAGES)
def test_the_places_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]*)`", text))
    linked = {link for link in re.findall(r"\]\(([^)#:]+)\)", text) if "://" not in link}
    missing = [name for name in named if not _is_there(name)]
    missing += [link for link in linked if not (ROOT / page).parent.joinpath(link).exists()]
    assert missing == []


def _is_there(name: str) -> bool:
    places = (ROOT, ROOT / "workflow_sdk", ROOT / "drivers", ROOT / "drivers" / "workflow_drivers")
    return any((place / name).exists() for place in places)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_that_a_page_names_are_there(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b", " ".join(re.findall(r"`[^`]*`", (ROOT / page).read_text()))))
    assert named <= targets
