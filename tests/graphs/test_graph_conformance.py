"""The page that says which test holds which promise names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "graphs-conformance.md"


def _tests() -> set[str]:
    names = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    return {name for file in HERE.glob("test_*.py") for name in names.findall(file.read_text())}


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert named
    assert named - _tests() == set()


def test_every_promise_of_the_page_has_a_test() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "test (" not in line]
    without = [row for row in rows if "`test_" not in row and "all of " not in row and not row.endswith("| test |")]
    assert without == []
