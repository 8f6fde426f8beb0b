"""Applying changes: read what they ask for, commit what they write, and make them again after a conflict.

This is the one place where a conflict is told from a failure, and where a limit of the store surfaces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio

from workflow_sdk.changes.change import Change
from workflow_sdk.changes.trial import Outcome, Together, Trial, has_moved_on
from workflow_sdk.driver import Batch, Driver
from workflow_sdk.errors import ConflictError, StorageError

T = TypeVar("T")

BASELESS_MAX = 3
"""How many conflicts a store may report for one commit although no row that it checks has changed."""
READS_AT_ONCE = 16
"""How many changes of one commit read at the same time."""


async def apply(driver: Driver, change: Change[T], told: Callable[[T], None] | None = None) -> T:
    """Make a change, in one commit, and return its value. A change that raises writes nothing.

    `told` is called with the value once the commit is applied. It is also called if nobody can say whether the commit
    was applied, since it failed or was cancelled under way.
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
        # The store may have applied the commit before it failed, or before we were cancelled. `told` is called as if it
        # had: to look for a message that is not there costs little; not to look for one that is there would lose it.
        except BaseException:
            if told is not None:
                told(value)
            raise
        if told is not None:
            told(value)
        return value


async def apply_all(driver: Driver, changes: Sequence[Change[T]]) -> list[Outcome[T]]:
    """Make several changes in one commit. Later ones see what earlier ones write; one that raises writes nothing."""
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
    """Make several changes as if one after the other; return the batch to be committed, and the outcome of each.

    They read at the same time. A change that has read something that an earlier one writes is made again, so that it
    sees those writes.
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
    """Make calls at the same time, and return their results in the order of the calls. The first error is raised."""
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
    """Counts the conflicts of one commit, and gives up if a store reports them without a reason."""

    __slots__ = ("_baseless", "_driver", "failed")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._baseless = 0
        self.failed: int = 0

    async def fail(self, batch: Batch, conflict: ConflictError) -> None:
        """Count one more conflict; raise it if several by now came although no row that is checked has changed."""
        self.failed += 1
        # One such conflict proves nothing: others may have changed a row and changed it back before we look.
        self._baseless += not await has_moved_on(self._driver, batch.checks)
        if self._baseless > BASELESS_MAX:
            raise conflict


async def moved_on(driver: Driver, batch: Batch) -> set[bytes]:
    """The keys of all rows that a batch checks and that hold something else now."""
    raws = await side_by_side([partial(driver.get, key) for key, _ in batch.checks])
    return {key for (key, expected), raw in zip(batch.checks, raws, strict=True) if raw != expected}
