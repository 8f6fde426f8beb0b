"""Every kind of step takes the options that say how it stands among the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs.kinds.ends import end_of, seen, statuses
from tests.support import World
from workflow_sdk import Context, workflow
from workflow_sdk.graphs import E, Graph, task


@workflow
async def nothing(ctx: Context, args: Any) -> None:
    """A child that does nothing."""


async def same(args: Any) -> Any:
    return args


async def listed(args: Any) -> list[int]:
    return [1]


KINDS: dict[str, Any] = {
    "step": lambda graph, **options: graph.step("x", same, **options),
    "each": lambda graph, **options: graph.step("x", same, each=[1], **options),
    "pipeline": lambda graph, **options: graph.step("x", tasks=[task("t", same)], **options),
    "noop": lambda graph, **options: graph.noop("x", **options),
    "assign": lambda graph, **options: graph.assign("x", {"n": 1}, **options),
    "wait": lambda graph, **options: graph.wait("x", duration=1, **options),
    "call": lambda graph, **options: graph.call("x", transport="same", **options),
    "child": lambda graph, **options: graph.child("x", nothing, **options),
    "continue_with": lambda graph, **options: graph.continue_with("x", nothing, **options),
    "repeat": lambda graph, **options: graph.repeat("x", same, maximum=2, **options),
    "sequence": lambda graph, **options: graph.sequence("x", [same], **options),
    "fan_out": lambda graph, **options: graph.fan_out("x", same, over=[1], **options),
    "best_of": lambda graph, **options: graph.best_of("x", same, n=1, judge=same, **options),
    "tournament": lambda graph, **options: graph.tournament("x", [1], judge=same, **options),
    "generate_and_filter": lambda graph, **options: graph.generate_and_filter("x", listed, same, **options),
}


def with_one(kind: str, **options: Any) -> Graph:
    """A graph with a step of this kind, which needs another."""
    graph = Graph("options", transports={"same": same})
    graph.noop("before")
    KINDS[kind](graph, needs="before", **options)
    return graph


@pytest.mark.parametrize("kind", KINDS)
async def test_it_joins_and_is_followed_by_all_arcs_that_match(world: World, kind: str) -> None:
    graph = Graph("options", transports={"same": same})
    graph.noop("before", next="x")
    KINDS[kind](graph, mode="inclusive", next=["one", "two"], trust="trusted", access="write")
    graph.step("one", seen)
    graph.step("two", seen)
    graph.noop("after", needs=["one", "two"])
    result = end_of(await world.run(graph))
    assert {name: statuses(result)[name] for name in ("x", "one", "two", "after")} == dict.fromkeys(
        ("x", "one", "two", "after"), "completed"
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_it_needs_others(world: World, kind: str) -> None:
    result = end_of(await world.run(with_one(kind, join="alive")))
    assert (result.status, statuses(result)["x"]) == ("succeeded", "completed")


@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_admitted_or_not(world: World, kind: str) -> None:
    result = end_of(await world.run(with_one(kind, admit=E.args.before == 1, on_deny="discard")))
    assert statuses(result) == {"before": "completed", "x": "denied"}


@pytest.mark.parametrize("kind", KINDS)
async def test_it_may_not_write_in_quarantine(world: World, kind: str) -> None:
    graph = with_one(kind, trust="quarantined", access="write")
    graph.settings["status"] = "lenient"
    result = end_of(await world.run(graph))
    assert statuses(result) == {"before": "completed", "x": "denied"}
    assert "quarantine" in result.outcomes["x"].reason
