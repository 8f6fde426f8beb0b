"""What code reads of its state is the same in every replay, whatever was pruned, and wherever it was evicted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from tests.laws.test_law_11_walking import DiesRollingBack
from workflow_sdk import (
    Break,
    Context,
    Continue,
    Driver,
    InstanceInfo,
    Status,
    Workflow,
    open_driver,
    read_history,
    run_workflow,
    workflow,
)
from workflow_sdk.client import handle as control
from workflow_sdk.client.info import read_info
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock
from workflow_sdk.values import Codec

pytestmark = pytest.mark.law(4)

Block = list[Any]
FOREVER = 1e6
LOSES = "x"
KEYS = ["0", "1", "2"]


def blocks(*, deep: int, waits: bool = True) -> st.SearchStrategy[Block]:
    """Programs: lists of operations, each a tuple."""
    values = st.integers(0, 9) | st.just([1]) | st.just({"n": [0]})
    flat = [
        st.tuples(st.just("set"), st.sampled_from(KEYS), values),
        st.tuples(st.just("delete"), st.sampled_from(KEYS)),
        st.tuples(st.just("append"), st.sampled_from(KEYS)),
        st.tuples(st.just("hold"), st.sampled_from(KEYS)),
        st.tuples(st.just("refer"), st.sampled_from(["r", "s", None])),
        st.tuples(st.just("progress"), st.integers(0, 9)),
        st.tuples(st.just("replace"), st.sampled_from(KEYS), values),
        st.just(("read",)),
        st.just(("step",)),
    ]
    if waits:
        flat += [st.just(("sleep",))] * 2
    if deep:
        inner = blocks(deep=deep - 1)
        flat += [
            st.tuples(st.just("attempt"), inner),
            st.tuples(st.just("loop"), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), inner),
            st.tuples(st.just("join"), st.sampled_from([None, 1]), inner, inner),
            st.tuples(st.just("map"), st.integers(1, 3), inner),
            st.tuples(st.just("race"), inner, blocks(deep=0, waits=False)),
        ]
    return st.lists(st.one_of(flat), min_size=1, max_size=5)


@dataclass
class Program:
    """Runs a block as a workflow, and remembers what it has read, where."""

    body: Block
    reads: dict[str, Any] = field(default_factory=dict)
    fails: bool = False
    """In the end, so that a handler which only the code knows is called."""
    others: list[str] = field(default_factory=list)
    """Where something else was read than the first time."""
    undone: list[tuple[object, ...]] = field(default_factory=list)
    """What the handler saw."""

    def workflow(self) -> Workflow[None, Any]:
        """The workflow."""

        @workflow
        async def program(ctx: Context) -> Any:
            if self.fails:

                async def undo(result: int) -> None:
                    self.undone.append((dict(ctx.state), ctx.reference))

                await ctx.step("first", int, rollback=undo)
            await self.block(ctx, self.body, "")
            if self.fails:
                raise ValueError("it fails")
            return dict(ctx.state)

        return program

    async def block(self, ctx: Context, block: Block, pool: str) -> None:
        """Branches that run side by side have keys of their own; they see those of what is around them."""
        held: Any = None
        rest: list[Any]
        for number, (kind, *rest) in enumerate(block):
            name, where = str(number), f"{ctx.path}:{number}"
            key = f"{pool}{rest[0]}" if rest else ""
            match kind:
                case "set":
                    ctx.state[key] = rest[1]
                case "delete":
                    ctx.state.pop(key, None)
                case "append":
                    if isinstance(ctx.state.get(key), list):
                        ctx.state[key].append(len(ctx.state[key]))
                    elif isinstance(ctx.state.get(key), dict):
                        ctx.state[key]["n"].append(7)
                case "hold":
                    if isinstance(held, list):
                        held.append("held")
                    held = ctx.state.get(key)
                case "replace" if not pool:
                    ctx.state = {**ctx.state, key: rest[1]}
                case "refer" if not pool:
                    ctx.reference = rest[0]
                case "progress" if not pool:
                    ctx.progress(rest[0], 9, "note")
                case "step":
                    await ctx.step(name, int)
                case "sleep":
                    await ctx.sleep(name, 1)
                case "attempt":
                    await ctx.attempt(name, self.part(rest[0], pool))
                case "loop":
                    await self.loop(ctx, name, rest, pool)
                case "join":
                    branches = {label: self.part(rest[1 + at], pool + label) for at, label in enumerate("ab")}
                    await ctx.join(name, branches, limit=rest[0])
                case "map":
                    items = [(rest[1], pool + "abc"[at]) for at in range(rest[0])]
                    await ctx.map(name, lambda ctx, item: self.block(ctx, *item), items)
                case "race":

                    async def loses(ctx: Context, part: Block = rest[1]) -> None:
                        await self.block(ctx, part, pool + LOSES)
                        await ctx.sleep("for ever", FOREVER)

                    await ctx.race(name, {"a": self.part(rest[0], pool + "a"), "b": loses})
                case _:
                    pass
            self.read(ctx, where, pool)

    def part(self, block: Block, pool: str) -> Callable[[Context], Awaitable[None]]:
        """A branch."""
        return lambda ctx: self.block(ctx, block, pool)

    async def loop(self, ctx: Context, name: str, rest: list[Any], pool: str) -> None:
        count, interval, keep, body = rest

        async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
            await self.block(ctx, body, pool)
            return Continue(number + 1) if number + 1 < count else Break(number)

        await ctx.loop(name, turn, 0, commit_interval=interval, history_keep=keep)

    def read(self, ctx: Context, where: str, pool: str) -> None:
        """It is what it was the last time. Of who loses a race, nobody knows how far it comes."""
        if LOSES in pool:
            return
        seen = {key: value for key, value in ctx.state.items() if key.startswith(pool) or pool.startswith(key[:-1])}
        now = repr((sorted(seen.items()), ctx.reference if not pool else None))
        if self.reads.setdefault(where, now) != now:
            self.others.append(f"at {where}: {self.reads[where]} became {now}")
        assert not self.others


async def look(driver: Driver) -> InstanceInfo:
    """What everybody may see."""
    return await read_info(driver, "i", Codec())


async def at_one_go(body: Block) -> tuple[Program, InstanceInfo]:
    """It stays in memory."""
    program, driver, clock = Program(body), await open_driver("memory://"), VirtualClock(quiet=0.1)
    result = await run_workflow(program.workflow(), driver=driver, instance_id="i", clock=clock, mode="live")
    assert result.status is Status.COMPLETED, result.error
    info = await look(driver)
    assert result.output == info.state
    return program, info


async def in_pieces(body: Block, crash: int | None) -> tuple[Program, InstanceInfo]:
    """It is evicted wherever it waits; and its worker dies every so many commits."""
    program, driver, clock = Program(body), await open_driver("memory://"), VirtualClock(quiet=0.1)
    flow, after = program.workflow(), crash
    for _ in range(400):
        faulty = FaultyDriver(driver, crash_after=after)
        try:
            result = await run_workflow(flow, driver=faulty, instance_id="i", clock=clock)
        except (SimulatedCrash, BaseExceptionGroup):
            # Further on the next time, so that it gets somewhere.
            after = None if after is None else after + 1
            continue
        if result.status is not Status.SLEEPING:
            assert result.status is Status.COMPLETED, result.error
            return program, await look(driver)
        before = await look(driver)
        await run_workflow(flow, driver=driver, instance_id="i", clock=clock)
        again = await look(driver)
        assert shown(again) == shown(before)
        assert again.version == before.version
        assert result.wake_at is not None
        clock.advance(max(0.0, result.wake_at.timestamp() - clock.time()))
    raise AssertionError("no end")


async def undone_elsewhere(body: Block) -> tuple[Program, InstanceInfo]:
    """It fails, and what it did is undone by a process that has not seen it."""
    driver, clock = await open_driver("memory://"), VirtualClock(quiet=0.1)
    program = Program(body, fails=True)
    flow, dying = program.workflow(), DiesRollingBack(driver, "i")
    with suppress(SimulatedCrash, BaseExceptionGroup):
        await run_workflow(flow, driver=dying, instance_id="i", clock=clock, mode="live")
    result = await run_workflow(flow, driver=driver, instance_id="i", clock=clock, mode="live")
    assert result.status is Status.ROLLED_BACK, result.error
    return program, await look(driver)


async def restarted(body: Block, choices: list[int]) -> tuple[Program, InstanceInfo]:
    """It begins again anywhere, several times."""
    program, driver, clock = Program(body), await open_driver("memory://"), VirtualClock(quiet=0.1)
    flow = program.workflow()
    for choice in choices:
        result = await run_workflow(flow, driver=driver, instance_id="i", clock=clock, mode="live")
        assert result.status is Status.COMPLETED, result.error
        paths = [entry.path for entry in await read_history(driver, "i")]
        if paths:
            await control.restart_from(driver, "i", paths[choice % len(paths)], clock.time())
    result = await run_workflow(flow, driver=driver, instance_id="i", clock=clock, mode="live")
    assert result.status is Status.COMPLETED, result.error
    return program, await look(driver)


def shown(info: InstanceInfo) -> tuple[object, ...]:
    """What the workflow shows."""
    return info.state, info.reference, info.progress


@settings(max_examples=effort(40), deadline=None)
@given(body=blocks(deep=2), crash=st.none() | st.integers(2, 4))
def test_the_same_is_read_in_every_replay(body: Block, crash: int | None) -> None:
    async def main() -> None:
        whole, expected = await at_one_go(body)
        pieces, found = await in_pieces(body, crash)
        assert pieces.reads == whole.reads
        assert shown(found) == shown(expected)

    anyio.run(main)


@pytest.mark.law(11)
@settings(max_examples=effort(40), deadline=None)
@given(body=blocks(deep=2))
def test_the_same_is_read_when_handlers_are_looked_for(body: Block) -> None:
    async def main() -> None:
        program, info = await undone_elsewhere(body)
        assert program.others == []
        assert program.undone == [(info.state, info.reference)]

    anyio.run(main)


@settings(max_examples=effort(40), deadline=None)
@given(body=blocks(deep=2), choices=st.lists(st.integers(0, 1000), min_size=1, max_size=3))
def test_the_same_is_read_after_it_began_again(body: Block, choices: list[int]) -> None:
    async def main() -> None:
        whole, expected = await at_one_go(body)
        again, found = await restarted(body, choices)
        assert again.reads == whole.reads
        assert shown(found) == shown(expected)

    anyio.run(main)
