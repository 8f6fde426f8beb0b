"""Ending what nobody waits for any more: children of whoever was cancelled or lost a race, and their tasks.

An errand is written in the commit that ends the wait, and run at once by whoever made that commit; if it dies before,
by any runtime that comes by. It is done and forgotten in one commit, so that it does no harm to run it twice.
"""

from __future__ import annotations

from workflow_sdk.changes.change import Steps, change, read
from workflow_sdk.changes.decide import cancel_found
from workflow_sdk.changes.instances import find_to_decide
from workflow_sdk.changes.snapshot import Snapshot
from workflow_sdk.changes.tasks import end_task
from workflow_sdk.changes.waits import is_awaited
from workflow_sdk.core.instance import Result
from workflow_sdk.core.outside import Errand
from workflow_sdk.core.tasks import TaskStatus
from workflow_sdk.driver import Clear
from workflow_sdk.errors import InstanceNotFoundError

__all__ = ["run_errand"]


@change
def run_errand(key: bytes, cancelled: Result, now: float, tries: int = 0) -> Steps[list[bytes] | None]:
    """Run an errand, if it is there: the keys of those that come of it. None, if it is to be run once more.

    `cancelled`: what a child has come to that is cancelled. `tries`: how often the child was taken away before.
    """
    errand = yield from read(Errand, key)
    if errand is None:
        return []
    errands: list[bytes] | None = []
    if errand.kind == "task":
        yield from end_task(errand.id, TaskStatus.CANCELLED, now)
    elif (found := (yield from _child(errand))) is not None:
        errands = yield from cancel_found(found, cancelled, now, rollback=errand.rollback, tries=tries)
    if errands is not None:
        yield Clear(key)
    return errands


def _child(errand: Errand) -> Steps[Snapshot | None]:
    """The child that is to be ended; None, if that is not for us: it is gone, has ended, or others wait for it."""
    try:
        found = yield from find_to_decide(errand.id)
    except InstanceNotFoundError:
        return None
    watchers, ours = found.about.watchers, (errand.owner, errand.token)
    if found.status.is_terminal or ours not in watchers:
        return None
    for watcher in watchers:
        if watcher != ours and (yield from is_awaited(watcher[0], errand.id, watcher[1])):
            return None
    return found
