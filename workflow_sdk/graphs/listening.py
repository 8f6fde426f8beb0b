"""What a graph is told while it runs: changes of its context, and steps to be added."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from workflow_sdk.errors import CodecError
from workflow_sdk.graphs.evaluating import Evaluated
from workflow_sdk.graphs.growing import GraphGrows, Growing
from workflow_sdk.graphs.moves import Effects
from workflow_sdk.journal.inbox import InboxMessage, is_answer
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place
from workflow_sdk.operations.types import GRAPH_MESSAGE, Wait
from workflow_sdk.operations.waiting import wait_for
from workflow_sdk.rows.entries import Entry, ListenData, Taken
from workflow_sdk.rows.location import pack_pair, pack_segment
from workflow_sdk.rows.status import Kind
from workflow_sdk.verdicts import Verdict

RECEIVED = "received"
"""Under this name a graph records what it was told from outside."""


class Listens(GraphGrows, Protocol):
    """The run that listens."""

    growing: Growing
    unwound: bytes | None
    """The RollbackError that has ended the run."""

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
        while not _is_over(run):
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
    """Do what a message says, in one commit with the record of it and the answer; once, whoever finds it."""
    engine, place, key = run.engine, run.place, message.reply_to
    # Asked before it is decided what comes of it: an answer of its own commit would be given by nobody after a crash.
    is_asked = key is not None and await _is_asked(engine, key)
    async with run.deciding:
        # The last end may have been decided meanwhile: what begins after that would never be run.
        if _is_over(run) or not engine.journal.inbox.has(message):
            return
        number = run.interpreter.marking.head.events + 1
        index = place.scope.names.intern(RECEIVED)
        location = place.location + pack_segment(index) + pack_pair(index, number)
        chooser = run.chooser()
        effects, verdict = _apply(run, message, chooser)
        cleanups = await run.cancel(effects) if effects.cancelled else []
        entry = Entry(Kind.LISTEN, 0, engine.clock.time())
        taken = Taken(message.id, GRAPH_MESSAGE, message.sent_at, message.payload, key)
        entry.data = ListenData((GRAPH_MESSAGE,), None, 1, (taken,))
        entry.complete(None, engine.clock.time())
        engine.journal.takings.take(message)
        engine.journal.history.put(location, entry)
        run.recording.record(effects)
    if key is None:
        await run.follow(effects, cleanups, engine.parking.flush)
    else:
        await run.follow(effects, cleanups, partial(engine.answer, key, run.growing.answer(verdict), is_asked))


def _is_over(run: Listens) -> bool:
    """Whether it is decided that nothing is left to be done."""
    marking = run.interpreter.marking
    return run.unwound is not None or not (marking.firings or marking.tokens)


async def _is_asked(engine: Engine, key: bytes) -> bool:
    question = await engine.stored.shared(key)
    return question is not None and not is_answer(question)


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
