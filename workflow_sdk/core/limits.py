"""How many messages an inbox may hold, and how many it holds.

Whoever sends a message counts it, in the commit that stores it. One row would have all senders wait for each other, so
there are several, and who finds one taken uses another. What is handed over in the process of the worker is counted in
a row that only this process writes. What was taken is counted by whoever runs the instance, with the count of its
commits. What was set aside is still there.
"""

from __future__ import annotations

from collections.abc import Mapping

from workflow_sdk.core.keys import Field
from workflow_sdk.core.wire import damaged, shapes, unpack_record

__all__ = ["INBOX_MAX_DEFAULT", "SENT_ROWS", "counted", "messages_in", "taken_by"]

INBOX_MAX_DEFAULT = 10_000
SENT_ROWS = 32

_COUNT = shapes((int,))


def counted(raw: bytes | None) -> int:
    """The number in a row that counts; 0 if there is none."""
    if raw is None:
        return 0
    fields = unpack_record(raw)
    if tuple(map(type, fields)) not in _COUNT:
        raise damaged("a count of messages")
    count: int = fields[0]
    return count


def taken_by(fields: Mapping[Field, bytes]) -> int:
    """How many messages an instance has taken."""
    raw = fields.get(Field.COMMITS)
    counts = [] if raw is None else unpack_record(raw)
    return int(counts[1]) if len(counts) > 1 else 0


def messages_in(fields: Mapping[Field, bytes], sent: Mapping[bytes, bytes]) -> int:
    """How many messages an instance has, from its fields and the rows that count what was sent."""
    return max(0, sum(map(counted, sent.values())) + counted(fields.get(Field.HANDED)) - taken_by(fields))
