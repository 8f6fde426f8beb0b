"""What follows when a step fails: attempts, backoff, timeouts, and the errors in the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from tests.hasty_clock import hasty_clock
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Backoff,
    Context,
    CriticalError,
    EntryStatus,
    RollbackError,
    Status,
    StepCriticalError,
    StepError,
    StepExhaustedError,
    StepTimeoutError,
    run_workflow,
    workflow,
)
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

EXACT = Backoff(jitter=0)


class Declined(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


class Attempts:
    """A step's function that fails with `failures`, one after the other, and then returns."""

    def __init__(self, world: World, *failures: Exception) -> None:
        self.world = world
        self.failures = failures
        self.times: list[float] = []

    async def __call__(self) -> str:
        self.times.append(self.world.clock.time())
        if len(self.times) <= len(self.failures):
            raise self.failures[len(self.times) - 1]
        return "done"

    @property
    def waits(self) -> list[float]:
        return [round(b - a, 6) for a, b in zip(self.times, self.times[1:], strict=False)]


def trying(fn: Callable[[], Any], **options: Any) -> Any:
    """A workflow that tries a step, goes to sleep, and returns what became of the step."""

    @workflow
    async def tries(ctx: Context) -> list[Any]:
        try:
            outcome = [await ctx.step("s", fn, **options)]
        except StepError as error:
            outcome = [type(error).__name__, error.attempts, error.error.type, str(error), error.step, error.path]
        await ctx.sleep("pause", 60)
        return outcome

    return tries


async def test_by_default_a_step_has_three_retries(world: World) -> None:
    fn = Attempts(world, *(Declined(n) for n in range(9)))
    result = await world.run(trying(fn, backoff=EXACT))
    assert result.status is Status.COMPLETED
    assert result.output == [
        "StepExhaustedError",
        4,
        "tests.operations.test_retries.Declined",
        "step 's' gave up after 4 attempts: tests.operations.test_retries.Declined: declined with 3",
        *("s", "s"),
    ]
    assert fn.waits == [0.1, 0.2, 0.4]


async def test_an_attempt_that_succeeds_ends_it(world: World) -> None:
    fn = Attempts(world, Declined(1), Declined(2))
    result = await world.run(trying(fn, backoff=EXACT))
    assert result.output == ["done"]
    entry = (await world.history())["s"]
    assert (entry.attempts, entry.status, entry.error) == (3, EntryStatus.COMPLETED, None)


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff(initial=1, factor=10, maximum=5, jitter=0), [1, 5, 5]),
        (Backoff(initial=timedelta(minutes=1), factor=1, maximum=timedelta(hours=1), jitter=0), [60, 60, 60]),
        (Backoff(initial=0, jitter=0), [0, 0, 0]),
        (Backoff(initial=2, factor=3, maximum=1000, jitter=0), [2, 6, 18]),
    ],
)
async def test_the_wait_grows_up_to_its_maximum(world: World, backoff: Backoff, waits: list[float]) -> None:
    fn = Attempts(world, *(Declined(n) for n in range(9)))
    await world.run(trying(fn, backoff=backoff))
    assert fn.waits == waits


async def test_jitter_leaves_a_part_of_the_wait_to_chance(world: World) -> None:
    fn = Attempts(world, *(Declined(n) for n in range(99)))
    await world.run(trying(fn, retries=12, backoff=Backoff(initial=100, factor=1, maximum=100, jitter=0.5)))
    assert len(fn.waits) == 12
    assert all(49.9 <= wait <= 150.1 for wait in fn.waits)
    assert len(set(fn.waits)) > 6


@pytest.mark.parametrize(
    ("failure", "options", "kind"),
    [
        (Declined(1), {"retries": 0}, "StepExhaustedError"),
        (CriticalError("no"), {}, "StepCriticalError"),
        (Declined(1), {"no_retry": Declined}, "StepCriticalError"),
        (Declined(1), {"no_retry": (KeyError, Declined)}, "StepCriticalError"),
        (KeyError(1), {"no_retry": LookupError}, "StepCriticalError"),
    ],
)
async def test_some_failures_are_final_at_once(
    world: World, failure: Exception, options: dict[str, Any], kind: str
) -> None:
    fn = Attempts(world, failure)
    result = await world.run(trying(fn, **options))
    assert result.output is not None
    assert result.output[:2] == [kind, 1]
    assert len(fn.times) == 1


async def test_what_is_not_in_no_retry_is_retried(world: World) -> None:
    fn = Attempts(world, KeyError(1), Declined(2))
    result = await world.run(trying(fn, no_retry=(Declined,), backoff=EXACT))
    assert result.output is not None
    assert result.output[:2] == ["StepCriticalError", 2]


async def test_a_rollback_error_is_not_retried_and_unwinds(world: World) -> None:
    fn = Attempts(world, RollbackError("enough"))
    result = await world.run(trying(fn))
    assert result.status is Status.FAILED
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("workflow_sdk.errors.RollbackError", "enough")
    assert len(fn.times) == 1


async def test_a_rollback_error_can_be_stopped(world: World) -> None:
    @workflow
    async def stops(ctx: Context) -> str:
        try:
            await ctx.step("s", Attempts(world, RollbackError("enough")))
        except RollbackError as error:
            await ctx.sleep("pause", 60)
            return str(error)
        return "not raised"

    assert (await world.run(stops)).output == "enough"


