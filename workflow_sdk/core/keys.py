"""Which key holds what. Every key is a tuple of `fdb.tuple`, packed.

Under the root prefix:

    (1, id, ...)        the instance's own space, as below
    (3, time, id)       alarm of an instance that nobody runs
    (5, ...)            directory: (1, time, id), (2, status, time, id), (3, workflow, time, id)
    (6, worker)         heartbeat: until when the worker is taken for alive
    (7, worker, id)     what the worker has claimed
    (8, worker)         bell: another value after every letter to the worker
    (9, worker, <append>) letter to a worker: which of its instances is to look into its inbox
    (10,)               bell of the due: another value after every alarm that is due at once
    (11, reply)         answer to a message

In the space of an instance:

    (1, index)          name: its text; in loops also the loop that owns it, whether it is shadowed, and the turn it
                        is kept for
    (2, *segments)      history entry
    (3, <append>)       inbox message
    (4, field)          one of the fields below; and in keys of their own, where one read finds them with the fields:
                        (4, 20) lease: who may write the instance; absent when nobody runs it
                        (4, 21) nudge: another value after every message
    (5, *segments)      metadata of an entry that had trouble: attempts and last error
    (6, sequence)       compensation, in order of completion
    (7, *segments, n)   message taken inside a race that is still open, to be given back if its branch loses
    (8, *segments)      history of a race's losers that is needed to find their compensations
    (10, key)           a message with this idempotency key has come
    (11, *segments)     states that turns of a loop began with, up to the one with this location: see `core.bases`
    (9, name, *segments) what a parked branch waits for, by the name of the message (empty: for a time)
"""

from __future__ import annotations

from enum import IntEnum

from workflow_sdk.core.location import pack_segment, subtree
from workflow_sdk.core.tuples import pack, unpack

__all__ = [
    "ATTIC",
    "BASES",
    "COMPENSATIONS",
    "DELIVERED",
    "DIRECTORY",
    "DUE_BELL",
    "FIELDS",
    "HISTORY",
    "INBOX",
    "METADATA",
    "NAMES",
    "ROOT",
    "TAKINGS",
    "WAITS",
    "Field",
    "InstanceKeys",
    "WorkerKeys",
    "alarms_until",
    "all_by_status",
    "answer_key",
    "field_key",
    "last_of",
    "listed",
    "listed_by_status",
    "listed_by_workflow",
    "sequence_key",
    "waits_of",
]

ROOT: bytes = pack(("workflow_sdk",))

NAMES = pack_segment(1)
HISTORY = pack_segment(2)
INBOX = pack_segment(3)
FIELDS = pack_segment(4)
METADATA = pack_segment(5)
COMPENSATIONS = pack_segment(6)
TAKINGS = pack_segment(7)
ATTIC = pack_segment(8)
WAITS = pack_segment(9)
DELIVERED = pack_segment(10)
BASES = pack_segment(11)


class Field(IntEnum):
    """The fields of an instance, at (4, field)."""

    STATUS = 1
    OUTPUT = 2
    ERROR = 3
    VERSION = 4
    """Workflow name, its version, the fingerprint of its code, how often the status was written, and when at last."""
    INPUT = 5
    BIRTH = 6
    """When it was created, and the seed of its uuids and random numbers."""
    ALARM = 7
    """The time of its alarm, while it has one."""
    CANCEL = 9
    """There once it was cancelled with a rollback: that it ends as cancelled."""
    DEATHS = 8
    """How many workers died under it in a row; absent if none did."""


LEASE = FIELDS + pack_segment(20)
NUDGE = FIELDS + pack_segment(21)


def field_key(field: Field) -> bytes:
    """The key of a field, in the space of its instance."""
    return FIELDS + pack_segment(field)


def sequence_key(sequence: int) -> bytes:
    """The key of a compensation, in the space of its instance."""
    return COMPENSATIONS + pack_segment(sequence)


def waits_of(message: str) -> bytes:
    """What the keys of the waits for a message begin with; for an empty one, of the waits for a time."""
    return WAITS + pack((message,))


DIRECTORY: bytes = ROOT + pack((5,))
DUE_BELL: bytes = ROOT + pack((10,))


def listed(created_at: float, instance_id: str) -> bytes:
    """The directory's row of an instance, by time."""
    return DIRECTORY + pack((1, created_at, instance_id))


def listed_by_status(status: str, created_at: float, instance_id: str) -> bytes:
    """The directory's row of an instance, by status."""
    return DIRECTORY + pack((2, status, created_at, instance_id))


def all_by_status(status: str) -> tuple[bytes, bytes]:
    """The range of the instances with a status, oldest first."""
    return subtree(DIRECTORY + pack((2, status)))


def listed_by_workflow(workflow: str, created_at: float, instance_id: str) -> bytes:
    """The directory's row of an instance, by workflow."""
    return DIRECTORY + pack((3, workflow, created_at, instance_id))


def alarms_until(when: float) -> tuple[bytes, bytes]:
    """The range of the alarms that are due by then."""
    begin = ROOT + pack((3,))
    return begin + b"\x00", ROOT + pack((3, when)) + b"\xff"


def answer_key(reply: str) -> bytes:
    """Where the answer to a message goes."""
    return ROOT + pack((11, reply))


class WorkerKeys:
    """The keys of one worker in the store."""

    __slots__ = ("bell", "heartbeat", "letters", "worker")

    def __init__(self, worker: str) -> None:
        self.worker: str = worker
        self.heartbeat: bytes = ROOT + pack((6, worker))
        self.bell: bytes = ROOT + pack((8, worker))
        self.letters: bytes = ROOT + pack((9, worker))

    def claimed(self, instance_id: str) -> bytes:
        """The row of an instance that the worker has claimed."""
        return ROOT + pack((7, self.worker, instance_id))

    def all_claimed(self) -> tuple[bytes, bytes]:
        """The range of what the worker has claimed."""
        return subtree(ROOT + pack((7, self.worker)))

    @staticmethod
    def heartbeats() -> tuple[bytes, bytes]:
        """The range of the heartbeats of all workers."""
        return subtree(ROOT + pack((6,)))


def last_of(key: bytes) -> str:
    """The last part of a key of the store's own: an id."""
    found = unpack(key[len(ROOT) :])[-1]
    assert isinstance(found, str), "such keys end with an id"
    return found


class InstanceKeys:
    """The keys of one instance in the store."""

    __slots__ = ("instance_id", "lease", "nudge", "space")

    def __init__(self, instance_id: str) -> None:
        self.instance_id: str = instance_id
        self.space: bytes = ROOT + pack((1, instance_id))
        self.lease: bytes = self.space + LEASE
        self.nudge: bytes = self.space + NUDGE

    def alarm(self, when: float) -> bytes:
        """The key of an alarm: alarms sort by their time."""
        return ROOT + pack((3, when, self.instance_id))

    def field(self, field: Field) -> bytes:
        """The key of one of the instance's fields."""
        return self.space + field_key(field)

    def range(self, part: bytes) -> tuple[bytes, bytes]:
        """Every key of one part of the instance's space."""
        return subtree(self.space + part)

    def all(self) -> tuple[bytes, bytes]:
        """The instance's whole space."""
        return subtree(self.space)
