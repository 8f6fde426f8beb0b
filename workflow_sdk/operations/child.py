"""`ctx.child` and `ctx.continue_with`: instances that an instance starts, in the commit that records it.

A child that ends says so in its own last commit: with a message that bears the token of the wait, so that none but this
wait can take it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import (
    AlreadyExistsError,
    ChildFailedError,
    CodecError,
    DefinitionError,
    ErrorInfo,
    PayloadTooLargeError,
)
from workflow_sdk.journal.names import name_problem
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.inputs import encode_input
from workflow_sdk.operations.place import Place, Recorded, make_room, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import perform
from workflow_sdk.operations.types import Start, Wait
from workflow_sdk.operations.waiting import Arrived, wait_for
from workflow_sdk.rows.entries import ChildData, Entry, token_of
from workflow_sdk.rows.outside import Ending, Hanging
from workflow_sdk.rows.status import Kind, Status
from workflow_sdk.rows.wire import shown
from workflow_sdk.values import SealedError
from workflow_sdk.values.failures import unpack_error_info

ID_CHARACTERS_MAX = 200
"""The longest derived id. Longer ones are shortened, since a chain of children may be long."""


class Begin(Struct, frozen=True):
    """What is to be started."""

    workflow: Workflow[Any, Any] | str
    input: object
    id: str | None


def start_child(scope: Scope, name: str, what: Begin, on_cancel: str) -> Coroutine[Any, Any, Any]:
    """Register a child; its coroutine starts it, and waits for it."""
    place = register(scope, Kind.CHILD, name)
    raw = _check(place, what)
    if on_cancel not in ("cancel", "abandon"):
        raise place.mistake(f'{place.what}: on_cancel is "cancel" or "abandon", not {shown(on_cancel)}')
    return scope.start(perform(place, _Child(place, what, raw, cancels=on_cancel == "cancel")))


def start_continue(scope: Scope, name: str, what: Begin) -> Coroutine[Any, Any, str]:
    """Register a successor; its coroutine starts it, and returns its id."""
    place = register(scope, Kind.CONTINUE, name)
    return scope.start(perform(place, _Successor(place, what, _check(place, what))))


def _check(place: Place, what: Begin) -> bytes:
    """Encode the input. An input that is known to be wrong is a mistake of the author."""
    workflow, engine = what.workflow, place.scope.engine
    if not isinstance(workflow, (Workflow, str)):
        raise place.mistake(
            f"{place.what} takes a function decorated with @workflow, or its name, not {shown(workflow)}"
        )
    if isinstance(workflow, str) and (problem := name_problem(workflow)) is not None:
        raise place.mistake(f"{place.what}: a workflow can't be called {shown(workflow)}: {problem}")
    if what.id is not None and name_problem(what.id) is not None:
        raise place.mistake(f"{place.what}: an id is a text of 1 to 1000 characters, not {what.id!r:.100}")
    try:
        if isinstance(workflow, Workflow):
            workflow.check()
            return encode_input(engine.codec, workflow, what.input)
        return engine.codec.encode(what.input)
    except (CodecError, DefinitionError) as error:
        raise place.mistake(f"{place.what}: {error}") from None


def _id(place: Place, given: str | None) -> str:
    """The id of the instance to start: the given one, or one made of this instance's id and the path."""
    if given is not None:
        return given
    facts = place.scope.engine.facts
    generation = "" if facts.generation == 1 else f":{facts.generation}"
    id = f"{facts.instance_id}{generation}/{place.path}"
    if len(id) > ID_CHARACTERS_MAX:
        id = f"{place.name[:40]}-{blake2b(id.encode(), digest_size=16).hexdigest()}"
    return id


