"""A task of a person, as it is stored, and the rows that it is found by."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from workflow_sdk.core.keys import TASKS
from workflow_sdk.core.location import check_location
from workflow_sdk.core.tuples import pack
from workflow_sdk.core.wire import Moment, Row, Time

__all__ = [
    "TaskEvent",
    "TaskRow",
    "TaskStatus",
    "all_tasks_of",
    "ended_tasks_of",
    "task_key",
    "task_log",
    "tasks_by_assignee",
    "tasks_by_reference",
    "tasks_by_role",
    "tasks_of",
    "tasks_open",
]


class TaskStatus(StrEnum):
    """What became of a task."""

    OPEN = "open"
    COMPLETED = "completed"
    EXPIRED = "expired"
    """Its deadline came first."""
    CANCELLED = "cancelled"
    """Nobody waits for it any more."""


def task_key(id: str) -> bytes:
    """The row of a task."""
    return TASKS + pack((1, id))


def task_log(id: str) -> bytes:
    """What the rows of what happened to a task begin with."""
    return TASKS + pack((2, id))


def tasks_open() -> bytes:
    """What the rows of all open tasks begin with; a time and an id follow, as with the others."""
    return TASKS + pack((3,))


def tasks_by_assignee(assignee: str) -> bytes:
    """What the rows of the open tasks of a person begin with."""
    return TASKS + pack((4, assignee))


def tasks_by_role(role: str) -> bytes:
    """What the rows of the open tasks for a role begin with."""
    return TASKS + pack((5, role))


def tasks_by_reference(reference: str) -> bytes:
    """What the rows of the open tasks with a business reference begin with."""
    return TASKS + pack((6, reference))


def tasks_of(instance: str) -> bytes:
    """What the rows of the open tasks of an instance begin with."""
    return TASKS + pack((7, instance))


def all_tasks_of(instance: str) -> bytes:
    """What the rows of all tasks of an instance begin with, also of those that are over."""
    return TASKS + pack((8, instance))


def ended_tasks_of(instance: str) -> bytes:
    """What the rows of an instance's tasks that are over begin with, in the order in which they ended."""
    return TASKS + pack((9, instance))


class TaskRow(Row, frozen=True):
    """A task."""

    WHAT: ClassVar[str] = "a task"

    id: str
    name: str
    instance: str
    path: str
    token: bytes
    """Of the wait for it."""
    payload: bytes
    assignee: str | None
    roles: tuple[str, ...]
    reference: str | None
    created_at: Moment
    until: Time | None
    status: TaskStatus = TaskStatus.OPEN
    by: str | None = None
    ended_at: Moment | None = None
    result: bytes | None = None
    proof: bytes = b""
    """What its token shows beside the wait: see `core.tokens`."""

    @classmethod
    def unpack(cls, raw: bytes) -> TaskRow:
        row = super().unpack(raw)
        check_location(row.token)
        return row

    def places(self) -> list[bytes]:
        """The rows that an open task is found by."""
        own = pack((self.created_at, self.id))
        found = [tasks_open(), tasks_of(self.instance), *map(tasks_by_role, self.roles)]
        if self.assignee is not None:
            found.append(tasks_by_assignee(self.assignee))
        if self.reference is not None:
            found.append(tasks_by_reference(self.reference))
        return [place + own for place in found]

    @property
    def own_place(self) -> bytes:
        """The row that it is found by with its instance, as long as that is there."""
        return all_tasks_of(self.instance) + pack((self.created_at, self.id))

    @property
    def ended_place(self) -> bytes | None:
        """The row that it is found by once it is over; None as long as it is open."""
        if self.ended_at is None:
            return None
        return ended_tasks_of(self.instance) + pack((self.ended_at, self.id))


class TaskEvent(Row, frozen=True):
    """Something that happened to a task."""

    WHAT: ClassVar[str] = "what happened to a task"

    what: str
    """`created`, `assigned`, `released`, `completed`, `reopened`, `expired` or `cancelled`."""
    by: str | None
    at: Moment
    to: str | None = None
