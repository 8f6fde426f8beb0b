"""The rows of machines: of cells, of the effects that they ask for, and of the active manifest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple

from workflow_sdk.changes.decide import DEATHS_MAX
from workflow_sdk.driver import Set
from workflow_sdk.machines import canonical
from workflow_sdk.machines.cell import CellData, CellStatus, Pending
from workflow_sdk.machines.machine import Machine
from workflow_sdk.rows.cells import CellState, cell_key
from workflow_sdk.rows.instance import Due, InstanceRows
from workflow_sdk.rows.keys import CELL, EFFECTS, MACHINES, InstanceKeys, shard_of
from workflow_sdk.rows.location import pack, pack_one, pack_segment, subtree, unpack
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import Count, Moment, Row
from workflow_sdk.values import Codec


class PendingRow(Row, frozen=True):
    """An effect that a cell waits for."""

    WHAT: ClassVar[str] = "an effect that a cell waits for"

    effect: str
    sequence: Count
    at: Moment
    issuer: str | None = None


class IntentRow(Row, frozen=True):
    """An effect that was asked for and is not settled."""

    WHAT: ClassVar[str] = "an intent"

    machine: str
    instance: str
    """The instance that hears of it."""
    key: bytes | None
    """Of the cell, or the id of the instance: canonical bytes, as the codec stores them."""
    effect: str
    params: bytes
    """Canonical bytes, as the codec stores them."""
    sequence: Count
    at: Moment
    issuer: str | None = None
    due: Due | None = None
    """When it settles by itself, if it is a timer."""
    worker: str | None = None
    """Who runs it; None if it is queued."""
    claim: Count = 0
    """How often it was taken by a worker: who had it before can't settle it any more."""
    attempt: Count = 1
    """Higher with each attempt, whoever makes it."""
    token: bytes | None = None
    """If a workflow asks for it: the token of the wait for its answer."""
    failed: Count = 0
    """How many attempts have failed, of all workers."""
    deaths: Count = 0
    """How many workers have died that had it, since an attempt failed."""


class ActiveRow(Row, frozen=True):
    """The manifest that all runtimes of a store have."""

    WHAT: ClassVar[str] = "the active manifest"

    hash: str
    data: bytes
    """What it declares, as canonical bytes."""
    applied_at: Moment
    judged: str | None = None
    """A word of who is about to put another one in its place, and looks whether it may: see `under`."""


class DescribedRow(Row, frozen=True):
    """What the active manifest declares, as those need it who have not the code."""

    WHAT: ClassVar[str] = "what the active manifest declares"

    hash: str
    """Of the manifest."""
    machines: bytes
    """Their keys and retention, as canonical bytes."""


class SchemaRow(Row, frozen=True):
    """The JSON schema of an event."""

    WHAT: ClassVar[str] = "the schema of an event"

    data: bytes
    """Canonical bytes."""


class FrameRow(Row, frozen=True):
    """Something that an executor has sent while it runs."""

    WHAT: ClassVar[str] = "what an executor has sent"

    attempt: Count
    value: bytes
    at: Moment


class JournalRow(Row, frozen=True):
    """A message that a cell has taken."""

    WHAT: ClassVar[str] = "an entry of a journal"

    key: bytes | None
    """Of the cell: canonical bytes, as the codec stores them."""
    schema: str
    value: bytes
    """Canonical bytes, as the codec stores them."""
    at: Moment
    """When it was accepted."""
    intent: str | None
    """The effect that it is the answer to."""
    sequence: Count
    """How many transitions the cell had made before."""
    begins: bool = False
    """Whether the cell had no state before."""
    annotations: bytes | None = None
    """Canonical bytes, as the codec stores them."""


class BlobRow(Row, frozen=True):
    """A part of a snapshot: a page of an index, or a state."""

    WHAT: ClassVar[str] = "a part of a snapshot"

    data: bytes
    """Canonical bytes, as the codec stores them."""


class SnapshotRow(Row, frozen=True):
    """The newest snapshot of a machine."""

    WHAT: ClassVar[str] = "a snapshot"

    root: str
    count: Count
    at: Moment
    cursor: str | None = None
    """Of the last entry that the journal had; None, if it had none."""


class RootRow(Row, frozen=True):
    """A root of which everything is stored."""

    WHAT: ClassVar[str] = "the root of a snapshot"

    pinned: bool = False


class GenerationRow(Row, frozen=True):
    """How often snapshots were stored or pinned, and parts of them deleted."""

    WHAT: ClassVar[str] = "the generation of the snapshots"

    number: Count


ACTIVE: Final = MACHINES + pack_segment(1)
_INTENTS: Final = EFFECTS + pack_segment(1)
_QUEUES: Final = EFFECTS + pack_segment(2)
_SIGNALS: Final = EFFECTS + pack_segment(3)
_EXECUTED: Final = EFFECTS + pack_segment(4)
_EMITTED: Final = MACHINES + pack_segment(3)
JOURNALS: Final = MACHINES + pack_segment(4)
BLOBS: Final = MACHINES + pack_segment(5)
NEWEST: Final = MACHINES + pack_segment(6)
ROOTS: Final = MACHINES + pack_segment(7)
GENERATION: Final = MACHINES + pack_segment(8)
DESCRIBED: Final = MACHINES + pack_segment(9)


