"""Making changes: read what they ask for, commit what they write, and begin again if others were faster.

This is the one place where a conflict is told from a failure, and where a limit of the store surfaces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio

from workflow_sdk.changes.change import Change
from workflow_sdk.changes.trial import Outcome, Together, Trial
from workflow_sdk.driver import Batch, Driver
from workflow_sdk.errors import ConflictError, StorageError

__all__ = ["BASELESS_MAX", "Tries", "apply", "apply_all", "has_moved_on", "moved_on", "try_all"]

T = TypeVar("T")

BASELESS_MAX = 3
"""How often a store may speak of a conflict where none is to be seen."""
READS_AT_ONCE = 16
"""So many changes of one commit read side by side."""


async def apply(driver: Driver, change: Change[T], told: Callable[[T], None] | None = None) -> T:
    """Make a change, in one commit, and return what it comes to. One that raises writes nothing.

    `told` is called with the value once the commit is applied, and also if it failed or was cancelled in a way that
    leaves open whether it is.
    """
    tries: Tries | None = None
    while True:
        trial = Trial(driver, 0 if tries is None else tries.failed)
        value = (await trial.make(change)).get()
        if not trial.writes:
            return value
        batch = trial.batch()
        try:
            await driver.commit(batch)
        except ConflictError as conflict:
            if tries is None:
                tries = Tries(driver)
            await tries.fail(batch, conflict)
            continue
        except BaseException:
            if told is not None:
                told(value)
            raise
        if told is not None:
            told(value)
        return value


async def apply_all(driver: Driver, changes: Sequence[Change[T]]) -> list[Outcome[T]]:
    """Make several changes in one commit: later ones see what earlier ones write. One that fails fails alone."""
    tries = Tries(driver)
    while True:
        batch, outcomes = await try_all(driver, changes, [tries.failed] * len(changes))
        if not batch.writes:
            return outcomes
        try:
            await driver.commit(batch)
        except ConflictError as conflict:
            await tries.fail(batch, conflict)
        else:
            return outcomes


async def try_all(
    driver: Driver, changes: Sequence[Change[T]], retries: Sequence[int]
) -> tuple[Batch, list[Outcome[T]]]:
    """Make several changes, as if one after the other: what is to be committed, and what comes of each.

    They read side by side. One that has read what an earlier one writes is made again after it.
    """
    if len(changes) == 1:
        trial = Trial(driver, retries[0])
        outcome = await trial.make(changes[0])
        return trial.batch(), [outcome]
    trials = [Trial(driver, times) for times in retries]
    made = await side_by_side([partial(trial.make, change) for trial, change in zip(trials, changes, strict=True)])
    outcomes: list[Outcome[T]] = []
    together = Together()
    for change, trial, outcome in zip(changes, trials, made, strict=True):
        if together.overlaps(trial):
            trial = Trial(driver, 0, together)
            outcome = await trial.make(change)
        together.absorb(trial)
        outcomes.append(outcome)
    return together.batch, outcomes


async def side_by_side(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """What the calls return, in their order. They ask the store at the same time; what the first raises is raised."""
    found: dict[int, T] = {}
    failures: list[Exception] = []
    limiter = anyio.CapacityLimiter(READS_AT_ONCE)

    async def one(number: int) -> None:
        async with limiter:
            try:
                found[number] = await calls[number]()
            except Exception as error:  # noqa: BLE001  # the store failed: raised below, without a group around it
                failures.append(error)

    async with anyio.create_task_group() as group:
        for number in range(len(calls)):
            group.start_soon(one, number)
    if failures:
        raise failures[0]
    if len(found) < len(calls):
        raise StorageError("the driver has cancelled a call of its own")
    return [found[number] for number in range(len(calls))]


class Tries:
    """How often a commit has failed."""

    __slots__ = ("_baseless", "_driver", "failed")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._baseless = 0
        self.failed: int = 0

    async def fail(self, batch: Batch, conflict: ConflictError) -> None:
        """Count one more; raise the conflict, if the store speaks of it again and again and there is none."""
        self.failed += 1
        # Others may have changed a row there and back while we look.
        self._baseless += not await has_moved_on(self._driver, batch)
        if self._baseless > BASELESS_MAX:
            raise conflict


async def has_moved_on(driver: Driver, batch: Batch) -> bool:
    """After a conflict: whether a row that was checked is another one now."""
    for key, expected in batch.checks:
        if await driver.get(key) != expected:
            return True
    return False


async def moved_on(driver: Driver, batch: Batch) -> set[bytes]:
    """The same: the keys of all such rows, of which there may be many."""
    raws = await side_by_side([partial(driver.get, key) for key, _ in batch.checks])
    return {key for (key, expected), raw in zip(batch.checks, raws, strict=True) if raw != expected}
