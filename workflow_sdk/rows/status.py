"""The states of an instance and of a history entry, and the tables of moves between them."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType


class Status(StrEnum):
    """What an instance is doing."""

    PENDING = "pending"
    """It was created and has not run yet."""
    RUNNING = "running"
    SLEEPING = "sleeping"
    """It awaits nothing but timers and retries."""
    WAITING = "waiting"
    """It awaits at least one message."""
    COMPLETED = "completed"
    FAILED = "failed"
    """It failed, and there was nothing to compensate."""
    CANCELLED = "cancelled"
    ROLLING_BACK = "rolling_back"
    """It failed, and its compensations are being run."""
    ROLLED_BACK = "rolled_back"
    """It failed, and every compensation ran."""
    STUCK = "stuck"
    """It needs someone to look at it. Nothing is lost; it goes on once the cause is mended."""

    @property
    def is_terminal(self) -> bool:
        """Whether it is an end, left only by an explicit decision of a person."""
        return self in _TERMINAL


class EntryStatus(StrEnum):
    """What a recorded operation is doing."""

    RUNNING = "running"
    WAITING = "waiting"
    """It is parked: for a time, a message, or its next attempt."""
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether the operation has its outcome."""
        return self is EntryStatus.COMPLETED or self is EntryStatus.FAILED


class Kind(StrEnum):
    """The operations that leave an entry."""

    STEP = "step"
    LOOP = "loop"
    SLEEP = "sleep"
    LISTEN = "listen"
    JOIN = "join"
    RACE = "race"
    MAP = "map"
    ATTEMPT = "attempt"
    VERSION = "version"
    CHECKPOINT = "checkpoint"
    TRANSACT = "transact"
    SEND = "send"
    CHILD = "child"
    CONTINUE = "continue"
    TASK = "task"
    BRANCH = "branch"
    """One branch of a join, race or map: written when the branch ends."""
    GRAPH = "graph"
    FIRING = "firing"
    """One firing of a step of a graph: written when the firing ends."""
    SUBMIT = "submit"
    EFFECT = "effect"

    @property
    def is_composite(self) -> bool:
        """Whether other entries live under an entry of this kind."""
        return self in _COMPOSITE


_TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.ROLLED_BACK})
_COMPOSITE = frozenset({Kind.LOOP, Kind.JOIN, Kind.RACE, Kind.MAP, Kind.ATTEMPT, Kind.BRANCH, Kind.GRAPH, Kind.FIRING})

_AWAKE = frozenset(
    {
        Status.RUNNING,
        Status.SLEEPING,
        Status.WAITING,
        Status.COMPLETED,
        Status.FAILED,
        Status.CANCELLED,
        Status.ROLLING_BACK,
        Status.STUCK,
    }
)

STATUS_MOVES: MappingProxyType[Status, frozenset[Status]] = MappingProxyType(
    {
        Status.PENDING: frozenset({Status.RUNNING, Status.CANCELLED, Status.STUCK}),
        Status.RUNNING: _AWAKE,
        Status.SLEEPING: _AWAKE,
        Status.WAITING: _AWAKE,
        # A rollback can wait for its next attempt, but it can't become an ordinary run again.
        Status.ROLLING_BACK: frozenset(
            {Status.ROLLING_BACK, Status.ROLLED_BACK, Status.FAILED, Status.CANCELLED, Status.STUCK}
        ),
        # Tried again after its code was mended: where it was, running or rolling back.
        Status.STUCK: frozenset({Status.RUNNING, Status.ROLLING_BACK, Status.CANCELLED, Status.STUCK}),
        Status.COMPLETED: frozenset(),
        Status.FAILED: frozenset(),
        Status.CANCELLED: frozenset(),
        Status.ROLLED_BACK: frozenset(),
    }
)
"""Where an instance may go by itself. `recover` and `restart_from` are decisions of a person, and not in the table."""

ENTRY_MOVES: MappingProxyType[EntryStatus, frozenset[EntryStatus]] = MappingProxyType(
    {
        EntryStatus.RUNNING: frozenset(EntryStatus),
        EntryStatus.WAITING: frozenset(EntryStatus),
        EntryStatus.COMPLETED: frozenset(),
        EntryStatus.FAILED: frozenset(),
    }
)
"""Where an entry may go. An outcome, once recorded, is never another one."""


def move(now: Status, to: Status) -> Status:
    """`to`, if an instance that is `now` may become it."""
    assert to in STATUS_MOVES[now], f"an instance that is {now.value} can't become {to.value}"
    return to


def move_entry(now: EntryStatus, to: EntryStatus) -> EntryStatus:
    """`to`, if an entry that is `now` may become it."""
    assert to in ENTRY_MOVES[now], f"an entry that is {now.value} can't become {to.value}"
    return to
