"""What entries of some kinds hold beside their outcome: a time, messages, branches, the turn of a loop."""

from __future__ import annotations

from typing import TypeAlias

from workflow_sdk.core.wire import Count, Moment, Row, Time

__all__ = [
    "BranchesData",
    "ChildData",
    "Data",
    "ListenData",
    "LoopData",
    "Outcome",
    "RetryData",
    "SleepData",
    "Taken",
    "TaskData",
]


class RetryData(Row, frozen=True, tag=1):
    """A step that failed and is tried again."""

    retry_at: Time


class SleepData(Row, frozen=True, tag=2):
    """A timer."""

    until: Time


class Taken(Row, frozen=True):
    """A message that a listen has taken."""

    id: bytes
    name: str
    sent_at: Moment
    payload: bytes
    reply_to: bytes | None = None
    """Where the answer goes. None if there is none to be given, or no longer."""


class ListenData(Row, frozen=True, tag=3):
    """A wait for messages: their names, its deadline, and in the end what it took."""

    names: tuple[str, ...]
    until: Time | None = None
    count: int = 1
    taken: tuple[Taken, ...] = ()
    timed_out: bool = False


class LoopData(Row, frozen=True, tag=4):
    """A loop: the turn to go on with, the state that goes into it, and the time it began."""

    turn: Count = 0
    state: bytes = b""
    at: Moment = 0.0
    since: Count = 0
    """The first turn that began with this state. What they began with before is in the rows of `core.bases`."""
    first: Count = 0
    """The first turn whose history is kept."""
    coarse: Count = 0
    """Of the turns before this one not every one has a state of its own that it can be begun with again."""


Outcome: TypeAlias = tuple[bytes | None, bytes | None]
"""The value or the failure of a branch."""


class BranchesData(Row, frozen=True, tag=5):
    """The branches of a join, race or map; in the end their outcomes, if they are small enough to stand here."""

    names: tuple[str, ...] = ()
    """Of a join or race. A map's branches are numbers."""
    count: Count = 0
    outcomes: tuple[Outcome, ...] | None = None
    winner: Count | None = None


class ChildData(Row, frozen=True, tag=6):
    """A child: its id, and whether it is cancelled with its parent."""

    id: str
    cancels: bool


class TaskData(Row, frozen=True, tag=7):
    """A task of a person: its id, its deadline, and in the end who has done it, and when."""

    id: str
    until: Time | None = None
    by: str | None = None
    done_at: Moment = 0.0


Data: TypeAlias = RetryData | SleepData | ListenData | LoopData | BranchesData | ChildData | TaskData
