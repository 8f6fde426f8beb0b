"""What lies outside of an instance and hangs on one of its waits: a child, or a task of a person.

If the wait ends early, what hangs on it has to be ended as well: that is an errand, written in the commit that ends the
wait, and run by whoever comes by.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from workflow_sdk.core.error_row import ErrorRow
from workflow_sdk.core.status import Status
from workflow_sdk.core.wire import Moment, Row

__all__ = ["Ending", "Errand", "Hanging", "TaskDone"]


class Hanging(Row, frozen=True):
    """A child or a task."""

    WHAT: ClassVar[str] = "a child or task of an instance"

    kind: Literal["child", "task"]
    id: str
    ends: bool
    """Whether it is to end with the wait."""
    since: int
    """Which state of the instance began to wait; 0 if that is known from the entry alone."""


class Errand(Row, frozen=True):
    """Something to be ended."""

    WHAT: ClassVar[str] = "an errand"

    kind: Literal["child", "task"]
    id: str
    owner: str
    """The instance that does not wait for it any more."""
    token: bytes
    """Of the wait."""
    rollback: bool
    """Whether a child is to undo what it did."""


class Ending(Row, frozen=True):
    """How an instance ended, as whoever waits for it is told."""

    WHAT: ClassVar[str] = "the end of a child"

    status: Status
    output: bytes | None = None
    error: ErrorRow | None = None


class TaskDone(Row, frozen=True):
    """That a task was completed, as whoever waits for it is told."""

    WHAT: ClassVar[str] = "the end of a task"

    result: bytes
    by: str
    at: Moment
