"""What the checks of `contract` are made of: opening, closing, time limits, and saying which promise was broken."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import wraps
from typing import TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from workflow_sdk.driver import Append, Batch, Driver, Set, Write
from workflow_sdk.errors import StorageLimitError

Make: TypeAlias = Callable[[], Awaitable[Driver]]
Reopen: TypeAlias = Callable[[Driver], Awaitable[Driver]]
"""Closes the driver that it is given and opens the same store again."""
Check: TypeAlias = Callable[[Make], Awaitable[None]]

CHECKS: list[Check] = []

PATIENCE_SECONDS = 30.0
"""Longer than anything here takes: after that, it is taken to hang."""
STILLNESS_SECONDS = 0.03
"""How long nothing must happen where nothing should."""


def holds_promise(body: Callable[[Driver], Awaitable[None]]) -> Check:
    """Add a check to the suite: `body` is given an open driver."""

    @wraps(body)
    async def check(make: Make) -> None:
        driver = await make()
        try:
            # Twice, so that a wait inside the check, which knows what it waits for, is the first to give up.
            async with in_time(f"{body.__name__} ends", 2 * PATIENCE_SECONDS):
                await body(driver)
        except BaseExceptionGroup as group:
            # The plain error inside what a task group has made of it.
            broken: BaseException | None = group.subgroup(AssertionError)
            while isinstance(broken, BaseExceptionGroup):
                broken = broken.exceptions[0]
            raise broken or group from None
        finally:
            with anyio.CancelScope(shield=True):
                await driver.aclose()

    CHECKS.append(check)
    return check


@asynccontextmanager
async def in_time(promise: str, seconds: float = PATIENCE_SECONDS) -> AsyncGenerator[None]:
    """Break `promise` if what is inside takes longer."""
    with anyio.move_on_after(seconds) as scope:
        yield
    expect(not scope.cancelled_caught, promise)


def expect(holds: bool, promise: str) -> None:
    # Not `assert`: the suite is to find something under `python -O` as well.
    if not holds:
        raise AssertionError(f"the driver breaks a promise: {promise}")


async def expect_error(kind: type[Exception], call: Awaitable[object], promise: str) -> None:
    try:
        await call
    except kind:
        return
    expect(False, promise)


def batch_of(*writes: Write, checks: Mapping[bytes, bytes | None] | None = None) -> Batch:
    batch = Batch()
    batch.checks += (checks or {}).items()
    batch.writes += writes
    return batch


def sets(rows: Mapping[bytes, bytes]) -> Batch:
    return batch_of(*(Set(key, value) for key, value in rows.items()))


def appends(prefix: bytes, *values: bytes) -> Batch:
    return batch_of(*(Append(prefix, value) for value in values))


async def all_rows(driver: Driver) -> list[tuple[bytes, bytes]]:
    return await driver.scan(b"", b"\xff")


async def fits(driver: Driver, batch: Batch) -> bool:
    """Commit the batch. If it is refused: the error must name the limit, and nothing may have been written."""
    before = await all_rows(driver)
    try:
        await driver.commit(batch)
    except StorageLimitError as error:
        expect(any(letter.isdigit() for letter in str(error)), f"the error names the limit: {error}")
        expect(await all_rows(driver) == before, "nothing of a refused batch is written")
        return False
    return True


async def checkpoints(count: int) -> None:
    for _ in range(count):
        await checkpoint()
