"""Decisions of people about an instance that take more than one commit, and what comes of them elsewhere."""

from __future__ import annotations

from workflow_sdk.changes import decide, rewind
from workflow_sdk.changes.apply import apply
from workflow_sdk.core.codec import Codec
from workflow_sdk.driver import Driver
from workflow_sdk.execution.errands import cancelled_by_request, run_errands

__all__ = ["cancel", "restart_from"]


async def cancel(driver: Driver, instance_id: str, codec: Codec, now: float, *, rollback: bool) -> None:
    """End an instance, and its children. With `rollback`, what they did is undone first."""
    cancelled, errands, tries = cancelled_by_request(codec), None, 0
    while errands is None:  # it does not stand still, and is taken away first
        errands = await apply(driver, decide.cancel(instance_id, cancelled, now, rollback=rollback, tries=tries))
        tries += 1
    await run_errands(driver, codec, lambda: now, errands)


async def restart_from(driver: Driver, instance_id: str, path: str | None, now: float) -> None:
    """Forget the entry at `path` (all, if none) and what finished after it, and have the instance run again."""
    change = rewind.restart_from(instance_id, path, now)
    while (errands := await apply(driver, change)) is None:
        pass  # it was taken away, to be read again
    await run_errands(driver, Codec(), lambda: now, errands)
