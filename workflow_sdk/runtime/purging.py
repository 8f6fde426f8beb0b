"""Forgetting instances whose time is over: from their end on it is known when that is.

Any number of workers may do it: each deletion is one commit, which finds out whether it is still to be done.
"""

from __future__ import annotations

import logging

import anyio

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.decide import purge
from workflow_sdk.core.keys import PURGES, last_of
from workflow_sdk.core.tuples import pack
from workflow_sdk.driver import Driver
from workflow_sdk.errors import WorkflowSDKError
from workflow_sdk.execution.clock import Activity, Clock
from workflow_sdk.runtime.watching import FRESH_SECONDS, Watch

__all__ = ["Purging"]

_log = logging.getLogger("workflow_sdk.runtime")

PAGE = 64
LOOK_SECONDS_MIN = 0.2
LOOK_SECONDS = 30.0
"""How late an instance may be forgotten."""


class Purging:
    """The purge of one worker."""

    def __init__(self, driver: Driver, clock: Clock, watch: Watch, shortest: float | None) -> None:
        self._driver = driver
        self._clock = clock
        self._said: set[bytes] = set()
        """Rows of instances that can't be forgotten, of which that was said."""
        self._watch = watch
        self._looked = clock.monotonic()
        """When it looked last."""
        # What is kept for less than that is not to be late by more.
        self._look = LOOK_SECONDS if shortest is None else min(LOOK_SECONDS, max(shortest, LOOK_SECONDS_MIN))

    async def purge(self) -> None:
        """Forget what is over; return when to look again. No clock that jumps does so for this."""
        await self._watch.until_looked()
        now, began = self._clock.time(), self._clock.monotonic()
        # Where our clock is ahead of the others': what is due by theirs, and what we have seen become due.
        watched = began - self._looked + FRESH_SECONDS
        spans = [(None, now - ahead), (now - watched, now)] if (ahead := self._watch.ahead) else [(None, now)]
        for first, last in spans:
            for prefix in PURGES:
                begin = prefix if first is None else prefix + pack((first,))
                while rows := await self._driver.scan(begin, prefix + pack((last,)) + b"\xff", limit=PAGE):
                    done = [await self._forget(key) for key, _ in rows]
                    if not all(done) or len(rows) < PAGE:
                        break
        self._looked = began
        await self._clock.wait(anyio.Event(), None, _nothing, lazily=began + self._look)

    async def _forget(self, key: bytes) -> bool:
        """Whether the row is gone."""
        id = ""
        try:
            id = last_of(key)
            await apply(self._driver, purge(key, id))
        except WorkflowSDKError as error:
            if key not in self._said:
                self._said.add(key)
                _log.error("instance %s could not be forgotten: %s", id or f"with the row {key!r}", error)
            return False
        return True


def _nothing() -> Activity:
    return Activity.NONE
