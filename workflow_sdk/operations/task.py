"""`ctx.task`: something that a person is to do.

The task stands on a list from the commit on that records the wait for it. Who completes it sends a message that bears
the token of the wait, in the commit that takes the task off the list.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from workflow_sdk.core.entries import Entry, TaskData, token_of
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.outside import Hanging, TaskDone
from workflow_sdk.core.retry import Duration
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Kind
from workflow_sdk.core.tasks import TaskRow
from workflow_sdk.errors import CodecError, ListenTimeoutError
from workflow_sdk.operations.effect import Recorded
from workflow_sdk.operations.engine import Wait
from workflow_sdk.operations.outcome import about, pack_error
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.sleep import deadline
from workflow_sdk.operations.step import watched

__all__ = ["Asked", "TaskResult", "start_task"]

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class TaskResult(Generic[T_co]):
    """What came of a task, and who has done it."""

    value: T_co
    by: str
    completed_at: datetime
    task_id: str

    @property
    def result(self) -> T_co:
        """The same as `value`."""
        return self.value


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of whom."""

    payload: object
    assignee: str | None
    roles: Sequence[str]
    type: Any
    timeout: Duration | None
    until: datetime | None


def start_task(scope: Scope, name: str, asked: Asked) -> Coroutine[Any, Any, TaskResult[Any]]:
    """Register a task; its coroutine waits until it is done."""
    place = register(scope, Kind.TASK, name)
    roles = (asked.roles,) if isinstance(asked.roles, str) else tuple(asked.roles)
    for who in (*roles, *([] if asked.assignee is None else [asked.assignee])):
        if not isinstance(who, str) or name_problem(who) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise place.slip(f"{place.what}: assignee and roles are texts, not {shown(who)}")
    until = deadline(place, asked.timeout, asked.until)
    try:
        raw = scope.engine.codec.encode(asked.payload)
    except CodecError as error:
        place.release()
        raise scope.engine.slip(about(f"the payload of {place.what}", error)) from None
    return scope.start(_task(place, replaced(asked, roles=roles), raw, until))


async def _task(place: Place, asked: Asked, payload: bytes, until: float | None) -> TaskResult[Any]:
    engine = place.scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        if entry is None:
            await watched(engine, place.path)
            entry = place.new_entry()
            _open(place, entry, asked, payload, until)
            # From here on somebody may be at it: so there has to be a token of the wait.
            await place.flush()
        elif not entry.is_final and engine.walking:
            await engine.never()
        if not entry.is_final:
            entry = await _wait(place, entry, asked)
        place.close(entry)
        if entry.error is not None:
            raise place.failure(entry.error)
        data = entry.data
        assert isinstance(data, TaskData) and data.by is not None, "who has done a task is known"
        assert entry.value is not None, "a task that was done has a value"
        value = place.decode(entry.value, asked.type, checked=True)
        return TaskResult(value, data.by, datetime.fromtimestamp(data.done_at, UTC), data.id)
    finally:
        place.release()


def _open(place: Place, entry: Entry, asked: Asked, payload: bytes, until: float | None) -> None:
    """Record the wait, and put the task on the list, with the next commit."""
    engine = place.scope.engine
    journal, facts = engine.journal, engine.facts
    seen = f"{facts.generation} {journal.version} {place.path}".encode()
    id = blake2b(seen, key=facts.seed, person=b"task", digest_size=16).hexdigest()
    entry.wait(TaskData(id, until))
    place.put(entry)
    journal.hang(place.location, Hanging("task", id, ends=True, since=0))
    reference = engine.world.reference if engine.world is not None else journal.about.shown.reference
    row = TaskRow(
        id,
        place.name,
        facts.instance_id,
        place.path,
        b"",
        payload,
        asked.assignee,
        tuple(asked.roles),
        reference,
        entry.created_at,
        until,
    )
    engine.open_task(row, place.location)


async def _wait(place: Place, entry: Entry, asked: Asked) -> Entry:
    """Park until it is done or the deadline is past; record which."""
    engine = place.scope.engine
    data = entry.data
    assert isinstance(data, TaskData), "a task is known by its id"
    token = token_of(place.location, entry)
    refreshed = False
    while True:
        found = engine.journal.inbox.find((token,))
        due = data.until is not None and engine.now() >= data.until
        if found:
            done = TaskDone.unpack(found[0].payload)
            if (problem := _problem(place, done, asked)) is not None:
                await engine.reopen_task(data.id, place.name, found[0], done.result, problem)
                continue
            engine.journal.take_message(found[0])
            entry.data = replace(data, by=done.by, done_at=done.at)
            entry.complete(done.result, engine.now())
            break
        if due and refreshed:
            late = await _expire(place, entry, data.id)
            if late is not None:
                engine.journal.unhang(place.location)
                return late
            refreshed = False
        elif due:
            # Who was in time wins, and the store may know of someone whom we don't.
            await engine.refresh_inbox()
            refreshed = True
        else:
            wait = Wait(place.location, "task", place.name, place.path, data.until, (token,), entry=entry)
            await engine.park(wait)
            refreshed = False
    engine.journal.unhang(place.location)
    place.put(entry)
    await place.flush()
    return entry


async def _expire(place: Place, entry: Entry, id: str) -> Entry | None:
    """Take the task off the list, and record that nobody did it in time; None if somebody has."""
    engine = place.scope.engine
    error = ListenTimeoutError(f"{place.what}: nobody did it in time")
    error.path = place.path

    def record(late: Entry, outcome: str) -> None:
        late.fail(pack_error(error, engine.codec), engine.now())

    effect = Recorded(place, entry, record)
    return effect.entry if await engine.expire_task(id, effect) else None


def _problem(place: Place, done: TaskDone, asked: Asked) -> str | None:
    """Why a result is not what was asked for, or None."""
    try:
        place.scope.engine.codec.decode_checked(done.result, asked.type)
    except CodecError as error:
        return f"it is not what {place.what} asks for: {error}"
    return None
