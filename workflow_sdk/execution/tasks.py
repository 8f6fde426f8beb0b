"""Tasks of people, in the commits of the instances that wait for them."""

from __future__ import annotations

from msgspec.structs import replace

from workflow_sdk.core.keys import last_of
from workflow_sdk.core.location import subtree
from workflow_sdk.core.tasks import TaskEvent, TaskRow, TaskStatus, all_tasks_of, ended_tasks_of, task_key, task_log
from workflow_sdk.driver import Batch, ConflictError, Driver

__all__ = ["ENDED_MAX", "TaskStatus", "change_task", "drop_task", "forget_oldest", "forget_tasks"]

ENDED_MAX = 100
"""So many tasks of an instance that are over are kept, as long as it lives: the last ones."""
AT_ONCE = 20
"""So many are forgotten in one commit, if there are more."""


async def drop_task(driver: Driver, id: str, status: TaskStatus, now: float, errand: bytes) -> None:
    """Nobody waits for a task any more; the errand that says so is done."""
    while True:
        raw = await driver.get(task_key(id))
        batch = Batch()
        batch.clear(errand)
        if raw is not None:
            batch.check(task_key(id), raw)
            row = TaskRow.unpack(raw)
            if row.status is TaskStatus.OPEN:
                change_task(batch, row, replace(row, status=status, ended_at=now), TaskEvent(status.value, None, now))
                await forget_oldest(driver, batch, row.instance)
        try:
            await driver.commit(batch)
        except ConflictError:
            continue
        return


def change_task(batch: Batch, before: TaskRow, after: TaskRow, event: TaskEvent) -> None:
    """Write a task as it is now, where it is found by, and what has happened to it."""
    gone = set(before.places())
    if after.status is TaskStatus.OPEN:
        for place in after.places():
            gone.discard(place)
            batch.set(place, b"")
    if before.ended_place is not None:
        gone.add(before.ended_place)
    if after.ended_place is not None:
        gone.discard(after.ended_place)
        batch.set(after.ended_place, after.own_place)
    for place in sorted(gone):
        batch.clear(place)
    batch.set(task_key(after.id), after.pack())
    batch.append(task_log(after.id), event.pack())


async def forget_oldest(driver: Driver, batch: Batch, instance_id: str) -> None:
    """Before another task of an instance is over: have no more than so many of those that are kept."""
    begin, end = subtree(ended_tasks_of(instance_id))
    rows = await driver.scan(begin, end, limit=ENDED_MAX + AT_ONCE)
    # What is over does not change any more; whoever else forgets it does the same.
    for place, own_place in rows[: max(0, len(rows) - ENDED_MAX + 1)]:
        _forget(batch, last_of(place))
        batch.clear(own_place)
        batch.clear(place)


def _forget(batch: Batch, id: str) -> None:
    batch.clear(task_key(id))
    batch.clear_range(*subtree(task_log(id)))


async def forget_tasks(driver: Driver, batch: Batch, instance_id: str) -> None:
    """Forget all tasks of an instance, which has ended."""
    for place, _ in await driver.scan(*subtree(all_tasks_of(instance_id))):
        id = last_of(place)
        raw = await driver.get(task_key(id))
        if raw is not None:
            for open_place in TaskRow.unpack(raw).places():
                batch.clear(open_place)
        _forget(batch, id)
        batch.clear(place)
    batch.clear_range(*subtree(ended_tasks_of(instance_id)))