class _Child:
    """Starts an instance, and waits for its end."""

    __slots__ = ("_cancels", "_input", "_place", "_what")

    def __init__(self, place: Place, what: Begin, input: bytes, *, cancels: bool) -> None:
        self._place = place
        self._what = what
        self._input = input
        self._cancels = cancels

    async def begin(self, engine: Engine) -> Entry:
        place, what, cancels = self._place, self._what, self._cancels
        id = _id(place, what.id)

        def record(entry: Entry, id: str) -> None:
            entry.wait(ChildData(id, cancels))

        self._meet()
        await engine.calls.tell(place.path)
        effect = Recorded(place, engine, place.new_entry(), record, Hanging("child", id, cancels, 0))
        start = Start(what.workflow, self._input, id, what.id is not None, place.location, is_watched=True)
        try:
            ended = await engine.outside.begin(start, effect)
        except AlreadyExistsError as error:
            entry = place.new_entry()
            entry.data = ChildData(id, cancels)
            error.path = place.path
            return await place.fail(engine, entry, error)
        if ended is None:
            return await self._wait(engine, effect.entry)
        entry = place.new_entry()
        entry.data = ChildData(id, cancels)
        return await self._end(engine, entry, id, ended)

    def resume(self, engine: Engine, entry: Entry) -> Awaitable[Entry]:
        self._meet()
        return self._wait(engine, entry)

    def _meet(self) -> None:
        """Note the workflow that the code names, so that `run_workflow` can run its instances."""
        if isinstance(self._what.workflow, Workflow):
            self._place.engine.meet(self._what.workflow)

    async def _wait(self, engine: Engine, entry: Entry) -> Entry:
        """Park until the child has ended, and record how it did."""
        place, data = self._place, entry.data
        assert isinstance(data, ChildData), "a child is known by its id"
        token = token_of(place.location, entry)
        wait = Wait(place, "child", messages=(token,), entry=entry)
        came = await wait_for(engine, wait)
        assert isinstance(came, Arrived), "there is no deadline"
        (message,) = came.messages
        await make_room(engine)
        ending = Ending.unpack(message.payload)
        engine.journal.takings.take(message)
        engine.journal.unhang(place.location)
        return await self._end(engine, entry, data.id, ending)

    async def _end(self, engine: Engine, entry: Entry, id: str, ended: Ending) -> Entry:
        """Record how the child has ended."""
        place = self._place
        if ended.status is Status.COMPLETED and ended.output is not None:
            entry.complete(ended.output, engine.clock.time())
            return await place.store(engine, entry)
        info = ErrorInfo("", ended.status.value)
        if ended.status is Status.COMPLETED:
            told = "it has completed, but its output is larger than a value may be; result() of its handle gives it"
            info = ErrorInfo(PayloadTooLargeError.__name__, told)
        if ended.error is not None:
            try:
                info = unpack_error_info(ended.error, engine.codec)
            except SealedError as unread:
                raise engine.life.misread(unread, f"how {place.what} has ended can't be read") from None
        error = ChildFailedError(id, info)
        error.path = place.path
        return await place.fail(engine, entry, error)

    def outcome(self, entry: Entry) -> Any:
        place, workflow = self._place, self._what.workflow
        self._meet()  # also where it is only replayed
        if entry.error is not None:
            raise place.failure(entry.error)
        assert entry.value is not None, "a child that did not fail has a value"
        if isinstance(workflow, Workflow):
            return place.decode(entry.value, workflow.output_hint)
        # From a name, whichever classes are loaded here.
        return place.decode(entry.value, Any, plain=True)


class _Successor:
    """Starts an instance without waiting for its end."""

    __slots__ = ("_input", "_place", "_what")

    def __init__(self, place: Place, what: Begin, input: bytes) -> None:
        self._place = place
        self._what = what
        self._input = input

    async def begin(self, engine: Engine) -> Entry:
        place, what = self._place, self._what

        def record(entry: Entry, id: str) -> None:
            entry.complete(engine.codec.encode(id), engine.clock.time())

        await engine.calls.tell(place.path)
        effect = Recorded(place, engine, place.new_entry(), record)
        try:
            await engine.outside.begin(
                Start(what.workflow, self._input, _id(place, what.id), what.id is not None), effect
            )
        except AlreadyExistsError as error:
            error.path = place.path
            return await place.fail(engine, place.new_entry(), error)
        return effect.entry

    async def resume(self, engine: Engine, entry: Entry) -> Entry:
        raise AssertionError("a successor is recorded when it is started")

    def outcome(self, entry: Entry) -> str:
        if entry.error is not None:
            raise self._place.failure(entry.error)
        assert entry.value is not None, "a successor is recorded with its id"
        return str(self._place.decode(entry.value, str))
