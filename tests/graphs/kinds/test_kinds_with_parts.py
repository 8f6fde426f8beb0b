"""Steps whose one firing calls functions again and again: each, repeat, sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.graphs.kinds.ends import end_of, seen, statuses
from tests.support import World
from workflow_sdk import Context, CriticalError, DefinitionError, Status
from workflow_sdk.graphs import E, Graph, Limits, arc, task
from workflow_sdk.testing import crash_everywhere

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


async def square(number: int) -> int:
    calls.append(number)
    return number * number


async def noted(ctx: Context, item: int) -> int:
    """Has operations, and changes the context."""
    value = await ctx.step("square", square, item)
    await ctx.sleep("rest", 5)
    ctx.patch(**{f"item {item}": value})
    return value


async def even_only(number: int) -> int:
    calls.append(number)
    if number % 2:
        raise CriticalError(f"{number} is odd")
    return number


# Each.


@pytest.mark.parametrize("fn", [square, noted])
async def test_each_gives_the_list_in_the_order_of_the_items(world: World, fn: Any) -> None:
    graph = Graph("each")
    graph.step("squares", fn, each=E.workload, parallel=2)
    result = end_of(await world.run(graph, [3, 1, 2]))
    assert result.outputs["squares"] == [9, 1, 4]
    assert sorted(calls) == [1, 2, 3]


@pytest.mark.parametrize("each", [E.args.numbers, "args.numbers", [1, 2]])
async def test_the_list_is_an_expression_a_text_of_one_or_a_list(world: World, each: Any) -> None:
    graph = Graph("each")
    graph.step("squares", square, each=each)
    assert end_of(await world.run(graph, {"numbers": [1, 2]})).outputs["squares"] == [1, 4]


async def test_an_empty_list_is_done_at_once(world: World) -> None:
    graph = Graph("each")
    graph.step("squares", square, each=E.workload, next="after")
    graph.noop("after")
    result = end_of(await world.run(graph, []))
    assert result.outputs["squares"] == []
    assert statuses(result)["after"] == "completed"


async def test_what_is_no_list_is_an_expression_error(world: World) -> None:
    graph = Graph("each")
    graph.step("squares", square, each=E.workload, next=arc("mend", on="failed", args={"kind": E.error.kind}))
    graph.step("mend", seen)
    result = end_of(await world.run(graph, {"no": "list"}))
    assert result.outputs["mend"]["args"] == {"kind": "expression"}
    assert "a list" in result.outcomes["squares"].reason
    assert calls == []


async def test_a_failed_item_fails_the_firing_after_the_others_have_ended(world: World) -> None:
    graph = Graph("each")
    graph.step("evens", even_only, each=E.workload, parallel=1, next=arc("mend", on="failed"))
    graph.noop("mend")
    result = end_of(await world.run(graph, [2, 3, 4]))
    assert statuses(result) == {"evens": "failed", "mend": "completed"}
    assert "3 is odd" in result.outcomes["evens"].reason
    assert calls == [2, 3, 4]


async def test_no_more_than_parallel_items_run_at_once(world: World) -> None:
    running: list[int] = []
    most: list[int] = []

    async def watched(item: int) -> None:
        running.append(item)
        most.append(len(running))
        await anyio.sleep(0.001)
        running.remove(item)

    graph = Graph("each")
    graph.step("all", watched, each=list(range(6)), parallel=2)
    end_of(await world.run(graph))
    assert max(most) <= 2


@pytest.mark.law(1)
async def test_the_event_of_a_loop_is_loop_done_and_routes_once(world: World) -> None:
    graph = Graph("each")
    arcs = [arc("wrong", when=E.event.name == "step.done"), arc("right", when=E.event.name == "loop.done")]
    graph.step("squares", square, each=E.workload, mode="inclusive", next=arcs)
    graph.noop("wrong")
    graph.noop("right")
    result = end_of(await world.run(graph, [1, 2]))
    assert statuses(result) == {"squares": "completed", "wrong": "never_reached", "right": "completed"}
    assert result.outcomes["right"].firings == 1


async def test_the_event_of_a_loop_that_fails_is_step_failed(world: World) -> None:
    graph = Graph("each")
    graph.step("evens", even_only, each=E.workload, next=arc("told", on="failed", args={"event": E.event.name}))
    graph.step("told", seen)
    assert end_of(await world.run(graph, [1])).outputs["told"]["args"] == {"event": "step.failed"}


async def test_items_are_tried_again_as_often_as_the_step_says(world: World) -> None:
    tries: list[int] = []

    async def shaky(ctx: Context, item: int) -> int:
        tries.append(item)
        if tries.count(item) < 3:
            raise ConnectionError("not now")
        return item

    graph = Graph("each")
    graph.step("all", shaky, each=E.workload, retries=2)
    assert end_of(await world.run(graph, [5])).outputs["all"] == [5]
    assert tries == [5, 5, 5]


async def test_an_item_that_takes_too_long_fails_with_the_kind_timeout(world: World) -> None:
    async def slow(ctx: Context, item: int) -> None:
        await ctx.sleep("long", 100)

    graph = Graph("each")
    after = arc("told", on="failed", args={"kind": E.error.kind})
    graph.step("all", slow, each=E.workload, timeout=10, retries=0, next=after)
    graph.step("told", seen)
    assert end_of(await world.run(graph, [1, 2])).outputs["told"]["args"] == {"kind": "timeout"}


async def test_items_change_the_context_in_their_order_and_see_their_own_changes(world: World) -> None:
    async def item(ctx: Context, number: int) -> Any:
        ctx.patch(last=number)
        await ctx.sleep("rest", 10 - number)
        return ctx.vars["last"]

    graph = Graph("each", context={"last": 0})
    graph.step("all", item, each=[1, 2, 3], next="look")
    graph.step("look", seen)
    result = end_of(await world.run(graph))
    assert result.outputs["all"] == [1, 2, 3]
    assert result.outputs["look"]["context"] == {"last": 3}


@dataclass
class Point:
    x: int
    y: int


async def test_items_come_as_the_type_that_the_function_asks_for(world: World) -> None:
    async def moved(point: Point) -> Point:
        return Point(point.x + 1, point.y)

    graph = Graph("each")
    graph.step("all", moved, each=E.workload)
    assert end_of(await world.run(graph, [{"x": 1, "y": 2}])).outputs["all"] == [{"x": 2, "y": 2}]


async def test_items_survive_every_crash() -> None:
    graph = Graph("each")
    graph.step("squares", noted, each=E.workload, parallel=2, next="look")
    graph.step("look", seen)
    await crash_everywhere(graph, [3, 1, 2])


async def test_failing_items_survive_every_crash() -> None:
    graph = Graph("each")
    graph.step("evens", even_only, each=E.workload, next=arc("mend", on="failed"))
    graph.noop("mend")
    await crash_everywhere(graph, [2, 3, 4])


# Repeat.


async def counted(ctx: Context, args: dict[str, int]) -> dict[str, int]:
    ctx.patch(turns=ctx.vars.get("turns", 0) + 1)
    await ctx.step("square", square, args["n"])
    return {"n": args["n"] + 1}


async def test_a_repeat_turns_until_the_condition_is_true_and_gives_the_last_output(world: World) -> None:
    graph = Graph("repeats", context={"most": 4})
    graph.repeat("count", counted, until=(E.output.n >= E.ctx.most) & (E.workload.n == 0), next="look")
    graph.step("look", seen)
    result = end_of(await world.run(graph, {"n": 0}))
    assert result.outputs["count"] == {"n": 4}
    assert result.outputs["look"]["context"] == {"most": 4, "turns": 4}
    assert calls == [0, 1, 2, 3]
    assert result.outcomes["count"].firings == 1


async def test_a_repeat_turns_at_most_so_often(world: World) -> None:
    graph = Graph("repeats")
    graph.repeat("count", counted, until=E.output.n > 100, maximum=2)
    assert end_of(await world.run(graph, {"n": 0})).outputs["count"] == {"n": 2}


async def test_a_condition_without_an_answer_fails_the_repeat(world: World) -> None:
    graph = Graph("repeats")
    graph.repeat("count", counted, until=E.output.missing, next=arc("mend", on="failed", args={"kind": E.error.kind}))
    graph.step("mend", seen)
    assert end_of(await world.run(graph, {"n": 0})).outputs["mend"]["args"] == {"kind": "expression"}


async def test_a_turn_that_fails_fails_the_repeat(world: World) -> None:
    graph = Graph("repeats", status="lenient")
    graph.noop("first", next=arc("evens", args=E.workload))
    graph.repeat("evens", even_only, maximum=3)
    result = end_of(await world.run(graph, 3))
    assert (result.status, statuses(result)) == ("partial", {"first": "completed", "evens": "failed"})


async def test_a_condition_on_what_others_do_meanwhile_is_asked_once(world: World) -> None:
    graph = Graph("repeats")
    graph.noop("first", next=arc("count", args={"n": 0}))
    graph.repeat("count", counted, until="coalesce(results.first, 0) == 0 and output.n > 1")
    assert end_of(await world.run(graph)).outputs["count"] == {"n": 2}


@pytest.mark.parametrize("turns", [3, 25])
async def test_turns_survive_every_crash(turns: int) -> None:
    graph = Graph("repeats")
    graph.repeat("count", counted, until=E.output.n >= turns, next="look")
    graph.step("look", seen)
    await crash_everywhere(graph, {"n": 0}, commits_max=12)


# Sequence.


async def test_a_sequence_gives_each_what_the_one_before_it_gave(world: World) -> None:
    graph = Graph("in order")
    graph.sequence("work", [square, noted, task("last", square), square])
    assert end_of(await world.run(graph, 2)).outputs["work"] == 2**16
    assert calls == [2, 4, 16, 256]


async def test_a_sequence_ends_with_the_first_failure(world: World) -> None:
    graph = Graph("in order")
    graph.sequence("work", [even_only, square, even_only, square], next=arc("mend", on="failed"))
    graph.noop("mend")
    result = end_of(await world.run(graph, 4))
    assert statuses(result)["work"] == "completed"
    calls.clear()
    result = end_of(await world.run(graph, 3, id="j"))
    assert statuses(result) == {"work": "failed", "mend": "completed"}
    assert calls == [3]


async def test_a_sequence_survives_every_crash() -> None:
    graph = Graph("in order")
    graph.sequence("work", [square, noted, square])
    await crash_everywhere(graph, 2)


# Together with the rest.


async def test_a_firing_holds_one_slot_however_many_items_it_has(world: World) -> None:
    graph = Graph("limits", limits=Limits(running=1, starts=2))
    graph.step("squares", square, each=[1, 2, 3], next="after")
    graph.step("after", seen)
    assert end_of(await world.run(graph)).status == "succeeded"


async def test_a_rollback_of_items_undoes_those_that_were_done(world: World) -> None:
    graph = Graph("undoes")
    graph.step("evens", even_only, each=[2, 4, 3], retries=0, rollback=undone)
    run = await world.run(graph)
    assert run.status.is_terminal
    assert run.error is not None
    assert sorted(one for one in calls if isinstance(one, str)) == ["undo 2", "undo 4"]


@pytest.mark.law(11)
@pytest.mark.settings(mode="yield")
async def test_parts_are_undone_by_a_later_run_by_handlers_without_a_name(world: World) -> None:
    def undo(result: int) -> None:
        calls.append(f"undo {result}")

    async def fails_later(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)
        raise CriticalError("no")

    async def number(args: Any) -> int:
        return 9

    graph = Graph("undoes")
    graph.step("items", even_only, each=[2, 4], rollback=undo, next="line")
    graph.sequence("line", [task("one", number, rollback=undo), square], next="fails")
    graph.step("fails", fails_later)
    run = await world.run(graph, 3)
    assert run.status is Status.ROLLED_BACK
    assert sorted(one for one in calls if isinstance(one, str)) == ["undo 2", "undo 4", "undo 9"]


async def undone(number: int) -> None:
    calls.append(f"undo {number}")


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda graph: graph.repeat("a", square), "for ever"),
        (lambda graph: graph.repeat("a", square, maximum=0), "from 1 on"),
        (lambda graph: graph.repeat("a", "square", maximum=1), "is a function"),
        (lambda graph: graph.sequence("a", []), "a list of functions"),
        (lambda graph: graph.step("a", square, each=3), "is no expression"),
        (lambda graph: graph.step("a", square, each=[1], parallel=0), "from 1 on"),
        (lambda graph: graph.step("a", square, retires=3), "no option retires"),
        (lambda graph: graph.step("a", noted, each=[1], rollback=undone), "to the steps that it makes"),
        (lambda graph: graph.sequence("a", [square, noted], rollback=undone), "to the steps that it makes"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(declare: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        declare(Graph("wrong"))
