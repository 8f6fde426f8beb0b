"""Decisions of people about an instance: each is one commit, which takes the instance away from whoever runs it.

Nobody is asked to cooperate. The commit clears the lease, so that whatever the worker still has on its way is refused;
and it tells the worker, so that it lets go soon.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.keys import (
    COMPENSATIONS,
    WAITS,
    Field,
    InstanceKeys,
    WorkerKeys,
    listed,
    listed_by_status,
    listed_by_workflow,
)
from workflow_sdk.core.status import Status
from workflow_sdk.core.wire import pack_record, unpack_record
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import ErrorInfo, InstanceNotFoundError, InstanceStateError
from workflow_sdk.execution.lease import error_fields, list_instance, tell_owner
from workflow_sdk.execution.snapshot import read_standing
from workflow_sdk.runtime.delivery import make_due
from workflow_sdk.runtime.rewinding import Tape

__all__ = ["cancel", "delete", "evict", "recover", "restart_from", "wake"]

TAKEN_AWAY_SECONDS = 5.0
"""How long nobody runs an instance that was taken away to be changed, if that then does not happen."""


@dataclass(slots=True)
class _Found:
    """An instance as it was found, and what is to be done to it."""

    keys: InstanceKeys
    fields: dict[Field, bytes]
    lease: bytes | None
    status: Status
    batch: Batch

    def change(self, status: Status, now: float, **fields: bytes | None) -> None:
        """Give it a status, and fields (None: no more). Nobody has it afterwards."""
        after = dict(self.fields)
        name, version, fingerprint, commits, _ = unpack_record(after[Field.VERSION])
        after[Field.STATUS] = pack_record([status.value])
        after[Field.VERSION] = pack_record([name, version, fingerprint, commits + 1, now])
        for key, raw in fields.items():
            if raw is None:
                after.pop(Field[key.upper()], None)
            else:
                after[Field[key.upper()]] = raw
        batch, keys = self.batch, self.keys
        if Field.ALARM in after:
            batch.clear(keys.alarm(float(unpack_record(after.pop(Field.ALARM))[0])))
        for gone in self.fields.keys() - after.keys():
            batch.clear(keys.field(gone))
        for key_, raw in after.items():
            batch.set(keys.field(key_), raw)
        list_instance(batch, keys.instance_id, self.fields, after)
        batch.clear_range(*keys.range(WAITS))
        if self.lease is not None:
            batch.clear(keys.lease)
            batch.clear(WorkerKeys(str(unpack_record(self.lease)[0])).claimed(keys.instance_id))
            tell_owner(batch, self.lease, keys.instance_id)
        # A run without a runtime watches this.
        batch.set(keys.nudge, uuid4().bytes)
        self.fields = after


async def _find(driver: Driver, instance_id: str) -> _Found:
    keys = InstanceKeys(instance_id)
    standing = await read_standing(driver, keys)
    fields, lease = standing.fields, standing.lease
    if Field.STATUS not in fields:
        raise InstanceNotFoundError(f"there is no instance {instance_id!r}")
    batch = Batch()
    batch.check(keys.lease, lease)
    batch.check(keys.field(Field.VERSION), fields[Field.VERSION])
    # A message may move the alarm, and changes no status.
    batch.check(keys.field(Field.ALARM), fields.get(Field.ALARM))
    return _Found(keys, fields, lease, Status(unpack_record(fields[Field.STATUS])[0]), batch)


async def _commit(driver: Driver, found: _Found) -> bool:
    """Whether it is done; False if the instance has moved on meanwhile, and is to be looked at again."""
    try:
        await driver.commit(found.batch)
    except ConflictError:
        return False
    return True


def _refuse(found: _Found, what: str) -> InstanceStateError:
    return InstanceStateError(f"instance {found.keys.instance_id!r} is {found.status.value}: {what}")


async def cancel(driver: Driver, instance_id: str, codec: Codec, now: float, *, rollback: bool) -> None:
    """End an instance. With `rollback`, what it did is undone first."""
    while True:
        found = await _find(driver, instance_id)
        if found.status is Status.CANCELLED or Field.CANCEL in found.fields:
            return
        if found.status.is_terminal:
            raise _refuse(found, "it has ended, and can't be cancelled")
        info = ErrorInfo("workflow_sdk.errors.WorkflowCancelledError", "it was cancelled", kind="cancelled")
        error = pack_record(error_fields(info, codec))
        undo = rollback and bool(await driver.scan(*found.keys.range(COMPENSATIONS), limit=1))
        if undo:
            found.change(Status.ROLLING_BACK, now, error=error, cancel=pack_record([]))
            make_due(found.batch, found.keys, found.fields, now)
        else:
            found.change(Status.CANCELLED, now, error=error)
        if await _commit(driver, found):
            return


async def recover(driver: Driver, instance_id: str, now: float) -> None:
    """Have a failed or stuck instance run again, with fresh attempts for what made it fail."""
    while True:
        found = await _find(driver, instance_id)
        if found.status not in (Status.STUCK, Status.FAILED):
            raise _refuse(found, "only a failed or stuck one can be recovered")
        _, original, culprits = unpack_record(found.fields[Field.ERROR])
        if found.status is Status.FAILED:
            (await Tape.read(driver, found.keys)).retry(found.batch, culprits)
        if original is None:
            found.change(Status.RUNNING, now, error=None, deaths=None)
        else:
            found.change(Status.ROLLING_BACK, now, error=pack_record([original, None, []]), deaths=None)
        make_due(found.batch, found.keys, found.fields, now)
        if await _commit(driver, found):
            return


async def restart_from(driver: Driver, instance_id: str, path: str | None, now: float) -> None:
    """Forget the entry at `path` (all, if none) and what finished after it, and have the instance run again."""
    while True:
        found = await _find(driver, instance_id)
        tape = await Tape.read(driver, found.keys)
        if path is None:
            tape.restart(found.batch)
        else:
            tape.restart_from(found.batch, path)
        if found.lease is not None:
            # Whoever has it may have written since the history was read. Taken away first, it is read again; should we
            # not come to that, it goes on by itself.
            found.batch.writes.clear()
            found.change(found.status, now)
            make_due(found.batch, found.keys, found.fields, now + TAKEN_AWAY_SECONDS)
            await _commit(driver, found)
            continue
        found.change(Status.RUNNING, now, error=None, output=None, cancel=None, deaths=None)
        make_due(found.batch, found.keys, found.fields, now)
        if await _commit(driver, found):
            return


async def evict(driver: Driver, instance_id: str) -> None:
    """Have whoever has the instance put it away."""
    while True:
        found = await _find(driver, instance_id)
        if found.lease is None:
            return
        tell_owner(found.batch, found.lease, instance_id, "evict")
        if await _commit(driver, found):
            return


async def wake(driver: Driver, instance_id: str, now: float) -> None:
    """Have an instance looked at now. Timers that are not due go on waiting."""
    while True:
        found = await _find(driver, instance_id)
        if found.status.is_terminal:
            raise _refuse(found, "it has ended, and can't be woken")
        if found.status is Status.STUCK:
            raise _refuse(found, "`recover` has it run again")
        if found.lease is not None:
            tell_owner(found.batch, found.lease, instance_id)
        else:
            make_due(found.batch, found.keys, found.fields, now)
        if await _commit(driver, found):
            return


async def delete(driver: Driver, instance_id: str) -> None:
    """Forget an instance that has ended, with everything about it."""
    while True:
        found = await _find(driver, instance_id)
        if not found.status.is_terminal:
            raise _refuse(found, "only one that has ended can be deleted")
        keys, batch = found.keys, found.batch
        created_at = float(unpack_record(found.fields[Field.BIRTH])[0])
        workflow = str(unpack_record(found.fields[Field.VERSION])[0])
        batch.clear_range(*keys.all())
        batch.clear(listed(created_at, instance_id))
        batch.clear(listed_by_status(found.status.value, created_at, instance_id))
        batch.clear(listed_by_workflow(workflow, created_at, instance_id))
        if await _commit(driver, found):
            return
