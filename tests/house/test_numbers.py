"""How large the house is, in numbers, in one table. Whoever brings a figure down brings it down here, too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[2]
DOORS = {"Context", "Client", "Graph", "MachineClient"}
"""What authors and operators hold in their hands may have as many methods as they need."""

ENGINE: dict[str, float] = {
    "modules": 170,
    "lines": 36_200,
    "longest module": 400,
    "modules over 400 lines": 0,
    "longest function": 50,
    "functions of complexity over 10": 20,
    "imports of a module, on average": 7.3,
    "longest chain of imports": 27,
    "classes over 15 public methods or 25 in all": 0,
}
GRAPHS: dict[str, float] = {
    "modules": 103,
    "lines": 16_700,
    "longest module": 400,
    "modules over 400 lines": 0,
    "longest function": 45,
    "functions of complexity over 10": 5,
    "classes over 15 public methods or 25 in all": 0,
}
MACHINES: dict[str, float] = {
    "modules": 45,
    "lines": 8_100,
    "longest module": 400,
    "modules over 400 lines": 0,
    "longest function": 40,
    "functions of complexity over 10": 5,
    "classes over 15 public methods or 25 in all": 0,
}
LIMITS = {"engine": ENGINE, "graphs": GRAPHS, "machines": MACHINES}
"""The layers that stand on the engine are counted apart, each by itself."""
LAYERS = {
    "graphs": (
        "workflow_sdk.graphs",
        "workflow_sdk.cli.graphs",
        "workflow_sdk.testing.explor",
        "workflow_sdk.testing._ways",
    ),
    "machines": (
        "workflow_sdk.machines",
        "workflow_sdk.doors.machines",
        "workflow_sdk.testing._cells",
        "workflow_sdk.cli.cells",
        "workflow_sdk.cli.journals",
    ),
}

BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert, ast.match_case)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees(part: str) -> dict[str, ast.Module]:
    """Every module of a part by its name."""
    if part in LAYERS:
        return {name: tree for name, tree in _all_trees().items() if name.startswith(LAYERS[part])}
    others = tuple(prefix for prefixes in LAYERS.values() for prefix in prefixes)
    return {name: tree for name, tree in _all_trees().items() if not name.startswith(others)}


@cache
def _all_trees() -> dict[str, ast.Module]:
    found: dict[str, ast.Module] = {}
    for base, package in ((ROOT, "workflow_sdk"), (ROOT / "drivers", "workflow_drivers")):
        for path in sorted((base / package).rglob("*.py")):
            name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text())
    return found


def lines_of(tree: ast.Module) -> int:
    return max((node.end_lineno or 0 for node in tree.body), default=1)


def functions(part: str) -> Iterator[Function]:
    for tree in trees(part).values():
        yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def complexity(function: ast.AST) -> int:
    """McCabe's: the ways through it, without those of the functions inside."""
    ways = 1
    for node in ast.iter_child_nodes(function):
        if isinstance(node, (Function, ast.Lambda)):
            continue
        ways += complexity(node) - 1
        ways += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            ways += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            ways += 1 + len(node.ifs)
    return ways


@cache
def imports(part: str) -> dict[str, set[str]]:
    """The modules of a part that each of its modules imports, also inside functions."""
    graph: dict[str, set[str]] = {}
    for name, tree in trees(part).items():
        found: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found.update(inner & trees(part).keys() or {node.module})
        graph[name] = (found & trees(part).keys()) - {name}
    return graph


def longest_chain(part: str) -> int:
    sys.setrecursionlimit(10_000)
    depths: dict[str, int] = {}

    def depth(name: str, above: frozenset[str]) -> int:
        if name not in depths:
            below = [depth(other, above | {name}) for other in imports(part)[name] if other not in above]
            depths[name] = 1 + max(below, default=0)
        return depths[name]

    return max(depth(name, frozenset()) for name in imports(part))


def wide_classes(part: str) -> list[str]:
    found: list[str] = []
    for tree in trees(part).values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name not in DOORS:
                methods = [part.name for part in node.body if isinstance(part, Function)]
                if sum(not name.startswith("_") for name in methods) > 15 or len(methods) > 25:
                    found.append(node.name)
    return found


@cache
def measured(part: str) -> dict[str, float]:
    sizes = {name: lines_of(tree) for name, tree in trees(part).items()}
    return {
        "modules": len(sizes),
        "lines": sum(sizes.values()),
        "longest module": max(sizes.values()),
        "modules over 400 lines": sum(size > 400 for size in sizes.values()),
        "longest function": max((each.end_lineno or 0) - each.lineno + 1 for each in functions(part)),
        "functions of complexity over 10": sum(complexity(each) > 10 for each in functions(part)),
        "imports of a module, on average": round(mean(map(len, imports(part).values())), 2),
        "longest chain of imports": longest_chain(part),
        "classes over 15 public methods or 25 in all": len(wide_classes(part)),
    }


CASES = [(part, what) for part, limits in LIMITS.items() for what in limits]


@pytest.mark.parametrize(("part", "what"), CASES)
def test_the_house_does_not_grow(part: str, what: str) -> None:
    assert measured(part)[what] <= LIMITS[part][what]


@pytest.mark.parametrize(("part", "what"), CASES)
def test_what_has_shrunk_stays_small(part: str, what: str) -> None:
    """Else the next change may take back what this one has gained."""
    assert measured(part)[what] >= 0.9 * LIMITS[part][what], f"{what}: bring the limit down"


def test_complexity_is_counted_as_people_do() -> None:
    source = "def f(a):\n    if a and a.b:\n        return [c for c in a if c]\n    def g():\n        if a: pass\n"
    (function,) = ast.parse(source).body
    assert complexity(function) == 5
