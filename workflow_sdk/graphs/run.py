"""Running a graph: one operation, in which firings begin and end side by side, each end one commit.

A firing ends in its own task: the interpreter decides what comes of that, and the end, its routing, the changes of the
context and the firings that begin are written together. What begins is begun once that is stored. Nothing is awaited
between the decision and its rows, so that no other firing can come in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from workflow_sdk.graphs.evaluating import Evaluated
from workflow_sdk.graphs.expressions import ExpressionError
from workflow_sdk.graphs.firing import FiringSeat, FiringWork
from workflow_sdk.graphs.growing import Growing
from workflow_sdk.graphs.interpreter import Interpreter
from workflow_sdk.graphs.listening import DeniedTokens, listen, take_what_has_come
from workflow_sdk.graphs.marking import Firing, Marking, packed
from workflow_sdk.graphs.model import GraphResult, Limits
from workflow_sdk.graphs.moves import Effects, Ended
from workflow_sdk.graphs.names import Names
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.surroundings import Surroundings
from workflow_sdk.operations.calling import retried
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, make_room, pack_error
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.types import GRAPH_MESSAGE, Coro, Unwound
from workflow_sdk.rows.entries import Entry, FiringData
from workflow_sdk.rows.keys import marking_of
from workflow_sdk.rows.location import pack_pair
from workflow_sdk.rows.status import Kind
from workflow_sdk.verdicts import Verdict


class GraphRun:
    """One run of a graph, while its instance is run."""

    def __init__(self, place: Place, engine: Engine, plan: Plan, workload: bytes, names: Names) -> None:
        self.engine = engine
        self.place = place
        self.plan = plan
        self.most: Limits = plan.limits
        self.marking: Marking = Marking()
        self._names = names
        self.interpreter: Interpreter = Interpreter(
            plan, self.marking, engine.codec, workload, now=engine.clock.time, state=self._public_state
        )
        self.interpreter.instance_id = engine.facts.instance_id
        self.around: Surroundings = Surroundings(self.interpreter.moves, names, engine.known)
        self.growing: Growing = Growing(self)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._live: dict[int, tuple[anyio.CancelScope, Scope]] = {}
        self.over: anyio.Event = anyio.Event()
        self._handed = False
        self._spawned = self._begun = self._ended = 0
        self.unwound: bytes | None = None
        """The RollbackError that has ended the run."""
        self._denied = DeniedTokens(place, engine, self.marking)
        self._settling = anyio.Lock() if plan.cancels else None
        """Where firings can be cancelled: their history is copied before, which takes a while."""
        engine.journal.history.has_graphs = True

    # Events.

    def chooser(self) -> Evaluated:
        """What evaluates the expressions of one event."""
        return Evaluated(self._names.functions)

    def write(self) -> None:
        """Have the rows written that have changed."""
        write, prefix = self.engine.journal.unwritten.write, marking_of(self.place.location)
        for key, raw in packed(self.marking.take_changes()):
            write(prefix + key, raw)
        self._denied.show()

    def record(self, effects: Effects) -> None:
        """Put what an event has come to beside what has caused it; the next flush writes all of it."""
        event = self.marking.head.events
        for firing, ended in effects.passed:
            if ended.number >= 0:
                self.put_firing(firing, ended, event)
        self.write()

    def put_firing(self, firing: Firing, ended: Ended, event: int) -> None:
        """Record a firing that has ended."""
        engine = self.engine
        entry = Entry(Kind.FIRING, max(ended.number, 0), firing.at)
        patches = None if ended.patches is None else engine.codec.encode(dict(ended.patches))
        made = engine.codec.encode(ended.made) if ended.made else b""
        entry.data = FiringData(firing.args, firing.began, event, firing.depth, patches, made)
        entry.attempts = firing.attempts
        if ended.is_done and ended.raw_error is None:
            entry.complete(ended.output, engine.clock.time())
        else:
            raw = ended.raw_error or pack_error(self._told(ended), engine.codec)
            entry.fail(raw, engine.clock.time())
        engine.journal.history.put(self.location_of(firing), entry)

    def _told(self, ended: Ended) -> Exception:
        return ExpressionError("" if ended.error is None else str(ended.error["message"]))

    def find(self, name: str) -> object:
        """The function that a name stands for."""
        return self._names.find(name, self.engine.known)

    def name_of(self, fn: object) -> str:
        """The name that leads back to a function."""
        return self._names.name_of(fn, self.engine.known)

    # Places and scopes.

    def location_of(self, firing: Firing) -> bytes:
        """Where a firing is recorded."""
        index = self.place.scope.names.intern(firing.step)
        return self.place.location + pack_pair(index, firing.count)

    def scope_of(self, number: int, firing: Firing, label: str, location: bytes) -> Scope:
        """A scope for the code of a firing."""
        outer = self.place.scope
        scope = Scope(self.engine, location, firing.at, parent=outer, label=label)
        if number in self._live:
            cancel, before = self._live[number]
            scope.race, scope.in_race = before.race, True
            self._live[number] = (cancel, scope)
        return scope

    def context_at(self, version: int) -> dict[str, Any]:
        """The graph's context, as a firing sees it that began with this version."""
        raw = self.marking.vars.get(version)
        return {} if raw is None else self.engine.codec.decode(raw, plain=True)

    def change_firing(self, number: int, firing: Firing) -> None:
        """Record that a firing is tried again."""
        self.marking.put_firing(number, firing)
        self.write()

    def submit(self, scope: Scope, seat: FiringSeat, nodes: Any) -> Coro[Verdict]:
        """Add steps to the run."""
        return self.growing.start(scope, seat, nodes)

    def _public_state(self) -> Mapping[str, Any]:
        public = self.engine.state.public
        return {} if public is None else dict(public.state)

    # Running.

    async def go(self, effects: Effects) -> GraphResult:
        """Run until nothing is left to be done. What has come so far is stored first."""
        await self.engine.parking.flush()
        if not effects.is_over:
            await self._run(effects)
        return self.interpreter.result()

    async def _run(self, effects: Effects) -> None:
        waits = self.engine.parking.waits
        try:
            async with anyio.create_task_group() as self._tasks:
                self.spawn(effects.started)
                self._begin_task()
                self._tasks.start_soon(listen, self)
                # Whoever waits here hands its activity to the firings, and is handed it back by the last of them.
                self.engine.parking.rest()
                await self.over.wait()
                self._tasks.cancel_scope.cancel()
        finally:
            # Tasks that were cancelled before they began have not accounted for themselves.
            waits.active -= self._spawned - self._ended - (0 if self._handed else 1)
            waits.unbegun -= self._spawned - self._begun
        if self.place.scope.race.lost:
            await self.engine.life.never()

    def _begin_task(self) -> None:
        waits = self.engine.parking.waits
        waits.active += 1
        waits.unbegun += 1
        self._spawned += 1

    def spawn(self, started: Sequence[tuple[int, Firing]]) -> None:
        """Begin firings, each in a task of its own."""
        assert self._tasks is not None, "firings begin while the graph is run"
        for number, firing in started:
            self._begin_task()
            self._tasks.start_soon(self._work, number, firing)

    def task_begins(self) -> None:
        """A task of the run has its first turn."""
        self._begun += 1
        self.engine.parking.waits.unbegun -= 1

    def task_ends(self) -> None:
        """A task of the run is over: it hands its activity back, or rests."""
        self._ended += 1
        if self.over.is_set() and not self._handed:
            self._handed = True
        else:
            self.engine.parking.rest()

    async def _work(self, number: int, firing: Firing) -> None:
        """Run a firing, and then the first of those that it has started."""
        self.task_begins()
        try:
            following: tuple[int, Firing] | None = (number, firing)
            while following is not None:
                ended = await self._fire(*following)
                effects = Effects() if ended is None else await self._settle(ended)
                if effects.is_over:
                    self.over.set()
                    return
                following = effects.started[0] if effects.started else None
                self.spawn(effects.started[1:])
        except Exception as error:
            # It is no failure of a step, which would be an end: such as arguments for a join that are too large.
            if self.engine.life.halted:
                raise
            raise self.engine.life.mistake(error) from None
        finally:
            self.task_ends()

    async def _fire(self, number: int, firing: Firing) -> Ended | None:
        """Call the code of a firing; how it has ended. None, if it was cancelled."""
        engine, node = self.engine, self.plan.nodes[firing.step]
        work = FiringWork(self, node, number, firing, self.location_of(firing), self.place.name)
        if self._settling is None:
            await work.until_due(engine)
            return await retried(engine, work)
        outer = self.place.scope
        scope = Scope(engine, b"", firing.at, parent=outer)
        scope.race = outer.race.branch()
        with anyio.CancelScope() as cancel:
            self._live[number] = (cancel, scope)
            try:
                await work.until_due(engine)
                return await retried(engine, work)
            except (Unwound, BaseExceptionGroup) as error:
                rest = None if isinstance(error, Unwound) else error.split(Unwound)[1]
                if rest is not None or not scope.race.lost or engine.life.halted:
                    raise (rest or error) from None
            finally:
                self._live.pop(number, None)
                if outer.race.within:
                    outer.race.within.discard(scope.race)
        return None

    async def _settle(self, ended: Ended) -> Effects:
        """Decide what comes of the end of a firing, and store it."""
        await make_room(self.engine)
        if self.engine.journal.inbox.count(GRAPH_MESSAGE):
            await take_what_has_come(self)
        if self._settling is None:
            return await self._store(ended)
        async with self._settling:
            if ended.number not in self.marking.firings:
                return Effects()  # it was cancelled meanwhile
            return await self._store(ended)

    async def _store(self, ended: Ended) -> Effects:
        engine, firing = self.engine, self.marking.firings[ended.number]
        chooser = self.chooser()
        effects = self.interpreter.end(chooser, ended)
        event = self.marking.head.events
        if effects.rerouted is not None:
            raw = pack_error(effects.rerouted, engine.codec)
            ended = Ended(ended.number, is_done=ended.is_done, output=ended.output, raw_error=raw, made=ended.made)
        cleanups = await self._cancel(effects)
        if not ended.is_done:
            # Its time was over, while it waited for them.
            cleanups += engine.outside.abandon(self.location_of(firing))
        self.put_firing(firing, ended, event)
        if not self.place.scope.in_race:
            engine.journal.takings.settle(self.location_of(firing), give_back=False)
        self.record(effects)
        if ended.unwinds:
            # Whatever else is under way is cancelled with the graph.
            self.unwound, effects.is_over = ended.raw_error, True
        if not effects.is_over:
            # The last end goes with that of the graph.
            await engine.parking.flush()
        if cleanups:
            await engine.outside.clean_up(cleanups)
        return effects

    async def _cancel(self, effects: Effects) -> list[bytes]:
        """End firings that are of no use any more, like the losers of a race. Returns what is to be cleaned up."""
        engine, cleanups = self.engine, list[bytes]()
        for number, _ in effects.cancelled:
            if number in self._live:
                cancel, scope = self._live[number]
                scope.race.lose()
                cancel.cancel()
        for _, firing in effects.cancelled:
            if engine.journal.compensations.count and not self.place.scope.in_loop:
                await engine.stored.archive(self.location_of(firing))
        for _, firing in effects.cancelled:
            location = self.location_of(firing)
            cleanups += engine.outside.abandon(location)
            engine.journal.takings.settle(location, give_back=True)
            engine.journal.history.clear_scope(location)
        if effects.cancelled:
            engine.parking.fire()
        return cleanups
