"""Which key holds what. Every key is a tuple of `fdb.tuple`, packed.

Under the root prefix:

    (1, id, ...)        the instance's own space, as below
    (3, shard, time, id) alarm of an instance that nobody runs; see `rows.wire` for what is due at once
    (5, ...)            directory: (1, shard, time, id), (2, status, shard, time, id), (3, workflow, shard, time, id),
                        (4, reference, shard, time, id)
    (6, worker)         heartbeat: see `changes.workers`
    (7, worker, id)     what the worker has claimed
    (8, worker)         stamp of a worker: another value after every signal to it
    (9, worker, <append>) signal to a worker: which of its instances is to look into its inbox
    (10, shard)         signal of a shard: another value after every alarm that is set there
    (11, id, reply)     answer to a message, or that it is waited for
    (12, <append>)      cleanup: what is still to be done for an instance that has ended a wait early
    (13, ...)           tasks: (1, id), (2, id, <append>) what happened to it; and of the open ones, by what they are
                        looked for: (3, time, id), (4, assignee, time, id), (5, role, time, id),
                        (6, reference, time, id), (7, instance, time, id); of all, (8, instance, time, id),
                        and of those that are over, (9, instance, time, id)
    (15, shard, time, id) when an instance that has ended is to be forgotten
    (14, 1, id)         schedule: see `features.schedules.rows`
    (14, 2, time, id)   next tick of a schedule that is not paused
    (14, 3)             signal of the schedules: another value after every change of one
    (14, 4, id)         schedule of which ticks wait for the end of the instance before
    (16, digest)        definition of a graph: what instances go on with, whatever the code declares by now; its size
    (16, digest, "")    the definition itself
    (17, ...)           effects that are asked for: (1, id), (2, effect, time, id) the ones that nobody runs,
                        (3, effect) signal: another value after each of these, (4, worker, id) the ones that it runs,
                        (5, id, <append>) what an executor has sent while it runs
    (18, ...)           machines: (1) the active manifest, (2, id) how far the count of a deleted cell was,
                        (3, shard, ...) the ids of events, kept as (10, ...) and (15, ...) of an instance are,
                        (4, machine, <append>) what cells have taken, if there is to be a journal,
                        (5, hash) part of a snapshot, (6, machine) the newest one, (7, root) the ones that are whole,
                        (8) how often these were changed,
                        (9) what the active manifest declares, (9, event) the JSON schema of an event
    (30, 1)             how many messages an inbox has room for

What is in order of time is kept in shards, by the id: where every new row is the last of its range, one server would
have to take all of them.

In the space of an instance:

    (1, index)          name: its text; in loops also the loop that owns it, whether it is shadowed, and the turn it
                        is kept for
    (2, *segments)      history entry
    (3, <append>)       inbox message
    (4, field)          one of the rows in `rows.instance`; and beside them, where the same read finds them:
                        (4, 20) lease: who may write the instance; absent when nobody runs it
                        (4, 21) inbox stamp: another value after every message
                        (4, 21, n) how many messages were sent to it, in several rows: see `journal.inbox`
    (5, *segments)      metadata of an entry that had trouble: attempts and last error
    (6, sequence)       compensation, in order of completion
    (7, *segments, n)   message taken inside a race that is still open, to be given back if its branch loses
    (8, *segments)      history of a race's losers that is needed to find their compensations
    (10, key)           a message with this idempotency key has come
    (11, *segments)     states that turns of a loop began with, up to the one with this location
    (9, name, *segments) what a parked branch waits for, by the name of the message (empty: for a time; a token: for
                        the end of a child or a task)
    (12, *segments)     what hangs on a wait and lies outside: a child, a task or an effect
    (13, *segments)     what a finished scope has changed of the public state: see `journal.public_state`
    (14, <append>)      message that was set aside, at the place that it had in the inbox
    (15, <append>)      idempotency key, when it was used, and its number
    (20, *segments)     the same of one inside a finished scope; and of a loop, as it was when that turn began
    (25, *segments)     after a worker died under it: an operation whose code is being called
    (28)                state of a cell, which is an instance of a machine
    (28, id)            effect that the cell waits for
    (26, *segments, "", ...) where a graph is that has not ended: see `graphs.marking`
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from zlib import crc32

from workflow_sdk.errors import CodecError
from workflow_sdk.rows.location import pack, pack_one, pack_segment, subtree, unpack

ROOT: bytes = pack(("workflow_sdk",))

NAMES = pack_segment(1)
HISTORY = pack_segment(2)
INBOX = pack_segment(3)
FIELDS = pack_segment(4)
METADATA = pack_segment(5)
COMPENSATIONS = pack_segment(6)
TAKINGS = pack_segment(7)
ARCHIVE = pack_segment(8)
WAITS = pack_segment(9)
DELIVERED = pack_segment(10)
BASES = pack_segment(11)
OUTSIDE = pack_segment(12)
CHANGES = pack_segment(13)
ASIDE = pack_segment(14)
KEYS_IN_ORDER = pack_segment(15)
FOLDED = pack_segment(20)
TRIES = pack_segment(25)
MARKINGS = pack_segment(26)
PATCHED = pack_segment(27)
CELL = pack_segment(28)


class Field(IntEnum):
    """The rows of an instance beside its history, at (4, field): see `rows.instance`."""

    HEAD = 1
    RESULT = 2
    BIRTH = 5
    DEATHS = 8
    TALLY = 10
    STATE = 11
    SHOWN = 12
    WATCHERS = 14
    ANSWERED = 18
    HANDED = 30
    CELL = 31


LEASE = FIELDS + pack_segment(20)
EVICTED = LEASE + pack_one("evict")
"""The row of a request to evict. It sorts between the lease and the inbox stamp, so that one scan reads all three."""
INBOX_STAMP = FIELDS + pack_segment(21)


INBOX_MAX: bytes = ROOT + pack((30, 1))
"""The row of the limit of inboxes, if it is not the default."""


def field_key(field: Field) -> bytes:
    """The key of one of the rows beside the history, in the space of its instance."""
    return FIELDS + pack_segment(field)


def sequence_key(sequence: int) -> bytes:
    """The key of a compensation, in the space of its instance."""
    return COMPENSATIONS + pack_segment(sequence)


def marking_of(location: bytes) -> bytes:
    """What the keys of a graph's marking begin with, in the space of its instance."""
    return MARKINGS + location + b"\x02\x00"


