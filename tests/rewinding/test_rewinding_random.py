"""Whatever the loops, and wherever they begin again: they end the same, and what was before is not done again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from tests.settings import IN_MEMORY
from tests.support import World
from workflow_sdk import Break, Context, Continue, Kind, Status, Workflow, open_driver, workflow
from workflow_sdk.changes.rewinding.loop_tape import turn_of
from workflow_sdk.client import handle as control
from workflow_sdk.rows.entries import Entry, LoopData
from workflow_sdk.rows.keys import BASES, HISTORY, InstanceKeys
from workflow_sdk.rows.location import split_last
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

pytestmark = pytest.mark.law(4)

OTHER = "other/first"


@dataclass(frozen=True)
class Plan:
    """A loop: how often it turns, what of it is stored, what its state is, and what its turns are made of."""

    turns: int
    interval: int
    keep: int | None
    state: str
    body: tuple[str | Plan, ...]

    def state_of(self, turn: int) -> Any:
        """What a turn begins with."""
        values = {"none": None, "number": turn, "seldom": turn // 4, "large": [turn, "x" * 8_000]}
        return values[self.state] if self.state != "large, seldom" else [turn // 3, "x" * 11_000]


LEAVES: st.SearchStrategy[Any] = st.sampled_from(["step", "data", "sleep", "version", "repeatable"])


def loops(body: st.SearchStrategy[Any], turns: int) -> st.SearchStrategy[Plan]:
    """Loops of up to so many turns."""
    return st.builds(
        Plan,
        st.integers(1, turns),
        st.integers(1, 5),
        st.one_of(st.none(), st.integers(0, 7)),
        st.sampled_from(["none", "number", "seldom", "large", "large, seldom"]),
        st.lists(body, max_size=3).map(tuple),
    )


PLANS = loops(LEAVES | loops(LEAVES, 5), 12)


class Trial:
    """A plan as a workflow, and what it has done."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.ran: list[str] = []

        async def body(ctx: Context) -> Any:
            return await self.loop(ctx, "loop", plan)

        async def other(ctx: Context) -> Any:
            await ctx.step("first", self.report, OTHER)
            return await ctx.listen("never", timeout=10**7, default=None)

        @workflow
        async def trial(ctx: Context) -> Any:
            await ctx.step("before", self.report, "before")
            won = await ctx.race("race", {"a": body, "b": other})
            await ctx.step("after", self.report, "after")
            return won.value

        self.workflow: Workflow[None, Any] = trial

    def report(self, path: str) -> str:
        self.ran.append(path)
        return path

    async def loop(self, ctx: Context, name: str, plan: Plan) -> list[Any]:
        async def turn(ctx: Context, state: Any) -> Continue[Any] | Break[list[Any]]:
            number = int(ctx.path.rpartition("~")[2])
            assert state == plan.state_of(number)
            for place, part in enumerate(plan.body):
                await self.part(ctx, number, f"{place}", part)
            if number == plan.turns - 1:
                return Break([number, plan.state_of(number)])
            return Continue(plan.state_of(number + 1))

        return await ctx.loop(name, turn, plan.state_of(0), commit_interval=plan.interval, history_keep=plan.keep)

    async def part(self, ctx: Context, number: int, name: str, part: str | Plan) -> None:
        path = f"{ctx.path}/{name}"
        if isinstance(part, Plan):
            value = await self.loop(ctx, name, part)
            assert value == [part.turns - 1, part.state_of(part.turns - 1)]
        elif part == "sleep":
            await ctx.sleep(name, 60)
        elif part == "version":
            assert await ctx.version(name, 2) == 2
        elif part == "data":
            path = f"{path} {number} {ctx.now().timestamp()}"
            assert await ctx.step(path.rpartition("/")[2], self.report, path) == path
        else:
            assert await ctx.step(name, self.report, path, repeatable=part == "repeatable") == path

    async def run(self) -> Any:
        result = await self.world.run(self.workflow)
        assert result.status is Status.COMPLETED, result.error
        return result.output

    async def check_bases(self) -> None:
        """There are no states but of turns that are kept."""
        keys = InstanceKeys("i")
        start = len(keys.space) + len(HISTORY)
        entries = {k[start:]: Entry.unpack(raw) for k, raw in await self.world.driver.scan(*keys.range(HISTORY))}
        for key, _ in await self.world.driver.scan(*keys.range(BASES)):
            loop, _ = split_last(key[start:])
            data = entries[loop].data
            assert isinstance(data, LoopData)
            assert data.first <= turn_of(loop, key[start:]) < data.turn


def plain(path: str) -> str:
    """A path without the time in it."""
    return "/".join(" ".join(part.split(" ")[:2]) for part in path.split("/"))


def position(path: str) -> list[int]:
    """Paths in the order in which the code comes to them."""
    words = {"before": 0, "race": 1, "after": 2, "a": 0, "b": 1, "loop": 0, "first": 0, "never": 1}
    heads = [part.removeprefix("~").split(" ")[0] for part in path.split("/")]
    return [words[head] if head in words else int(head) for head in heads]


async def try_out(plan: Plan, stop: int, choices: list[tuple[int, bool, int]]) -> None:
    whole = Trial(World(IN_MEMORY, await open_driver("memory://"), Path()), plan)
    output = await whole.run()
    order = [plain(step) for step in whole.ran if step != OTHER]
    trial = Trial(World(IN_MEMORY, await open_driver("memory://"), Path()), plan)
    world = trial.world
    for _ in range(stop + 1):
        if (await world.once(trial.workflow)).wake_at is None:
            break
        world.clock.advance(60)
    for choice, as_turn, crash_at in choices:
        found = [entry.path for entry in await world.history() if not entry.path.startswith("race/b")]
        path = found[choice % len(found)]
        if as_turn and "~" in path:
            path = path[: path.rindex("~")] + path[path.rindex("~") :].partition("/")[0]
        await control.restart_from(world.driver, "i", path, world.clock.time())
        trial.ran.clear()
        with suppress(SimulatedCrash):
            await world.once(trial.workflow, driver=FaultyDriver(world.driver, crash_after=crash_at))
        assert await trial.run() == output
        again = list(dict.fromkeys(plain(step) for step in trial.ran if step != OTHER))
        assert again == [step for step in order if position(step) >= position(path)]
        await trial.check_bases()
    paths = [
        [plain(e.path) for e in await done.world.history() if e.kind is not Kind.LISTEN] for done in (trial, whole)
    ]
    if "large" not in repr(plan):
        assert choices == [] or paths[0] == paths[1]


@settings(max_examples=effort(50), deadline=None, derandomize=True)
@given(
    plan=PLANS,
    stop=st.integers(0, 12),
    choices=st.lists(st.tuples(st.integers(0, 200), st.booleans(), st.integers(1, 12)), min_size=1, max_size=4),
)
def test_loops_begin_again_anywhere(plan: Plan, stop: int, choices: list[tuple[int, bool, int]]) -> None:
    assert anyio.run(try_out, plan, stop, choices) is None
