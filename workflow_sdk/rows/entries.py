"""One recorded operation: its data, its outcome, and its bytes.

The location is the identity of an entry, so it holds none. Values and failures stay encoded until they are asked for.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from msgspec import Struct

from workflow_sdk.rows.location import check_location, pack_segment, segments
from workflow_sdk.rows.status import EntryStatus, Kind, move_entry
from workflow_sdk.rows.wire import Count, ErrorRow, Moment, Packed, Row, Time, damaged


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
    """Where the answer is sent. None if no answer is wanted, or if it was given."""


class ListenData(Row, frozen=True, tag=3):
    """A wait for messages: their names, its deadline, and, when it has ended, the messages that it took."""

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
    """The first turn that began with this state. Those of the turns before it are in `journal.loop_states`."""
    first: Count = 0
    """The first turn whose history is kept."""
    coarse: Count = 0
    """From this turn on, every turn can be begun again with its own state; before it, only every few turns."""


Outcome: TypeAlias = tuple[bytes | None, bytes | None]
"""The encoded value of a branch, or its encoded failure."""


class BranchesData(Row, frozen=True, tag=5):
    """The branches of a join, race or map; and, when all have ended, their outcomes if they are small enough."""

    names: tuple[str, ...] = ()
    """The names of the branches of a join or race. Those of a map have numbers."""
    count: Count = 0
    outcomes: tuple[Outcome, ...] | None = None
    winner: Count | None = None


class ChildData(Row, frozen=True, tag=6):
    """A child: its id, and whether it is cancelled with its parent."""

    id: str
    cancels: bool


class TaskData(Row, frozen=True, tag=7):
    """A task of a person: its id, its deadline, and, when it is done, who has done it and when."""

    id: str
    until: Time | None = None
    by: str | None = None
    done_at: Moment = 0.0


class GraphData(Row, frozen=True, tag=8):
    """A run of a graph: which definition it has, and what its context began with."""

    definition: bytes
    """The digest of the definition; empty for one that can't be exported."""
    context: bytes = b""
    is_in_parts: bool = False
    """Whether the result is larger than one value may be, and is stored in rows of its own."""


class FiringData(Row, frozen=True, tag=9):
    """A firing of a step of a graph, and the event that its end was."""

    args: bytes
    began: Count
    """The event that has started it."""
    ended: Count
    """The event that its end was. The same for a step that runs nothing: it has no event of its own."""
    depth: Count = 0
    patches: bytes | None = None
    made: bytes = b""
    """What the guards and arguments of the step's arcs came to."""
    given: tuple[tuple[str, bytes], ...] = ()
    """Of a join whose arguments are not stored: digests of what steps had given to it that may give several outputs."""


class SubmitData(Row, frozen=True, tag=10):
    """Steps that were added to a graph: the event, and the steps; none, if they were refused."""

    event: Count
    nodes: bytes = b""


class EffectData(Row, frozen=True, tag=11):
    """An effect that a machine's executor does: the id of its intent, and its name."""

    id: str
    effect: str


Data: TypeAlias = (
    RetryData
    | SleepData
    | ListenData
    | LoopData
    | BranchesData
    | ChildData
    | TaskData
    | GraphData
    | FiringData
    | SubmitData
    | EffectData
)


_NEEDED: dict[Kind, type[Data]] = {
    Kind.SLEEP: SleepData,
    Kind.LISTEN: ListenData,
    Kind.LOOP: LoopData,
    Kind.JOIN: BranchesData,
    Kind.RACE: BranchesData,
    Kind.MAP: BranchesData,
    Kind.CHILD: ChildData,
    Kind.TASK: TaskData,
    Kind.GRAPH: GraphData,
    Kind.FIRING: FiringData,
    Kind.SUBMIT: SubmitData,
    Kind.EFFECT: EffectData,
}
"""The class of the data that an entry of each kind has. One of a step or transaction may have a `RetryData`."""


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
    """A digest of the operation's argument, encoded like other values; None if it is not compared."""
    since: Count = 0
    """The version of the instance that began to wait here; 0 if none has yet."""

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
    """The token of exactly this wait: the same in every replay, and another one for each retry, turn or new start."""
    return pack_segment(entry.since) + location


def read_token(token: bytes) -> tuple[int, bytes]:
    """The version of the instance that began the wait of a token, and the location of the wait."""
    found = next(segments(token), None)
    if not isinstance(found, int) or found < 0:
        raise damaged("a token")
    location = token[len(pack_segment(found)) :]
    check_location(location)
    return found, location


class EntryTrouble(Row, frozen=True):
    """The failed attempts of an entry: how many there were, and the last error."""

    WHAT: ClassVar[str] = "a failed attempt"

    path: str
    attempts: Count
    failed_at: Moment
    error: ErrorRow
