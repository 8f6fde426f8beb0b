"""Ending what nobody waits for any more: children of whoever was cancelled or lost a race, and their tasks.

A cleanup is a row that names a child or a task to be ended. It is written in the commit that ends the wait, and run at
once by whoever made that commit; if that dies before, by any runtime that finds the row. One commit does it and clears
the row, so that it does no harm to run it twice.
"""

from __future__ import annotations

from workflow_sdk.changes.change import Steps, change, read
from workflow_sdk.changes.decide import cancel_found
from workflow_sdk.changes.instances import Snapshot, find_to_decide
from workflow_sdk.changes.tasks import end_task
from workflow_sdk.changes.waits import is_awaited
from workflow_sdk.driver import Clear
from workflow_sdk.errors import InstanceNotFoundError
from workflow_sdk.rows.instance import Result
from workflow_sdk.rows.outside import Cleanup, TaskStatus


@change
def run_cleanup(key: bytes, cancelled: Result, now: float, tries: int = 0) -> Steps[list[bytes] | None]:
    """Run the cleanup in this row, if it is there, and return the keys of those that come of it.

    None means that the child was only taken away, and that the change is to be made again. `cancelled`: the result of a
    child that is cancelled. `tries`: how often the child was taken away before.
    """
    cleanup = yield from read(Cleanup, key)
    if cleanup is None:
        return []
    cleanups: list[bytes] | None = []
    if cleanup.kind == "task":
        yield from end_task(cleanup.id, TaskStatus.CANCELLED, now)
    elif (found := (yield from _child(cleanup))) is not None:
        cleanups = yield from cancel_found(found, cancelled, now, rollback=cleanup.rollback, tries=tries)
    if cleanups is not None:
        yield Clear(key)
    return cleanups


def _child(cleanup: Cleanup) -> Steps[Snapshot | None]:
    """The child that is to be ended; None if it is gone, has ended, or is still awaited by others."""
    try:
        found = yield from find_to_decide(cleanup.id)
    except InstanceNotFoundError:
        return None
    watchers, ours = found.about.watchers, (cleanup.owner, cleanup.token)
    if found.status.is_terminal or ours not in watchers:
        return None
    for watcher in watchers:
        if watcher != ours and (yield from is_awaited(watcher[0], cleanup.id, watcher[1])):
            return None
    return found
