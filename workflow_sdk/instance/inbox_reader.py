"""Messages on their way from the store into the memory of a run.

A sender changes the inbox stamp in the commit that appends the message. The stamp is read before the inbox: a message
that comes between the two reads is at worst read twice, and never missed.

Of a long inbox, only part is kept in memory. Messages that no branch waits for are passed over: they stay in the store,
and are read again once a branch listens to them. For each name, all messages in memory came before those that were
passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from workflow_sdk.changes.instances import StoredRows
from workflow_sdk.driver import Driver
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.journal.journal import Journal
from workflow_sdk.rows.keys import INBOX

PAGE_MIN, PAGE_MAX = 16, 64
PAGE_BYTES = 1_000_000
"""About how many bytes a page of the inbox has, if its messages are like those of the page before."""
KEPT_MAX = 64
KEPT_BYTES = 1_000_000
"""How many messages, of how many bytes, are kept in memory although no branch waits for them yet."""

_NOTHING_PASSED: dict[int, bytes] = {}
"""Shared by all, and never written to."""


class Needs(Protocol):
    """The waits of a run."""

    def needed(self, message: str) -> int:
        """How many messages with this name are awaited; for the empty name, how many names are awaited."""
        ...


class InboxReader:
    """Reads the inbox of one instance into its journal."""

    __slots__ = (
        "_driver",
        "_journal",
        "_last",
        "_more",
        "_page",
        "_passed",
        "evicted",
        "has_come",
        "lease",
        "sent",
        "stamp",
        "waits",
    )

    def __init__(self, driver: Driver, journal: Journal) -> None:
        self._driver = driver
        self._journal = journal
        self._last = b""
        """The key up to which the inbox was read. Messages are appended, so new ones sort after it."""
        self._more = False
        """Whether there may be messages after that key that were not read."""
        self._passed: dict[int, bytes] = _NOTHING_PASSED
        """The key of the first message of each name that was passed over, by the hash of the name."""
        self._page = PAGE_MIN
        self.waits: Needs | None = None
        """The waits of the run."""
        self.stamp: bytes | None = None
        self.lease: bytes | None = None
        """The lease of the instance when the inbox stamp was read."""
        self.sent: dict[bytes, bytes] = {}
        """The rows that count the messages sent, as they were then."""
        self.evicted: bytes | None = None
        """The lease under which the instance was to be evicted, as it was then; None if nobody asked for that."""
        self.has_come: bool = False

    async def refresh(self, *, with_lease: bool, all: bool = False) -> None:
        """Take in the messages that the store has by now; with `with_lease`, read the inbox stamp and the lease first.

        Without `all`, the rest of a long inbox is left for later.
        """
        keys = self._journal.keys
        self.has_come = False
        stamp = self.stamp
        if with_lease:
            rows = dict(await self._driver.scan(keys.lease, keys.stamp + b"\xff"))
            stamp, self.lease = rows.pop(keys.stamp, None), rows.pop(keys.lease, None)
            self.evicted = rows.pop(keys.evicted, None)
            self.sent = rows
        await self._read_new(())
        while self._more and all:
            await self._read_new(())
        self.stamp = stamp

    def take_in(self, rows: StoredRows, stamp: bytes | None, sent: dict[bytes, bytes]) -> None:
        """Take in the rows of the inbox that were read together with the inbox stamp."""
        self._add(rows.between(*self._journal.keys.range(INBOX)), ())
        self.stamp = stamp
        self.sent = sent

    def lacks(self, names: Iterable[str | bytes], found: list[InboxMessage], count: int) -> bool:
        """Whether the store may have messages that are to be taken before those found, or together with them."""
        if len(found) < count and self._more:
            return True
        if not self._passed:
            return False
        first = min((key for name in names if (key := self._passed.get(hash(name)))), default=None)
        if first is None:
            return False
        start = len(self._journal.keys.space) + len(INBOX)
        return len(found) < count or any(each.only_for is None and each.id > first[start:] for each in found)

    def has_passed(self, names: Iterable[str | bytes]) -> bool:
        """Whether messages with one of the names were passed over."""
        return bool(self._passed) and any(hash(name) in self._passed for name in names)

    async def read_on(self, names: Iterable[str | bytes]) -> None:
        """Read some more of the messages with these names."""
        names = frozenset(names)
        begin = min((key for name in names if (key := self._passed.get(hash(name)))), default=None)
        if begin is None:
            await self._read_new(names)
            return
        limit, last = self._page, self._last
        rows = await self._driver.scan(begin, last + b"\x00", limit=limit)
        start = len(self._journal.keys.space) + len(INBOX)
        for key, raw in rows:
            message = InboxMessage.unpack(key[start:], raw)
            # Another branch may have read the same page meanwhile. A message for one wait only is never passed over.
            passed = self._passed.get(hash(message.name))
            if message.name in names and message.only_for is None and passed is not None and key >= passed:
                self._journal.inbox.add(message)
        whole = len(rows) < limit
        following = last + b"\x00" if whole else rows[-1][0] + b"\x00"
        for name in names:
            if (passed := self._passed.get(hash(name))) is None:
                continue
            if whole and self._last == last:
                del self._passed[hash(name)]
            else:
                self._passed[hash(name)] = max(passed, following)
        self._adapt(rows)

    async def _read_new(self, names: Iterable[str | bytes]) -> None:
        """Read a page that was not read before; and further pages, as long as a branch waits for more messages."""
        _, end = self._journal.keys.range(INBOX)
        while True:
            begin, limit = self._begin(), self._page
            rows = await self._driver.scan(begin, end, limit=limit)
            if begin == self._begin():  # otherwise another branch has read on meanwhile, and knows better
                self._more = len(rows) == limit
            self._add(rows, names)
            self._adapt(rows)
            if not self._more or names or not self._needed(""):
                return

    def _begin(self) -> bytes:
        return self._last + b"\x00" if self._last else self._journal.keys.range(INBOX)[0]

    def _adapt(self, rows: list[tuple[bytes, bytes]]) -> None:
        size = sum(len(raw) for _, raw in rows)
        if size:
            self._page = min(max(PAGE_BYTES * len(rows) // size, 1), PAGE_MAX, 4 * self._page)

    def _add(self, rows: list[tuple[bytes, bytes]], names: Iterable[str | bytes]) -> None:
        start = len(self._journal.keys.space) + len(INBOX)
        for key, raw in rows:
            # Another branch may have read the same rows meanwhile, and taken the messages.
            if key > self._last:
                message = InboxMessage.unpack(key[start:], raw)
                self._last = key
                if self._keeps(message, names):
                    self._journal.inbox.add(message)
                else:
                    if self._passed is _NOTHING_PASSED:
                        self._passed = {}
                    self._passed.setdefault(hash(message.name), key)

    def _keeps(self, message: InboxMessage, names: Iterable[str | bytes]) -> bool:
        """Whether a message that was read is kept in memory."""
        inbox, name = self._journal.inbox, message.name
        if isinstance(name, bytes) or message.only_for is not None:
            return True  # it is for one wait only, and there are no more of these than waits
        if hash(name) in self._passed:
            return False
        few = len(inbox) < KEPT_MAX and inbox.weight < KEPT_BYTES
        return few or name in names or inbox.count(name) < self._needed(name)

    def _needed(self, message: str) -> int:
        return 0 if self.waits is None else self.waits.needed(message)

    async def watch(self) -> None:
        """Return once a message may have come."""
        await self._driver.changed(self._journal.keys.stamp, self.stamp)
