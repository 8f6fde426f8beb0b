"""Decisions about an instance from outside: each is one commit, which takes the instance away from whoever runs it.

Nobody is asked to cooperate. The commit clears the lease, so that whatever the worker still has on its way is refused;
and it tells the worker, so that it lets go soon.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from types import EllipsisType
from uuid import uuid4

from msgspec.structs import replace

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.deaths import Deaths
from workflow_sdk.core.inbox import InboxMessage
from workflow_sdk.core.instance import InstanceRows, Lease, Result
from workflow_sdk.core.keys import (
    COMPENSATIONS,
    ERRANDS,
    INBOX,
    OUTSIDE,
    TRIES,
    WAITS,
    Field,
    InstanceKeys,
    worker_keys,
)
from workflow_sdk.core.location import pack_segment
from workflow_sdk.core.outside import Errand, Hanging
from workflow_sdk.core.status import Status
from workflow_sdk.core.tuples import pack
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import ErrorInfo, InstanceNotFoundError, InstanceStateError
from workflow_sdk.execution.ending import ending_of, purge_time, tell_watchers
from workflow_sdk.execution.heartbeats import time_of_workers
from workflow_sdk.execution.lease import count_up, result_of, tell_owner, write_changes
from workflow_sdk.execution.posting import make_due, make_due_at
from workflow_sdk.execution.snapshot import read_standing

__all__ = [
    "INBOX_PAGE",
    "Found",
    "abandon_outside",
    "cancel",
    "commit",
    "errand_key",
    "find",
    "go_on",
    "refuse",
    "take_away",
]


TAKEN_AWAY_SECONDS = 5.0
"""How long nobody runs an instance that was taken away to be changed, if that then does not happen."""


INBOX_PAGE = 64
"""Messages may be large, so that not many are read at once."""
PATIENCE = 20
"""How often a cancel begins again because a message has come."""


@dataclass(slots=True)
class Found:
    """An instance as it was found, and what is to be done to it."""

    keys: InstanceKeys
    about: InstanceRows
    lease: Lease | None
    batch: Batch

    @property
    def status(self) -> Status:
        """Its status; the new one, once it is changed."""
        return self.about.status

    def change(
        self,
        status: Status,
        now: float,
        *,
        counts: bool = True,
        result: Result | EllipsisType | None = ...,
        deaths: Deaths | EllipsisType | None = ...,
        cancelled: bool | None = None,
        again: bool = False,
    ) -> None:
        """Give it a status, and another result and so on where they are given. Nobody has it afterwards.

        `counts`: it is one more commit that changes the instance; whoever runs it must not commit meanwhile. `again`:
        something that was undone is to happen again.
        """
        before, after = self.about, self.about.copy()
        batch, keys, head = self.batch, self.keys, self.about.head
        # Our clock may be behind. What is over now was not over before it was last written.
        now = max(float(now), head.changed_at)
        if counts:
            count_up(after)
            if self.lease is not None:
                batch.check(keys.field(Field.TALLY), before.raw.get(Field.TALLY))
        if not isinstance(result, EllipsisType):
            after.set(Field.RESULT, result)
        if not isinstance(deaths, EllipsisType):
            after.set(Field.DEATHS, deaths)
            if deaths is None:
                batch.clear_range(*keys.range(TRIES))
        if again:
            after.set(Field.BIRTH, replace(after.birth, restarts=after.birth.restarts + 1))
        head = replace(
            head,
            status=status,
            changes=head.changes + 1,
            changed_at=now,
            alarm=None,
            purge_at=purge_time(after, now) if status.is_terminal else None,
            cancelled=head.cancelled if cancelled is None else cancelled,
        )
        after.set(Field.HEAD, head)
        write_changes(batch, keys, before, after)
        batch.clear_range(*keys.range(WAITS))
        if self.lease is not None:
            batch.clear(keys.lease)
            batch.clear(worker_keys(self.lease.worker).claimed(keys.instance_id))
            tell_owner(batch, self.lease, keys.instance_id)
        # A run without a runtime watches this.
        batch.set(keys.nudge, uuid4().bytes)
        self.about = after

    def untake(self, count: int) -> None:
        """So many messages that it had taken are in its inbox again. To be called after `change`."""
        tally = self.about.tally
        if count and tally.taken:
            raw = self.about.set(Field.TALLY, replace(tally, taken=max(0, tally.taken - count)))
            assert raw is not None, "a row that is set is stored"
            self.batch.set(self.keys.field(Field.TALLY), raw)


async def find(driver: Driver, instance_id: str) -> Found:
    """An instance, and a batch that holds only as long as it is as it was found."""
    keys = InstanceKeys(instance_id)
    standing = await read_standing(driver, keys)
    about, lease = standing.about, standing.lease
    if not about:
        raise InstanceNotFoundError(f"there is no instance {instance_id!r}")
    batch = Batch()
    batch.check(keys.lease, None if lease is None else lease.pack())
    batch.check(keys.field(Field.HEAD), about.raw[Field.HEAD])
    # Whoever begins to wait for its end changes no head.
    batch.check(keys.field(Field.WATCHERS), about.raw.get(Field.WATCHERS))
    return Found(keys, about, lease, batch)


async def commit(driver: Driver, found: Found) -> bool:
    """Whether it is done; False if the instance has moved on meanwhile, and is to be looked at again."""
    try:
        await driver.commit(found.batch)
    except ConflictError:
        return False
    return True


def go_on(found: Found, now: float, deaths: Deaths | None = None) -> None:
    """Have an instance that failed or is stuck run again: from its code, or on with its rollback."""
    original = found.about.result.original
    if original is None:
        found.change(Status.RUNNING, now, result=None, deaths=deaths)
    else:
        found.change(Status.ROLLING_BACK, now, result=Result(error=original), deaths=deaths)
    make_due(found.batch, found.keys, found.about, now)


async def take_away(driver: Driver, found: Found, now: float) -> None:
    """Have an instance stand still that does not: nobody has it then. Should nothing come of it, it goes on."""
    found.batch.writes.clear()
    found.change(found.status, now, counts=False)
    # By the clocks of those who would run it.
    alarm = await time_of_workers(driver, now) + TAKEN_AWAY_SECONDS
    make_due_at(found.batch, found.keys, found.about, alarm)
    await commit(driver, found)


def refuse(found: Found, what: str) -> InstanceStateError:
    """The status does not allow it."""
    return InstanceStateError(f"instance {found.keys.instance_id!r} is {found.status.value}: {what}")


def errand_key() -> bytes:
    """A place for an errand."""
    return ERRANDS + pack((uuid4().bytes,))


async def abandon_outside(driver: Driver, found: Found, *, rollback: bool, patient: bool) -> list[bytes]:
    """Nobody waits any more for what lies outside of the instance: the keys of the errands that come of it."""
    keys = found.keys
    start = len(keys.space) + len(OUTSIDE)
    errands: list[bytes] = []
    rows = await driver.scan(*keys.range(OUTSIDE))
    for key, raw in rows:
        found.batch.clear(key)
        what, location = Hanging.unpack(raw), key[start:]
        if what.ends:
            errands.append(errand_key())
            token = pack_segment(what.since) + location
            found.batch.set(errands[-1], Errand(what.kind, what.id, keys.instance_id, token, rollback).pack())
    if not rows:
        return errands
    if patient:
        # One of them may end just now.
        found.batch.check(keys.nudge, await driver.get(keys.nudge))
    begin, end = keys.range(INBOX)
    while rows := await driver.scan(begin, end, limit=INBOX_PAGE):
        for key, raw in rows:
            if isinstance(InboxMessage.unpack(b"", raw).name, bytes):
                # That one of them has ended is of no use any more.
                found.batch.clear(key)
        begin = rows[-1][0] + b"\x00"
    return errands


def _nobody(worker: str) -> bool:
    return False


async def cancel(
    driver: Driver,
    instance_id: str,
    codec: Codec,
    now: float,
    *,
    rollback: bool,
    condition: Callable[[Found], Awaitable[bool]] | None = None,
) -> list[bytes]:
    """End an instance. With `rollback`, what it did is undone first. The keys of the errands that come of it.

    A `condition` may add to the batch; if it does not hold, nothing is done.
    """
    for attempt in count():
        found = await find(driver, instance_id)
        if condition is not None and not await condition(found):
            return []
        if found.status is Status.CANCELLED or found.about.head.cancelled:
            if condition is None or await commit(driver, found):
                return []
            continue
        if found.status.is_terminal:
            raise refuse(found, "it has ended, and can't be cancelled")
        info = ErrorInfo("workflow_sdk.errors.WorkflowCancelledError", "it was cancelled", kind="cancelled")
        result = result_of(info, codec)
        if found.lease is not None and attempt:
            # It does not stand still. Nothing may hold this up: so it is taken away first.
            await take_away(driver, found, now)
            continue
        # What is being undone already is undone to the end.
        undo = found.status is Status.ROLLING_BACK
        undo = undo or (rollback and bool(await driver.scan(*found.keys.range(COMPENSATIONS), limit=1)))
        # Where messages come all the time, they do not hold this up: what is left in the inbox then does no harm.
        errands = await abandon_outside(driver, found, rollback=rollback, patient=attempt < PATIENCE)
        if undo:
            found.change(Status.ROLLING_BACK, now, result=result, cancelled=True)
            make_due(found.batch, found.keys, found.about, now)
        else:
            found.change(Status.CANCELLED, now, result=result)
            if watchers := found.about.watchers:
                ending = ending_of(found.about)
                await tell_watchers(driver, found.batch, instance_id, ending, watchers, now, _nobody)
        if await commit(driver, found):
            return errands
    raise AssertionError("there is always another attempt")
