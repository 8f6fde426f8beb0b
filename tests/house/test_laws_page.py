"""LAWS.md names the laws and, for each, exactly the test files that `pytest --law` selects."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.by_law import LAWS, PAGE, ROOT, files_by_law, with_lists

SMALL_SUITE = {
    "test_law_03_storage.py": "def test_a(): pass",
    "folder/test_law_10_one_writer.py": """
        import pytest
        @pytest.mark.law(3)
        def test_of_two_laws(): pass
        def test_of_one_law(): pass
    """,
    "folder/test_module.py": """
        import pytest
        pytestmark = pytest.mark.law(4, 10)
        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.law(5))])
        def test_b(n): pass
    """,
    "test_functions.py": """
        import pytest
        @pytest.mark.law(10)
        def test_marked(): pass
        def test_not_marked(): pass
        @pytest.mark.law(21)
        class TestClass:
            def test_in_class(self): pass
    """,
    "test_of_no_law.py": "raise AssertionError('imported, though it holds no law')",
}


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A suite that uses the plugin."""
    pytester.makeconftest('pytest_plugins = ["tests.by_law"]')
    for name, source in SMALL_SUITE.items():
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        lines = source.strip("\n").splitlines()
        path.write_text("\n".join(line.removeprefix(" " * 8) for line in lines))
    return pytester


def selected(suite: pytest.Pytester, *arguments: str) -> list[str]:
    """The names of the tests that were selected."""
    result = suite.runpytest_inprocess("--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", *arguments)
    return sorted(line.rpartition("::")[2] for line in result.outlines if "::" in line)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--law", "3"], ["test_a", "test_of_two_laws"]),
        (["--law", "10"], ["test_b[1]", "test_b[2]", "test_marked", "test_of_one_law", "test_of_two_laws"]),
        (["--law", "5"], ["test_b[2]"]),
        (["--law", "21"], ["test_in_class"]),
        (["--law", "3,21"], ["test_a", "test_in_class", "test_of_two_laws"]),
        (["--law", "3", "--law", "21"], ["test_a", "test_in_class", "test_of_two_laws"]),
        (["--law", "10", "test_functions.py"], ["test_marked"]),
        (["--law", "7"], []),
    ],
)
def test_exactly_the_tests_of_a_law_are_selected(
    suite: pytest.Pytester, arguments: list[str], expected: list[str]
) -> None:
    assert selected(suite, *arguments) == expected


@pytest.mark.parametrize("number", ["0", "22", "one", ""])
def test_a_law_that_does_not_exist_is_refused(suite: pytest.Pytester, number: str) -> None:
    result = suite.runpytest_inprocess("-p", "no:asyncio", "--law", number)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--law takes a number from 1 to 21, not *"])


@pytest.mark.parametrize("marker", ["law(22)", "law()", "law('7')"])
def test_a_marker_without_a_law_is_refused(suite: pytest.Pytester, marker: str) -> None:
    (suite.path / "test_wrong.py").write_text(f"import pytest\n@pytest.mark.{marker}\ndef test_it(): pass\n")
    result = suite.runpytest_inprocess("-p", "no:asyncio", "test_wrong.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*should name laws from 1 to 21*"])


def test_the_page_numbers_the_laws_as_the_tests_do() -> None:
    assert [int(number) for number in re.findall(r"^## (\d+)\. \S", PAGE.read_text(), re.MULTILINE)] == list(LAWS)


def test_every_law_has_tests() -> None:
    assert [law for law, files in files_by_law().items() if not files] == []


def test_the_page_names_the_files_of_each_law() -> None:
    page = PAGE.read_text()
    assert page == with_lists(page).rstrip("\n") + "\n", "`python -m tests.by_law` brings the lists up to date"


def test_every_link_of_the_page_leads_to_a_file() -> None:
    missing = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE.read_text()) if not Path(ROOT, link).is_file()]
    assert missing == []
