"""Forgetting instances that have ended: those that a client asks for, and those whose retention is over.

When an instance ends, it is known when its retention is over, and a row says so. Any number of workers may look for
such rows: each deletion is one commit, which finds out whether it is still to be done.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from time import monotonic

import anyio

from workflow_sdk.changes.apply import apply, apply_all
from workflow_sdk.changes.decide import forget_if, purge
from workflow_sdk.changes.deliver import forget_row
from workflow_sdk.client.watching import FRESH_SECONDS, Watch, wait_idly
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, InstanceNotFoundError, WorkflowSDKError
from workflow_sdk.instance.clock import Clock
from workflow_sdk.rows.keys import ANSWERS, DIRECTORY, PURGES, id_in, last_of, shards_of
from workflow_sdk.rows.location import pack, subtree
from workflow_sdk.rows.status import Status

_log = logging.getLogger("workflow_sdk.runtime")

PAGE = 64
"""So many are looked at in one go; of those that a client has forgotten, so many go with one commit."""
LOOK_SECONDS_MIN = 0.2
LOOK_SECONDS = 30.0
"""How late an instance may be forgotten."""


async def prune(driver: Driver, status: Status, before: float) -> int:
    """Forget the instances that have this status since before then; return how many."""
    count = 0
    for prefix in shards_of(DIRECTORY + pack((2, status.value))):
        begin, end = prefix, prefix + b"\xff"
        while rows := await driver.scan(begin, end, limit=PAGE):
            begin = rows[-1][0] + b"\x00"
            count += await _forget(driver, [id for key, _ in rows if (id := id_in(key)) is not None], status, before)
            if len(rows) < PAGE:
                break
    return count


async def _forget(driver: Driver, ids: list[str], status: Status, before: float) -> int:
    """Forget those of them that are to be forgotten still, in one commit; return how many."""
    count = 0
    for id, outcome in zip(ids, await apply_all(driver, [forget_if(id, status, before) for id in ids]), strict=True):
        if isinstance(outcome.error, CodecError):
            _log.error("instance %s is kept, as it can't be read: %s", id, outcome.error)
        elif outcome.error is not None and not isinstance(outcome.error, InstanceNotFoundError):
            raise outcome.error
        else:
            count += outcome.value is True
    return count


class Purging:
    """The loop of one worker that forgets instances whose retention is over."""

    def __init__(self, driver: Driver, clock: Clock, watch: Watch, shortest: float | None) -> None:
        self._driver = driver
        self._clock = clock
        self._said: set[bytes] = set()
        """Rows of instances that can't be forgotten, and for which that was logged."""
        self._watch = watch
        self._looked = clock.monotonic()
        """When it looked last."""
        # What is kept for less than that is not to be late by more.
        self._look = LOOK_SECONDS if shortest is None else min(LOOK_SECONDS, max(shortest, LOOK_SECONDS_MIN))

    async def purge(self) -> None:
        """Forget what is over; return when it is time to look again. A clock of tests does not jump ahead for it."""
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
        await wait_idly(self._clock, anyio.Event(), lazily=began + self._look)

    async def _forget(self, key: bytes) -> bool:
        """Forget the instance that a row is for; return whether the row is gone."""
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


# Forgetting answers that nobody fetches, since whoever asked is dead.
#
# Whoever waits for an answer changes its row now and then, as long as it is not answered. A row that has not changed
# for long has nobody who waits. How long that is, is measured here and not by times in the store: no wrong clock takes
# an answer away.


KEPT_SECONDS = 3600.0
ANSWERS_LOOK_SECONDS = 600.0
ANSWERS_PAGE = 16
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
        await wait_idly(self._clock, anyio.Event(), lazily=self._clock.monotonic() + ANSWERS_LOOK_SECONDS)

    async def look(self, now: float) -> None:
        """Forget the answers that have not changed for long. `now`: by a clock that always runs, and never jumps."""
        before, self._seen = self._seen, {}
        begin, end = subtree(ANSWERS)
        while rows := await self._driver.scan(begin, end, limit=ANSWERS_PAGE):
            for key, raw in rows:
                held = blake2b(raw, digest_size=16).digest()
                known = before.get(key)
                since = known[1] if known is not None and known[0] == held else now
                if now - since < KEPT_SECONDS or not await self._forget(key, raw):
                    self._seen[key] = (held, since)
            begin = rows[-1][0] + b"\x00"

    async def _forget(self, key: bytes, raw: bytes) -> bool:
        return await apply(self._driver, forget_row(key, raw))
