"""The deaths of workers under an instance: what was executed then, and how a worker that lives takes its own back."""

from __future__ import annotations

from collections.abc import Iterable

from workflow_sdk.changes.change import Get, Steps, change, scan
from workflow_sdk.changes.decide import go_on
from workflow_sdk.changes.instances import find_to_decide
from workflow_sdk.driver import Clear, Set
from workflow_sdk.errors import InstanceNotFoundError
from workflow_sdk.rows.instance import Deaths, Try, worst
from workflow_sdk.rows.keys import TRIES, Field, InstanceKeys
from workflow_sdk.rows.status import Status

DEATHS_MAX = 5
"""After so many deaths in a row, all while it executed the same, an instance becomes stuck."""


def read_tries(keys: InstanceKeys) -> Steps[dict[bytes, Try]]:
    """Read the operations that were noted as being executed, by their locations."""
    return tries_in(keys, (yield from scan(*keys.range(TRIES))))


def tries_in(keys: InstanceKeys, rows: Iterable[tuple[bytes, bytes]]) -> dict[bytes, Try]:
    """The operations that were noted as being executed, by their locations, from their rows."""
    start = len(keys.space) + len(TRIES)
    return {key[start:]: Try.unpack(raw) for key, raw in rows}


@change
def take_back_death(instance_id: str, lease: str, now: float) -> Steps[None]:
    """Forget the death of a worker that lives after all. `lease`: the name of the lease that it had.

    If the instance is stuck for deaths, and has too few of them now, it goes on.
    """
    try:
        found = yield from find_to_decide(instance_id)
    except InstanceNotFoundError:
        return
    keys, deaths = found.keys, found.about.deaths.deaths
    left = tuple(death for death in deaths if death.lease != lease)
    if len(left) == len(deaths):
        return
    yield Get(keys.field(Field.DEATHS))
    after = Deaths(left) if left else None
    blame = worst(left, (yield from read_tries(keys)))
    if found.status is Status.STUCK and len(blame.leases) < DEATHS_MAX:
        yield from go_on(found, now, after)
    elif after is None:
        yield Clear(keys.field(Field.DEATHS))
    else:
        yield Set(keys.field(Field.DEATHS), after.pack())
