"""Running cleanups: see `workflow_sdk.changes.decide`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import anyio

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.decide import run_cleanup
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, ErrorInfo
from workflow_sdk.rows.instance import Result
from workflow_sdk.rows.keys import CLEANUPS
from workflow_sdk.rows.location import subtree
from workflow_sdk.values import Codec
from workflow_sdk.values.failures import result_of

_log = logging.getLogger("workflow_sdk.execution")

AT_ONCE = 32
PAGE = 256


async def run_cleanups(
    driver: Driver, codec: Codec, now: Callable[[], float], cleanups: Iterable[bytes], said: set[bytes] | None = None
) -> None:
    """Run cleanups by their keys, and then the cleanups that these make.

    `said`: the keys of cleanups that can't be read, and for which that was logged already.
    """
    todo = list(cleanups)
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


async def run_cleanups_left(
    driver: Driver, codec: Codec, now: Callable[[], float], said: set[bytes] | None = None
) -> None:
    """Run the cleanups that others have left. `said` as in `run_cleanups`; keys that are gone are removed from it."""
    left: set[bytes] = set()
    begin, end = subtree(CLEANUPS)
    while rows := await driver.scan(begin, end, limit=PAGE):
        left.update(key for key, _ in rows)
        await run_cleanups(driver, codec, now, [key for key, _ in rows], said)
        begin = rows[-1][0] + b"\x00"
    if said is not None:
        said &= left


async def _run(driver: Driver, codec: Codec, now: float, key: bytes, said: set[bytes]) -> list[bytes]:
    try:
        return await _do(driver, codec, now, key)
    except CodecError as error:
        # The cleanup, or the child that it names, can't be read. The other cleanups are run all the same.
        if key not in said:
            said.add(key)
            _log.error("a cleanup is left where it is until it can be read: %r: %s", key, error)
        return []


async def _do(driver: Driver, codec: Codec, now: float, key: bytes) -> list[bytes]:
    cancelled, cleanups, tries = cancelled_by_request(codec), None, 0
    while cleanups is None:  # the child kept changing, and was taken away from its worker: now it stands still
        cleanups = await apply(driver, run_cleanup(key, cancelled, now, tries))
        tries += 1
    return cleanups


def cancelled_by_request(codec: Codec) -> Result:
    """The result of an instance that was cancelled."""
    info = ErrorInfo("workflow_sdk.errors.WorkflowCancelledError", "it was cancelled", kind="cancelled")
    return result_of(info, codec)
