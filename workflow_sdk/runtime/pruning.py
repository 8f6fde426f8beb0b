"""Forgetting many instances that have ended, many of them in one commit."""

from __future__ import annotations

import logging

from workflow_sdk.changes.apply import apply_all
from workflow_sdk.changes.decide import forget_if
from workflow_sdk.core.keys import DIRECTORY, id_in, shards_of
from workflow_sdk.core.status import Status
from workflow_sdk.core.tuples import pack
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, InstanceNotFoundError

__all__ = ["prune"]

_log = logging.getLogger("workflow_sdk.runtime")

PAGE = 64
"""So many go with one commit."""


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
