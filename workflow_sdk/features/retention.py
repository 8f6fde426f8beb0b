"""Deleting instances that have ended: those that a client asks for, and those whose retention is over.

When an instance ends, a row is written that says when its retention is over. All workers look for such rows. Each
deletion is one commit, which checks that it is still to be done.
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
"""How many instances are read at once; and how many go with one commit if a client deletes them."""
LOOK_SECONDS_MIN = 0.2
LOOK_SECONDS = 30.0
"""How many seconds late an instance may be deleted."""


async def prune(driver: Driver, status: Status, before: float) -> int:
    """Delete the instances that have had this status since before that time; return how many."""
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
    """Delete those of the instances that still have that status, in one commit; return how many."""
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
    """The loop of one worker that deletes instances whose retention is over."""

    def __init__(self, driver: Driver, clock: Clock, watch: Watch, shortest: float | None) -> None:
        self._driver = driver
        self._clock = clock
        self._said: set[bytes] = set()
        """The rows of instances that can't be deleted, and for which that was logged already."""
        self._watch = watch
        self._looked = clock.monotonic()
        """When the loop last looked, by `monotonic`."""
        # If a retention is shorter than the usual time between looks, the loop looks more often.
        self._look = LOOK_SECONDS if shortest is None else min(LOOK_SECONDS, max(shortest, LOOK_SECONDS_MIN))

    async def purge(self) -> None:
        """Delete instances whose retention is over; return when it is time to look again.

        The virtual clock of a test does not jump for the sake of another look.
        """
        await self._watch.until_looked()
        now, began = self._clock.time(), self._clock.monotonic()
        # If our clock is ahead of the others, only delete what is due by theirs, or became due while we watched.
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
        """Delete the instance that a row is for; return whether the row is gone."""
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


# Deleting answers that nobody fetches, since the sender has died.
#
# A sender that waits for an answer changes the row of the answer now and then. If a row has not changed for long,
# nobody waits for it. That time is measured in this process, and not by times in the store, so that no wrong clock
# deletes an answer.


KEPT_SECONDS = 3600.0
ANSWERS_LOOK_SECONDS = 600.0
ANSWERS_PAGE = 16
"""How many answers are read at once: few, since they may be large."""


class Answers:
    """The loop of one worker that deletes answers for which nobody waits."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._seen: dict[bytes, tuple[bytes, float]] = {}
        """For each row: a hash of its value, and since when it has had that."""

    async def sweep(self) -> None:
        """Delete old answers; return when to look again. The virtual clock of a test does not jump for that."""
        await self.look(monotonic())
        await wait_idly(self._clock, anyio.Event(), lazily=self._clock.monotonic() + ANSWERS_LOOK_SECONDS)

    async def look(self, now: float) -> None:
        """Delete the answers that have not changed for long. `now`: the time by a clock that never stops or jumps."""
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
