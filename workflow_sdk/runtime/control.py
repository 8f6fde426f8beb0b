"""Decisions of people about an instance: see `execution.deciding`, which they have in common with errands."""

from __future__ import annotations

from secrets import token_bytes

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.keys import (
    Field,
    answers_of,
    listed,
    listed_by_reference,
    listed_by_status,
    listed_by_workflow,
    purge_key,
)
from workflow_sdk.core.location import subtree
from workflow_sdk.core.status import Status
from workflow_sdk.core.wire import pack_record, unpack_record
from workflow_sdk.driver import Driver
from workflow_sdk.execution import deciding
from workflow_sdk.execution.deciding import commit, find, refuse, take_away
from workflow_sdk.execution.errands import run_errands
from workflow_sdk.execution.lease import tell_owner
from workflow_sdk.execution.posting import make_due
from workflow_sdk.execution.tasks import forget_tasks
from workflow_sdk.runtime.rewinding import Tape

__all__ = ["cancel", "delete", "evict", "recover", "restart_from", "wake"]


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
        _, original, culprits = unpack_record(found.fields[Field.ERROR])
        if found.status is Status.FAILED:
            (await Tape.read(driver, found.keys)).retry(found.batch, culprits)
        if original is None:
            found.change(Status.RUNNING, now, error=None, deaths=None)
        else:
            found.change(Status.ROLLING_BACK, now, error=pack_record([original, None, []]), deaths=None)
        make_due(found.batch, found.keys, found.fields, now)
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
        restarts = found.fields.get(Field.RESTARTS)
        if tape.undoes_again:
            restarts = pack_record([1 if restarts is None else unpack_record(restarts)[0] + 1])
        found.change(Status.RUNNING, now, error=None, output=None, cancel=None, deaths=None, restarts=restarts)
        found.untake(tape.given_back)
        make_due(found.batch, found.keys, found.fields, now)
        if await commit(driver, found):
            await run_errands(driver, Codec(), lambda: now, tape.errands)
            return


async def evict(driver: Driver, instance_id: str) -> None:
    """Have whoever has the instance put it away."""
    while True:
        found = await find(driver, instance_id)
        if found.lease is None:
            return
        tell_owner(found.batch, found.lease, instance_id, "evict")
        # A run without a runtime reads no letters. It watches the nudge, and finds this beside it.
        found.batch.set(found.keys.evicted, found.lease)
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
            make_due(found.batch, found.keys, found.fields, now)
        if await commit(driver, found):
            return


async def delete(driver: Driver, instance_id: str) -> None:
    """Forget an instance that has ended, with everything about it."""
    while True:
        found = await find(driver, instance_id)
        if not found.status.is_terminal:
            raise refuse(found, "only one that has ended can be deleted")
        keys, batch = found.keys, found.batch
        created_at = float(unpack_record(found.fields[Field.BIRTH])[0])
        workflow = str(unpack_record(found.fields[Field.VERSION])[0])
        batch.clear_range(*keys.all())
        batch.clear_range(*subtree(answers_of(instance_id)))
        batch.clear(listed(created_at, instance_id))
        batch.clear(listed_by_status(found.status.value, created_at, instance_id))
        batch.clear(listed_by_workflow(workflow, created_at, instance_id))
        if Field.REFERENCE in found.fields:
            reference = str(unpack_record(found.fields[Field.REFERENCE])[0])
            batch.clear(listed_by_reference(reference, created_at, instance_id))
        if Field.PURGE in found.fields:
            batch.clear(purge_key(float(unpack_record(found.fields[Field.PURGE])[0]), instance_id))
        await forget_tasks(driver, batch, instance_id)
        if await commit(driver, found):
            return
