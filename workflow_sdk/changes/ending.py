"""Telling the instances that wait for the end of another one, in the commit that ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workflow_sdk.changes.change import Steps
from workflow_sdk.changes.deliver import NewMessage, deliver
from workflow_sdk.changes.instances import find
from workflow_sdk.changes.waits import awaits_end
from workflow_sdk.changes.workers import no_worker
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.rows.outside import Ending


def ending_of(about: InstanceRows) -> Ending:
    """How an instance ended, from its rows after the end."""
    return Ending(about.status, about.result.output, about.result.error)


def purge_time(about: InstanceRows, now: float) -> float | None:
    """When an instance that ends now is to be forgotten; None if it never is."""
    retention = about.birth.retention
    return None if retention is None else now + retention


def tell_watchers(
    instance_id: str,
    ending: Ending,
    watchers: Iterable[tuple[str, bytes]],
    now: float,
    is_here: Callable[[str], bool] = no_worker,
) -> Steps[list[str]]:
    """Send the end of an instance to those that wait for it; return the ones that are to be told in memory as well."""
    here: list[str] = []
    for id, token in watchers:
        # If the wait ends just now, there is nobody to be told.
        if not (yield from awaits_end(id, instance_id, token)):
            continue
        keys = InstanceKeys(id)
        found = yield from find(keys)
        if not found.about:
            continue
        posted = yield from deliver(keys, NewMessage(token, ending.pack()), now, is_here, found)
        if posted.worker is not None and is_here(posted.worker):
            here.append(id)
    return here
