"""The list of tasks for people. Each change of a task is one commit, which also notes who made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.deliver import Posted
from workflow_sdk.changes.tasks import assign, complete
from workflow_sdk.changes.workers import no_worker
from workflow_sdk.client.access import Access
from workflow_sdk.client.info import Page, after_cursor
from workflow_sdk.errors import (
    CodecError,
    DefinitionError,
    InstanceNotFoundError,
)
from workflow_sdk.journal.names import name_problem
from workflow_sdk.rows.keys import last_of
from workflow_sdk.rows.location import subtree
from workflow_sdk.rows.outside import (
    TaskEvent,
    TaskRow,
    TaskStatus,
    shown_token,
    task_key,
    task_log,
    tasks_by_assignee,
    tasks_by_reference,
    tasks_by_role,
    tasks_of,
    tasks_open,
)
from workflow_sdk.rows.wire import deadline_of, shown, time_of


@dataclass(frozen=True, slots=True)
class TaskChange:
    """One event in the log of a task."""

    what: str
    """`created`, `assigned`, `released`, `completed`, `reopened`, `expired` or `cancelled`."""
    by: str | None
    """Who did it; None if the workflow did, or if the caller did not say."""
    at: datetime
    to: str | None = None
    """The person it was assigned to."""


@dataclass(frozen=True, slots=True)
class Task:
    """Work for a person, which an instance waits for or waited for."""

    id: str
    name: str
    instance: str
    """The id of the instance that waits for it."""
    path: str
    payload: Any
    """Plain data, like the result."""
    assignee: str | None
    roles: tuple[str, ...]
    """Whoever completes the task must have one of these roles. If there are none, anybody may complete it."""
    reference: str | None
    """The business reference that the instance had when it created the task."""
    status: TaskStatus
    token: str
    """The token of the wait for it, as in `info().waits` of the instance."""
    created_at: datetime
    until: datetime | None
    completed_by: str | None = None
    ended_at: datetime | None = None
    result: Any = None
    log: tuple[TaskChange, ...] = field(default=(), repr=False)
    """Everything that happened to the task, in order. Only `get` reads it; in a list it is empty."""


class _Wanted(NamedTuple):
    """The filters of a list: an open task is listed if it matches all that are not None."""

    assignee: str | None
    role: str | None
    reference: str | None
    instance: str | None

    @property
    def prefix(self) -> bytes:
        """The prefix of the index that has all tasks that match, and the fewest others."""
        if self.instance is not None:
            return tasks_of(self.instance)
        if self.assignee is not None:
            return tasks_by_assignee(self.assignee)
        if self.reference is not None:
            return tasks_by_reference(self.reference)
        return tasks_open() if self.role is None else tasks_by_role(self.role)

    def has(self, row: TaskRow) -> bool:
        """Whether a task matches. It may have changed since its key was read from the index."""
        if row.status is not TaskStatus.OPEN or (self.role is not None and self.role not in row.roles):
            return False
        asked = (self.assignee, row.assignee), (self.reference, row.reference), (self.instance, row.instance)
        return all(wanted in (None, its) for wanted, its in asked)


class Tasks:
    """The task list of a store."""

    def __init__(self, access: Callable[[], Access]) -> None:
        self._open = access

    async def list(
        self,
        *,
        assignee: str | None = None,
        role: str | None = None,
        reference: str | None = None,
        instance: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Task]:
        """The open tasks that match all filters, oldest first, a page at a time."""
        access = self._open()
        _check_limit(limit)
        wanted = _Wanted(assignee, role, reference, instance)
        begin, end = subtree(wanted.prefix)
        if cursor is not None:
            begin = wanted.prefix + after_cursor(cursor, wanted.prefix)
        found: list[Task] = []
        while rows := await access.looking.scan(begin, end, limit=limit):
            for key, _ in rows:
                begin = key + b"\x00"
                raw = await access.looking.get(task_key(last_of(key)))
                row = None if raw is None else TaskRow.unpack(raw)
                if row is not None and wanted.has(row):
                    found.append(_task(row, access))
                    if len(found) == limit:
                        return Page(found, key.hex())
        return Page(found, None)

    async def get(self, id: str) -> Task:
        """A task, open or not, and everything that happened to it."""
        access = self._open()
        raw = await access.looking.get(task_key(id))
        if raw is None:
            raise InstanceNotFoundError(f"there is no task {id!r}")
        row = TaskRow.unpack(raw)
        events = [TaskEvent.unpack(raw) for _, raw in await access.looking.scan(*subtree(task_log(id)))]
        log = tuple(TaskChange(event.what, event.by, time_of(event.at), event.to) for event in events)
        return _task(row, access, log)

    async def assign(self, id: str, to: str, *, by: str | None = None) -> None:
        """Give a task to somebody, whoever had it before; `StaleError` if it is not open any more."""
        _check_who(to, "assigned to")
        await self._change(id, "assigned", by, to)

    async def release(self, id: str, *, by: str | None = None) -> None:
        """Take a task from its assignee, so that it has none; `StaleError` if it is not open any more."""
        await self._change(id, "released", by, None)

    async def _change(self, id: str, what: str, by: str | None, to: str | None) -> None:
        access = self._open()
        if by is not None:
            _check_who(by, what)
        await apply(access.driver, assign(id, what, by, to, access.clock.time()))

    async def complete(self, id: str, result: Any = None, *, by: str, roles: Sequence[str] = ()) -> None:
        """Complete a task: the instance goes on with the result.

        `StaleError` if the task was completed before, or is over; `NotAuthorizedError` if the caller has none of its
        roles. In both cases nothing changes.
        """
        access = self._open()
        _check_who(by, "completed by")
        mine = {roles} if isinstance(roles, str) else set(roles)
        try:
            value = access.codec.encode(result)
        except CodecError as error:
            raise type(error)(f"the result of task {id!r}: {error}") from None
        here = access.here

        def tell(done: tuple[str, Posted]) -> None:
            instance_id, posted = done
            if here is not None and posted.worker is not None and here.is_worker(posted.worker):
                here.message_came(instance_id)

        is_here = no_worker if here is None else here.is_worker
        await apply(access.driver, complete(id, value, by, mine, access.clock.time(), is_here), tell)


def _check_limit(limit: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 1000:
        raise DefinitionError(f"limit is a number of tasks from 1 to 1000, not {shown(limit)}")


def _check_who(who: object, what: str) -> None:
    if not isinstance(who, str) or name_problem(who) is not None:
        raise DefinitionError(
            f"a task is {what} someone, whose name is a text of 1 to 1000 characters, not {shown(who)}"
        )


def _task(row: TaskRow, access: Access, log: tuple[TaskChange, ...] = ()) -> Task:
    codec = access.codec
    return Task(
        id=row.id,
        name=row.name,
        instance=row.instance,
        path=row.path,
        payload=codec.decode(row.payload, plain=True),
        assignee=row.assignee,
        roles=row.roles,
        reference=row.reference,
        status=row.status,
        token=shown_token(row.proof, row.token),
        created_at=time_of(row.created_at),
        until=None if row.until is None else deadline_of(row.until),
        completed_by=row.by,
        ended_at=None if row.ended_at is None else time_of(row.ended_at),
        result=None if row.result is None else codec.decode(row.result, plain=True),
        log=log,
    )
