"""The rows of what an instance waits for outside of itself: its children, the tasks of people, and effects."""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from hmac import compare_digest
from typing import ClassVar, Literal, TypeAlias

from workflow_sdk.rows.keys import TASKS
from workflow_sdk.rows.location import check_location, pack
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import ErrorRow, Moment, Row, Time

PROOF_BYTES = 16


def proof_of(seed: bytes, instance_id: str, token: bytes) -> bytes:
    """The part of a token that nobody can guess: only those know it who have seen the token of this wait."""
    about = instance_id.encode("utf-8", "surrogatepass")
    hashed = blake2b(len(about).to_bytes(4, "big"), key=seed, person=b"wait", digest_size=PROOF_BYTES)
    hashed.update(about)
    hashed.update(token)
    return hashed.digest()


def shown_token(proof: bytes, token: bytes) -> str:
    """The token of a wait, as everybody sees it."""
    return (proof + token).hex()


def wait_of(seed: bytes, instance_id: str, shown: str) -> bytes | None:
    """The wait that a shown token names; None if this instance has never shown such a token."""
    try:
        raw = bytes.fromhex(shown)
    except ValueError:
        return None
    token = raw[PROOF_BYTES:]
    return token if compare_digest(raw[:PROOF_BYTES], proof_of(seed, instance_id, token)) else None


Outsider: TypeAlias = Literal["child", "task", "effect"]


class Hanging(Row, frozen=True):
    """A child, a task or an effect for which a wait of the instance waits."""

    WHAT: ClassVar[str] = "a child, task or effect of an instance"

    kind: Outsider
    id: str
    ends: bool
    """Whether it is to be ended when the wait ends early."""
    since: int
    """The version of the instance that began to wait; 0 if only the entry knows it."""


class Cleanup(Row, frozen=True):
    """A child or a task that is to be ended, since nobody waits for it any more."""

    WHAT: ClassVar[str] = "a cleanup"

    kind: Outsider
    id: str
    owner: str
    """The instance that does not wait for it any more."""
    token: bytes
    """The token of the wait."""
    rollback: bool
    """Whether a child is to undo what it did."""


class Ending(Row, frozen=True):
    """How an instance ended, as it is told to instances that wait for that."""

    WHAT: ClassVar[str] = "the end of a child"

    status: Status
    output: bytes | None = None
    error: ErrorRow | None = None


class TaskDone(Row, frozen=True):
    """How a task was completed, as it is told to the instance that waits for it."""

    WHAT: ClassVar[str] = "the end of a task"

    result: bytes
    by: str
    at: Moment


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
    """The token of the wait for the task."""
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
    """The part of the shown token that nobody can guess: see `shown_token`."""

    @classmethod
    def unpack(cls, raw: bytes) -> TaskRow:
        row = super().unpack(raw)
        check_location(row.token)
        return row

    def places(self) -> list[bytes]:
        """The keys of the rows by which an open task is found."""
        own = pack((self.created_at, self.id))
        found = [tasks_open(), tasks_of(self.instance), *map(tasks_by_role, self.roles)]
        if self.assignee is not None:
            found.append(tasks_by_assignee(self.assignee))
        if self.reference is not None:
            found.append(tasks_by_reference(self.reference))
        return [place + own for place in found]

    @property
    def own_place(self) -> bytes:
        """The key of the row by which the task is found from its instance, as long as that exists."""
        return all_tasks_of(self.instance) + pack((self.created_at, self.id))

    @property
    def ended_place(self) -> bytes | None:
        """The key of the row by which an ended task is found; None as long as it is open."""
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
