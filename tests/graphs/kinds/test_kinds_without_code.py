"""Steps that call no function of the author's: noop, assign, choose, task, wait, child, continue_with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.graphs.kinds.ends import end_of, seen, statuses
from tests.support import World
from workflow_sdk import Client, Context, DefinitionError, Status, workflow
from workflow_sdk.graphs import E, Graph, arc
from workflow_sdk.testing import VirtualClock, crash_everywhere

START = datetime(2030, 1, 1, tzinfo=UTC)


# Steps that run nothing.


async def test_a_noop_passes_control_on(world: World) -> None:
    graph = Graph("passes")
    graph.noop("first", next=arc("second", args={"n": E.workload.n}))
    graph.step("second", seen)
    result = end_of(await world.run(graph, {"n": 1}))
    assert result.outputs == {"first": None, "second": {"args": {"n": 1}, "context": {}}}


async def test_an_assignment_is_in_the_context_and_the_output(world: World) -> None:
    graph = Graph("assigns", context={"kept": 1, "n": 1})
    graph.assign("set", {"n": E.ctx.n + E.workload, "word": "E.ctx.n"}, next="look")
    graph.step("look", seen)
    result = end_of(await world.run(graph, 4))
    assert result.outputs["set"] == {"n": 5, "word": "E.ctx.n"}, "a text is a literal"
    assert result.outputs["look"]["context"] == {"kept": 1, "n": 5, "word": "E.ctx.n"}


async def test_an_assignment_of_a_path_that_is_missing_fails_with_the_kind_expression(world: World) -> None:
    graph = Graph("assigns")
    graph.assign("set", {"n": E.ctx.missing}, next=arc("mend", on="failed", args={"kind": E.error.kind}))
    graph.step("mend", seen)
    result = end_of(await world.run(graph))
    assert result.outcomes["set"].status == "failed"
    assert result.outputs["mend"] == {"args": {"kind": "expression"}, "context": {}}


@pytest.mark.parametrize(("kind", "way"), [("bug", "fix"), ("praise", "thank"), ("spam", "drop")])
async def test_a_choice_takes_the_first_arc_that_matches_or_otherwise(world: World, kind: str, way: str) -> None:
    graph = Graph("chooses")
    arcs = [arc("fix", when=E.workload == "bug"), arc("thank", when="workload == 'praise'")]
    graph.choose("which", arcs, otherwise="drop")
    for name in ("fix", "thank", "drop"):
        graph.noop(name)
    result = end_of(await world.run(graph, kind))
    assert {name for name, status in statuses(result).items() if status == "completed"} == {"which", way}


async def test_inline_steps_in_a_circle_survive_every_crash() -> None:
    graph = Graph("turns", context={"n": 0})
    graph.assign("count", {"n": E.ctx.n + 1}, next=[arc("count", when=E.ctx.n < 250), arc("over")])
    graph.noop("over")
    await crash_everywhere(graph)


# Tasks of people.


def asking(**how: Any) -> Graph:
    graph = Graph("asks")
    after = [arc("done", args={"value": E.output.result, "by": E.output.by}), arc("late", on="failed")]
    graph.task("approve", payload={"order": E.workload}, roles=["clerk"], type=bool, next=after, **how)
    graph.step("done", seen)
    graph.step("late", seen)
    return graph


async def test_a_task_is_listed_under_its_name_and_its_result_goes_on(world: World) -> None:
    graph = asking()
    first = await world.once(graph, "o-1", mode="yield")
    assert first.status is Status.WAITING
    async with Client(world.driver, clock=world.clock) as client:
        (task,) = (await client.tasks.list()).items
        assert (task.name, task.payload, task.roles) == ("approve", {"order": "o-1"}, ("clerk",))
        await client.tasks.complete(task.id, True, by="ada", roles=["clerk"])
    # It was evicted meanwhile: all that it knows is in the store.
    result = end_of(await world.once(graph, mode="yield"))
    assert result.outputs["done"]["args"] == {"value": True, "by": "ada"}
    assert result.outcomes["late"].status == "never_reached"


async def test_a_task_that_nobody_does_in_time_fails_with_the_kind_timeout(world: World) -> None:
    graph = Graph("asks")
    graph.task("approve", timeout=timedelta(days=2), next=arc("late", on="failed", args={"kind": E.error.kind}))
    graph.step("late", seen)
    result = end_of(await world.run(graph))
    assert result.outputs["late"]["args"] == {"kind": "timeout"}
    assert world.clock.time() >= (START + timedelta(days=2)).timestamp()


async def test_a_task_survives_every_crash() -> None:
    await crash_everywhere(asking(timeout=60), "o-1", script=[("approve", True)])
    await crash_everywhere(asking(timeout=60), "o-1")


# Waits.


async def test_a_wait_for_a_message_gives_its_payload(world: World) -> None:
    graph = Graph("listens")
    graph.wait("paid", message=E.workload.message, type=int, next=arc("look", args={"cents": E.output}))
    graph.step("look", seen)
    result = end_of(await world.run(graph, {"message": "payment"}, script=[("payment", 500)]))
    assert result.outputs["paid"] == 500
    assert result.outputs["look"]["args"] == {"cents": 500}


async def test_a_message_that_does_not_come_in_time_is_a_failure_of_the_kind_timeout(world: World) -> None:
    graph = Graph("listens")
    late = arc("late", on="failed", when=E.error.kind == "timeout")
    graph.wait("paid", message="payment", timeout=timedelta(hours=1), next=["thank", late])
    graph.noop("thank")
    graph.noop("late")
    result = end_of(await world.run(graph))
    assert statuses(result) == {"paid": "failed", "thank": "never_reached", "late": "completed"}
    assert result.status == "succeeded", "an arc has handled it"


@pytest.mark.parametrize(
    "how",
    [
        {"duration": timedelta(hours=1)},
        {"duration": 3600},
        {"duration": E.workload.seconds},
        {"until": START + timedelta(hours=1)},
        {"until": E.workload.until},
        {"until": E.workload.when},
        {"duration": E.workload.pause},
    ],
    ids=str,
)
async def test_a_wait_for_a_time_is_over_then(world: World, how: dict[str, Any]) -> None:
    world.clock = VirtualClock(START, quiet=0.1)
    graph = Graph("waits")
    graph.wait("pause", **how, next="look")
    graph.step("look", seen)
    when = START + timedelta(hours=1)
    workload = {"seconds": 3600, "pause": timedelta(hours=1), "until": when.isoformat(), "when": when}
    end_of(await world.run(graph, workload))
    assert world.clock.time() == (START + timedelta(hours=1)).timestamp()


@pytest.mark.parametrize(
    "how", [{"duration": -1}, {"duration": E.workload}, {"until": "tomorrow"}, {"until": "2030-01-01"}]
)
async def test_a_wait_for_what_is_no_time_is_an_expression_error(world: World, how: dict[str, Any]) -> None:
    graph = Graph("waits")
    graph.wait("pause", **how, next=arc("mend", on="failed", args={"kind": E.error.kind}))
    graph.step("mend", seen)
    result = end_of(await world.run(graph, "soon"))
    assert result.outputs["mend"]["args"] == {"kind": "expression"}


async def test_waits_survive_every_crash() -> None:
    graph = Graph("waits")
    graph.wait("paid", message="payment", timeout=60, next=["pause", arc("pause", on="failed")])
    graph.wait("pause", duration=5)
    await crash_everywhere(graph, script=[("payment", 3)])
    await crash_everywhere(graph)


# Other instances.


@workflow
async def doubled(ctx: Context, number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    await ctx.sleep("a while", 10)
    return 2 * number


def with_child() -> Graph:
    graph = Graph("parent")
    graph.child("work", workflow=doubled, input=E.workload, next=["done", arc("failed", on="failed")])
    graph.noop("done")
    graph.noop("failed")
    return graph


async def test_the_output_of_a_child_is_that_of_the_step(world: World) -> None:
    result = end_of(await world.run(with_child(), 4))
    assert result.outputs["work"] == 8
    assert result.outcomes["failed"].status == "never_reached"


async def test_a_child_that_fails_fails_the_step_with_its_error(world: World) -> None:
    result = end_of(await world.run(with_child(), -1))
    assert result.outcomes["work"].status == "failed"
    assert "negative" in result.outcomes["work"].reason
    assert statuses(result)["failed"] == "completed"


async def test_children_survive_every_crash() -> None:
    await crash_everywhere(with_child(), 4, workflows=[doubled])
    await crash_everywhere(with_child(), -1, workflows=[doubled])


async def test_a_successor_is_started_once_and_not_waited_for(world: World) -> None:
    graph = Graph("goes on")
    graph.continue_with("next", workflow=doubled, input=E.workload, next="after")
    graph.noop("after")
    result = end_of(await world.once(graph, 4))
    async with Client(world.driver, clock=world.clock) as client:
        info = await client.handle(doubled, result.outputs["next"]).info()
        assert info.workflow == "doubled"
        assert not info.status.is_terminal
    await crash_everywhere(graph, 4, workflows=[doubled])


# Mistakes are told where they are made.


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda graph: graph.noop("a", retries=3), "no option retries"),
        (lambda graph: graph.wait("a"), "one thing"),
        (lambda graph: graph.wait("a", message="m", duration=3), "one thing"),
        (lambda graph: graph.wait("a", duration=3, timeout=3), "for messages"),
        (lambda graph: graph.wait("a", until=datetime(2030, 1, 1)), "no time zone"),  # noqa: DTZ001  # it is the mistake
        (lambda graph: graph.task("a", timeout=0), "must be positive"),
        (lambda graph: graph.assign("a", ["n"]), "a dict of names"),
        (lambda graph: graph.choose("a", ["b"], next="c"), "one of its arcs"),
        (lambda graph: graph.child("a", workflow=3), "a workflow or the name"),
        (lambda graph: graph.noop(""), "the name of a step"),
        (lambda graph: [graph.noop("a"), graph.noop("a")], "two steps 'a'"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(declare: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        declare(Graph("wrong"))
