"""The page that says which test holds which promise of machines names tests that there are, and leaves none out."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "machines-conformance.md"


def _tests_in(*files: Path) -> set[str]:
    names = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    return {name for file in files for name in names.findall(file.read_text())}


def _named() -> set[str]:
    return set(re.findall(r"`(test_\w+)`", PAGE.read_text()))


def test_every_test_that_the_page_names_exists() -> None:
    assert _named()
    assert _named() - _tests_in(*HERE.rglob("test_*.py")) == set()


def test_every_promise_of_the_page_has_a_test() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.endswith("| test |")]
    assert rows
    assert [row for row in rows if "`test_" not in row] == []


def test_every_test_that_is_named_after_a_paragraph_is_on_the_page() -> None:
    assert _tests_in(HERE / "test_machine_conformance.py") - _named() == set()
