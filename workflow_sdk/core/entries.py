"""One recorded operation, and its bytes.

The location is the identity of an entry, so it holds none. Values and failures stay encoded until they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from workflow_sdk.core.status import EntryStatus, Kind, move_entry
from workflow_sdk.core.wire import pack_record, unpack_record

__all__ = [
    "BranchesData",
    "Data",
    "Entry",
    "EntryTrouble",
    "ListenData",
    "LoopData",
    "RetryData",
    "SleepData",
    "Taken",
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
}
_STATUS_CODES = {EntryStatus.RUNNING: 1, EntryStatus.WAITING: 2, EntryStatus.COMPLETED: 3, EntryStatus.FAILED: 4}
_KINDS = {code: kind for kind, code in _KIND_CODES.items()}
_STATUSES = {code: status for status, code in _STATUS_CODES.items()}


@dataclass(frozen=True, slots=True)
class RetryData:
    """A step that failed and is tried again."""

    retry_at: float

    def pack(self) -> list[object]:
        return [self.retry_at]

    @classmethod
    def unpack(cls, fields: list[Any]) -> RetryData:
        return cls(float(fields[0]))


@dataclass(frozen=True, slots=True)
class SleepData:
    """A timer."""

    until: float

    def pack(self) -> list[object]:
        return [self.until]

    @classmethod
    def unpack(cls, fields: list[Any]) -> SleepData:
        return cls(float(fields[0]))


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
        return cls(fields[0], fields[1], float(fields[2]), fields[3])


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
        names, until, count, rows, timed_out = fields
        taken = tuple((Taken.unpack(row[:-1]), row[-1]) for row in rows)
        return cls(tuple(names), None if until is None else float(until), count, taken, timed_out)


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
        turn, state, at, since, first, coarse = fields
        return cls(turn, state, float(at), since, first, coarse)


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
        names, count, rows, winner = fields
        outcomes = None if rows is None else tuple((row[0], row[1]) for row in rows)
        return cls(tuple(names), count, outcomes, winner)


Data: TypeAlias = RetryData | SleepData | ListenData | LoopData | BranchesData

_DATA: dict[Kind, type[Data]] = {
    Kind.STEP: RetryData,
    Kind.TRANSACT: RetryData,
    Kind.SLEEP: SleepData,
    Kind.LISTEN: ListenData,
    Kind.LOOP: LoopData,
    Kind.JOIN: BranchesData,
    Kind.RACE: BranchesData,
    Kind.MAP: BranchesData,
}


class Entry:
    """One recorded operation. It changes until it has its outcome, and never after."""

    __slots__ = ("attempts", "created_at", "data", "error", "finished_at", "kind", "ordinal", "status", "value")

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
        return pack_record(
            (
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
        )

    @classmethod
    def unpack(cls, raw: bytes) -> Entry:
        """The entry that a row's value holds."""
        kind_code, status, ordinal, attempts, created_at, finished_at, value, error, data = unpack_record(raw)
        kind = _KINDS[kind_code]
        entry = cls(
            kind,
            ordinal,
            float(created_at),
            status=_STATUSES[status],
            attempts=attempts,
            finished_at=None if finished_at is None else float(finished_at),
            value=value,
            error=error,
        )
        if data is not None:
            entry.data = _DATA[kind].unpack(data)
        return entry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.pack() == other.pack()

    def __repr__(self) -> str:
        return f"<Entry {self.kind.value} {self.status.value}>"


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
        path, attempts, failed_at, error = unpack_record(raw)
        return cls(path, attempts, float(failed_at), cast("list[object]", error))
