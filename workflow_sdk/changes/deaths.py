"""What is recorded of the deaths of workers under an instance, and how one is taken back."""

from __future__ import annotations

from collections.abc import Iterable

from workflow_sdk.changes.change import Get, Steps, change, scan
from workflow_sdk.changes.decide import go_on
from workflow_sdk.changes.instances import find_to_decide
from workflow_sdk.core.deaths import Deaths, Try, worst
from workflow_sdk.core.keys import TRIES, Field, InstanceKeys
from workflow_sdk.core.status import Status
from workflow_sdk.driver import Clear, Set
from workflow_sdk.errors import InstanceNotFoundError

__all__ = ["DEATHS_MAX", "read_tries", "take_back_death", "tries_in"]

DEATHS_MAX = 5
"""Workers that may die in a row under what an instance executes, before it is stuck."""


def read_tries(keys: InstanceKeys) -> Steps[dict[bytes, Try]]:
    """The operations that were being executed, by their locations, as far as somebody has noted them."""
    return tries_in(keys, (yield from scan(*keys.range(TRIES))))


def tries_in(keys: InstanceKeys, rows: Iterable[tuple[bytes, bytes]]) -> dict[bytes, Try]:
    """The same, from the rows."""
    start = len(keys.space) + len(TRIES)
    return {key[start:]: Try.unpack(raw) for key, raw in rows}


@change
def take_back_death(instance_id: str, lease: str, now: float) -> Steps[None]:
    """Whoever had the lease of this name lives: it is no death that the instance was taken over.

    An instance that is stuck for such deaths, and now has too few of them, goes on.
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
