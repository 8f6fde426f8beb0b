"""The core can be tested without a loop, a clock or luck, because it has none: checked in its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "workflow_sdk"
MODULES = sorted(
    path for room in ("rows", "values", "journal", "graphs/expressions") for path in (ENGINE / room).rglob("*.py")
)

WAITING = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
IMPURE = {"anyio", "asyncio", "logging", "os", "random", "secrets", "socket", "threading", "time", "uuid"}
AS_A_TYPE = {("uuid", "UUID")}
CLOCKS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}


def impurities(source: str) -> Iterator[str]:
    """What a module of the core must not do, as `line: what`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, WAITING):
            yield f"{node.lineno}: {type(node).__name__}"
        elif isinstance(node, ast.comprehension) and node.is_async:
            yield f"{node.target.lineno}: async comprehension"
        elif isinstance(node, ast.Import):
            yield from (f"{node.lineno}: import {a.name}" for a in node.names if a.name.split(".")[0] in IMPURE)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module or ""
            names = [a.name for a in node.names if (module, a.name) not in AS_A_TYPE]
            if module.split(".")[0] in IMPURE and names:
                yield f"{node.lineno}: from {module} import {', '.join(names)}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in CLOCKS:
            # No import gives these away: datetimes are values to the core.
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_there_is_a_core() -> None:
    assert MODULES


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_core_is_pure(path: Path) -> None:
    assert list(impurities(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "async def f(): ...",
        "import os.path",
        "from uuid import UUID, uuid4",
        "from asyncio import sleep",
        "from datetime import datetime\nx = datetime.now()",
    ],
)
def test_the_check_sees_it(source: str) -> None:
    assert list(impurities(source))


def test_a_uuid_as_a_type_is_no_chance() -> None:
    assert list(impurities("from uuid import UUID")) == []
