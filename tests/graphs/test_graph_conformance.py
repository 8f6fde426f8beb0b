"""The page that says which test holds which promise names tests that there are, and every test of a document."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "graphs-conformance.md"

PLACES = {
    "Rules of playbooks, version 10": (
        "intro 1.1 1.2 2.1 2.2 2.3 3.1 3.2 4.1 4.2 4.3 4.4 5.1 5.2 6.1 6.2 7.1 7.2 7.3 8 9"
    ),
    "Functions of an agent kernel's graph machine": (
        "workflow_active ensure_started_for_workflow load_workflow submit_workflow_nodes submit_nodes_from "
        "submit_workflow load_workflow_resumed install_workflow spawn_ready_workflow_nodes workflow_budget "
        "drive_workflow finish_workflow advance_workflow"
    ),
    "Canonical execution model": (
        "2.1 2.2 2.3 2.4 3 4 5.1 5.2 6 7.1 7.2 7.3 7.4 7.5 7.6 7.7 7.8 8.1 8.2 8.3 9 10 11 12 13 14"
    ),
}
"""What each document has. Sections without rules, such as a list of reasons, are left out."""


def _tests_in(*files: Path) -> set[str]:
    names = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    return {name for file in files for name in names.findall(file.read_text())}


def _named_in(text: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", text))


def _rows(document: str) -> list[tuple[str, set[str]]]:
    """The places of a document that the page lists, each with its tests."""
    _, _, rest = PAGE.read_text().partition(f"## {document}\n")
    table = rest.partition("\n## ")[0]
    lines = [
        line.split(" | ") for line in table.splitlines() if line.startswith("| ") and not line.endswith("| test |")
    ]
    return [(line[0].removeprefix("| ").split()[0].strip("`"), _named_in(line[-1])) for line in lines]


def test_every_test_that_the_page_names_exists() -> None:
    named = _named_in(PAGE.read_text())
    assert named
    assert named - _tests_in(*HERE.rglob("test_*.py")) == set()


def test_every_promise_of_the_page_has_a_test() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "test (" not in line]
    without = [row for row in rows if "`test_" not in row and "all of " not in row and not row.endswith("| test |")]
    assert without == []


@pytest.mark.parametrize("document", PLACES)
def test_every_place_of_a_document_has_a_test_that_is_named_after_it(document: str) -> None:
    rows = _rows(document)
    assert list(dict.fromkeys(place for place, _ in rows)) == PLACES[document].split()
    for place, tests in rows:
        prefix = "test_" + ("0" if place == "intro" else place.replace(".", "_")) + "_"
        assert any(name.startswith(prefix) for name in tests), place


@pytest.mark.parametrize(
    ("document", "file"),
    [*zip(PLACES, ("playbook_rules", "graph_machine_functions", "canonical_definitions"), strict=True)],
)
def test_every_test_of_a_document_is_on_the_page(document: str, file: str) -> None:
    named = {name for _, tests in _rows(document) for name in tests}
    assert named == _tests_in(HERE / "conformance" / f"test_{file}.py")
