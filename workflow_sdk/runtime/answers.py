"""Forgetting answers that nobody fetches: whoever asked is dead.

Who waits for an answer changes its row now and then, as long as it is not answered. A row that stays as it is for long
is nobody's. How long is measured here, and not by times in the store: no clock that is wrong takes an answer away.
"""

from __future__ import annotations

from hashlib import blake2b
from time import monotonic

import anyio

from workflow_sdk.changes.answers import forget_row
from workflow_sdk.changes.apply import apply
from workflow_sdk.core.keys import ANSWERS
from workflow_sdk.core.location import subtree
from workflow_sdk.driver import Driver
from workflow_sdk.execution.clock import Activity, Clock

__all__ = ["KEPT_SECONDS", "Answers"]

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
        """What a row held, as a hash, and since when."""

    async def sweep(self) -> None:
        """Look at the answers; return when to look again. No clock that jumps does so for this."""
        await self.look(monotonic())
        await self._clock.wait(anyio.Event(), None, _nothing, lazily=self._clock.time() + LOOK_SECONDS)

    async def look(self, now: float) -> None:
        """Forget those that have not changed for long, at a time of a clock that always runs."""
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


def _nothing() -> Activity:
    return Activity.NONE
