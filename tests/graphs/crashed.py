"""Random graphs that come to the same in whatever order their firings end, run by the engine and killed on the way."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.leftovers import keys_of
from workflow_sdk import Client, Context, Driver, RunResult, open_driver, run_workflow
from workflow_sdk.client.history import HistoryEntry, read_history
from workflow_sdk.definitions import StepOptions
from workflow_sdk.errors import InstanceNotFoundError
from workflow_sdk.graphs import E, Graph, Limits, arc, node, quorum
from workflow_sdk.graphs.model import Arc, Node
from workflow_sdk.graphs.names import name_in_data
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.rows.status import EntryStatus, Kind, Status
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

STEPS = "abcdef"
PASSES = 3
"""A token that has been on so many arcs goes only where arcs lead on without a condition."""
ID = "the run"
INSTANCES, WAITS, MARKINGS = 1, 9, 26
"""The parts of a store where the rows of instances are, and in these their waits and markings."""


@dataclass
class Ledger:
    """What the bodies of one run do, and which of them were called."""

    seed: int
    over: set[str] = field(default_factory=set[str])
    """Firings whose end is stored."""
    again: list[str] = field(default_factory=list[str])
    """Those of them that were called once more."""


LEDGER: ContextVar[Ledger] = ContextVar("LEDGER")


async def work(ctx: Context, args: Any) -> dict[str, Any]:
    """What all steps do: the name of the step and the number of arcs behind it say what comes of it."""
    ledger, scope = LEDGER.get(), current_scope.get()
    assert isinstance(scope, Scope), "a body has a scope"
    if scope.path in ledger.over:
        ledger.again.append(scope.path)
    step = scope.path.split("/")[1]
    # What a join is given depends on which firing of a need was the first.
    passes = args["n"] if isinstance(args.get("n"), int) else PASSES - 1
    chance = Random(f"{ledger.seed} {step} {passes}")
    pause = Random(f"{ledger.seed} {scope.path}").randint(-4, 5)
    if pause > 0:
        # So that firings end in another order than they began.
        await ctx.step("noted", noted, passes)
        await ctx.sleep("pause", pause)
    if chance.random() < 0.3:
        ctx.patch(**{f"open{chance.randint(1, 3)}": True})
    if chance.random() < 0.2 and passes < PASSES:
        needs = [chance.choice([step, STEPS[0]])] * chance.randint(0, 1)
        await ctx.submit([node(f"{step}-{passes}", work, needs=needs, args={"n": PASSES}, retries=0)])
    if passes < PASSES and chance.random() < 0.2:
        raise ValueError(f"{step} has failed")
    follows = [number for number in range(3) if chance.random() < 0.5] if passes < PASSES else []
    return {"n": passes, "follows": follows}


async def noted(passes: int) -> int:
    """A step inside a firing."""
    return passes


def random_graph(seed: int, *, races: bool = False) -> Graph:
    """A graph with cycles, forks inside forks, joins, growth, failures and denials.

    With `races`, what it comes to depends on which firing ends first: it has joins by quorum, and may fail at once.
    """
    chance = Random(seed)
    graph = Graph(
        "g",
        context={"open1": False, "open2": False, "open3": chance.random() < 0.5},
        limits=Limits(running=chance.choice([None, None, 1, 2])),
        status=chance.choice(["strict", "fail_fast"] if races else ["strict", "lenient"]),
        when_blocked=chance.choice(["wait", "complete"]),
        final=chance.choice([None, "final"]),
    )
    names = STEPS[: chance.randint(2, len(STEPS))]
    needs = {name: chance.sample(names[:at], chance.randint(1, min(at, 3))) for at, name in enumerate(names) if at}
    needs = {name: found for name, found in needs.items() if chance.random() < 0.4}
    has_arcs = chance.random() < 0.8
    for at, name in enumerate(names):
        graph._nodes[name] = _random_step(chance, at, names, needs, has_arcs=has_arcs, races=races)
    graph._nodes["final"] = node("final", summed_up)
    for fn in (work, summed_up):
        graph.names.add(name_in_data(fn), fn)
    if graph.settings["final"] is None:
        del graph._nodes["final"]
    # Steps that are never run, and joins that never fire, are what a random graph may have.
    graph._plan = Plan(graph._nodes.values(), **graph.settings)
    return graph


def summed_up(_ctx: Context, args: Any) -> int:
    """The final step."""
    return len(args["counts"])


def _random_step(
    chance: Random, at: int, names: str, needs: dict[str, list[str]], *, has_arcs: bool, races: bool
) -> Node:
    name = names[at]
    # A join is not told how many arcs are behind it: what leads back from it might never end.
    targets = [one for one in (names[at + 1 :] if name in needs else names) if has_arcs and one not in needs]
    arcs: list[Arc] = []
    for number in range(chance.randint(0, 2) if targets else 0):
        target = chance.choice(targets)
        is_guarded = names.index(target) <= at or chance.random() < 0.5
        on = "failed" if name not in needs and chance.random() < 0.2 else "done"
        given = {"n": E.output.n + 1} if on == "done" else {"n": E.args.n + 1}
        when = f"{number} in output.follows" if is_guarded and on == "done" else None
        arcs.append(arc(target, when=when, args=given, on=on))  # type: ignore[arg-type]
    options: dict[str, Any] = {"needs": needs.get(name, []), "next": arcs}
    if name in needs:
        options["join"] = quorum(chance.randint(1, len(needs[name]))) if races else chance.choice(["all", "alive"])
    if chance.random() < 0.2:
        options["admit"] = f"ctx.open{chance.randint(1, 3)}"
    mode = chance.choice(["exclusive", "inclusive", "inclusive"])
    return node(name, work, mode=mode, **options).but(options=StepOptions(retries=chance.choice([0, 0, 1])))


@dataclass(frozen=True)
class Crash:
    """The process dies before a commit, or after it."""

    number: int
    is_after: bool

    def over(self, driver: Driver) -> FaultyDriver:
        """A driver that dies so."""
        if self.is_after:
            return FaultyDriver(driver, crash_after=self.number)
        return FaultyDriver(driver, crash_before=self.number)


@dataclass(frozen=True)
class Ended:
    """What a run has come to, in which the order of its firings makes no difference."""

    status: Status
    result: str
    ends: dict[tuple[str, str, str], int]
    """How many firings of each step have ended in which way, and with which output."""
    outcomes: dict[str, tuple[int, str]]


async def run_and_kill(seed: int, crashes: Sequence[Crash], *, races: bool = False) -> tuple[Ended, int]:
    """Run a graph that dies again and again, to its end; what it has come to, and how many commits it took."""
    async with _Play(seed, random_graph(seed, races=races)) as play:
        commits = 0
        for crash in crashes:
            faulty = crash.over(play.driver)
            try:
                await play.go_on(faulty)
            except* SimulatedCrash:
                await play.note_what_is_over()
        faulty = FaultyDriver(play.driver)
        await play.go_on(faulty)
        commits = faulty.commits
        return await play.ended(), commits


async def run_and_restart(seed: int, chance: Random) -> tuple[Ended, Ended]:
    """Run a graph to its end, and then again from one of its firings; what it has come to, both times."""
    async with _Play(seed, random_graph(seed)) as play:
        await play.go_on(play.driver)
        first = await play.ended()
        for _ in range(2):
            await play.restart(chance)
            await play.go_on(play.driver)
        return first, await play.ended()


class _Play:
    """One graph in a store of its own."""

    def __init__(self, seed: int, graph: Graph) -> None:
        self.graph = graph
        self.ledger = Ledger(seed)
        self.clock = VirtualClock()
        self.driver: Driver
        self._is_open = False

    async def __aenter__(self) -> _Play:
        self.driver = await open_driver("memory://")
        self._token = LEDGER.set(self.ledger)
        return self

    async def __aexit__(self, *_: object) -> None:
        LEDGER.reset(self._token)
        await self.driver.aclose()

    async def go_on(self, driver: Driver) -> None:
        """Run it until it has ended, as far as the driver lets it."""
        while True:
            result = await run_workflow(
                self.graph, {"n": 0}, driver=driver, instance_id=ID, mode="yield", clock=self.clock
            )
            if result.status.is_terminal:
                return
            await self._let_go_on(driver, result)

    async def _let_go_on(self, driver: Driver, result: RunResult[Any]) -> None:
        if result.wake_at is not None:
            # The next float: a sum of two may fall short.
            self.clock.advance(max(result.wake_at.timestamp() - self.clock.time(), 0) + 1e-3)
            return
        assert any(wait.kind == "admission" for wait in result.waits), f"it waits for nothing: {result}"
        assert not self._is_open, "everything is admitted, and it goes on nowhere"
        async with Client(driver, clock=self.clock) as client:
            await client.handle(self.graph, ID).patch(open1=True, open2=True, open3=True)
        self._is_open = True

    async def note_what_is_over(self) -> None:
        """Firings whose end is stored must not be run again."""
        try:
            self.ledger.over |= {one.path for one in _firings(await read_history(self.driver, ID))}
        except InstanceNotFoundError:
            return
        # A patch that was stored is not lost; one that was not is sent again.
        self._is_open = False

    async def restart(self, chance: Random) -> None:
        """Have a part of it happen again."""
        paths = sorted(one.path for one in _firings(await read_history(self.driver, ID)))
        if not paths:
            return
        path = chance.choice(paths)
        async with Client(self.driver, clock=self.clock) as client:
            await client.handle(self.graph, ID).restart_from(path)
        self._is_open = False

    async def ended(self) -> Ended:
        """What it has come to. Nothing is left of its marking."""
        assert self.ledger.again == []
        left = [key for key in await keys_of(self.driver) if key[0] == INSTANCES and key[2] in (WAITS, MARKINGS)]
        assert left == [], f"rows are left over: {left}"
        history = await read_history(self.driver, ID)
        (run,) = [entry for entry in history if entry.kind is Kind.GRAPH]
        result: dict[str, Any] = run.value
        ends = Counter((one.name, one.status.value, repr(one.value)) for one in _firings(history))
        # Of a step that was run several times the last end counts, and which that is depends on their order.
        outcomes = {
            name: (one["firings"], one["status"] if one["firings"] < 2 else "")
            for name, one in result["outcomes"].items()
        }
        return Ended(history.status, result["status"], dict(ends), outcomes)


def _firings(history: Any) -> list[HistoryEntry]:
    """The firings that are over."""
    ended = (EntryStatus.COMPLETED, EntryStatus.FAILED)
    return [one for one in history if one.kind is Kind.FIRING and one.status in ended]
