"""What a graph tells clients while it runs, and what it is told: changes from outside, steps that wait to start."""

from __future__ import annotations

from typing import Any, Protocol

import anyio

from workflow_sdk.errors import CodecError
from workflow_sdk.graphs.evaluating import Evaluated
from workflow_sdk.graphs.growing import GraphGrows, Growing
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.moves import Effects
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place
from workflow_sdk.operations.types import GRAPH_MESSAGE, Wait
from workflow_sdk.operations.waiting import wait_for
from workflow_sdk.rows.entries import Entry, ListenData, Taken
from workflow_sdk.rows.instance import WaitRow
from workflow_sdk.rows.location import escape, join_path, pack_pair, pack_segment
from workflow_sdk.rows.status import Kind
from workflow_sdk.verdicts import Verdict

RECEIVED = "received"
"""Under this name a graph records what it was told from outside."""


class Listens(GraphGrows, Protocol):
    """The run that listens."""

    growing: Growing
    over: anyio.Event
    """Set when nothing is left to be done."""

    def task_begins(self) -> None:
        """A task of the run has its first turn."""
        ...

    def task_ends(self) -> None:
        """A task of the run is over."""
        ...


async def listen(run: Listens) -> None:
    """Take what is said to a graph from outside, as long as it runs."""
    run.task_begins()
    try:
        while not run.over.is_set():
            found = await wait_for(run.engine, Wait(_Listener(run.place), "graph", messages=(GRAPH_MESSAGE,)))
            for message in found.messages:
                await _take(run, message)
    except Exception as error:
        if run.engine.life.halted:
            raise
        raise run.engine.life.mistake(error) from None
    finally:
        run.task_ends()


async def take_what_has_come(run: Listens) -> None:
    """Take what was said before a firing ended: the run may be over with that, and would not hear it any more."""
    inbox = run.engine.journal.inbox
    for message in inbox.find((GRAPH_MESSAGE,), inbox.count(GRAPH_MESSAGE)):
        await _take(run, message)


async def _take(run: Listens, message: InboxMessage) -> None:
    """Do what a message says, in one commit with the record of it; once, whoever finds it."""
    engine, place = run.engine, run.place
    if not engine.journal.inbox.has(message):
        return
    number = run.interpreter.marking.head.events + 1
    index = place.scope.names.intern(RECEIVED)
    location = place.location + pack_segment(index) + pack_pair(index, number)
    chooser = run.chooser()
    effects, verdict = _apply(run, message, chooser)
    entry = Entry(Kind.LISTEN, 0, engine.clock.time())
    taken = Taken(message.id, GRAPH_MESSAGE, message.sent_at, message.payload, message.reply_to)
    entry.data = ListenData((GRAPH_MESSAGE,), None, 1, (taken,))
    entry.complete(None, engine.clock.time())
    engine.journal.takings.take(message)
    engine.journal.history.put(location, entry)
    run.record(effects)
    if not effects.is_over:
        await engine.parking.flush()
    if message.reply_to is not None:
        await engine.answer(message.reply_to, run.growing.answer(verdict))
    run.spawn(effects.started)
    if effects.is_over:
        run.over.set()


def _apply(run: Listens, message: InboxMessage, chooser: Evaluated) -> tuple[Effects, Verdict]:
    try:
        said: Any = run.engine.codec.decode(message.payload, plain=True)
    except CodecError as error:
        raise run.engine.life.misread(error, "what was said to the graph can't be read") from None
    if "patch" in said:
        return run.interpreter.patch(chooser, said["patch"]), Verdict.allow
    return run.growing.receive(chooser, said.get("submit", []))


class _Listener:
    """What listens for a graph, as a wait names it."""

    def __init__(self, place: Place) -> None:
        self.location = place.location
        self.name = place.name
        self.path = place.path


class DeniedTokens:
    """Tokens whose admission was denied, as everybody can see them: as waits of the instance."""

    def __init__(self, place: Place, engine: Engine, marking: Marking) -> None:
        self._place = place
        self._engine = engine
        self._marking = marking
        self._shown: dict[int, bytes] = {}
        """Those that are shown, with the place of the wait."""

    def show(self) -> None:
        """Show those that there are now, with the next commit."""
        journal, blocked = self._engine.journal, self._marking.blocked
        if blocked.keys() == self._shown.keys():
            return
        self._engine.parking.waits.denied += len(blocked) - len(self._shown)
        for number in [number for number in self._shown if number not in blocked]:
            journal.end_wait(self._shown.pop(number), ())
        for number in blocked:
            if number not in self._shown:
                step = self._marking.tokens[number].step
                index = self._place.scope.names.intern(step)
                location = self._place.location + pack_pair(index, number) + pack_segment(index)
                path = join_path(self._place.path, escape(step))
                journal.begin_wait(location, (), WaitRow("admission", step, path, None, 1, 0), None)
                self._shown[number] = location