def parts_of(location: bytes) -> bytes:
    """What the keys of a graph's result begin with that is stored in parts, in the space of its instance."""
    return marking_of(location) + pack_segment(100)


@lru_cache(maxsize=1024)  # the same names again and again
def waits_of(message: str | bytes) -> bytes:
    """What the keys of the waits for a message begin with; for an empty one, of the waits for a time."""
    return WAITS + pack((message,))


SHARDS = 16
"""How many shards there are. The number is part of the stored format."""

DIRECTORY: bytes = ROOT + pack((5,))
ALARMS: list[bytes] = [ROOT + pack((3, shard)) for shard in range(SHARDS)]
"""What the alarms of each shard begin with; a time and an id follow."""
SHARD_SIGNALS: list[bytes] = [ROOT + pack((10, shard)) for shard in range(SHARDS)]

_SHARDS: list[bytes] = [pack((shard,)) for shard in range(SHARDS)]
_LISTED = DIRECTORY + pack((1,))
_LISTED_BY_STATUS = DIRECTORY + pack((2,))
_LISTED_BY_WORKFLOW = DIRECTORY + pack((3,))
_SPACES = ROOT + pack((1,))
_HEARTBEATS = ROOT + pack((6,))
_CLAIMS = ROOT + pack((7,))
_WORKER_STAMPS = ROOT + pack((8,))
_WORKER_SIGNALS = ROOT + pack((9,))


def all_spaces() -> tuple[bytes, bytes]:
    """The range of everything that instances keep in spaces of their own."""
    return subtree(_SPACES)


def shard_of(instance_id: str) -> int:
    """The shard of an instance."""
    return crc32(instance_id.encode()) % SHARDS


def _listed_as(created_at: float, instance_id: str) -> bytes:
    return _SHARDS[shard_of(instance_id)] + pack_one(created_at) + pack_one(instance_id)


def listed(created_at: float, instance_id: str) -> bytes:
    """The directory's row of an instance, by time."""
    return _LISTED + _listed_as(created_at, instance_id)


def listed_by_status(status: str, created_at: float, instance_id: str) -> bytes:
    """The directory's row of an instance, by status."""
    return _LISTED_BY_STATUS + pack_one(status) + _listed_as(created_at, instance_id)


def listed_by_workflow(workflow: str, created_at: float, instance_id: str) -> bytes:
    """The directory's row of an instance, by workflow."""
    return _LISTED_BY_WORKFLOW + pack_one(workflow) + _listed_as(created_at, instance_id)


def listed_by_reference(reference: str, created_at: float, instance_id: str) -> bytes:
    """The directory's row of an instance, by its business reference."""
    return DIRECTORY + pack((4, reference, shard_of(instance_id), created_at, instance_id))


def all_by_status(status: str) -> tuple[bytes, bytes]:
    """The range of the instances with a status."""
    return subtree(DIRECTORY + pack((2, status)))


def all_by_workflow(workflow: str) -> tuple[bytes, bytes]:
    """The range of the instances of a workflow."""
    return subtree(_LISTED_BY_WORKFLOW + pack_one(workflow))


