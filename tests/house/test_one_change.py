"""Everything that is written is a change: one place commits, and what is decided can be decided again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "workflow_sdk"
CHANGES = sorted((ENGINE / "changes").rglob("*.py"))
COMMITS = {
    "changes/apply.py",
    "instance/flushing.py",  # the hot path: what an instance writes of its own
    "cli/doctor.py",  # measures the store
}
CHECKS = {"instance/flushing.py"}
DECIDES = {"apply", "trial"}
"""The modules that make changes; the others only say what they are."""
IMPURE = {"anyio", "asyncio", "logging", "os", "random", "socket", "threading", "time", "uuid"}


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ENGINE.rglob("*.py")):
        place = path.relative_to(ENGINE).as_posix()
        if not place.startswith("testing/") and place != "driver.py":
            yield place, ast.parse(path.read_text())


def _called(tree: ast.AST, method: str, arguments: int) -> bool:
    """Whether a method of this name is called with so many arguments."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and len(node.args) == arguments
        and ast.unparse(node.func.value).endswith(("driver", "_driver", "store", "batch"))
        for node in ast.walk(tree)
    )


def test_only_these_commit() -> None:
    assert {place for place, tree in _sources() if _called(tree, "commit", 1)} == COMMITS


def test_no_check_is_placed_by_hand() -> None:
    assert {place for place, tree in _sources() if _called(tree, "check", 2)} == CHECKS


@pytest.mark.parametrize("path", CHANGES, ids=lambda path: path.stem)
def test_a_change_waits_for_nothing(path: Path) -> None:
    """It may run many times, and in a test without an event loop."""
    tree = ast.parse(path.read_text())
    if path.stem in DECIDES:
        return
    waits = [node for node in ast.walk(tree) if isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith))]
    readers = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    assert not waits or path.stem == "instances", f"line {waits[0].lineno}"
    assert not readers or path.stem == "instances"
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not imported & IMPURE
