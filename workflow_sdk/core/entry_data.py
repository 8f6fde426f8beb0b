"""What entries of some kinds hold beside their outcome: a time, messages, branches, the turn of a loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from workflow_sdk.core.wire import NOTHING, NUMBERS, damaged, moment, number, shapes

__all__ = [
    "COUNT_BITS",
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

# What the fields of each record are.
_TIME = shapes(NUMBERS)
_TAKEN = shapes((bytes,), (str,), NUMBERS, (bytes, NOTHING), (bytes,))
_LISTEN = shapes((list,), (float, int, NOTHING), (int,), (list,), (bool,))
_LOOP = shapes((int,), (bytes,), NUMBERS, (int,), (int,), (int,))
_BRANCHES = shapes((list,), (int,), (list, NOTHING), (int, NOTHING))
_CHILD = shapes((str,), (bool,))
_TASK = shapes((str,), (float, int, NOTHING), (str, NOTHING), NUMBERS)
_OUTCOME = shapes((bytes, NOTHING), (bytes, NOTHING))

COUNT_BITS = 62
"""Of every number that counts something."""


def _kinds(fields: list[Any]) -> tuple[type, ...]:
    return tuple(map(type, fields))


def _texts(fields: list[Any]) -> tuple[str, ...]:
    if not all(type(text) is str for text in fields):
        raise damaged("a list of names")
    return tuple(fields)


def _unpack_time(fields: list[Any]) -> float:
    if _kinds(fields) not in _TIME or fields[0] != fields[0]:
        raise damaged("a time")
    return number(fields[0])


@dataclass(frozen=True, slots=True)
class RetryData:
    """A step that failed and is tried again."""

    retry_at: float

    def pack(self) -> list[object]:
        return [self.retry_at]

    @classmethod
    def unpack(cls, fields: list[Any]) -> RetryData:
        return cls(_unpack_time(fields))


@dataclass(frozen=True, slots=True)
class SleepData:
    """A timer."""

    until: float

    def pack(self) -> list[object]:
        return [self.until]

    @classmethod
    def unpack(cls, fields: list[Any]) -> SleepData:
        return cls(_unpack_time(fields))


@dataclass(frozen=True, slots=True)
class Taken:
    """A message that a listen has taken; its payload is in the entry's value."""

    id: bytes
    name: str
    sent_at: float
    reply_to: bytes | None = None
    """Where the answer goes. None if there is none to be given, or no longer."""

    def pack(self) -> list[object]:
        return [self.id, self.name, self.sent_at, self.reply_to]

    @classmethod
    def unpack(cls, fields: list[Any]) -> Taken:
        return cls(fields[0], fields[1], moment(fields[2]), fields[3])


@dataclass(frozen=True, slots=True)
class ListenData:
    """A wait for messages: their names, its deadline, and in the end what it took, with the payloads as bytes."""

    names: tuple[str, ...]
    until: float | None = None
    count: int = 1
    taken: tuple[tuple[Taken, bytes], ...] = ()
    timed_out: bool = False

    def pack(self) -> list[object]:
        taken = [[*taken.pack(), payload] for taken, payload in self.taken]
        return [list(self.names), self.until, self.count, taken, self.timed_out]

    @classmethod
    def unpack(cls, fields: list[Any]) -> ListenData:
        if _kinds(fields) not in _LISTEN:
            raise damaged("an entry of a listen")
        names, until, count, rows, timed_out = fields
        if not all(type(row) is list and _kinds(row) in _TAKEN for row in rows):
            raise damaged("an entry of a listen")
        taken = tuple((Taken.unpack(row[:-1]), row[-1]) for row in rows)
        return cls(_texts(names), None if until is None else _unpack_time([until]), count, taken, timed_out)


@dataclass(frozen=True, slots=True)
class LoopData:
    """A loop: the turn to go on with, the state that goes into it, and the time it began."""

    turn: int = 0
    state: bytes = b""
    at: float = 0.0
    since: int = 0
    """The first turn that began with this state. What they began with before is in the rows of `core.bases`."""
    first: int = 0
    """The first turn whose history is kept."""
    coarse: int = 0
    """Of the turns before this one not every one has a state of its own that it can be begun with again."""

    def pack(self) -> list[object]:
        return [self.turn, self.state, self.at, self.since, self.first, self.coarse]

    @classmethod
    def unpack(cls, fields: list[Any]) -> LoopData:
        if _kinds(fields) not in _LOOP:
            raise damaged("an entry of a loop")
        turn, state, at, since, first, coarse = fields
        if (turn | since | first | coarse) >> COUNT_BITS:
            raise damaged("an entry of a loop")
        return cls(turn, state, moment(at), since, first, coarse)


Outcome: TypeAlias = tuple["bytes | None", "bytes | None"]
"""The value or the failure of a branch."""


@dataclass(frozen=True, slots=True)
class BranchesData:
    """The branches of a join, race or map; in the end their outcomes, if they are small enough to stand here."""

    names: tuple[str, ...] = ()
    """Of a join or race. A map's branches are numbers."""
    count: int = 0
    outcomes: tuple[Outcome, ...] | None = None
    winner: int | None = None

    def pack(self) -> list[object]:
        outcomes = None if self.outcomes is None else [list(outcome) for outcome in self.outcomes]
        return [list(self.names), self.count, outcomes, self.winner]

    @classmethod
    def unpack(cls, fields: list[Any]) -> BranchesData:
        if _kinds(fields) not in _BRANCHES:
            raise damaged("an entry of branches")
        names, count, rows, winner = fields
        if count >> COUNT_BITS or not all(type(row) is list and _kinds(row) in _OUTCOME for row in rows or ()):
            raise damaged("an entry of branches")
        outcomes = None if rows is None else tuple((row[0], row[1]) for row in rows)
        return cls(_texts(names), count, outcomes, winner)


@dataclass(frozen=True, slots=True)
class ChildData:
    """A child: its id, and whether it is cancelled with its parent."""

    id: str
    cancels: bool

    def pack(self) -> list[object]:
        return [self.id, self.cancels]

    @classmethod
    def unpack(cls, fields: list[Any]) -> ChildData:
        if _kinds(fields) not in _CHILD:
            raise damaged("an entry of a child")
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class TaskData:
    """A task of a person: its id, its deadline, and in the end who has done it, and when."""

    id: str
    until: float | None = None
    by: str | None = None
    done_at: float = 0.0

    def pack(self) -> list[object]:
        return [self.id, self.until, self.by, self.done_at]

    @classmethod
    def unpack(cls, fields: list[Any]) -> TaskData:
        if _kinds(fields) not in _TASK:
            raise damaged("an entry of a task")
        id, until, by, done_at = fields
        return cls(id, None if until is None else _unpack_time([until]), by, moment(done_at))


Data: TypeAlias = RetryData | SleepData | ListenData | LoopData | BranchesData | ChildData | TaskData
