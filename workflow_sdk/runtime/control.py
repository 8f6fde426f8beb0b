"""Decisions of people about an instance: see `execution.deciding`, which they have in common with errands."""

from __future__ import annotations

from secrets import token_bytes

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.keys import (
    answers_of,
    listed,
    listed_by_reference,
    listed_by_status,
    listed_by_workflow,
    purge_key,
)
from workflow_sdk.core.location import subtree
from workflow_sdk.core.status import Status
from workflow_sdk.driver import Driver
from workflow_sdk.execution import deciding
from workflow_sdk.execution.deciding import Found, commit, find, go_on, refuse, take_away
from workflow_sdk.execution.errands import run_errands
from workflow_sdk.execution.lease import tell_owner
from workflow_sdk.execution.posting import make_due
from workflow_sdk.execution.tasks import forget_tasks
from workflow_sdk.runtime.rewinding import Tape

__all__ = ["cancel", "delete", "evict", "forget", "recover", "restart_from", "wake"]


async def cancel(driver: Driver, instance_id: str, codec: Codec, now: float, *, rollback: bool) -> None:
    """End an instance, and its children. With `rollback`, what they did is undone first."""
    errands = await deciding.cancel(driver, instance_id, codec, now, rollback=rollback)
    await run_errands(driver, codec, lambda: now, errands)


async def recover(driver: Driver, instance_id: str, now: float) -> None:
    """Have a failed or stuck instance run again, with fresh attempts for what made it fail."""
    while True:
        found = await find(driver, instance_id)
        if found.status not in (Status.STUCK, Status.FAILED):
            raise refuse(found, "only a failed or stuck one can be recovered")
        if found.status is Status.FAILED:
            (await Tape.read(driver, found.keys)).retry(found.batch, found.about.result.culprits)
        go_on(found, now)
        if await commit(driver, found):
            return


async def restart_from(driver: Driver, instance_id: str, path: str | None, now: float) -> None:
    """Forget the entry at `path` (all, if none) and what finished after it, and have the instance run again."""
    while True:
        found = await find(driver, instance_id)
        tape = await Tape.read(driver, found.keys)
        if path is None:
            tape.restart(found.batch)
        else:
            tape.restart_from(found.batch, path)
        if found.lease is not None:
            # Whoever has it may have written since the history was read. Taken away first, it is read again; should we
            # not come to that, it goes on by itself.
            await take_away(driver, found, now)
            continue
        found.change(Status.RUNNING, now, result=None, cancelled=False, deaths=None, again=tape.undoes_again)
        found.untake(tape.given_back)
        make_due(found.batch, found.keys, found.about, now)
        if await commit(driver, found):
            await run_errands(driver, Codec(), lambda: now, tape.errands)
            return


async def evict(driver: Driver, instance_id: str) -> None:
    """Have whoever has the instance put it away."""
    while True:
        found = await find(driver, instance_id)
        if found.lease is None:
            return
        tell_owner(found.batch, found.lease, instance_id, evict=True)
        # A run without a runtime reads no letters. It watches the nudge, and finds this beside it.
        found.batch.set(found.keys.evicted, found.lease.pack())
        found.batch.set(found.keys.nudge, token_bytes(16))
        if await commit(driver, found):
            return


async def wake(driver: Driver, instance_id: str, now: float) -> None:
    """Have an instance looked at now. Timers that are not due go on waiting."""
    while True:
        found = await find(driver, instance_id)
        if found.status.is_terminal:
            raise refuse(found, "it has ended, and can't be woken")
        if found.status is Status.STUCK:
            raise refuse(found, "`recover` has it run again")
        if found.lease is not None:
            tell_owner(found.batch, found.lease, instance_id)
            found.batch.set(found.keys.nudge, token_bytes(16))
        else:
            make_due(found.batch, found.keys, found.about, now)
        if await commit(driver, found):
            return


async def delete(driver: Driver, instance_id: str) -> None:
    """Forget an instance that has ended, with everything about it."""
    while True:
        found = await find(driver, instance_id)
        if not found.status.is_terminal:
            raise refuse(found, "only one that has ended can be deleted")
        await forget(driver, found)
        if await commit(driver, found):
            return


async def forget(driver: Driver, found: Found) -> None:
    """Have the batch of an instance that has ended forget everything about it."""
    keys, batch, instance_id = found.keys, found.batch, found.keys.instance_id
    head, reference = found.about.head, found.about.shown.reference
    batch.clear_range(*keys.all())
    batch.clear_range(*subtree(answers_of(instance_id)))
    batch.clear(listed(head.created_at, instance_id))
    batch.clear(listed_by_status(head.status.value, head.created_at, instance_id))
    batch.clear(listed_by_workflow(head.workflow, head.created_at, instance_id))
    if reference is not None:
        batch.clear(listed_by_reference(reference, head.created_at, instance_id))
    if head.purge_at is not None:
        batch.clear(purge_key(head.purge_at, instance_id))
    await forget_tasks(driver, batch, instance_id)
