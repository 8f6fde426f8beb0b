"""How many messages an inbox may hold, and how many it holds.

Whoever sends a message counts it, in the commit that stores it. One row would have all senders wait for each other, so
there are several, and who finds one taken uses another. What is handed over in the process of the worker is counted in
a row that only this process writes. What was taken is counted by whoever runs the instance, with the count of its
commits. What was set aside is still there.
"""

from __future__ import annotations

from collections.abc import Mapping

from workflow_sdk.core.instance import CountRow, InstanceRows

__all__ = ["INBOX_MAX_DEFAULT", "SENT_ROWS", "counted", "messages_in"]

INBOX_MAX_DEFAULT = 10_000
SENT_ROWS = 32


def counted(raw: bytes | None) -> int:
    """The number in a row that counts; 0 if there is none."""
    return 0 if raw is None else CountRow.unpack(raw).count


def messages_in(rows: InstanceRows, sent: Mapping[bytes, bytes]) -> int:
    """How many messages an instance has, from its rows and those that count what was sent."""
    return max(0, sum(map(counted, sent.values())) + (rows.handed or 0) - rows.tally.taken)