LAST_TRY: Final = b"\x01"
"""What a row in a queue holds if one more death settles the effect: no worker has two of these at a time."""


def intent_key(id: str) -> bytes:
    """The row of an intent."""
    return _INTENTS + pack_one(id)


def all_intents() -> tuple[bytes, bytes]:
    """The range of the intents that are not settled."""
    return subtree(_INTENTS)


def queue_of(effect: str) -> bytes:
    """What the keys of an effect's queue begin with; a time and an id follow."""
    return _QUEUES + pack_one(effect)


def queued_key(intent_id: str, intent: IntentRow) -> bytes:
    """The row of an intent that nobody runs, in order of time: of a timer, when it is due."""
    return queue_of(intent.effect) + pack((intent.at if intent.due is None else intent.due, intent_id))


def queued_row(intent_id: str, intent: IntentRow) -> Set:
    """The write that queues an intent that nobody runs."""
    return Set(queued_key(intent_id, intent), LAST_TRY if intent.deaths >= DEATHS_MAX - 1 else b"")


def signal_key(effect: str) -> bytes:
    """The row that changes whenever an intent of the effect is queued."""
    return _SIGNALS + pack_one(effect)


def executed_key(worker: str, intent_id: str) -> bytes:
    """The row of an intent that a worker runs."""
    return _EXECUTED + pack((worker, intent_id))


def all_executed() -> tuple[bytes, bytes]:
    """The range of the intents that workers run."""
    return subtree(_EXECUTED)


def executed_by(worker: str) -> tuple[bytes, bytes]:
    """The range of the intents that a worker runs."""
    return subtree(_EXECUTED + pack_one(worker))


def emitted_space(id: str) -> bytes:
    """Where the id of an event is kept, so that it counts once."""
    return _EMITTED + pack_segment(shard_of(id))


@lru_cache(maxsize=1024)
def journal_of(machine: str) -> bytes:
    """What the keys of the journal of a machine begin with; they are appended."""
    return JOURNALS + pack_one(machine)


def blob_key(hashed: str) -> bytes:
    """The row of the bytes that have a hash."""
    return BLOBS + pack_one(bytes.fromhex(hashed))


def newest_key(machine: str) -> bytes:
    """The row of the newest snapshot of a machine."""
    return NEWEST + pack_one(machine)


def root_key(root: str) -> bytes:
    """The row that says that everything of a root is stored."""
    return ROOTS + pack_one(bytes.fromhex(root))


def all_described() -> tuple[bytes, bytes]:
    """The range of what the active manifest declares, its row first."""
    return DESCRIBED, subtree(DESCRIBED)[1]


def schema_key(event: str) -> bytes:
    """The row of the JSON schema of an event."""
    return DESCRIBED + pack_one(event)


def pending_key(keys: InstanceKeys, intent_id: str) -> bytes:
    """The row of an effect that a cell waits for."""
    return keys.space + CELL + pack_one(intent_id)


def all_pending(keys: InstanceKeys) -> tuple[bytes, bytes]:
    """The range of the effects that a cell waits for."""
    return subtree(keys.space + CELL)


_STATUS: Final = {
    Status.PENDING: CellStatus.RUNNING,
    Status.RUNNING: CellStatus.RUNNING,
    Status.WAITING: CellStatus.WAITING,
    Status.COMPLETED: CellStatus.COMPLETED,
    Status.STUCK: CellStatus.STUCK,
}


def cell_status(status: Status) -> CellStatus:
    """What a cell is doing, by the status of its instance; one that was cancelled has failed."""
    return _STATUS.get(status, CellStatus.FAILED)


def key_of(machine: Machine[Any], about: InstanceRows, codec: Codec) -> bytes | None:
    """The key of a cell: canonical bytes, without the tag."""
    return canonical.bare(codec.decode(about.birth.input, plain=True)) if machine.is_keyed else None


class StoredCell(NamedTuple):
    """The rows of a cell beside those that every instance has."""

    state: bytes | None
    """As the codec stores it."""
    pending: Mapping[str, PendingRow]

    @classmethod
    def of(cls, keys: InstanceKeys, rows: list[tuple[bytes, bytes]]) -> StoredCell:
        """A cell, from the rows of its part."""
        start = len(cell_key(keys))
        state = CellState.unpack(rows[0][1]).state if rows and len(rows[0][0]) == start else None
        return cls(state, {_id_of(key[start:]): PendingRow.unpack(raw) for key, raw in rows if len(key) > start})

    def data(self, key: bytes | None, about: InstanceRows, codec: Codec, sequence: int) -> CellData:
        """The cell. `sequence`: the count of one that was deleted, for one that has made no transition since."""
        row, found = about.cell, cell_status(about.status)
        if row is None:
            return CellData(key, status=found, sequence=sequence)
        inflight = {
            id: Pending(id, one.effect, b"", one.issuer, one.sequence, one.at) for id, one in self.pending.items()
        }
        state = None if self.state is None else codec.unseal(self.state)
        return CellData(
            key, state, found, {} if found.is_terminal else inflight, row.sequence, row.revision, row.changed_at
        )


def _id_of(place: bytes) -> str:
    (id,) = unpack(place)
    return str(id)
