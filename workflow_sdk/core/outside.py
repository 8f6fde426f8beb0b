"""What lies outside of an instance and hangs on one of its waits: a child, or a task of a person.

If the wait ends early, what hangs on it has to be ended as well: that is an errand, written in the commit that ends the
wait, and run by whoever comes by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from workflow_sdk.core.status import Status
from workflow_sdk.core.wire import NOTHING, NUMBERS, damaged, moment, pack_record, shapes, unpack_record

__all__ = ["Ending", "Errand", "Hanging", "TaskDone"]

_HANGING = shapes((str,), (str,), (bool,), (int,))
_ERRAND = shapes((str,), (str,), (str,), (bytes,), (bool,))
_ENDING = shapes((str,), (bytes, NOTHING), (list, NOTHING))
_DONE = shapes((bytes,), (str,), NUMBERS)
_STATUSES = frozenset(status.value for status in Status)
_KINDS = ("child", "task")


@dataclass(frozen=True, slots=True)
class Hanging:
    """A child or a task."""

    kind: Literal["child", "task"]
    id: str
    ends: bool
    """Whether it is to end with the wait."""
    since: int
    """Which state of the instance began to wait; 0 if that is known from the entry alone."""

    def pack(self) -> bytes:
        return pack_record([self.kind, self.id, self.ends, self.since])

    @classmethod
    def unpack(cls, raw: bytes) -> Hanging:
        fields = unpack_record(raw)
        if tuple(map(type, fields)) not in _HANGING or fields[0] not in _KINDS:
            raise damaged("a child or task of an instance")
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class Errand:
    """Something to be ended."""

    kind: Literal["child", "task"]
    id: str
    owner: str
    """The instance that does not wait for it any more."""
    token: bytes
    """Of the wait."""
    rollback: bool
    """Whether a child is to undo what it did."""

    def pack(self) -> bytes:
        return pack_record([self.kind, self.id, self.owner, self.token, self.rollback])

    @classmethod
    def unpack(cls, raw: bytes) -> Errand:
        fields = unpack_record(raw)
        if tuple(map(type, fields)) not in _ERRAND or fields[0] not in _KINDS:
            raise damaged("an errand")
        kind, *rest = fields
        return cls(cast("Literal['child', 'task']", kind), *rest)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an instance ended, as whoever waits for it is told."""

    status: Status
    output: bytes | None = None
    error: list[object] | None = None
    """An ErrorInfo, as `failures.pack_error_info` gives it."""

    def pack(self) -> bytes:
        return pack_record([self.status.value, self.output, self.error])

    @classmethod
    def unpack(cls, raw: bytes) -> Ending:
        fields = unpack_record(raw)
        if tuple(map(type, fields)) not in _ENDING or fields[0] not in _STATUSES:
            raise damaged("the end of a child")
        status, output, error = fields
        return cls(Status(status), output, error)


@dataclass(frozen=True, slots=True)
class TaskDone:
    """That a task was completed, as whoever waits for it is told."""

    result: bytes
    by: str
    at: float

    def pack(self) -> bytes:
        return pack_record([self.result, self.by, self.at])

    @classmethod
    def unpack(cls, raw: bytes) -> TaskDone:
        fields = unpack_record(raw)
        if tuple(map(type, fields)) not in _DONE:
            raise damaged("the end of a task")
        result, by, at = fields
        return cls(result, by, moment(at))