def shards_of(prefix: bytes) -> list[bytes]:
    """What the keys of each shard begin with, in a part of the directory."""
    return [prefix + shard for shard in _SHARDS]


CLEANUPS: bytes = ROOT + pack((12,))
TASKS: bytes = ROOT + pack((13,))
PURGES: list[bytes] = [ROOT + pack((15, shard)) for shard in range(SHARDS)]
"""What the times of purges of each shard begin with; a time and an id follow."""


def purge_key(when: float, instance_id: str) -> bytes:
    """The row of an instance that is to be forgotten then."""
    return PURGES[shard_of(instance_id)] + pack((when, instance_id))


DEFINITIONS: bytes = ROOT + pack((16,))
EFFECTS: bytes = ROOT + pack((17,))
MACHINES: bytes = ROOT + pack((18,))
ANSWERS: bytes = ROOT + pack((11,))


def answers_of(instance_id: str) -> bytes:
    """What the keys of the answers of an instance begin with."""
    return ANSWERS + pack_one(instance_id)


def answer_key(instance_id: str, reply: str) -> bytes:
    """Where the answer to a message goes."""
    return answers_of(instance_id) + pack_one(reply)


class WorkerKeys:
    """The keys of one worker in the store. A worker's own runs share one: see `worker_keys`."""

    __slots__ = ("heartbeat", "signals", "stamp", "worker")

    def __init__(self, worker: str) -> None:
        self.worker: str = worker
        packed = pack_one(worker)
        self.heartbeat: bytes = _HEARTBEATS + packed
        self.stamp: bytes = _WORKER_STAMPS + packed
        self.signals: bytes = _WORKER_SIGNALS + packed

    def claimed(self, instance_id: str) -> bytes:
        """The row of an instance that the worker has claimed."""
        return _CLAIMS + pack_one(self.worker) + pack_one(instance_id)

    def all_claimed(self) -> tuple[bytes, bytes]:
        """The range of what the worker has claimed."""
        return subtree(_CLAIMS + pack_one(self.worker))

    @staticmethod
    def all_claims() -> tuple[bytes, bytes]:
        """The range of what all workers have claimed."""
        return subtree(_CLAIMS)

    @staticmethod
    def heartbeats() -> tuple[bytes, bytes]:
        """The range of the heartbeats of all workers."""
        return subtree(_HEARTBEATS)


def last_of(key: bytes) -> str:
    """The last part of a key of the store's own: an id."""
    return _text(key, -1)


def id_in(key: bytes) -> str | None:
    """The last part of a key, an id; None for a key that this library has not written."""
    try:
        return last_of(key)
    except CodecError:
        return None


def worker_of(claim: bytes) -> str:
    """The worker in the key of a claim."""
    return _text(claim, 1)


def _text(key: bytes, place: int) -> str:
    parts = unpack(key[len(ROOT) :])
    found = parts[place] if len(parts) > 1 else None
    if not isinstance(found, str):
        raise CodecError(f"a key in the store is not of this library's making: {key!r:.100}")
    return found


@lru_cache(maxsize=64)
def worker_keys(worker: str) -> WorkerKeys:
    """The keys of a worker, made once."""
    return WorkerKeys(worker)


class InstanceKeys:
    """The keys of one instance in the store. They are made when they are asked for: there may be thousands of these."""

    __slots__ = ("instance_id", "space")

    def __init__(self, instance_id: str) -> None:
        self.instance_id: str = instance_id
        self.space: bytes = _SPACES + pack_one(instance_id)

    @property
    def lease(self) -> bytes:
        """Who may write the instance."""
        return self.space + LEASE

    @property
    def evicted(self) -> bytes:
        """The lease under which the instance is to be evicted."""
        return self.space + EVICTED

    @property
    def stamp(self) -> bytes:
        """The inbox stamp, which changes with every message."""
        return self.space + INBOX_STAMP

    def sent(self, number: int) -> bytes:
        """One of the rows that count what was sent."""
        return self.space + INBOX_STAMP + pack_segment(number)

    def alarm(self, when: float) -> bytes:
        """The key of an alarm: alarms sort by their time."""
        return ALARMS[shard_of(self.instance_id)] + pack_one(when) + pack_one(self.instance_id)

    @property
    def shard_signal(self) -> bytes:
        """The signal of the shard, which changes when an alarm of the instance is set."""
        return SHARD_SIGNALS[shard_of(self.instance_id)]

    def field(self, field: Field) -> bytes:
        """The key of one of the rows beside the history."""
        return self.space + field_key(field)

    def range(self, part: bytes) -> tuple[bytes, bytes]:
        """Every key of one part of the instance's space."""
        return subtree(self.space + part)

    def all(self) -> tuple[bytes, bytes]:
        """The instance's whole space."""
        return subtree(self.space)
