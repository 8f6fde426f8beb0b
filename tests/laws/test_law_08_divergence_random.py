"""Whatever the workflow and wherever it crashes: it ends the same, and what was committed is not done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.watching import WatchedDriver, crashing
from tests.settings import PYTEST_ASYNCIO, Setting
from tests.support import World
from workflow_sdk import Break, Context, Continue, Status, StepError, Workflow, open_driver, workflow
from workflow_sdk.instance.execution import Mode
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

MODES: list[Mode] = ["yield", "live"]
Report = Callable[[str], Awaitable[str]]


@dataclass(frozen=True)
class Do:
    """A step, or another operation without anything in it."""

    kind: str


@dataclass(frozen=True)
class Around:
    """An operation with a scope for each of its parts."""

    kind: str
    parts: tuple[tuple[Do | Around, ...], ...]
    interval: int = 20
    keep: int | None = None


Node = Do | Around
Block = tuple[Node, ...]

LEAVES = st.sampled_from(["step", "step", "fails", "repeatable", "sleep", "listen", "version", "uuid"]).map(Do)


def around(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    """Operations that hold up to three blocks of others."""
    block = st.lists(inner, min_size=1, max_size=3).map(tuple)
    parts = st.lists(block, min_size=1, max_size=3).map(tuple)
    kinds = st.sampled_from(["loop", "loop", "join", "join", "race", "attempt", "map"])
    return st.builds(Around, kinds, parts, st.sampled_from([1, 2, 20]), st.sampled_from([None, 0, 1]))


NODES: st.SearchStrategy[Node] = st.recursive(LEAVES, around, max_leaves=10)
BLOCKS: st.SearchStrategy[Block] = st.lists(NODES, min_size=1, max_size=4).map(tuple)
CRASHES = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["before", "after"])), max_size=3)


class Interpreter:
    """Runs a tree as a workflow. The values tell where they come from."""

    def __init__(self, report: Report) -> None:
        self.report = report

    async def block(self, ctx: Context, block: Block) -> list[Any]:
        # Some names are used all over, so that loops and scopes around them share them.
        return [await self.node(ctx, f"{node.kind}{n % 2}{n // 2}", node) for n, node in enumerate(block)]

    async def node(self, ctx: Context, name: str, node: Node) -> Any:
        if isinstance(node, Around):
            return await self.around(ctx, name, node)
        path = f"{ctx.path}/{name}".lstrip("/")
        match node.kind:
            case "step":
                return await ctx.step(name, self.report, path)
            case "repeatable":
                return await ctx.step(name, self.report, path, repeatable=True)
            case "fails":
                try:
                    return await ctx.step(name, self.fails, path, retries=0)
                except StepError as error:
                    return error.path
            case "sleep":
                return await ctx.sleep(name, 60)
            case "listen":
                return await ctx.listen(name, timeout=90, default="nothing")
            case "version":
                return await ctx.version(name, 3)
            case _:
                return ctx.path

    async def fails(self, path: str) -> str:
        await self.report(path)
        raise ValueError(path)

    async def around(self, ctx: Context, name: str, node: Around) -> Any:
        branches = {f"b{n}": self.branch(part) for n, part in enumerate(node.parts)}
        match node.kind:
            case "loop":
                return await self.loop(ctx, name, node)
            case "join":
                return await ctx.join(name, branches)
            case "map":
                return await ctx.map(name, self.block, node.parts, limit=2)
            case "race":
                # Of several that could win, another one may after a crash.
                only = {"only": branches["b0"], "never": self.never}
                return (await ctx.race(name, only)).value
            case _:
                return (await ctx.attempt(name, branches["b0"])).ok

    def branch(self, part: Block) -> Callable[[Context], Awaitable[Any]]:
        return lambda ctx: self.block(ctx, part)

    async def never(self, ctx: Context) -> Any:
        await ctx.listen("never")

    async def loop(self, ctx: Context, name: str, node: Around) -> Any:
        async def turn(ctx: Context, seen: list[Any]) -> Continue[list[Any]] | Break[list[Any]]:
            seen = [*seen, await self.block(ctx, node.parts[len(seen) % len(node.parts)])]
            return Break(seen) if len(seen) == 3 else Continue(seen)

        return await ctx.loop(name, turn, [], commit_interval=node.interval, history_keep=node.keep)


def plain(path: str) -> str:
    """The branches of maps are numbers in one place and ~numbers in the other."""
    return path.replace("~", "")


class Trial:
    """One tree, run with crashes."""

    def __init__(self, world: World, tree: Block) -> None:
        self.world = world
        self.runs: Counter[str] = Counter()
        self.store = WatchedDriver(world.driver)
        self.settled: dict[str, int] = {}
        interpreter = Interpreter(self.report)

        @workflow
        async def random(ctx: Context) -> Any:
            return await interpreter.block(ctx, tree)

        self.workflow: Workflow[None, Any] = random

    async def report(self, path: str) -> str:
        self.runs[plain(path)] += 1
        return path

    async def run(self, driver: WatchedDriver | FaultyDriver) -> Any:
        """Run to the end, or to a crash; remember what is committed by then."""
        result: Any = None
        try:
            result = await self.world.run(self.workflow, driver=driver)
        except* SimulatedCrash:
            pass
        committed = {plain(path) for change in self.store.changes for path in change.entries if change.is_final(path)}
        for path in committed - self.settled.keys():
            self.settled[path] = self.runs[path]
        return result

    def check_nothing_ran_again(self) -> None:
        assert {path: self.runs[path] for path in self.settled} == self.settled


async def try_out(mode: Mode, tree: Block, crashes: list[tuple[int, str]]) -> None:
    """Run a tree without a crash, and with them, and compare."""
    outputs: list[Any] = []
    for plan in ([], crashes):
        # Each example has a store of its own, which no fixture could give it.
        world = World(Setting("memory", mode, PYTEST_ASYNCIO), await open_driver("memory://"), Path())
        trial = Trial(world, tree)
        for number, when in plan:
            await trial.run(crashing(trial.store, number, when))
        result = await trial.run(trial.store)
        assert result.error is None, result.error
        assert result.status is Status.COMPLETED
        trial.check_nothing_ran_again()
        outputs.append(result.output)
    assert outputs[0] == outputs[1]


@examples(120)
@given(mode=st.sampled_from(MODES), tree=BLOCKS, crashes=CRASHES)
def test_every_workflow_ends_the_same_after_every_crash(
    mode: Mode, tree: Block, crashes: list[tuple[int, str]]
) -> None:
    anyio.run(try_out, mode, tree, crashes)
