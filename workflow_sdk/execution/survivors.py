"""A worker that was taken for dead, and lives, takes its death back as soon as it learns of it."""

from __future__ import annotations

from workflow_sdk.core.deaths import Deaths, worst
from workflow_sdk.core.instance import Lease
from workflow_sdk.core.keys import Field
from workflow_sdk.core.status import Status
from workflow_sdk.driver import Driver
from workflow_sdk.errors import InstanceNotFoundError
from workflow_sdk.execution.deciding import commit, find, go_on
from workflow_sdk.execution.lease import DEATHS_MAX, read_tries

__all__ = ["take_back_death"]


async def take_back_death(driver: Driver, instance_id: str, lease: Lease, now: float) -> None:
    """Whoever had this lease of an instance lives: it is no death that the instance was taken over.

    An instance that is stuck for such deaths, and now has too few of them, goes on.
    """
    while True:
        try:
            found = await find(driver, instance_id)
        except InstanceNotFoundError:
            return
        deaths = found.about.deaths.deaths
        left = tuple(death for death in deaths if death.lease != lease.name)
        if len(left) == len(deaths):
            return
        key = found.keys.field(Field.DEATHS)
        found.batch.check(key, found.about.raw[Field.DEATHS])
        after = Deaths(left) if left else None
        blame = worst(left, await read_tries(driver, found.keys))
        if found.status is Status.STUCK and len(blame.leases) < DEATHS_MAX:
            go_on(found, now, after)
        elif after is None:
            found.batch.clear(key)
        else:
            found.batch.set(key, after.pack())
        if await commit(driver, found):
            return
