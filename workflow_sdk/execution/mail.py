"""Messages on their way from the store into the memory of a run.

A sender changes the nudge in the commit that appends the message. The nudge is read before the inbox, so that a message
is at worst read twice, never missed.
"""

from __future__ import annotations

from workflow_sdk.core.inbox import InboxMessage
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.keys import INBOX
from workflow_sdk.driver import Driver

__all__ = ["Mail"]


class Mail:
    """What came for one instance."""

    def __init__(self, driver: Driver, journal: Journal) -> None:
        self._driver = driver
        self._journal = journal
        self._last = b""
        """The key up to which the inbox was read: messages are appended, so there is nothing new before it."""
        self.nudge: bytes | None = None
        self.has_come: bool = False
        self.is_watched: bool = False

    async def refresh(self) -> bool:
        """Take in what the store has by now; True if there was a nudge since the last time."""
        keys = self._journal.keys
        begin, end = keys.range(INBOX)
        start = len(keys.space) + len(INBOX)
        self.has_come = False
        nudge = await self._driver.get(keys.nudge)
        rows = await self._driver.scan(self._last + b"\x00" if self._last else begin, end)
        for key, raw in rows:
            # Someone else may have read the same rows meanwhile, and taken them.
            if key > self._last:
                self._journal.inbox.add(InboxMessage.unpack(key[start:], raw))
                self._last = key
        nudged = nudge != self.nudge
        self.nudge = nudge
        return nudged

    async def watch(self) -> None:
        """Return once a message may have come."""
        await self._driver.changed(self._journal.keys.nudge, self.nudge)
        self.has_come = True
        self.is_watched = False
