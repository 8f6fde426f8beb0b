"""A worker that was taken for dead, and lives, takes its death back as soon as it learns of it."""

from __future__ import annotations

from workflow_sdk.core.deaths import lease_name, pack_deaths, unpack_deaths, worst
from workflow_sdk.core.keys import Field
from workflow_sdk.core.status import Status
from workflow_sdk.core.wire import pack_record, unpack_record
from workflow_sdk.driver import Driver
from workflow_sdk.errors import InstanceNotFoundError
from workflow_sdk.execution.deciding import Found, commit, find
from workflow_sdk.execution.lease import DEATHS_MAX, read_tries
from workflow_sdk.execution.posting import make_due

__all__ = ["take_back_death"]


async def take_back_death(driver: Driver, instance_id: str, lease: bytes, now: float) -> None:
    """Whoever had this lease of an instance lives: it is no death that the instance was taken over.

    An instance that is stuck for such deaths, and now has too few of them, goes on.
    """
    name = lease_name(lease)
    while True:
        try:
            found = await find(driver, instance_id)
        except InstanceNotFoundError:
            return
        raw = found.fields.get(Field.DEATHS)
        deaths = unpack_deaths(raw)
        left = [death for death in deaths if death.lease != name]
        if len(left) == len(deaths):
            return
        found.batch.check(found.keys.field(Field.DEATHS), raw)
        after = pack_deaths(left)
        blame = worst(left, await read_tries(driver, found.keys))
        if found.status is Status.STUCK and len(blame.leases) < DEATHS_MAX:
            _go_on(found, after, now)
        elif after is None:
            found.batch.clear(found.keys.field(Field.DEATHS))
        else:
            found.batch.set(found.keys.field(Field.DEATHS), after)
        if await commit(driver, found):
            return


def _go_on(found: Found, deaths: bytes | None, now: float) -> None:
    _, original, _ = unpack_record(found.fields[Field.ERROR])
    if original is None:
        found.change(Status.RUNNING, now, error=None, deaths=deaths)
    else:
        found.change(Status.ROLLING_BACK, now, error=pack_record([original, None, []]), deaths=deaths)
    make_due(found.batch, found.keys, found.fields, now)
