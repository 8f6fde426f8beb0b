"""What the checks of `contract` are made of: opening, closing, time limits, and saying which promise was broken."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import TypeAlias, cast

import anyio
from anyio.lowlevel import checkpoint

from workflow_sdk.driver import Batch, Driver
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
            raise _broken_promise(group) or group from None
        finally:
            with anyio.CancelScope(shield=True):
                await driver.aclose()

    CHECKS.append(check)
    return check


def _broken_promise(group: BaseExceptionGroup[BaseException]) -> AssertionError | None:
    """The plain error inside what a task group has made of it."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found = _broken_promise(cast("BaseExceptionGroup[BaseException]", error))
        else:
            found = error if isinstance(error, AssertionError) else None
        if found is not None:
            return found
    return None


@asynccontextmanager
async def in_time(promise: str, seconds: float | None = None) -> AsyncGenerator[None]:
    """Break `promise` if what is inside takes longer."""
    with anyio.move_on_after(PATIENCE_SECONDS if seconds is None else seconds) as scope:
        yield
    expect(not scope.cancelled_caught, promise)


def expect(holds: bool, promise: str) -> None:
    """Hold the driver to `promise`."""
    # Not `assert`: the suite is to find something under `python -O` as well.
    if not holds:
        raise AssertionError(f"the driver breaks a promise: {promise}")


async def expect_error(kind: type[Exception], call: Awaitable[object], promise: str) -> None:
    """Hold the driver to `promise`: that `call` raises an error of this kind."""
    try:
        await call
    except kind:
        return
    raise AssertionError(f"the driver breaks a promise: {promise}")


def sets(rows: dict[bytes, bytes]) -> Batch:
    """A batch that sets these rows."""
    batch = Batch()
    for key, value in rows.items():
        batch.set(key, value)
    return batch


def appends(prefix: bytes, *values: bytes) -> Batch:
    """A batch that appends these values."""
    batch = Batch()
    for value in values:
        batch.append(prefix, value)
    return batch


def checked(key: bytes, expected: bytes | None, value: bytes) -> Batch:
    """A batch that sets one key if it has the expected value."""
    batch = Batch()
    batch.check(key, expected)
    batch.set(key, value)
    return batch


async def fits(driver: Driver, batch: Batch) -> bool:
    """Commit the batch. If it is refused: the error must name the limit, and nothing may have been written."""
    before = await driver.scan(b"", b"\xff")
    try:
        await driver.commit(batch)
    except StorageLimitError as error:
        expect(any(letter.isdigit() for letter in str(error)), f"the error names the limit: {error}")
        expect(await driver.scan(b"", b"\xff") == before, "nothing of a refused batch is written")
        return False
    return True


async def checkpoints(count: int) -> None:
    """Give way to the other tasks so many times."""
    for _ in range(count):
        await checkpoint()