async def test_the_error_of_a_step_carries_its_facts(world: World) -> None:
    seen: list[StepError] = []

    @workflow
    async def looks(ctx: Context) -> None:
        try:
            await ctx.step("s", Attempts(world, Declined(51)), retries=0)
        except StepExhaustedError as error:
            seen.append(error)
        await ctx.sleep("pause", 60)

    await world.run(looks)
    assert len(seen) == (2 if world.setting.mode == "yield" else 1)
    for error in seen:
        assert type(error) is StepExhaustedError
        assert (error.error.type, error.error.message) == (f"{__name__}.Declined", "declined with 51")
        assert (error.step, error.path, error.attempts) == ("s", "s", 1)
        assert error.error.attributes["code"] == 51
        assert "declined with 51" in error.error.traceback
        assert "self.failures[" in error.error.traceback
        assert "workflow_sdk/operations" not in error.error.traceback


@pytest.mark.law(1)
async def test_attempts_are_counted_across_reloads(world: World) -> None:
    fn = Attempts(world, *(Declined(n) for n in range(9)))
    tries = trying(fn, retries=2, backoff=Backoff(initial=10, factor=1, jitter=0))
    first = await world.once(tries, mode="yield")
    assert first.status is Status.SLEEPING
    assert first.wake_at is not None
    assert first.wake_at.timestamp() == world.clock.time() + 10
    entry = (await world.history())["s"]
    assert (entry.status, entry.attempts) == (EntryStatus.WAITING, 1)
    assert entry.error is not None
    assert entry.error.attributes == {"code": 0}

    too_early = await world.once(tries, mode="yield")
    assert (too_early.wake_at, len(fn.times)) == (first.wake_at, 1)

    world.clock.advance(10)
    await world.once(tries, mode="yield")
    assert (await world.history())["s"].attempts == 2
    result = await world.run(tries)
    assert result.output is not None
    assert result.output[:2] == ["StepExhaustedError", 3]
    assert len(fn.times) == 3


async def test_a_crash_in_an_attempt_does_not_use_up_the_others(world: World) -> None:
    fn = Attempts(world, Declined(1), Declined(2))
    tries = trying(fn, retries=2, backoff=EXACT)
    with pytest.raises(SimulatedCrash):
        # The third commit at the latest is that of the second failure.
        await world.run(tries, driver=FaultyDriver(world.driver, crash_before=3))
    assert (await world.run(tries)).output == ["done"]


async def test_a_timeout_ends_the_step(world: World) -> None:
    world.clock = hasty_clock()
    cleaned: list[str] = []

    async def hangs() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append("up")

    began = world.clock.time()
    result = await world.run(trying(hangs, timeout=timedelta(seconds=5), retry_on_timeout=False))
    assert result.output == [
        "StepTimeoutError",
        1,
        "TimeoutError",
        "step 's' timed out after 1 attempt: TimeoutError: an attempt took longer than 5 s",
        *("s", "s"),
    ]
    assert cleaned == ["up"]
    assert world.clock.time() == began + 5 + 60


async def test_a_timeout_is_retried_on_demand(world: World) -> None:
    world.clock = hasty_clock()
    attempts: list[float] = []

    async def hangs() -> None:
        attempts.append(world.clock.time())
        await anyio.sleep_forever()

    result = await world.run(trying(hangs, timeout=5, retry_on_timeout=True, retries=1, backoff=EXACT))
    assert result.output is not None
    assert result.output[:3] == ["StepTimeoutError", 2, "TimeoutError"]
    assert attempts[1] - attempts[0] == pytest.approx(5.1)


async def test_an_attempt_after_a_timeout_may_succeed(world: World) -> None:
    world.clock = hasty_clock()
    attempts: list[int] = []

    async def hangs_once() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            await anyio.sleep_forever()
        return "done"

    result = await world.run(trying(hangs_once, timeout=5, retry_on_timeout=True, backoff=EXACT))
    assert result.output == ["done"]
    assert len(attempts) == 2


async def test_a_timeout_of_the_authors_own_is_a_failure_like_any_other(world: World) -> None:
    fn = Attempts(world, TimeoutError("mine"))
    result = await world.run(trying(fn, timeout=5, backoff=EXACT))
    assert result.output == ["done"]
    assert len(fn.times) == 2


async def test_a_plain_function_that_takes_too_long_is_left_to_itself(world: World) -> None:
    go_on = threading.Event()

    @workflow
    async def tries(ctx: Context) -> str:
        try:
            await ctx.step("s", lambda: go_on.wait(PATIENCE), timeout=0.01, retry_on_timeout=False)
        except StepTimeoutError as error:
            return f"{error.attempts}"
        finally:
            go_on.set()
        return "not raised"

    result = await run_workflow(tries, driver=world.driver, mode=world.setting.mode)
    assert result.output == "1"


async def test_only_an_exhausted_step_nobody_catches_fails_the_workflow(world: World) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        await ctx.step("s", Attempts(world, Declined(1)), retries=0)

    result = await world.run(fails)
    assert result.status is Status.FAILED
    assert result.error is not None
    assert result.error.type == "workflow_sdk.errors.StepExhaustedError"
    assert "declined with 1" in result.error.message
    again = await world.once(fails)
    assert again == result
    assert StepCriticalError.__mro__[1] is StepError
