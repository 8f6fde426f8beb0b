"""`ctx.child` and `ctx.continue_with`: instances that an instance starts, in the commit that records it.

A child that ends says so in its own last commit: with a message that bears the token of the wait, so that none but this
wait can take it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from workflow_sdk.core.codec import SealedError
from workflow_sdk.core.entries import ChildData, Entry, token_of
from workflow_sdk.core.failures import unpack_error_info
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.outside import Ending, Hanging
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Kind, Status
from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import AlreadyExistsError, ChildFailedError, CodecError, DefinitionError, ErrorInfo
from workflow_sdk.operations.effect import Recorded
from workflow_sdk.operations.engine import Start, Unwound, Wait
from workflow_sdk.operations.inputs import encode_input
from workflow_sdk.operations.outcome import pack_error
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.step import watched

__all__ = ["Begin", "start_child", "start_continue"]

ID_CHARACTERS_MAX = 200
"""Derived ids that would be longer are made short: a chain of children may be long."""


@dataclass(frozen=True, slots=True)
class Begin:
    """What is to be started."""

    workflow: Workflow[Any, Any] | str
    input: object
    id: str | None


def start_child(scope: Scope, name: str, what: Begin, on_cancel: str) -> Coroutine[Any, Any, Any]:
    """Register a child; its coroutine starts it, and waits for it."""
    place = register(scope, Kind.CHILD, name)
    raw = _check(place, what)
    if on_cancel not in ("cancel", "abandon"):
        raise place.slip(f'{place.what}: on_cancel is "cancel" or "abandon", not {shown(on_cancel)}')
    return scope.start(_child(place, what, raw, cancels=on_cancel == "cancel"))


def start_continue(scope: Scope, name: str, what: Begin) -> Coroutine[Any, Any, str]:
    """Register a successor; its coroutine starts it, and returns its id."""
    place = register(scope, Kind.CONTINUE, name)
    return scope.start(_continue(place, what, _check(place, what)))


def _check(place: Place, what: Begin) -> bytes:
    """The input as it is stored. What can be seen to be wrong is a slip."""
    workflow, engine = what.workflow, place.scope.engine
    if not isinstance(workflow, (Workflow, str)):
        raise place.slip(f"{place.what} takes a function decorated with @workflow, or its name, not {shown(workflow)}")
    if isinstance(workflow, str) and (problem := name_problem(workflow)) is not None:
        raise place.slip(f"{place.what}: a workflow can't be called {shown(workflow)}: {problem}")
    if what.id is not None and name_problem(what.id) is not None:
        raise place.slip(f"{place.what}: an id is a text of 1 to 1000 characters, not {what.id!r:.100}")
    try:
        if isinstance(workflow, Workflow):
            return encode_input(engine.codec, workflow, what.input)
        return engine.codec.encode(what.input)
    except (CodecError, DefinitionError) as error:
        place.release()
        raise engine.slip(DefinitionError(f"{place.what}: {error}")) from None


def _id(place: Place, given: str | None) -> str:
    """What it is called: as it is given, or after this instance and the path."""
    if given is not None:
        return given
    facts = place.scope.engine.facts
    generation = "" if facts.generation == 1 else f":{facts.generation}"
    id = f"{facts.instance_id}{generation}/{place.path}"
    if len(id) > ID_CHARACTERS_MAX:
        id = f"{place.name[:40]}-{blake2b(id.encode(), digest_size=16).hexdigest()}"
    return id


async def _child(place: Place, what: Begin, raw: bytes, *, cancels: bool) -> Any:
    engine = place.scope.engine
    try:
        if not place.open():
            await engine.never()
        if isinstance(what.workflow, Workflow):
            engine.meet(what.workflow)
        entry = place.entry
        if entry is None:
            entry = await _begin_child(place, what, raw, cancels=cancels)
        elif not entry.is_final and engine.walking:
            await engine.never()
        if not entry.is_final:
            await _wait(place, entry)
        place.close(entry)
        if entry.error is not None:
            raise place.failure(entry.error)
        assert entry.value is not None, "a child that did not fail has a value"
        if isinstance(what.workflow, Workflow):
            return place.decode(entry.value, what.workflow.output_hint)
        # From a name, whichever classes are loaded here.
        return place.decode(entry.value, Any, plain=True)
    finally:
        place.release()


async def _begin_child(place: Place, what: Begin, raw: bytes, *, cancels: bool) -> Entry:
    engine = place.scope.engine
    id = _id(place, what.id)

    def record(entry: Entry, id: str) -> None:
        entry.wait(ChildData(id, cancels))

    await watched(engine, place.path)
    effect = Recorded(place, place.new_entry(), record, Hanging("child", id, cancels, 0))
    start = Start(what.workflow, raw, id, what.id is not None, place.location, is_watched=True)
    try:
        ended = await engine.begin(start, effect)
    except AlreadyExistsError as error:
        return await _failed(place, error, id, cancels=cancels)
    if ended is None:
        return effect.entry
    entry = place.new_entry()
    entry.data = ChildData(id, cancels)
    _end(place, entry, id, ended)
    place.put(entry)
    await place.flush()
    return entry


async def _failed(place: Place, error: AlreadyExistsError, id: str, *, cancels: bool = False) -> Entry:
    """It can't be started."""
    engine = place.scope.engine
    entry = place.new_entry()
    if place.kind is Kind.CHILD:
        entry.data = ChildData(id, cancels)
    error.path = place.path
    entry.fail(pack_error(error, engine.codec), engine.now())
    place.put(entry)
    await place.flush()
    return entry


async def _wait(place: Place, entry: Entry) -> None:
    """Park until the child has ended; record how."""
    engine = place.scope.engine
    token = token_of(place.location, entry)
    data = entry.data
    assert isinstance(data, ChildData), "a child is known by its id"
    while not (found := engine.journal.inbox.find((token,))):
        await engine.park(Wait(place.location, "child", place.name, place.path, messages=(token,), entry=entry))
    (message,) = found
    await place.make_room()
    ending = Ending.unpack(message.payload)
    engine.journal.take_message(message)
    engine.journal.unhang(place.location)
    _end(place, entry, data.id, ending)
    place.put(entry)
    await place.flush()


def _end(place: Place, entry: Entry, id: str, ended: Ending) -> None:
    engine = place.scope.engine
    if ended.status is Status.COMPLETED and ended.output is not None:
        entry.complete(ended.output, engine.now())
        return
    no_reason = ErrorInfo("", ended.status.value)
    try:
        info = no_reason if ended.error is None else unpack_error_info(ended.error, engine.codec)
    except SealedError as unread:
        engine.unreadable(unread)
        raise Unwound from None
    error = ChildFailedError(id, info)
    error.path = place.path
    entry.fail(pack_error(error, engine.codec), engine.now())


async def _continue(place: Place, what: Begin, raw: bytes) -> str:
    engine = place.scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        if entry is None:

            def record(entry: Entry, id: str) -> None:
                entry.complete(engine.codec.encode(id), engine.now())

            await watched(engine, place.path)
            effect = Recorded(place, place.new_entry(), record)
            start = Start(what.workflow, raw, _id(place, what.id), what.id is not None)
            try:
                await engine.begin(start, effect)
            except AlreadyExistsError as error:
                entry = await _failed(place, error, start.id)
            else:
                entry = effect.entry
        place.close(entry)
        if entry.error is not None:
            raise place.failure(entry.error)
        assert entry.value is not None, "a successor is recorded with its id"
        return str(place.decode(entry.value, str))
    finally:
        place.release()
