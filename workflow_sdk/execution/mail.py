"""Messages on their way from the store into the memory of a run.

A sender changes the nudge in the commit that appends the message. The nudge is read before the inbox, so that a message
is at worst read twice, never missed.
"""

from __future__ import annotations

from workflow_sdk.core.inbox import InboxMessage
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.keys import INBOX
from workflow_sdk.driver import Driver
from workflow_sdk.execution.snapshot import StoredRows

__all__ = ["Mail"]


class Mail:
    """What came for one instance."""

    __slots__ = ("_driver", "_journal", "_last", "evicted", "has_come", "lease", "nudge")

    def __init__(self, driver: Driver, journal: Journal) -> None:
        self._driver = driver
        self._journal = journal
        self._last = b""
        """The key up to which the inbox was read: messages are appended, so there is nothing new before it."""
        self.nudge: bytes | None = None
        self.lease: bytes | None = None
        """Who had the instance when the nudge was read."""
        self.evicted: bytes | None = None
        """Whose run was to be put away then."""
        self.has_come: bool = False

    async def refresh(self, *, standing: bool) -> None:
        """Take in the messages that the store has by now; with `standing`, look at the nudge and the lease first."""
        keys = self._journal.keys
        begin, end = keys.range(INBOX)
        self.has_come = False
        nudge = self.nudge
        if standing:
            rows = dict(await self._driver.scan(keys.lease, keys.nudge + b"\x00"))
            nudge, self.lease, self.evicted = rows.get(keys.nudge), rows.get(keys.lease), rows.get(keys.evicted)
        self._add(await self._driver.scan(self._last + b"\x00" if self._last else begin, end))
        self.nudge = nudge

    def take_in(self, rows: StoredRows, nudge: bytes | None) -> None:
        """Take in what was read together with the nudge."""
        self._add(rows.between(*self._journal.keys.range(INBOX)))
        self.nudge = nudge

    def _add(self, rows: list[tuple[bytes, bytes]]) -> None:
        start = len(self._journal.keys.space) + len(INBOX)
        for key, raw in rows:
            # Someone else may have read the same rows meanwhile, and taken them.
            if key > self._last:
                self._journal.inbox.add(InboxMessage.unpack(key[start:], raw))
                self._last = key

    async def watch(self) -> None:
        """Return once a message may have come."""
        await self._driver.changed(self._journal.keys.nudge, self.nudge)
