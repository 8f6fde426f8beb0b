"""A task of a person, as it is stored, and the rows that it is found by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from workflow_sdk.core.keys import TASKS
from workflow_sdk.core.location import check_location
from workflow_sdk.core.tuples import pack
from workflow_sdk.core.wire import NOTHING, NUMBERS, damaged, moment, number, pack_record, shapes, unpack_record

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


_TASK = shapes(
    (str,),
    (str,),
    (str,),
    (str,),
    (bytes,),
    (bytes,),
    (str, NOTHING),
    (list,),
    (str, NOTHING),
    NUMBERS,
    (*NUMBERS, NOTHING),
    (str,),
    (str, NOTHING),
    (*NUMBERS, NOTHING),
    (bytes, NOTHING),
)
_TASK_SHOWN = frozenset((*shape, bytes) for shape in _TASK)
"""With the proof of its token, which there was not before tokens were unguessable."""
_EVENT = shapes((str,), (str, NOTHING), NUMBERS, (str, NOTHING))
_STATUSES = frozenset(status.value for status in TaskStatus)


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


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task."""

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
    created_at: float
    until: float | None
    status: TaskStatus = TaskStatus.OPEN
    by: str | None = None
    ended_at: float | None = None
    result: bytes | None = None
    proof: bytes = b""
    """What its token shows beside the wait: see `core.tokens`."""

    def pack(self) -> bytes:
        return pack_record(
            [
                self.id,
                self.name,
                self.instance,
                self.path,
                self.token,
                self.payload,
                self.assignee,
                list(self.roles),
                self.reference,
                self.created_at,
                self.until,
                self.status.value,
                self.by,
                self.ended_at,
                self.result,
                *([self.proof] if self.proof else []),
            ]
        )

    @classmethod
    def unpack(cls, raw: bytes) -> TaskRow:
        fields: list[Any] = unpack_record(raw)
        shape = tuple(map(type, fields))
        proof: bytes = b""
        if shape in _TASK_SHOWN:
            proof = fields.pop()
        elif shape not in _TASK:
            raise damaged("a task")
        id, name, instance, path, token, payload, assignee, roles, reference, created_at, *rest = fields
        until, status, by, ended_at, result = rest
        check_location(token)
        if status not in _STATUSES or not all(type(role) is str for role in roles):
            raise damaged("a task")
        return cls(
            id,
            name,
            instance,
            path,
            token,
            payload,
            assignee,
            tuple(roles),
            reference,
            moment(created_at),
            None if until is None else number(until),
            TaskStatus(status),
            by,
            None if ended_at is None else moment(ended_at),
            result,
            proof,
        )

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


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """Something that happened to a task."""

    what: str
    """`created`, `assigned`, `released`, `completed`, `reopened`, `expired` or `cancelled`."""
    by: str | None
    at: float
    to: str | None = None

    def pack(self) -> bytes:
        return pack_record([self.what, self.by, self.at, self.to])

    @classmethod
    def unpack(cls, raw: bytes) -> TaskEvent:
        fields: list[Any] = unpack_record(raw)
        if tuple(map(type, fields)) not in _EVENT:
            raise damaged("what happened to a task")
        what, by, at, to = fields
        return cls(what, by, moment(at), to)
