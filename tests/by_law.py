"""Which tests hold which of the laws in LAWS.md, and `pytest --law 7`, which runs those of law 7.

A file says in its name which law it holds (`test_law_07_races.py`). Everything else carries a marker: `law(7)` or
`law(7, 8)`, on a module (`pytestmark`), a class or a function. Folders don't matter.

`python -m tests.by_law` writes the lists of files in LAWS.md anew, after tests were added, marked or moved.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

__all__ = ["LAWS", "files_by_law", "laws_of_file", "with_lists"]

LAWS = range(1, 22)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "LAWS.md"
_IN_NAME = re.compile(r"test_law_(\d+)_")
_HEADING = re.compile(r"^## (\d+)\. ", re.MULTILINE)
_LISTS = re.compile(r"(?:^- \[.*\n)+", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--law N`."""
    parser.getgroup("laws").addoption(
        "--law",
        action="append",
        default=[],
        metavar="N",
        help="run only the tests of this law of LAWS.md; several: --law 7 --law 8, or --law 7,8",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and read the option."""
    config.addinivalue_line("markers", "law(n, ...): holds these laws of LAWS.md; `pytest --law N` runs it")
    config.stash[_CHOSEN] = _chosen(config.getoption("law") or [])


_CHOSEN = pytest.StashKey[frozenset[int]]()


def _chosen(given: Iterable[str]) -> frozenset[int]:
    """The laws that the option asks for."""
    texts = [text.strip() for part in given for text in part.split(",")]
    wrong = [text for text in texts if not text.isdecimal() or int(text) not in LAWS]
    if wrong:
        raise pytest.UsageError(f"--law takes a number from {LAWS[0]} to {LAWS[-1]}, not {wrong[0]!r}")
    return frozenset(map(int, texts))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the files that hold none of the chosen laws, so that `--law` need not import the whole suite."""
    chosen = config.stash.get(_CHOSEN, frozenset[int]())
    if chosen and collection_path.suffix == ".py" and not chosen & laws_of_file(collection_path):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that hold none of the chosen laws."""
    laws = [_laws_of(item) for item in items]  # for its checks, also where nothing is left out
    chosen = config.stash.get(_CHOSEN, frozenset[int]())
    if chosen:
        kept = [item for item, its in zip(items, laws, strict=True) if chosen & its]
        gone = [item for item, its in zip(items, laws, strict=True) if not chosen & its]
        items[:] = kept
        config.hook.pytest_deselected(items=gone)


def _laws_of(item: pytest.Item) -> set[int]:
    """The laws that a test holds."""
    found = set(_in_name(item.path))
    for mark in item.iter_markers("law"):
        if not mark.args or not all(type(number) is int and number in LAWS for number in mark.args):
            raise pytest.UsageError(
                f"{item.nodeid}: law{mark.args!r} should name laws from {LAWS[0]} to {LAWS[-1]}, as in law(7, 8)"
            )
        found.update(mark.args)
    return found


def _in_name(path: Path) -> set[int]:
    found = _IN_NAME.match(path.name)
    return {int(found[1])} if found else set()


def laws_of_file(path: Path) -> set[int]:
    """The laws that at least one test of a file holds: from its name, and from the markers in its source."""
    laws, source = _in_name(path), path.read_text()
    if "mark.law(" in source:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.law":
                laws.update(int(ast.literal_eval(argument)) for argument in node.args)
    return laws


def files_by_law() -> dict[int, list[Path]]:
    """The test files of each law, by name."""
    found: dict[int, list[Path]] = {law: [] for law in LAWS}
    for path in sorted((ROOT / "tests").rglob("test_*.py"), key=lambda path: (path.name, path)):
        for law in laws_of_file(path):
            found[law].append(path)
    return found


def with_lists(page: str) -> str:
    """The page with the lists of files as they are now."""
    files = files_by_law()
    head, *rest = re.split(r"(?=^## )", page, flags=re.MULTILINE)
    return head + "".join(_with_list(part, files) for part in rest)


def _with_list(part: str, files: dict[int, list[Path]]) -> str:
    heading = _HEADING.match(part)
    if heading is None:
        return part
    lines = "".join(
        f"- [{path.name}]({path.relative_to(ROOT).as_posix()})\n" for path in files.get(int(heading[1]), [])
    )
    text = _LISTS.sub("", part).rstrip("\n")
    return f"{text}\n\n{lines}\n" if lines else f"{text}\n\n"


def main() -> None:
    """Write the lists of files in LAWS.md."""
    page = PAGE.read_text()
    written = with_lists(page).rstrip("\n") + "\n"
    if written != page:
        PAGE.write_text(written)
        print(f"{os.path.relpath(PAGE)} was brought up to date", file=sys.stderr)


if __name__ == "__main__":
    main()
