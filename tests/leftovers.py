"""Law 21, for every test that has a store: when all that can end has ended and was deleted, no row of it is there.

Rows are judged by their keys alone, and by whom these name: an instance, a worker, a task, a schedule. What is kept
once per store or shard is no leftover: its key has numbers only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from workflow_sdk import Client, Driver, InstanceNotFoundError, InstanceStateError
from workflow_sdk.client import handle as control
from workflow_sdk.instance.cleanups import run_cleanups_left
from workflow_sdk.rows.instance import Head
from workflow_sdk.rows.keys import ROOT, Field, InstanceKeys
from workflow_sdk.rows.location import unpack
from workflow_sdk.values import Codec

__all__ = ["check_ended", "check_nothing_left", "leftovers"]

Key = tuple[Any, ...]

SPACES, ALARMS, HEARTBEATS, CLAIMS, TASKS, SCHEDULES, EFFECTS = 1, 3, 6, 7, 13, 14, 17
FIELDS, LEASE, CELL = 4, 20, 28
_OF_ENDED = {7: "messages taken in a race", 9: "waits", 12: "what hangs on a wait"}
"""The parts of an instance's space that nothing needs once it has ended."""


async def keys_of(driver: Driver) -> list[Key]:
    """The keys of a store, but for what authors keep in it."""
    return [unpack(key[len(ROOT) :]) for key, _ in await driver.scan(ROOT, ROOT + b"\xff")]


def leftovers(keys: Iterable[Key]) -> list[Key]:
    """The keys that belong to nothing that is there."""
    found = list(keys)
    instances = {key[1] for key in found if key[0] == SPACES and key[2:] == (FIELDS, Field.HEAD)}
    workers = {key[1] for key in found if key[0] == HEARTBEATS}
    tasks = {key[2] for key in found if key[:2] == (TASKS, 1)}
    schedules = {key[2] for key in found if key[:2] == (SCHEDULES, 1)}
    # An effect that was asked for is done, even if its cell is over by then.
    intents = {key[2] for key in found if key[:2] == (EFFECTS, 1)}
    has_cells = any(key[0] == SPACES and key[2:] == (CELL,) for key in found)

    def is_kept(key: Key) -> bool:
        match key:
            case (1, id, *_):
                return id in instances
            case (3, _, _, id) | (15, _, _, id):
                return id in instances
            case (5, *_, id):
                return id in instances
            case (16, *_):
                return True  # a definition of a graph, kept once for all its instances
            case (17, 1 | 3, _):
                return True  # an intent; and the signal of an effect, kept once for all its intents
            case (17, 2, _, _, id):
                return id in intents
            case (17, 4, worker, id):
                return id in intents  # whoever comes next gives back what a worker had that is gone
            case (17, 5, id, _):
                return id in intents or has_cells  # a cell keeps what came with the effect that it heard of last
            case (18, 2, _) | (18, 3 | 4, *_):
                return True  # how far the count of a deleted cell was, the ids of events, and the journal
            case (18, 9, _):
                return True  # the schema of an event of the active manifest
            case (18, 5 | 6 | 7, _):
                return True  # snapshots outlive what they are of
            case (7, worker, id):
                return worker in workers and id in instances
            case (6 | 8 | 9, worker, *_):
                # One that has a heartbeat is buried some time, with all that it had.
                return worker in workers
            case (13, 2, id, _) | (13, _, *_, id):
                return id in tasks
            case (14, 1 | 2 | 4, *_, id):
                return id in schedules
            case _:
                return all(isinstance(part, int) for part in key)

    return [key for key in found if not is_kept(key)]


def is_effect_of_cell(key: Key) -> bool:
    """Whether it is the row, in the space of an instance, of an effect that a cell waits for."""
    return key[0] == CELL and len(key) > 1


async def check_ended(driver: Driver) -> None:
    """What has ended has nothing that only a live instance needs."""
    keys = await keys_of(driver)
    for id in {key[1] for key in keys if key[0] == SPACES and key[2:] == (FIELDS, Field.HEAD)}:
        raw = await driver.get(InstanceKeys(id).field(Field.HEAD))
        head = None if raw is None else Head.unpack(raw)
        if head is None or not head.status.is_terminal:
            continue
        assert head.alarm is None, f"{id} has ended, and is due"
        own = [key[2:] for key in keys if key[:2] == (SPACES, id)]
        needless = [key for key in own if key[0] in _OF_ENDED or key == (FIELDS, LEASE) or is_effect_of_cell(key)]
        assert not needless, f"{id} has ended, and keeps {needless}"
        assert not [key for key in keys if key[0] in (ALARMS, CLAIMS) and key[-1] == id], f"{id} has ended, and is due"


async def check_nothing_left(driver: Driver) -> None:
    """End and delete all instances and schedules, and look at what is there then. Nobody runs them any more."""
    await run_cleanups_left(driver, Codec(), time.time)
    await check_ended(driver)
    before = await keys_of(driver)
    assert not leftovers(before), leftovers(before)
    async with Client(driver) as client:
        for id in {key[2] for key in before if key[:2] == (SCHEDULES, 1)}:
            await client.schedules.delete(id)
        ids = sorted({key[1] for key in before if key[0] == SPACES})
        for id in ids:
            with suppress(InstanceStateError, InstanceNotFoundError):
                await control.cancel(driver, id, Codec(), time.time(), rollback=False)
        await run_cleanups_left(driver, Codec(), time.time)
        await check_ended(driver)
        for id in ids:
            with suppress(InstanceStateError):  # it is rolling back, and goes on
                await client.delete(id)
    after = await keys_of(driver)
    assert not leftovers(after), leftovers(after)
