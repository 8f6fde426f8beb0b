"""Running a graph: one operation, in which firings begin and end side by side, each end one commit.

A firing ends in its own task: the interpreter decides what comes of that, and the end, its routing, the changes of the
context and the firings that begin are written together. What begins is begun once that is stored. Nothing is awaited
between the decision and its rows, so that no other firing can come in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio

from workflow_sdk.graphs.arguments import digests_of
from workflow_sdk.graphs.begun import keep_taken
from workflow_sdk.graphs.evaluating import Evaluated
from workflow_sdk.graphs.firing import FiringWork
from workflow_sdk.graphs.growing import Growing
from workflow_sdk.graphs.interpreter import Interpreter
from workflow_sdk.graphs.listening import listen, take_what_has_come
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.model import GraphResult, Limits
from workflow_sdk.graphs.moves import Effects, Ended
from workflow_sdk.graphs.names import Names
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.recording import Recording
from workflow_sdk.graphs.rows import FIRINGS, Firing
from workflow_sdk.graphs.seat import FiringSeat
from workflow_sdk.graphs.surroundings import Surroundings
from workflow_sdk.operations.calling import retried
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, make_room, pack_error
from workflow_sdk.operations.scope import RaceStatus, Scope
from workflow_sdk.operations.types import GRAPH_MESSAGE, Coro, Unwound
from workflow_sdk.verdicts import Verdict

_ALONE: AbstractAsyncContextManager[None] = nullcontext()


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
        self._live: dict[int, tuple[anyio.CancelScope, RaceStatus]] = {}
        """By number, what cancels the code of a firing and whatever it waits for."""
        self.over: anyio.Event = anyio.Event()
        self._keeps_taken = plan.cancels
        """Whether the messages that firings take are kept, as in a race. If a submitted step cancels one, its are read.
        """
        self._handed = False
        self._spawned = self._begun = self._ended = 0
        self.unwound: bytes | None = None
        """The RollbackError that has ended the run."""
        self.recording: Recording = Recording(place, engine, self.marking)
        self.deciding: anyio.Lock = anyio.Lock(fast_acquire=True)
        """Held while an event is decided: if it cancels firings, their history is copied in the middle of it."""
        engine.journal.history.has_graphs = True

    # Events.

    def chooser(self) -> Evaluated:
        """What evaluates the expressions of one event."""
        return Evaluated(self._names.callable)

    def find(self, name: str) -> object:
        """The function that a name stands for."""
        return self._names.find(name, self.engine.known)

    def name_of(self, fn: object) -> str:
        """The name that leads back to a function."""
        return self._names.name_of(fn, self.engine.known)

    # Places and scopes.

    def scope_of(self, number: int, firing: Firing, label: str, location: bytes) -> Scope:
        """A scope for the code of a firing."""
        outer = self.place.scope
        scope = Scope(self.engine, location, firing.at, parent=outer, label=label)
        if number in self._live:
            scope.race, scope.in_race = self._live[number][1], outer.in_race or self._keeps_taken
        return scope

    def context_at(self, version: int) -> dict[str, Any]:
        """The graph's context, as a firing sees it that began with this version."""
        raw = self.marking.vars.get(version)
        return {} if raw is None else self.engine.codec.decode(raw, plain=True)

    def args_of(self, number: int, firing: Firing) -> bytes:
        """The arguments of a firing, as they are stored by now."""
        return self.marking.firings.get(number, firing).args

    def change_firing(self, number: int, firing: Firing) -> None:
        """Record that a firing is tried again, or has gone on; not if it was cancelled meanwhile."""
        if number in self.marking.firings:
            self.marking.put_firing(number, firing)
            self.recording.write((FIRINGS, number))

    def submit(self, scope: Scope, seat: FiringSeat, nodes: Any) -> Coro[Verdict]:
        """Add steps to the run."""
        return self.growing.start(scope, seat, nodes)

    async def hear(self) -> None:
        """Take what was said from outside before now."""
        if self.engine.journal.inbox.count(GRAPH_MESSAGE):
            await take_what_has_come(self)

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
        """Run a firing, and then the first of those that it has started. To cancel one of them ends the task."""
        self.task_begins()
        outer = self.place.scope.race
        race = outer.branch()
        try:
            with anyio.CancelScope() as cancel:
                await self._work_on(number, firing, cancel, race)
        except Exception as error:
            # It is no failure of a step, which would be an end: such as arguments for a join that are too large.
            if self.engine.life.halted:
                raise
            raise self.engine.life.mistake(error) from None
        finally:
            if outer.within:
                outer.within.discard(race)
            self.task_ends()

    async def _work_on(self, number: int, firing: Firing, cancel: anyio.CancelScope, race: RaceStatus) -> None:
        following: tuple[int, Firing] | None = (number, firing)
        while following is not None and following[0] in self.marking.firings:
            # It was not cancelled before it began.
            self._live[following[0]] = (cancel, race)
            ended = await self._fire(*following, race)
            effects = Effects() if ended is None else await self._settle(ended)
            if effects.is_over:
                self.over.set()
                return
            following = effects.started[0] if effects.started else None
            self.spawn(effects.started[1:])

    async def _fire(self, number: int, firing: Firing, race: RaceStatus) -> Ended | None:
        """Call the code of a firing; how it has ended. None, if it was cancelled."""
        engine, node = self.engine, self.plan.nodes[firing.step]
        work = FiringWork(self, node, number, firing, self.recording.location_of(firing), self.place.name)
        try:
            await work.until_due(engine)
            return await retried(engine, work)
        except (Unwound, BaseExceptionGroup) as error:
            rest = None if isinstance(error, Unwound) else error.split(Unwound)[1]
            if rest is not None or not race.lost or engine.life.halted:
                raise (rest or error) from None
        finally:
            self._live.pop(number, None)
        return None

    async def _settle(self, ended: Ended) -> Effects:
        """Decide what comes of the end of a firing, and store it."""
        await make_room(self.engine)
        await self.hear()
        # Where no firing is ever cancelled, nothing is awaited in the middle.
        async with self.deciding if self.plan.cancels else _ALONE:
            # Others may have ended while this one waited for its turn.
            await make_room(self.engine)
            if ended.number not in self.marking.firings:
                return Effects()  # it was cancelled meanwhile
            effects, cleanups = await self._decide(ended)
        if cleanups or not effects.is_over:
            # The last end goes with that of the graph, unless something is done after it.
            await self.engine.parking.flush()
        if cleanups:
            await self.engine.outside.clean_up(cleanups)
        return effects

    async def _decide(self, ended: Ended) -> tuple[Effects, list[bytes]]:
        """What comes of the end of a firing, and what is to be cleaned up once it is stored."""
        engine, firing = self.engine, self.marking.firings[ended.number]
        location = self.recording.location_of(firing)
        chooser, given = self.chooser(), digests_of(self.marking, firing)
        effects = self.interpreter.end(chooser, ended)
        event = self.marking.head.events
        if effects.rerouted is not None:
            raw, done = pack_error(effects.rerouted, engine.codec), ended.is_done
            made, record = ended.made, ended.record
            ended = Ended(ended.number, is_done=done, output=ended.output, raw_error=raw, made=made, record=record)
        cleanups = await self.cancel(effects) if effects.cancelled else []
        if not ended.is_done:
            # Its time was over, while it waited for them.
            cleanups += engine.outside.abandon(location)
        if ended.record is not None:
            ended.record()
        self.recording.put_firing(firing, ended, event, location, given)
        if not self.place.scope.in_race:
            engine.journal.takings.settle(location, give_back=False)
        self.recording.record(effects)
        if ended.unwinds:
            # Whatever else is under way is cancelled with the graph.
            self.unwound, effects.is_over = ended.raw_error, True
        return effects, cleanups

    async def follow(self, effects: Effects, cleanups: list[bytes], store: Callable[[], Awaitable[None]]) -> None:
        """Store an event that is no end of a firing, and begin what it starts."""
        # Whoever has caused it may be cancelled meanwhile, and what is stored has to begin all the same.
        with anyio.CancelScope(shield=True):
            await store()
            self.spawn(effects.started)
            if cleanups:
                await self.engine.outside.clean_up(cleanups)
        if effects.is_over:
            self.over.set()

    async def cancel(self, effects: Effects) -> list[bytes]:
        """End the firings that an event has made useless, like the losers of a race. Returns what is to be cleaned up.

        Until it is through, nothing is written down of the event.
        """
        self.recording.is_deciding = True
        try:
            # A firing may have submitted what makes itself useless.
            cleanups = list[bytes]()
            with anyio.CancelScope(shield=True):
                cleanups += await self._cancel(effects)
            return cleanups
        finally:
            self.recording.is_deciding = False

    async def _cancel(self, effects: Effects) -> list[bytes]:
        engine, cleanups = self.engine, list[bytes]()
        for number, _ in effects.cancelled:
            if number in self._live:
                cancel, race = self._live[number]
                race.lose()
                cancel.cancel()
        for _, firing in effects.cancelled:
            location = self.recording.location_of(firing)
            if engine.journal.compensations.count and not self.place.scope.in_loop:
                await engine.stored.archive(location)
            if not self._keeps_taken:
                await keep_taken(engine, location)
        for _, firing in effects.cancelled:
            location = self.recording.location_of(firing)
            cleanups += engine.outside.abandon(location)
            engine.journal.takings.settle(location, give_back=True)
            engine.journal.history.clear_scope(location)
        engine.parking.fire()
        return cleanups
