"""Tests of the tests: deliberate breaks of the engine, each of which some test has to notice.

`mutants.toml` lists them: the law that is broken, what a user would lose, a piece of source and what replaces it. The
piece is found by its file's name and its text, which occurs exactly once; when code moves or changes, the mutant is
carried over by hand (a test in tests/house says which one). `make mutants` or `python -m tests.mutants [NAME ...]`
tries them in copies of the checkout.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "SOURCES", "Mutant", "files_named", "read_mutants"]

ROOT = Path(__file__).parents[2]
SOURCES = ("workflow_sdk", "drivers")
TABLE = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True)
class Mutant:
    """One deliberate break."""

    name: str
    law: int
    lost: str
    """What a user would lose, in one sentence."""
    file: str
    """The name of the file, with its folder if there are several of that name."""
    old: str
    new: str
    noticed_by: str
    """The test that is tried first: file name and function, without folder and parameters."""

    def places(self, root: Path) -> list[Path]:
        """The files that hold the old text, each as often as it does."""
        files = (path for source in SOURCES for path in sorted(Path(root, source).rglob(self.file)))
        return [path for path in files for _ in range(path.read_text().count(self.old))]

    def apply(self, root: Path) -> None:
        """Break the sources under `root`."""
        found = self.places(root)
        if len(found) != 1:
            raise SystemExit(f"mutant {self.name}: the old text occurs {len(found)} times in {self.file}, not once")
        found[0].write_text(found[0].read_text().replace(self.old, self.new))

    def test(self, root: Path) -> str:
        """The node id of the test that is tried first."""
        file, _, function = self.noticed_by.partition("::")
        found = [
            f"{path.relative_to(root).as_posix()}::{name}"
            for path in files_named(root, file)
            for name in functions_of(path)
            if name.rpartition("::")[2] == function
        ]
        if len(found) != 1:
            raise SystemExit(f"mutant {self.name}: there are {len(found)} tests {self.noticed_by}, not one")
        return found[0]


def functions_of(path: Path) -> Iterator[str]:
    """The test functions of a file, as node ids have them: those of classes behind the class."""
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        yield from (prefix + part.name for part in inner if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))


def files_named(root: Path, name: str) -> Iterator[Path]:
    """The test files of this name, in whichever folder."""
    yield from sorted((root / "tests").rglob(name))


def read_mutants() -> list[Mutant]:
    """Every mutant, in order of the laws."""
    table = tomllib.loads(TABLE.read_text())
    return [Mutant(name, **fields) for name, fields in table.items()]
