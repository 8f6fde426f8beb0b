"""One recorded operation, and its bytes.

The location is the identity of an entry, so it holds none. Values and failures stay encoded until they are asked for.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from workflow_sdk.core.entry_data import (
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
from workflow_sdk.core.error_row import ErrorRow
from workflow_sdk.core.location import check_location, pack_segment, segments
from workflow_sdk.core.status import EntryStatus, Kind, move_entry
from workflow_sdk.core.wire import Count, Moment, Packed, Row, damaged

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

_NEEDED: dict[Kind, type[Data]] = {
    Kind.SLEEP: SleepData,
    Kind.LISTEN: ListenData,
    Kind.LOOP: LoopData,
    Kind.JOIN: BranchesData,
    Kind.RACE: BranchesData,
    Kind.MAP: BranchesData,
    Kind.CHILD: ChildData,
    Kind.TASK: TaskData,
}
"""What an entry of the kind has. One of a step or transaction may have a `RetryData`."""


class Entry(Packed, Struct, array_like=True, forbid_unknown_fields=True):
    """One recorded operation. It changes until it has its outcome, and never after."""

    WHAT: ClassVar[str] = "an entry of a history"

    kind: Kind
    ordinal: Count
    """Its place among the operations of its scope, in order of creation."""
    created_at: Moment
    status: EntryStatus = EntryStatus.RUNNING
    attempts: Count = 1
    finished_at: Moment | None = None
    value: bytes | None = None
    error: bytes | None = None
    data: Data | None = None
    digest: bytes | None = None
    """What the operation was given, in a few bytes, encoded as values are; None if it is not compared."""
    since: Count = 0
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

    def check(self) -> None:
        """Raise `CodecError` if the parts of the entry don't go together, as those of a recorded one do."""
        data, kind = self.data, self.kind
        needed = _NEEDED.get(kind)
        if data is None:  # the operation itself says so if there is to be one
            sound = self.status is not EntryStatus.FAILED or self.error is not None or needed is BranchesData
        elif needed is None:
            sound = type(data) is RetryData and (self.status is not EntryStatus.FAILED or self.error is not None)
        elif type(data) is BranchesData:
            sound = needed is BranchesData and _are_sound(data, self)
        elif type(data) is ListenData:
            done = self.status is not EntryStatus.COMPLETED or data.timed_out or len(data.taken) >= data.count > 0
            sound = needed is ListenData and done and (self.status is not EntryStatus.FAILED or self.error is not None)
        else:
            sound = type(data) is needed and (self.status is not EntryStatus.FAILED or self.error is not None)
        if not sound:
            raise damaged(f"an entry of a {kind.value}")

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


class EntryTrouble(Row, frozen=True):
    """What is worth knowing of an entry that did not succeed at once: how often it failed, and how at last."""

    WHAT: ClassVar[str] = "a failed attempt"

    path: str
    attempts: Count
    failed_at: Moment
    error: ErrorRow
