"""Forgetting many instances that have ended, many of them in one commit."""

from __future__ import annotations

import logging

import anyio

from workflow_sdk.core.keys import DIRECTORY, id_in, shards_of
from workflow_sdk.core.status import Status
from workflow_sdk.core.tuples import pack
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import CodecError, InstanceNotFoundError
from workflow_sdk.execution.deciding import Found, commit, find
from workflow_sdk.runtime.control import forget

__all__ = ["prune"]

_log = logging.getLogger("workflow_sdk.runtime")

PAGE = 64
"""So many go with one commit."""
AT_ONCE = 16
"""So many are looked at side by side."""


async def prune(driver: Driver, status: Status, before: float) -> int:
    """Forget the instances that have this status since before then; return how many."""
    count = 0
    for prefix in shards_of(DIRECTORY + pack((2, status.value))):
        begin, end = prefix, prefix + b"\xff"
        while rows := await driver.scan(begin, end, limit=PAGE):
            begin = rows[-1][0] + b"\x00"
            ids = [id for key, _ in rows if (id := id_in(key)) is not None]
            count += await _forget(driver, await _find(driver, ids, status, before))
            if len(rows) < PAGE:
                break
    return count


async def _find(driver: Driver, ids: list[str], status: Status, before: float) -> list[Found]:
    """Those of them that are to be forgotten, each with a batch that does so."""
    found: list[Found] = []
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def look(id: str) -> None:
        async with limiter:
            try:
                one = await find(driver, id)
            except InstanceNotFoundError:
                return  # others have deleted it
            except CodecError as error:
                _log.error("instance %s is kept, as it can't be read: %s", id, error)
                return
            # Somebody may have had it run again.
            if one.status is status and one.about.head.changed_at < before:
                await forget(driver, one)
                found.append(one)

    async with anyio.create_task_group() as group:
        for id in ids:
            group.start_soon(look, id)
    return found


async def _forget(driver: Driver, found: list[Found]) -> int:
    """Forget them, in one commit unless one of them has moved on; return how many."""
    if not found:
        return 0
    together = Batch()
    for one in found:
        together.checks.extend(one.batch.checks)
        together.writes.extend(one.batch.writes)
    try:
        await driver.commit(together)
    except ConflictError:
        # Of those that have moved on, it is not for us to say any more whether they are to be forgotten.
        return sum([await commit(driver, one) for one in found])
    return len(found)
