"""One recorded operation, and its bytes.

The location is the identity of an entry, so it holds none. Values and failures stay encoded until they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from workflow_sdk.core.entry_data import (
    COUNT_BITS,
    BranchesData,
    ChildData,
    Data,
    ListenData,
    LoopData,
    RetryData,
    SleepData,
    Taken,
    TaskData,
)
from workflow_sdk.core.location import check_location, pack_segment, segments
from workflow_sdk.core.status import EntryStatus, Kind, move_entry
from workflow_sdk.core.wire import (
    MOMENT_MAX,
    MOMENT_MIN,
    NOTHING,
    NUMBERS,
    damaged,
    moment,
    pack_outcome,
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
_COMPLETED = _STATUS_CODES[EntryStatus.COMPLETED]
_KINDS = {code: kind for kind, code in _KIND_CODES.items()}
_STATUSES = {code: status for status, code in _STATUS_CODES.items()}

# What the fields of each record are.
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
_FIELDS = 9
_WAITING = frozenset((*shape, int) for shape in _ENTRY)
"""Of one that waits, it is also known which state of the instance began to. A digest stands behind all of this."""
_TROUBLE = shapes((str,), (int,), NUMBERS, (list,))


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
        "digest",
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
        digest: bytes | None = None,
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
        self.digest: bytes | None = digest
        """What the operation was given, in a few bytes, encoded as values are; None if it is not compared."""
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
        if (
            self.status is EntryStatus.COMPLETED
            and self.value is not None
            and self.finished_at is not None
            and self.data is None
            and self.error is None
            and self.attempts == 1
        ):
            code = _KIND_CODES[self.kind]
            raw = pack_outcome(
                code, _COMPLETED, self.ordinal, self.created_at, self.finished_at, self.value, self.digest
            )
            if raw is not None:
                return raw
        fields: list[object] = [
            _KIND_CODES[self.kind],
            _STATUS_CODES[self.status],
            self.ordinal,
            self.attempts,
            self.created_at,
            self.finished_at,
            self.value,
            self.error,
            None if self.data is None else self.data.pack(),
        ]
        if self.since and self.status is EntryStatus.WAITING:
            fields.append(self.since)
        if self.digest is not None:
            fields.append(self.digest)
        return pack_record(fields)

    @classmethod
    def unpack(cls, raw: bytes) -> Entry:
        """The entry that a row's value holds."""
        fields = unpack_record(raw)
        entry = _new(cls)
        entry.since = 0
        entry.digest = fields.pop() if len(fields) > _FIELDS and type(fields[-1]) is bytes else None
        shape = tuple(map(type, fields))
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
        if (entry.ordinal | entry.attempts | entry.since) >> COUNT_BITS or not MOMENT_MIN <= created_at <= MOMENT_MAX:
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
            sound = needed is BranchesData and _are_sound(data, self)
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


def _are_sound(branches: BranchesData, entry: Entry) -> bool:
    """Whether the parts of an entry of branches go together, as those of recorded ones do."""
    names, count, winner = branches.names, branches.count, branches.winner
    if (entry.kind is Kind.MAP) == bool(names) and count + len(names) > 0:
        return False
    if branches.outcomes is not None and len(branches.outcomes) != len(names) + count:
        return False
    if entry.kind is Kind.RACE and entry.status is EntryStatus.COMPLETED:
        return winner is not None and 0 <= winner < len(names) and entry.value is not None
    return winner is None or (entry.kind is Kind.RACE and entry.error is not None and winner < len(names))


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
        if tuple(map(type, fields)) not in _TROUBLE:
            raise damaged("a failed attempt")
        path, attempts, failed_at, error = fields
        if attempts >> COUNT_BITS:
            raise damaged("a failed attempt")
        return cls(path, attempts, moment(failed_at), cast("list[object]", error))
