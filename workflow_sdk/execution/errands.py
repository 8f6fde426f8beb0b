"""Ending what nobody waits for any more: children of whoever was cancelled or lost a race, and their tasks.

An errand is written in the commit that ends the wait, and run at once by whoever made that commit; if it dies before,
by any runtime that comes by. It is done and forgotten in one commit, so that it does no harm to run it twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import anyio

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.keys import ERRANDS
from workflow_sdk.core.location import subtree
from workflow_sdk.core.outside import Errand
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import CodecError, InstanceNotFoundError
from workflow_sdk.execution.deciding import Found, cancel
from workflow_sdk.execution.ending import still_waits
from workflow_sdk.execution.tasks import TaskStatus, drop_task

__all__ = ["run_errands", "run_errands_left"]

_log = logging.getLogger("workflow_sdk.execution")

AT_ONCE = 32
PAGE = 256


async def run_errands(
    driver: Driver, codec: Codec, now: Callable[[], float], errands: Iterable[bytes], said: set[bytes] | None = None
) -> None:
    """Run errands by their keys, and those that come of them.

    `said`: those that can't be run, and of which that has been logged.
    """
    todo = list(errands)
    told = set[bytes]() if said is None else said
    while todo:
        found: list[bytes] = []
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def one(key: bytes, limiter: anyio.CapacityLimiter = limiter, found: list[bytes] = found) -> None:
            async with limiter:
                found += await _run(driver, codec, now(), key, told)

        if len(todo) == 1:
            await one(todo[0])
        else:
            async with anyio.create_task_group() as group:
                for key in todo:
                    group.start_soon(one, key)
        todo = found


async def run_errands_left(
    driver: Driver, codec: Codec, now: Callable[[], float], said: set[bytes] | None = None
) -> None:
    """Run what others have left. `said` as for `run_errands`; what is not left any more is taken out of it."""
    left: set[bytes] = set()
    begin, end = subtree(ERRANDS)
    while rows := await driver.scan(begin, end, limit=PAGE):
        left.update(key for key, _ in rows)
        await run_errands(driver, codec, now, [key for key, _ in rows], said)
        begin = rows[-1][0] + b"\x00"
    if said is not None:
        said &= left


async def _run(driver: Driver, codec: Codec, now: float, key: bytes, said: set[bytes]) -> list[bytes]:
    try:
        return await _do(driver, codec, now, key)
    except CodecError as error:
        # It can't be read, or what it is about can't. The others are run all the same.
        if key not in said:
            said.add(key)
            _log.error("an errand is left where it is until it can be read: %r: %s", key, error)
        return []


async def _do(driver: Driver, codec: Codec, now: float, key: bytes) -> list[bytes]:
    raw = await driver.get(key)
    if raw is None:
        return []
    errand = Errand.unpack(raw)
    if errand.kind == "task":
        await drop_task(driver, errand.id, TaskStatus.CANCELLED, now, key)
        return []

    async def is_ours(found: Found) -> bool:
        watchers = found.about.watchers
        ours = (errand.owner, errand.token)
        if found.status.is_terminal or ours not in watchers:
            return False
        for id, token in watchers:
            if (id, token) != ours and await still_waits(driver, id, errand.id, token):
                return False
        found.batch.clear(key)
        return True

    errands: list[bytes] = []
    with suppress(InstanceNotFoundError):
        errands = await cancel(driver, errand.id, codec, now, rollback=errand.rollback, condition=is_ours)
    # If it was not for us to end it: there is nothing to be done.
    if await driver.get(key) is not None:
        batch = Batch()
        batch.check(key, raw)
        batch.clear(key)
        with suppress(ConflictError):
            await driver.commit(batch)
    return errands
