"""`ctx.task`: something that a person is to do.

The task stands on a list from the commit on that records the wait for it. Who completes it sends a message that bears
the token of the wait, in the commit that takes the task off the list.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from msgspec.structs import replace as replaced

from workflow_sdk.errors import CodecError, ListenTimeoutError
from workflow_sdk.journal.names import name_problem
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, Recorded, about, pack_error, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import perform
from workflow_sdk.operations.types import Wait
from workflow_sdk.operations.waiting import Arrived, deadline, wait_for
from workflow_sdk.rows.entries import Entry, TaskData, token_of
from workflow_sdk.rows.outside import Hanging, TaskDone, TaskRow
from workflow_sdk.rows.retry import Duration
from workflow_sdk.rows.status import Kind
from workflow_sdk.rows.wire import shown

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class TaskResult(Generic[T_co]):
    """The result of a task, and who has completed it."""

    value: T_co
    by: str
    completed_at: datetime
    task_id: str

    @property
    def result(self) -> T_co:
        """The same as `value`."""
        return self.value


class Asked(Struct, frozen=True):
    """What a task asks for, and of whom."""

    payload: object = None
    assignee: str | None = None
    roles: Sequence[str] = ()
    type: Any = Any
    timeout: Duration | None = None
    until: datetime | None = None


def start_task(scope: Scope, name: str, asked: Asked) -> Coroutine[Any, Any, TaskResult[Any]]:
    """Register a task; its coroutine waits until it is done."""
    place = register(scope, Kind.TASK, name)
    roles = (asked.roles,) if isinstance(asked.roles, str) else tuple(asked.roles)
    for who in (*roles, *([] if asked.assignee is None else [asked.assignee])):
        if not isinstance(who, str) or name_problem(who) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise place.mistake(f"{place.what}: assignee and roles are texts, not {shown(who)}")
    until = deadline(place, asked.timeout, asked.until)
    try:
        raw = scope.engine.codec.encode(asked.payload)
    except CodecError as error:
        place.release()
        raise scope.engine.life.mistake(about(f"the payload of {place.what}", error)) from None
    return scope.start(perform(place, _Task(place, replaced(asked, roles=roles), raw, until)))


class _Task:
    """Puts a task on the list, and waits for its result."""

    __slots__ = ("_asked", "_payload", "_place", "_until")

    def __init__(self, place: Place, asked: Asked, payload: bytes, until: float | None) -> None:
        self._place = place
        self._asked = asked
        self._payload = payload
        self._until = until

    async def begin(self, engine: Engine) -> Entry:
        place = self._place
        await engine.calls.tell(place.path)
        entry = place.new_entry()
        self._open(engine, entry)
        # From this flush on somebody may complete the task, for which the wait must have a token.
        await engine.parking.flush()
        return await self.resume(engine, entry)

    def _open(self, engine: Engine, entry: Entry) -> None:
        """Record the wait, and put the task on the list, with the next commit."""
        place, asked, until = self._place, self._asked, self._until
        journal, facts = engine.journal, engine.facts
        seen = f"{facts.generation} {journal.unwritten.version} {place.path}".encode()
        id = blake2b(seen, key=facts.seed, person=b"task", digest_size=16).hexdigest()
        entry.wait(TaskData(id, until))
        place.put(entry)
        journal.hang(place.location, Hanging("task", id, ends=True, since=0))
        reference = engine.state.public.reference if engine.state.public is not None else journal.about.shown.reference
        row = TaskRow(
            id,
            place.name,
            facts.instance_id,
            place.path,
            b"",
            self._payload,
            asked.assignee,
            tuple(asked.roles),
            reference,
            entry.created_at,
            until,
        )
        engine.outside.open_task(row, place.location)

    async def resume(self, engine: Engine, entry: Entry) -> Entry:
        """Wait until the task is completed or its deadline is over, and record which of the two."""
        place, data = self._place, entry.data
        assert isinstance(data, TaskData), "a task is known by its id"
        token = token_of(place.location, entry)
        wait = Wait(place, "task", data.until, (token,), entry=entry)
        while True:
            came = await wait_for(engine, wait)
            if isinstance(came, Arrived):
                (message,) = came.messages
                done = TaskDone.unpack(message.payload)
                problem = self._problem(engine, done)
                if problem is None:
                    engine.journal.takings.take(message)
                    entry.data = replace(data, by=done.by, done_at=done.at)
                    entry.complete(done.result, engine.clock.time())
                    engine.journal.unhang(place.location)
                    return await place.store(engine, entry)
                await engine.messages.reopen_task(data.id, place.name, message, done.result, problem)
                if engine.life.halted:
                    await engine.life.never()
            else:
                late = await self._expire(engine, entry, data.id)
                if late is not None:
                    engine.journal.unhang(place.location)
                    return late
            wait = wait.anew()

    async def _expire(self, engine: Engine, entry: Entry, id: str) -> Entry | None:
        """Expire the task, and record that nobody has completed it in time; None if somebody has."""
        place = self._place
        error = ListenTimeoutError(f"{place.what}: nobody completed it in time")
        error.path = place.path

        def record(late: Entry, outcome: str) -> None:
            late.fail(pack_error(error, engine.codec), engine.clock.time())

        effect = Recorded(place, engine, entry, record)
        return effect.entry if await engine.outside.expire_task(id, effect) else None

    def _problem(self, engine: Engine, done: TaskDone) -> str | None:
        """Why a result does not fit the task; None if it does."""
        try:
            engine.codec.decode_checked(done.result, self._asked.type)
        except CodecError as error:
            return f"it is not what {self._place.what} asks for: {error}"
        return None

    def outcome(self, entry: Entry) -> TaskResult[Any]:
        place, data = self._place, entry.data
        if entry.error is not None:
            raise place.failure(entry.error)
        assert isinstance(data, TaskData) and data.by is not None, "who has done a task is known"
        assert entry.value is not None, "a task that was done has a value"
        value = place.decode(entry.value, self._asked.type, checked=True)
        return TaskResult(value, data.by, datetime.fromtimestamp(data.done_at, UTC), data.id)
