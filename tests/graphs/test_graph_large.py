"""Graphs whose parts are each small enough to be a value, and that are larger than one value together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.graphs.running import HeldScans, run
from tests.laws.counting_driver import fresh_world
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Break,
    ChildFailedError,
    Client,
    Context,
    Continue,
    CriticalError,
    Driver,
    GraphFailedError,
    Runtime,
    Status,
    WorkflowFailedError,
    open_driver,
    run_workflow,
    workflow,
)
from workflow_sdk.graphs import E, Graph, GraphResult, Limits, arc, quorum
from workflow_sdk.graphs.stored import stored_graph
from workflow_sdk.rows.keys import MARKINGS, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, crash_everywhere, replay_check

LARGE = 700_000
STEPS = ("a", "b", "c")
ran: list[str] = []


def large(name: str, **options: Any) -> Graph:
    """Three steps that give much, and one that needs them."""
    graph = Graph(name, **options)

    async def give(ctx: Context, args: Any) -> str:
        ran.append(ctx.path.split("/")[1])
        return ctx.path.split("/")[1] * LARGE

    async def meet(ctx: Context, args: dict[str, str]) -> dict[str, int]:
        ran.append("meet")
        return {name: len(text) for name, text in args.items()}

    async def last(ctx: Context, args: Any) -> list[str]:
        ran.append("last")
        return [*sorted(args["outputs"]), args["instance_id"]]

    async def broken(ctx: Context, args: Any) -> None:
        raise CriticalError("no")

    for one in STEPS:
        graph.step(one, give)
    graph.step("meet", meet, needs=list(STEPS))
    if "final" in options:
        graph.step("last", last)
    if name == "broken":
        graph.step("broken", broken)
    return graph


def turning() -> Graph:
    """A fork and its join in a cycle; each turn gives other outputs."""
    graph = Graph("turning", context={"turn": 0})

    async def fork(ctx: Context, args: Any) -> None:
        ctx.patch(turn=ctx.vars["turn"] + 1)

    async def give(ctx: Context, args: Any) -> str:
        return str(ctx.vars["turn"]) * LARGE

    async def meet(ctx: Context, args: dict[str, str]) -> dict[str, list[Any]]:
        await ctx.sleep("nap", 60)
        return {name: [text[0], len(text)] for name, text in args.items()}

    graph.step("fork", fork, mode="inclusive", next=list(STEPS))
    for one in STEPS:
        graph.step(one, give)
    graph.step("meet", meet, needs=list(STEPS), next=[arc("fork", when=E.ctx.turn < 2)])
    graph.step("some", meet, needs=list(STEPS), join="alive")
    return graph


def several() -> Graph:
    """Joins of other kinds."""
    graph = large("several")

    async def meet(ctx: Context, args: dict[str, str]) -> list[str]:
        await ctx.sleep("nap", 60)
        return [*args]

    graph.step("alive", meet, needs=list(STEPS), join="alive")
    graph.step("most", meet, needs=list(STEPS), join=quorum(3))
    return graph


def passing() -> Graph:
    """As in a turning graph; but the second turn begins while the join of the first is under way."""
    graph = Graph("passing", context={"turn": 0})

    async def fork(ctx: Context, args: Any) -> None:
        ctx.patch(turn=ctx.vars["turn"] + 1)

    async def give(ctx: Context, args: Any) -> str:
        return str(ctx.vars["turn"]) * LARGE

    async def meet(ctx: Context, args: dict[str, str]) -> None:
        await ctx.sleep("nap", 60)
        ran.append("".join(text[0] for text in args.values()))

    async def later(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 30)

    graph.step("fork", fork, mode="inclusive", next=[*STEPS, arc("later", when=E.ctx.turn < 2)])
    for one in STEPS:
        graph.step(one, give)
    graph.step("later", later, next="fork")
    graph.step("meet", meet, needs=list(STEPS))
    return graph


def wide(steps: int = 100) -> Graph:
    """What becomes of a hundred steps at once fits into no single commit."""
    graph = Graph("wide", context={"text": "x" * 9_000 * steps})

    async def nothing(ctx: Context) -> None:
        await ctx.sleep("nap", 60)

    for number in range(steps):
        graph.step(f"{number}{'x' * 900}", nothing)
    return graph


turns, kinds = turning(), several()
plain, broken, summed = large("plain"), large("broken"), large("summed", final="last")


@workflow
async def around(ctx: Context, _: None) -> int:
    """A graph as one of several operations."""
    found = await ctx.graph("inner", plain)
    await ctx.sleep("nap", 60)
    return sum(len(found.outputs[one]) for one in STEPS)


@workflow
async def catching(ctx: Context, _: None) -> list[str]:
    """The failure of a large graph is caught."""
    try:
        await ctx.graph("inner", broken)
    except GraphFailedError as error:
        await ctx.sleep("nap", 60)
        return sorted(error.result.outputs)
    return []


@workflow
async def parent(ctx: Context, _: None) -> str:
    """A large graph as a child."""
    try:
        await ctx.child("child", plain, id="child")
    except ChildFailedError as error:
        return error.error.type
    return ""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


def is_whole(result: GraphResult) -> bool:
    """Whether all of it is there."""
    return [result.outputs[one] for one in STEPS] == [one * LARGE for one in STEPS]


async def test_a_join_is_given_more_than_one_value_can_hold_and_so_is_the_caller(driver: Driver) -> None:
    async with Runtime(driver, workflows=[plain]) as runtime:
        handle = await runtime.start(plain, id="i")
        result = await handle.result(timeout=PATIENCE)
        assert is_whole(result)
        assert result.outputs["meet"] == dict.fromkeys(STEPS, LARGE)
        assert (await runtime.handle(plain, "i").info()).output["outputs"]["a"] == "a" * LARGE
        untyped: Any = await runtime.handle("plain", "i").result()
        assert untyped["outputs"]["b"] == "b" * LARGE
    report = await replay_check(driver, [plain], finished=1)
    assert report.ok, report


async def test_a_join_in_a_cycle_is_given_what_belongs_to_its_turn(world: World) -> None:
    result = await run(world, turns)
    assert result.outputs["meet"] == {one: ["2", LARGE] for one in STEPS}


@pytest.mark.law(4)
@pytest.mark.settings(mode="yield")
async def test_a_join_that_is_replayed_is_given_what_it_began_with_though_its_needs_were_done_again(
    world: World,
) -> None:
    assert (await run(world, passing())).outcomes["meet"].firings == 2
    assert ran == ["111", "222"]


async def test_every_kind_of_join_is_given_more_than_one_value_can_hold(world: World) -> None:
    result = await run(world, kinds)
    assert result.outputs["alive"] == result.outputs["most"] == list(STEPS)


async def test_the_final_step_is_given_more_than_one_value_can_hold(driver: Driver) -> None:
    async with Runtime(driver, workflows=[summed]) as runtime:
        result = await (await runtime.start(summed, id="i")).result(timeout=PATIENCE)
    assert result.outputs["last"] == [*STEPS, "meet", "i"]


async def test_a_failed_graph_keeps_its_large_result(driver: Driver) -> None:
    async with Runtime(driver, workflows=[broken]) as runtime:
        handle = await runtime.start(broken, id="i")
        with pytest.raises(WorkflowFailedError) as failed:
            await handle.result(timeout=PATIENCE)
        assert is_whole(failed.value.result)
        assert (await handle.info()).output["outcomes"]["broken"]["status"] == "failed"


async def test_run_workflow_gives_a_large_result_also_when_it_has_ended_before(driver: Driver) -> None:
    for _ in range(2):
        found = await run_workflow(plain, driver=driver, instance_id="i")
        assert found.status is Status.COMPLETED
        assert found.output is not None
        assert is_whole(found.output)
    assert sorted(ran) == [*STEPS, "meet"]


@pytest.mark.law(1)
@pytest.mark.parametrize("flow", [plain, broken, summed, turns, kinds, around, catching], ids=lambda flow: flow.name)
async def test_it_ends_the_same_wherever_it_is_killed(flow: Any) -> None:
    assert (await crash_everywhere(flow, commits_max=10)).runs


@pytest.mark.law(1)
async def test_it_begins_as_a_whole_wherever_it_is_killed() -> None:
    assert (await crash_everywhere(wide())).runs


@pytest.mark.law(1)
async def test_killed_while_it_begins_it_begins_anew_with_the_steps_that_it_has_now(tmp_path: Path) -> None:
    """Each time, code with fewer steps takes over."""
    for commit in range(1, 100):
        async with fresh_world(tmp_path) as world:
            with pytest.raises((SimulatedCrash, BaseExceptionGroup)):
                await world.once(wide(), driver=FaultyDriver(world.driver, crash_after=commit))
            if await world.history():
                assert commit > 3, "it takes several commits to begin"
                break
            assert (await world.once(wide(3), mode="yield")).wake_at is not None
            world.clock.advance(60)
            result = await world.once(wide(3), mode="yield")
            assert result.status is Status.COMPLETED, result.error
    else:
        raise AssertionError("it never began")


async def test_restarted_from_a_step_it_has_a_new_result(driver: Driver) -> None:
    async with Runtime(driver, workflows=[plain]) as runtime:
        handle = await runtime.start(plain, id="i")
        await handle.result(timeout=PATIENCE)
        ran.clear()
        await handle.restart_from("plain/c/~0")
        assert is_whole(await handle.result(timeout=PATIENCE))
        assert "c" in ran[:-1], "and whatever had ended after it"
        assert ran[-1] == "meet"


async def test_restarted_it_has_a_result_that_fits_into_one_value_though_the_one_before_did_not(driver: Driver) -> None:
    sizes = [5, LARGE]
    graph = Graph("shrinking")

    async def give() -> str:
        return "x" * sizes[-1]

    for one in STEPS:
        graph.step(one, give)
    async with Runtime(driver, workflows=[graph]) as runtime:
        handle = await runtime.start(graph, id="i")
        assert (await handle.result(timeout=PATIENCE)).outputs == dict.fromkeys(STEPS, "x" * LARGE)
        sizes.pop()
        await handle.restart_from("shrinking/a/~0")
        result = await handle.result(timeout=PATIENCE)
        assert result.outputs["a"] == "xxxxx"
        info = await handle.info()
        assert info.output["outputs"]["a"] == "xxxxx"


much = Graph("much")
for _step in STEPS:
    much.step(_step, lambda: "x" * LARGE)


@workflow
async def loops(ctx: Context, turns: int) -> None:
    """A large result in every turn."""

    async def turn(ctx: Context, number: int) -> Break[None] | Continue[int]:
        await ctx.graph("graph", much)
        return Continue(number + 1) if number < turns else Break(None)

    await ctx.loop("loop", turn, 1, commit_interval=1)


@workflow
async def loses(ctx: Context) -> None:
    """A large result in a branch that loses a race later."""

    async def loser(ctx: Context) -> None:
        await ctx.graph("graph", much)
        await ctx.listen("never")

    async def winner(ctx: Context) -> None:
        await ctx.sleep("nap", 60)

    await ctx.race("race", {"loser": loser, "winner": winner})


async def parts_left(world: World, id: str = "i") -> int:
    """How many rows there are beside the history of an instance."""
    return len(await world.driver.scan(*InstanceKeys(id).range(MARKINGS)))


@pytest.mark.law(21)
async def test_a_loop_keeps_no_more_results_than_turns(world: World) -> None:
    assert (await world.run(loops, 2)).status is Status.COMPLETED
    few = await parts_left(world)
    assert few
    assert (await world.run(loops, 6, id="more")).status is Status.COMPLETED
    assert await parts_left(world, "more") == few


@pytest.mark.law(21)
@pytest.mark.settings(mode="yield")
async def test_a_branch_that_loses_in_a_later_run_leaves_no_result(world: World) -> None:
    assert (await world.once(loses)).wake_at is not None
    assert await parts_left(world)
    assert (await world.run(loses)).status is Status.COMPLETED
    assert await parts_left(world) == 0


class RestartedInBetween:
    """A store in which somebody restarts the instance just before the parts of its result are read."""

    def __init__(self, driver: Driver, restart: Callable[[], Awaitable[None]]) -> None:
        self._driver = driver
        self._restart = restart
        self.restarts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def scan(self, begin: bytes, end: bytes, /, **how: Any) -> list[tuple[bytes, bytes]]:
        if begin.startswith(InstanceKeys("i").space + MARKINGS) and not self.restarts:
            self.restarts += 1
            await self._restart()
        return await self._driver.scan(begin, end, **how)


@pytest.mark.parametrize("looks", ["waits", "looks"])
async def test_who_reads_a_large_result_while_it_is_restarted_is_not_given_half_of_it(
    driver: Driver, looks: str
) -> None:
    async with Runtime(driver, workflows=[plain]) as runtime:
        handle = await runtime.start(plain, id="i")
        await handle.result(timeout=PATIENCE)
        between: Any = RestartedInBetween(driver, lambda: handle.restart_from("plain/meet/~0"))
        async with Client(between) as client:
            if looks == "waits":
                assert is_whole(await client.handle(plain, "i").result(timeout=PATIENCE))
            else:
                output = (await client.handle(plain, "i").info()).output
                assert output is None or output["outputs"]["a"] == "a" * LARGE
        assert between.restarts == 1
        assert is_whole(await handle.result(timeout=PATIENCE))


@pytest.mark.law(17)
async def test_what_ends_while_another_end_is_decided_goes_with_several_commits() -> None:
    """The end of `wins` cancels `loses`, and waits for a copy of its history. Meanwhile all the others end."""
    store = HeldScans(await open_driver("memory://"), turns=50)
    graph = Graph("many")

    async def undone(value: Any) -> None: ...

    @graph.step
    async def wins(ctx: Context, args: Any) -> None:
        await ctx.step("bill", lambda: 1, rollback=undone)
        store.is_armed = True

    @graph.step
    async def loses(ctx: Context, args: Any) -> None:
        await ctx.listen("never")

    async def much() -> str:
        await store.held.wait()
        return "x" * LARGE

    for number in range(20):
        graph.step(f"much {number}", much)
    graph.step("first", lambda: None, needs=["wins", "loses"], join=quorum(1))

    async def lets_go() -> None:
        await store.held.wait()
        await anyio.wait_all_tasks_blocked()
        store.let_go.set()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(lets_go)
            assert (await run_workflow(graph, driver=store, instance_id="i")).status is Status.COMPLETED
    assert max(store.weights) < 4 * LARGE + 1_000_000


async def test_a_parent_is_told_that_the_result_of_its_child_is_too_large(driver: Driver) -> None:
    async with Runtime(driver, workflows=[plain, parent]) as runtime:
        assert await (await runtime.start(parent, id="i")).result(timeout=PATIENCE) == "PayloadTooLargeError"
        assert is_whole(await runtime.handle(plain, "child").result())


@pytest.mark.law(17)
@pytest.mark.settings(store="fdb")
async def test_a_graph_begins_that_is_larger_than_a_commit_may_be(driver: Driver) -> None:
    """Its definition and its names are some megabytes each, and more than ten are what becomes of its steps at once."""
    graph = Graph("many", limits=Limits(starts=100), status="lenient")

    async def nothing() -> None: ...

    for number in range(4_000):
        graph.step(f"{number}{'x' * 900}", nothing)
    async with Runtime(driver, workflows=[graph]) as runtime:
        handle = await runtime.start(graph, id="i")
        result = await handle.result(timeout=PATIENCE)
        (run, *_) = await handle.history()
        stored = await stored_graph(runtime, run.definition)
    assert stored is not None
    assert stored.hash == graph.hash == run.definition
    assert len(result.outputs) == 100
    assert len(result.outcomes) == 4_000
