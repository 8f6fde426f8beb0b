"""Every mutant fits the sources and the tests as they are, and the runner tells what became of each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.by_law import LAWS, laws_of_file
from tests.mutants import ROOT, SOURCES, Mutant, read_mutants
from tests.mutants.__main__ import Outcome, judge

MUTANTS = read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_replaces_text_that_occurs_once(mutant: Mutant) -> None:
    found = mutant.places(ROOT)
    if len(found) != 1:
        everywhere = [path for source in SOURCES for path in Path(ROOT, source).rglob("*.py")]
        elsewhere = sorted(str(path.relative_to(ROOT)) for path in everywhere if mutant.old in path.read_text())
        pytest.fail(
            f"the old text occurs {len(found)} times in files called {mutant.file}; it stands in {elsewhere}. "
            "Carry the mutant over to the code that does this now."
        )
    source = found[0].read_text().replace(mutant.old, mutant.new)
    assert source != found[0].read_text()
    ast.parse(source)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_test_of_a_mutant_exists_and_holds_its_law(mutant: Mutant) -> None:
    path, _, function = mutant.test(ROOT).partition("::")
    assert function.rpartition("::")[2].startswith("test_")
    assert mutant.law in laws_of_file(ROOT / path), "mark the test with the law that the mutant breaks"


def test_a_module_marks_its_tests_once() -> None:
    """A second `pytestmark` would take the first one back: its tests would hold no law any more."""
    marked = {path: re.findall(r"^pytestmark\b", path.read_text(), re.MULTILINE) for path in ROOT.glob("tests/**/*.py")}
    assert [str(path) for path, marks in marked.items() if len(marks) > 1] == []


def test_every_law_has_a_mutant_and_they_are_in_order() -> None:
    laws = [mutant.law for mutant in MUTANTS]
    assert set(laws) == set(LAWS)
    assert laws == sorted(laws)


def test_every_mutant_says_what_a_user_would_lose() -> None:
    assert [mutant.name for mutant in MUTANTS if not mutant.lost.endswith(".") or len(mutant.lost) > 120] == []


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (0, "3 passed in 1s\n", (Outcome.SURVIVED, "")),
        (None, "..", (Outcome.HUNG, "")),
        (
            1,
            "..F\nFAILED tests/laws/test_a.py::test_b[x - y] - assert 1\n",
            (Outcome.NOTICED, "tests/laws/test_a.py::test_b[x - y]"),
        ),
        (1, "FAILED tests/a.py::TestB::test_c[x] - no\n", (Outcome.NOTICED, "tests/a.py::TestB::test_c[x]")),
        (1, "E\nERROR tests/test_a.py::test_b - OSError\n", (Outcome.NOTICED, "tests/test_a.py::test_b")),
        (2, "FAILED tests/test_a.py::test_b\n", (Outcome.NOTICED, "tests/test_a.py::test_b")),
        (2, "ERROR tests/test_a.py - ImportError\n", (Outcome.BROKEN, "")),
        (1, "ERROR tests/test_a.py - ImportError\n", (Outcome.BROKEN, "")),
        (4, "ERROR: file or directory not found\n", (Outcome.BROKEN, "")),
        (5, "no tests ran in 1s\n", (Outcome.SURVIVED, "")),
    ],
)
def test_what_a_run_says_of_a_mutant(code: int | None, output: str, expected: tuple[Outcome, str]) -> None:
    outcome, test, kept = judge(code, output)
    assert (outcome, test) == expected
    assert kept == output
