"""Which key holds what. Every key is a tuple of `fdb.tuple`, packed.

Under the root prefix:

    (1, id, ...)        the instance's own space, as below
    (2, id)             lease: who may write the instance; absent when nobody runs it
    (3, time, id)       alarm of an instance that nobody runs
    (4, id)             nudge: another value after every message

In the space of an instance:

    (1, index)          name: its text; in loops also the loop that owns it, whether it is shadowed, and the turn it
                        is kept for
    (2, *segments)      history entry
    (3, <append>)       inbox message
    (4, field)          one of the fields below
    (5, *segments)      metadata of an entry that had trouble: attempts and last error
    (6, sequence)       compensation, in order of completion
    (7, *segments, n)   message taken inside a race that is still open, to be given back if its branch loses
    (8, *segments)      history of a race's losers that is needed to find their compensations
    (9, name, *segments) what a parked branch waits for, by the name of the message (empty: for a time)
"""

from __future__ import annotations

from enum import IntEnum

from workflow_sdk.core.location import pack_segment, subtree
from workflow_sdk.core.tuples import pack

__all__ = [
    "ATTIC",
    "COMPENSATIONS",
    "FIELDS",
    "HISTORY",
    "INBOX",
    "METADATA",
    "NAMES",
    "TAKINGS",
    "WAITS",
    "Field",
    "InstanceKeys",
    "field_key",
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


class Field(IntEnum):
    """The fields of an instance, at (4, field)."""

    STATUS = 1
    OUTPUT = 2
    ERROR = 3
    VERSION = 4
    """Workflow name, its version, the fingerprint of its code, and how often the status was written."""
    INPUT = 5
    BIRTH = 6
    """When it was created, and the seed of its uuids and random numbers."""
    ALARM = 7
    """The time of its alarm, while it has one."""
    DEATHS = 8
    """How many workers died under it in a row; absent if none did."""


def field_key(field: Field) -> bytes:
    """The key of a field, in the space of its instance."""
    return FIELDS + pack_segment(field)


def sequence_key(sequence: int) -> bytes:
    """The key of a compensation, in the space of its instance."""
    return COMPENSATIONS + pack_segment(sequence)


def waits_of(message: str) -> bytes:
    """What the keys of the waits for a message begin with; for an empty one, of the waits for a time."""
    return WAITS + pack((message,))


class InstanceKeys:
    """The keys of one instance in the store."""

    __slots__ = ("instance_id", "lease", "nudge", "space")

    def __init__(self, instance_id: str) -> None:
        self.instance_id: str = instance_id
        self.space: bytes = ROOT + pack((1, instance_id))
        self.lease: bytes = ROOT + pack((2, instance_id))
        self.nudge: bytes = ROOT + pack((4, instance_id))

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
