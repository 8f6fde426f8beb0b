"""What the end of an instance brings about elsewhere, in the commit that ends it: whoever waits for it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workflow_sdk.changes.change import Steps
from workflow_sdk.changes.deliver import Letter, deliver
from workflow_sdk.changes.snapshot import find
from workflow_sdk.changes.waits import awaits_end
from workflow_sdk.core.instance import InstanceRows
from workflow_sdk.core.keys import InstanceKeys
from workflow_sdk.core.outside import Ending

__all__ = ["ending_of", "purge_time", "tell_watchers"]


def ending_of(about: InstanceRows) -> Ending:
    """How an instance ended, from its rows as they are then."""
    return Ending(about.status, about.result.output, about.result.error)


def purge_time(about: InstanceRows, now: float) -> float | None:
    """When an instance that ends now is to be forgotten; None if it never is."""
    retention = about.birth.retention
    return None if retention is None else now + retention


def _nobody(worker: str) -> bool:
    return False


def tell_watchers(
    instance_id: str,
    ending: Ending,
    watchers: Iterable[tuple[str, bytes]],
    now: float,
    is_here: Callable[[str], bool] = _nobody,
) -> Steps[list[str]]:
    """Tell whoever waits for the end of an instance; return who is to be told in memory as well."""
    here: list[str] = []
    for id, token in watchers:
        # If the wait ends just now, there is nobody to be told.
        if not (yield from awaits_end(id, instance_id, token)):
            continue
        keys = InstanceKeys(id)
        found = yield from find(keys)
        if not found.about:
            continue
        posted = yield from deliver(keys, Letter(token, ending.pack()), now, is_here, found)
        if posted.worker is not None and is_here(posted.worker):
            here.append(id)
    return here
