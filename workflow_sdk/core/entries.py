"""One recorded operation, and its bytes.

The location is the identity of an entry, so it holds none. Values and failures stay encoded until they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from workflow_sdk.core.location import check_location, pack_segment, segments
from workflow_sdk.core.status import EntryStatus, Kind, move_entry
from workflow_sdk.core.wire import (
    MOMENT_MAX,
    MOMENT_MIN,
    NOTHING,
    NUMBERS,
    damaged,
    moment,
    number,
    pack_record,
    shapes,
    unpack_record,
)

__all__ = [
    "BranchesData",
    "ChildData",
    "Data",
    "Entry",
    "EntryTrouble",
    "ListenData",
    "LoopData",
    "RetryData",
    "SleepData",
    "Taken",
    "TaskData",
    "read_token",
    "token_of",
]

# Numbers on the wire. They are never given to something else.
_KIND_CODES = {
    Kind.STEP: 1,
    Kind.LOOP: 2,
    Kind.SLEEP: 3,
    Kind.LISTEN: 4,
    Kind.JOIN: 5,
    Kind.RACE: 6,
    Kind.MAP: 7,
    Kind.ATTEMPT: 8,
    Kind.VERSION: 9,
    Kind.CHECKPOINT: 10,
    Kind.BRANCH: 11,
    Kind.TRANSACT: 12,
    Kind.SEND: 13,
    Kind.CHILD: 14,
    Kind.CONTINUE: 15,
    Kind.TASK: 16,
}
_STATUS_CODES = {EntryStatus.RUNNING: 1, EntryStatus.WAITING: 2, EntryStatus.COMPLETED: 3, EntryStatus.FAILED: 4}
_KINDS = {code: kind for kind, code in _KIND_CODES.items()}
_STATUSES = {code: status for status, code in _STATUS_CODES.items()}

# What the fields of each record are.
_TIME = shapes(NUMBERS)
_TAKEN = shapes((bytes,), (str,), NUMBERS, (bytes, NOTHING), (bytes,))
_LISTEN = shapes((list,), (float, int, NOTHING), (int,), (list,), (bool,))
_LOOP = shapes((int,), (bytes,), NUMBERS, (int,), (int,), (int,))
_BRANCHES = shapes((list,), (int,), (list, NOTHING), (int, NOTHING))
_CHILD = shapes((str,), (bool,))
_TASK = shapes((str,), (float, int, NOTHING), (str, NOTHING), NUMBERS)
_OUTCOME = shapes((bytes, NOTHING), (bytes, NOTHING))
_ENTRY = shapes(
    (int,),
    (int,),
    (int,),
    (int,),
    NUMBERS,
    (float, int, NOTHING),
    (bytes, NOTHING),
    (bytes, NOTHING),
    (list, NOTHING),
)
_WAITING = frozenset((*shape, int) for shape in _ENTRY)
"""Of one that waits, it is also known which state of the instance began to."""
_TROUBLE = shapes((str,), (int,), NUMBERS, (list,))

_COUNT_BITS = 62
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
        if (turn | since | first | coarse) >> _COUNT_BITS:
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
        if count >> _COUNT_BITS or not all(type(row) is list and _kinds(row) in _OUTCOME for row in rows or ()):
            raise damaged("an entry of branches")
        outcomes = None if rows is None else tuple((row[0], row[1]) for row in rows)
        return cls(_texts(names), count, outcomes, winner)

    def is_sound(self, kind: Kind, entry: Entry) -> bool:
        """Whether the parts go together, as those of recorded ones do."""
        if (kind is Kind.MAP) == bool(self.names) and self.count + len(self.names) > 0:
            return False
        if self.outcomes is not None and len(self.outcomes) != len(self.names) + self.count:
            return False
        if kind is Kind.RACE and entry.status is EntryStatus.COMPLETED:
            return self.winner is not None and 0 <= self.winner < len(self.names) and entry.value is not None
        return self.winner is None or (kind is Kind.RACE and entry.error is not None and self.winner < len(self.names))


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

_DATA: dict[Kind, type[Data]] = {
    Kind.STEP: RetryData,
    Kind.TRANSACT: RetryData,
    Kind.SLEEP: SleepData,
    Kind.LISTEN: ListenData,
    Kind.LOOP: LoopData,
    Kind.JOIN: BranchesData,
    Kind.RACE: BranchesData,
    Kind.MAP: BranchesData,
    Kind.CHILD: ChildData,
    Kind.TASK: TaskData,
}


_new = object.__new__


_NEEDED: dict[Kind, type[Data]] = {kind: data for kind, data in _DATA.items() if kind not in (Kind.STEP, Kind.TRANSACT)}
"""What an entry of the kind has."""


class Entry:
    """One recorded operation. It changes until it has its outcome, and never after."""

    __slots__ = (
        "attempts",
        "created_at",
        "data",
        "error",
        "finished_at",
        "kind",
        "ordinal",
        "since",
        "status",
        "value",
    )

    def __init__(
        self,
        kind: Kind,
        ordinal: int,
        created_at: float,
        *,
        status: EntryStatus = EntryStatus.RUNNING,
        attempts: int = 1,
        finished_at: float | None = None,
        value: bytes | None = None,
        error: bytes | None = None,
        data: Data | None = None,
    ) -> None:
        self.kind: Kind = kind
        self.ordinal: int = ordinal
        """Its place among the operations of its scope, in order of creation."""
        self.created_at: float = created_at
        self.status: EntryStatus = status
        self.attempts: int = attempts
        self.finished_at = finished_at
        self.value = value
        self.error = error
        self.data: Data | None = data
        self.since: int = 0
        """The state of the instance, by the number of its commits, that began to wait here; 0 if none did yet."""

    def wait(self, data: Data | None = None) -> None:
        """Begin to wait."""
        self.status = move_entry(self.status, EntryStatus.WAITING)
        self.data = data or self.data
        self.since = 0

    def complete(self, value: bytes | None, at: float) -> None:
        """Give the entry its value."""
        self.status = move_entry(self.status, EntryStatus.COMPLETED)
        self.value = value
        self.finished_at = at

    def fail(self, error: bytes, at: float) -> None:
        """Give the entry its failure."""
        self.status = move_entry(self.status, EntryStatus.FAILED)
        self.error = error
        self.finished_at = at

    @property
    def is_final(self) -> bool:
        """Whether the entry has its outcome."""
        return self.status is EntryStatus.COMPLETED or self.status is EntryStatus.FAILED

    def pack(self) -> bytes:
        """The entry as a row's value."""
        fields = (
            _KIND_CODES[self.kind],
            _STATUS_CODES[self.status],
            self.ordinal,
            self.attempts,
            self.created_at,
            self.finished_at,
            self.value,
            self.error,
            None if self.data is None else self.data.pack(),
        )
        return pack_record((*fields, self.since) if self.since and self.status is EntryStatus.WAITING else fields)

    @classmethod
    def unpack(cls, raw: bytes) -> Entry:
        """The entry that a row's value holds."""
        fields = unpack_record(raw)
        shape = tuple(map(type, fields))
        entry = _new(cls)
        entry.since = 0
        if shape in _WAITING:
            entry.since = fields.pop()
        elif shape not in _ENTRY:
            raise damaged("an entry of a history")
        kind, status, entry.ordinal, entry.attempts, created_at, finished_at, entry.value, entry.error, data = fields
        try:
            entry.kind = _KINDS[kind]
            entry.status = _STATUSES[status]
            entry.data = None if data is None else _DATA[entry.kind].unpack(data)
        except KeyError:
            raise damaged("an entry of a history") from None
        if (entry.ordinal | entry.attempts | entry.since) >> _COUNT_BITS or not MOMENT_MIN <= created_at <= MOMENT_MAX:
            raise damaged("an entry of a history")
        entry.created_at = created_at + 0.0
        if finished_at is None:
            entry.finished_at = None
        elif MOMENT_MIN <= finished_at <= MOMENT_MAX:
            entry.finished_at = finished_at + 0.0
        else:
            raise damaged("an entry of a history")
        return entry

    def check(self) -> None:
        """Raise `CodecError` if the parts of the entry don't go together, as those of a recorded one do."""
        data, kind = self.data, self.kind
        needed = _NEEDED.get(kind)
        if needed is None or data is None:  # the operation itself says so if there is none
            sound = self.status is not EntryStatus.FAILED or self.error is not None or needed is BranchesData
        elif type(data) is BranchesData:
            sound = needed is BranchesData and data.is_sound(kind, self)
        elif type(data) is ListenData:
            done = self.status is not EntryStatus.COMPLETED or data.timed_out or len(data.taken) >= data.count > 0
            sound = needed is ListenData and done and (self.status is not EntryStatus.FAILED or self.error is not None)
        else:
            sound = type(data) is needed and (self.status is not EntryStatus.FAILED or self.error is not None)
        if not sound:
            raise damaged(f"an entry of a {kind.value}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.pack() == other.pack()

    def __repr__(self) -> str:
        return f"<Entry {self.kind.value} {self.status.value}>"


def token_of(location: bytes, entry: Entry) -> bytes:
    """Names exactly this wait: the same on every replay, and another one for each retry, turn or new start."""
    return pack_segment(entry.since) + location


def read_token(token: bytes) -> tuple[int, bytes]:
    """Which state of the instance began to wait, and where."""
    found = next(segments(token), None)
    if not isinstance(found, int) or found < 0:
        raise damaged("a token")
    location = token[len(pack_segment(found)) :]
    check_location(location)
    return found, location


@dataclass(frozen=True, slots=True)
class EntryTrouble:
    """What is worth knowing of an entry that did not succeed at once: how often it failed, and how at last."""

    path: str
    attempts: int
    failed_at: float
    error: list[object] = field(default_factory=list[object])
    """An ErrorInfo, as `failures.pack_error_info` gives it."""

    def pack(self) -> bytes:
        return pack_record([self.path, self.attempts, self.failed_at, self.error])

    @classmethod
    def unpack(cls, raw: bytes) -> EntryTrouble:
        fields = unpack_record(raw)
        if _kinds(fields) not in _TROUBLE:
            raise damaged("a failed attempt")
        path, attempts, failed_at, error = fields
        if attempts >> _COUNT_BITS:
            raise damaged("a failed attempt")
        return cls(path, attempts, moment(failed_at), cast("list[object]", error))
