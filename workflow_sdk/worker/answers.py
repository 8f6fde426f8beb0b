"""Forgetting answers that nobody fetches, since whoever asked is dead.

Whoever waits for an answer changes its row now and then, as long as it is not answered. A row that has not changed for
long has nobody who waits. How long that is, is measured here and not by times in the store: no wrong clock takes an
answer away.
"""

from __future__ import annotations

from hashlib import blake2b
from time import monotonic

import anyio

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.deliver import forget_row
from workflow_sdk.client.watching import wait_idly
from workflow_sdk.driver import Driver
from workflow_sdk.instance.clock import Clock
from workflow_sdk.rows.keys import ANSWERS
from workflow_sdk.rows.location import subtree

KEPT_SECONDS = 3600.0
LOOK_SECONDS = 600.0
PAGE = 16
"""Answers may be large, so that not many are read at once."""


class Answers:
    """The answers in a store, as one worker sees them."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._seen: dict[bytes, tuple[bytes, float]] = {}
        """What each row held, as a hash, and since when."""

    async def sweep(self) -> None:
        """Look at the answers; return when it is time to look again. A clock of tests does not jump ahead for it."""
        await self.look(monotonic())
        await wait_idly(self._clock, anyio.Event(), lazily=self._clock.monotonic() + LOOK_SECONDS)

    async def look(self, now: float) -> None:
        """Forget the answers that have not changed for long. `now`: by a clock that always runs, and never jumps."""
        before, self._seen = self._seen, {}
        begin, end = subtree(ANSWERS)
        while rows := await self._driver.scan(begin, end, limit=PAGE):
            for key, raw in rows:
                held = blake2b(raw, digest_size=16).digest()
                known = before.get(key)
                since = known[1] if known is not None and known[0] == held else now
                if now - since < KEPT_SECONDS or not await self._forget(key, raw):
                    self._seen[key] = (held, since)
            begin = rows[-1][0] + b"\x00"

    async def _forget(self, key: bytes, raw: bytes) -> bool:
        return await apply(self._driver, forget_row(key, raw))
