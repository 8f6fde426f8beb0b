"""What everybody may see of an instance: state, reference and progress, in the commit of what goes with them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import anyio
import pytest

from tests.runtime.looking import Bench, dump
from tests.runtime.parts import Rows, until_status
from tests.runtime.polling import until
from tests.runtime.test_listing import ids
from workflow_sdk import (
    Batch,
    Client,
    Context,
    Continue,
    ContinueAsNew,
    Driver,
    Failure,
    InstanceInfo,
    Progress,
    Runtime,
    Status,
    read_history,
    run_workflow,
    workflow,
)
from workflow_sdk.client.info import read_info
from workflow_sdk.rows.keys import CHANGES, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock
from workflow_sdk.values import Codec


def nothing() -> None:
    """A step."""


def breaks() -> None:
    """A step that fails."""
    raise ValueError("no")


@workflow
async def shows(ctx: Context) -> dict[str, Any]:
    """Shows something new with every step."""
    ctx.reference = "order-0"
    for number in range(4):
        ctx.state["step"] = number
        ctx.state.setdefault("list", []).append(number)
        ctx.progress(number, 4, f"at {number}")
        if number == 2:
            ctx.reference = "order-2"
        await ctx.step(f"step {number}", nothing)
    ctx.state = {"done": True}
    return dict(ctx.state)


def expected(steps: int) -> tuple[Any, ...]:
    """What is to be seen after so many steps."""
    if not steps:
        return {}, None, None
    last = steps - 1
    state = {"list": list(range(steps)), "step": last}
    return state, "order-0" if last < 2 else "order-2", Progress(last, 4, f"at {last}")


async def look(driver: Driver, id: str = "i") -> InstanceInfo:
    """What everybody may see."""
    return await read_info(driver, id, Codec())


@pytest.mark.parametrize("when", ["crash_before", "crash_after"])
async def test_it_is_seen_with_what_it_was_committed_with(driver: Driver, when: str) -> None:
    """Whatever commit the worker dies at."""
    for number in range(2, 7):
        id = f"{when}-{number}"
        faulty = FaultyDriver(driver, **{when: number})
        with pytest.raises(SimulatedCrash):
            await run_workflow(shows, driver=faulty, instance_id=id)
        steps = len(list(await read_history(driver, id)))
        assert steps == number - 1 - (when == "crash_before") or number == 6
        info = await look(driver, id)
        if info.status is Status.RUNNING:
            assert (info.state, info.reference, info.progress) == expected(steps)
        async with Client(driver) as client:
            found = {reference: await ids(client, reference=reference) for reference in ("order-0", "order-2")}
            assert [reference for reference, listed in found.items() if id in listed] == (
                [] if info.reference is None else [info.reference]
            )
        result = await run_workflow(shows, driver=driver, instance_id=id)
        info = await look(driver, id)
        assert result.output == info.state == {"done": True}
        assert (info.reference, info.progress) == ("order-2", Progress(3, 4, "at 3"))


async def test_found_by_reference(driver: Driver) -> None:
    @workflow
    async def refers(ctx: Context, numbers: list[str | None]) -> None:
        for turn, reference in enumerate(numbers):
            ctx.reference = reference
            await ctx.listen(f"wait {turn}", "m")

    clock = VirtualClock()
    async with Client(driver, clock=clock) as client:

        async def go(id: str) -> None:
            clock.advance(1)
            await run_workflow(refers, ["a", "b", None, "a"], driver=driver, instance_id=id, clock=clock)

        for number in range(5):
            await go(f"i{number}")
        everyone = [f"i{number}" for number in range(5)]
        for limit in (1, 2, 5, 100):
            assert await ids(client, reference="a", limit=limit) == everyone
        assert await ids(client, reference="a", workflow="refers", status="waiting", limit=2) == everyone
        assert await ids(client, reference="a", status="completed") == await ids(client, reference="b") == []
        for reference in ("b", None, "a"):
            await client.handle(refers, "i2").send("m")
            await go("i2")
            assert (await look(driver, "i2")).reference == reference
            for other in ("a", "b"):
                there = ["i2"] if reference == other else []
                rest = [id for id in everyone if id != "i2"] if other == "a" else []
                assert await ids(client, reference=other, limit=2) == sorted([*rest, *there])
        page = await client.list(reference="a", limit=2)
        await client.handle(refers, "i1").cancel()
        await client.delete("i1")
        await client.handle(refers, "i3").cancel()
        await client.delete("i3")
        following = await client.list(reference="a", limit=2, cursor=page.cursor)
        assert [info.id for info in following.items] == ["i2", "i4"]
    assert (await Rows.of(driver)).of_instance("i1") == []


async def test_it_outlives_a_new_start(driver: Driver) -> None:
    @workflow
    async def again(ctx: Context, number: int) -> Any:
        seen = [dict(ctx.state), ctx.reference]
        if number == 0:
            ctx.state["list"] = [0]
            ctx.reference = "r"
            ctx.progress(1)
        elif number == 2:
            ctx.state["list"].append(number)
        await ctx.sleep("nap", 1)
        return ContinueAsNew(number + 1) if number < 3 else seen

    bench = Bench(driver, again, 0)
    for number in range(4):
        await bench.go(min(number, 1))
        info = await bench.info()
        assert info.state == {"list": [0] if number < 2 else [0, 2]}
        assert (info.reference, info.progress) == ("r", Progress(1))
    assert (await bench.go(1)).output == [{"list": [0, 2]}, "r"]


@pytest.mark.law(14)
@pytest.mark.law(14)
async def test_it_outlives_new_starts_that_do_not_look_at_it(driver: Driver) -> None:
    @workflow
    async def again(ctx: Context, number: int) -> Any:
        if number == 0:
            ctx.state["list"] = [0]
            ctx.reference = "r"
        await ctx.sleep("nap", 1)
        return ContinueAsNew(number + 1) if number < 3 else [dict(ctx.state), ctx.reference]

    bench = Bench(driver, again, 0)
    for number in range(4):
        await bench.go(min(number, 1))
        info = await bench.info()
        assert (info.state, info.reference) == ({"list": [0]}, "r")
    assert (await bench.go(1)).output == [{"list": [0]}, "r"]


async def test_a_task_of_a_later_generation_has_the_reference(driver: Driver) -> None:
    @workflow
    async def asks(ctx: Context, number: int) -> Any:
        if number == 0:
            ctx.reference = "r"
            return ContinueAsNew(1)
        await ctx.task("task")
        return None

    bench = Bench(driver, asks, 0)
    await bench.go()
    async with Client(driver) as client:
        assert [task.name for task in (await client.tasks.list(reference="r")).items] == ["task"]


async def test_a_value_is_a_copy(driver: Driver) -> None:
    """Two names for one list are two lists, the first time too."""

    @workflow
    async def shares(ctx: Context) -> Any:
        async def assign(ctx: Context) -> None:
            mine = [1]
            ctx.state = {"a": mine, "b": mine}
            mine.append(2)

        await ctx.attempt("assign", assign)
        held = ctx.state["a"]
        await ctx.sleep("nap", 1)
        held.append(3)
        return dict(ctx.state)

    bench = Bench(driver, shares)
    await bench.go()
    assert (await bench.go(1)).output == {"a": [1, 3], "b": [1]}


async def test_the_state_is_a_mapping(driver: Driver) -> None:
    @workflow
    async def maps(ctx: Context) -> Any:
        ctx.state = MappingProxyType({"b": 1, "a": {"x": 1}})
        ctx.state["a"]["y"] = 2
        ctx.state["c"] = 3
        del ctx.state["b"]
        with pytest.raises(KeyError):
            del ctx.state["b"]
        with pytest.raises(KeyError):
            ctx.state["b"]
        ctx.state.update(d=4)
        return [repr(ctx.state), len(ctx.state), "c" in ctx.state, ctx.state.pop("d"), list(ctx.state)]

    result = await Bench(driver, maps).go()
    assert result.output == ["{'a': {'x': 1, 'y': 2}, 'c': 3, 'd': 4}", 3, True, 4, ["a", "c"]], result.error


async def test_nothing_of_it_comes_from_a_walk(driver: Driver) -> None:
    """The code is walked over its history to find what undoes its steps: that shows nothing."""

    @workflow
    async def fails(ctx: Context) -> None:
        ctx.state["seen"] = ctx.state.get("seen", 0) + 1
        ctx.reference = f"r{ctx.state['seen']}"
        undone: list[int] = []

        async def inside(ctx: Context) -> None:
            ctx.state["seen"] += 1
            await ctx.step("a", nothing, rollback=lambda _: undone.append(1))

        assert not isinstance(await ctx.attempt("try", inside), Failure)
        ctx.state["seen"] += 1
        await ctx.sleep("nap", 1)
        await ctx.step("b", breaks, retries=0)

    bench = Bench(driver, fails)
    await bench.go()
    before = await bench.info()
    assert before.state == {"seen": 3}
    assert (await bench.go(1)).status is Status.ROLLED_BACK
    after = await bench.info()
    assert (after.state, after.reference) == (before.state, before.reference)


async def test_what_is_over_leaves_one_row(driver: Driver) -> None:
    """Coming back costs what is still open, however much was assigned in what is over."""

    @workflow
    async def wide(ctx: Context) -> None:
        async def one(ctx: Context, number: int) -> None:
            async def inside(ctx: Context) -> None:
                ctx.state[f"n{number}"] = number

            await ctx.attempt("try", inside)
            await ctx.step("a", nothing)

        await ctx.map("all", one, range(30))
        await ctx.sleep("nap", 1)

    bench = Bench(driver, wide)
    await bench.go()
    assert len(await driver.scan(*InstanceKeys("i").range(CHANGES))) == 1
    assert len((await bench.info()).state) == 30


async def test_it_follows_recover_and_restart(driver: Driver) -> None:
    broken = [True]

    def may_break() -> None:
        if broken[0]:
            breaks()

    @workflow
    async def flow(ctx: Context) -> Any:
        async def good(ctx: Context) -> None:
            ctx.state["good"] = 1

        async def bad(ctx: Context) -> None:
            ctx.state["bad"] = 1
            await ctx.step("b", may_break, retries=0)

        await ctx.join("j", {"good": good, "bad": bad})
        await ctx.sleep("nap", 1)
        return dict(ctx.state)

    bench = Bench(driver, flow)
    assert (await bench.go()).status is Status.FAILED
    broken[0] = False
    async with Client(driver, clock=bench.clock) as client:
        handle = client.handle(flow, "i")
        await handle.recover()
        await bench.go()
        assert (await bench.info()).state == {"bad": 1, "good": 1}
        assert (await bench.go(1)).output == {"bad": 1, "good": 1}
        await handle.restart_from("j/bad/b")
        await bench.go()
        assert (await bench.go(1)).output == {"bad": 1, "good": 1}
        await handle.restart_from()
        await bench.go()
        assert (await bench.go(1)).output == {"bad": 1, "good": 1}


async def test_who_looks_from_elsewhere(driver: Driver) -> None:
    """What is shown while it runs is seen by everybody, and not before it is stored."""
    gate = anyio.Event()

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step("a", nothing)
        ctx.state["a"] = 1
        await ctx.step("b", gate.wait)

    async with Runtime(driver, workflows=[flow]) as runtime, Client(driver) as client:
        handle = await runtime.start(flow, id="i")
        other = client.handle(flow, "i")

        async def is_recorded() -> bool:
            return bool(list(await other.history()))

        await until(is_recorded)
        assert (await other.info()).state == {}
        gate.set()
        await until_status(handle, Status.COMPLETED)
        assert (await other.info()).state == (await client.list()).items[0].state == {"a": 1}
    assert await dump(driver)


class Seen:
    """A store that notes what everybody sees of an instance after each commit."""

    def __init__(self, driver: Driver, id: str) -> None:
        self._driver = driver
        self._id = id
        self.references: list[str | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def commit(self, batch: Batch) -> None:
        await self._driver.commit(batch)
        self.references.append((await read_info(self._driver, self._id, Codec())).reference)


async def test_it_stays_while_what_was_removed_is_passed_over(driver: Driver) -> None:
    """Also where a child is cancelled that nobody waits for any more: that is a commit in between."""

    @workflow
    async def naps(ctx: Context) -> None:
        await ctx.sleep("long", 3600)

    @workflow(name="refers")
    async def loops(ctx: Context) -> None:
        ctx.state["phase"] = "begun"

        async def body(ctx: Context, number: int) -> Continue[int]:
            ctx.reference = f"order-{number}"
            await ctx.child(f"nap {number}", naps)
            return Continue(number + 1)

        await ctx.loop("loop", body, 1, commit_interval=1)

    @workflow(name="refers")
    async def loops_no_more(ctx: Context) -> None:
        ctx.state["phase"] = "begun"
        await ctx.removed("loop", "loop")
        await ctx.sleep("after", 3600)

    clock = VirtualClock()
    await run_workflow(loops, driver=driver, instance_id="i", clock=clock)
    clock.advance(3600)
    await run_workflow(loops, driver=driver, instance_id="i", clock=clock)
    await run_workflow(loops, driver=driver, instance_id="i", clock=clock)
    seen: Any = Seen(driver, "i")
    before = (await read_info(driver, "i", Codec())).reference
    await run_workflow(loops_no_more, driver=seen, instance_id="i", clock=clock)
    assert before is not None
    assert len(seen.references) > 1
    assert None not in seen.references
