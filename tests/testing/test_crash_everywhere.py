"""`crash_everywhere`: it finds what is not safe, and shows it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.ledger import add, read
from workflow_sdk import (
    Break,
    Context,
    Continue,
    CriticalError,
    DefinitionError,
    RollbackError,
    RunResult,
    Status,
    StepExhaustedError,
    open_driver,
    run_workflow,
    workflow,
)
from workflow_sdk.testing import CrashReport, SimulatedCrash, VirtualClock, crash_everywhere
from workflow_sdk.testing.crash_report import is_over

pytestmark = pytest.mark.law(1)

called: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    called.clear()


async def note(what: str) -> str:
    called.append(what)
    return f"{what} done"


async def take_back(result: str) -> None:
    called.append(f"no {result}")


@workflow
async def order(ctx: Context, number: int) -> list[Any]:
    charge = await ctx.step("charge", note, f"charge {number}", rollback=take_back)

    async def pack(ctx: Context) -> str:
        return await ctx.step("pack", note, "pack")

    async def email(ctx: Context) -> str:
        await ctx.sleep("later", 3600)
        return await ctx.step("email", note, "email")

    both = await ctx.join("both", {"pack": pack, "email": email})
    address = await ctx.listen("address", timeout=86_400, default="nowhere")

    async def turn(ctx: Context, state: int) -> Any:
        await ctx.step("try", note, f"try {state}")
        return Break(state) if state == 5 else Continue(state + 1)

    tries = await ctx.loop("tries", turn, 0, commit_interval=2, history_keep=1)
    return [charge, both, address, tries, str(ctx.uuid()), ctx.now().isoformat()]


async def test_a_workflow_that_is_safe_is_shown_to_be() -> None:
    report = await crash_everywhere(order, 7, script=[("address", {"city": "Rome"})])
    assert report.ok
    assert report.clean.info.status is Status.COMPLETED
    assert report.clean.info.output[2] == {"city": "Rome"}
    assert len(report.runs) == 2 * report.commits
    assert all(run.crashed for run in report.runs)
    again = {run.commit: run.ran_again for run in report.runs if run.side == "before" and run.ran_again}
    assert ("charge",) in again.values(), "a step whose outcome is lost runs again"
    assert all(not run.ran_again for run in report.runs if run.side == "after")
    text = str(report)
    assert f"order: {report.commits} commits, killed {2 * report.commits} times" in text
    assert "every one of them ends the same" in text
    assert "same; ran again: charge" in text
    assert "the start" in text


async def test_messages_come_as_names_too_and_what_nobody_takes_is_left() -> None:
    @workflow
    async def listens(ctx: Context) -> list[Any]:
        return [await ctx.listen("a"), await ctx.listen("b", ["b", "c"])]

    report = await crash_everywhere(listens, script=["a", ("x", 1), "c", "d"])
    assert report.clean.info.output == [None, None]
    assert (report.clean.inbox, report.clean.sent) == (("x",), 3)


async def test_one_that_waits_in_the_end() -> None:
    @workflow
    async def waits(ctx: Context) -> Any:
        await ctx.step("first", note, "first")
        return await ctx.listen("never")

    report = await crash_everywhere(waits)
    assert report.clean.info.status is Status.WAITING
    assert "waiting for never" in str(report)


@pytest.mark.parametrize("error", [ValueError, RollbackError])
async def test_one_that_is_rolled_back(error: type[Exception]) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        await ctx.step("one", note, "one", rollback=take_back)
        await ctx.step("two", note, "two", rollback=take_back)
        raise error("no")

    report = await crash_everywhere(fails)
    assert report.clean.info.status is Status.ROLLED_BACK
    assert any("~undo two" in run.ran_again for run in report.runs)


async def test_one_that_fails_with_retries() -> None:
    async def broken() -> str:
        raise OSError("not yet")

    async def critical() -> str:
        raise CriticalError("never")

    @workflow
    async def fails(ctx: Context) -> str:
        try:
            return await ctx.step("broken", broken)
        except StepExhaustedError:
            return await ctx.step("critical", critical)

    report = await crash_everywhere(fails)
    assert report.clean.info.status is Status.FAILED
    assert report.clean.history["broken"].attempts == 4


async def test_what_is_not_the_same_without_a_crash_is_told() -> None:
    numbers = count(1)

    async def number() -> int:
        return next(numbers)

    @workflow
    async def counts(ctx: Context) -> int:
        return await ctx.step(number)

    with pytest.raises(AssertionError) as caught:
        await crash_everywhere(counts)
    assert "ends differently without any crash: the output is 2, not 1" in str(caught.value)
    assert "! └─ number  step completed: 1" in str(caught.value)

    async def reset() -> None:
        nonlocal numbers
        numbers = count(1)

    with pytest.raises(AssertionError) as caught:
        await crash_everywhere(counts, reset=reset)
    text = str(caught.value)
    assert "1 of 6 end differently" in text
    assert "DIFFERS: the output is 2, not 1" in text
    assert "killed before commit 2:" in text
    assert "without a crash" in text
    assert "! └─ number  step completed: 1" in text
    assert "└─ number  step completed: 2" in text


async def test_a_workflow_that_looks_at_what_is_outside_is_found() -> None:
    """It takes another path when it is run again: what it had not recorded has changed."""
    runs = count()

    def reset() -> None:
        nonlocal runs
        runs = count()

    @workflow
    async def careless(ctx: Context) -> str:
        if next(runs) == 0:
            await ctx.step("first", note, "first")
            return await ctx.step("second", note, "second")
        return await ctx.step("other", note, "other")

    with pytest.raises(AssertionError) as caught:
        await crash_everywhere(careless, reset=reset)
    assert "the status is 'stuck', not 'completed'" in str(caught.value)


async def test_in_a_store_of_ones_own_nothing_is_left_behind(tmp_path: Any) -> None:
    driver = await open_driver(f"sqlite:///{tmp_path}/a.db?synchronous=normal")
    before = await driver.scan(b"", b"\xff")

    @workflow
    async def small(ctx: Context) -> str:
        return await ctx.step("one", note, "one")

    report = await crash_everywhere(small, store=driver)
    assert report.ok
    left = [key for key, _ in await driver.scan(b"", b"\xff") if (key, b"") not in before]
    assert not [key for key in left if b"crash-everywhere" in key]
    await driver.aclose()


async def test_with_transactions(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/a.db?synchronous=normal"

    @workflow
    async def pays(ctx: Context) -> str:
        await ctx.step("one", note, "one")
        await ctx.transact("pay", add_to_a)
        return "paid"

    report = await crash_everywhere(pays, store=url)
    driver = await open_driver(url)
    # Once for each run: two without a crash, and one for each commit and side.
    assert await read(driver, "a") == 2 + len(report.runs)
    await driver.aclose()


def add_to_a(transaction: Any) -> None:
    add(transaction, "a")


async def test_so_many_commits_and_no_more() -> None:
    report = await crash_everywhere(order, 7, commits_max=4)
    commits = sorted({run.commit for run in report.runs})
    assert (len(commits), commits[0], commits[-1]) == (4, 1, report.commits)
    assert {run.commit for run in (await crash_everywhere(order, 7, commits_max=1)).runs} == {report.commits}


async def test_a_report_of_some_of_the_runs_can_be_printed() -> None:
    report = await crash_everywhere(order, 7, commits_max=2)
    lines = str(replace(report, runs=report.runs[1:])).splitlines()
    assert "killed 3 times" in lines[0]
    assert lines[-2].split() == ["1", "same"]


async def test_what_is_no_workflow_is_refused() -> None:
    with pytest.raises(DefinitionError, match="decorated with @workflow"):
        await crash_everywhere(note)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def test_an_author_who_stops_the_crash_does_not_live_on() -> None:
    @workflow
    async def stubborn(ctx: Context) -> str:
        try:
            return await ctx.step("one", note, "one")
        except Exception:  # noqa: BLE001  # that is the point
            return "survived"

    assert (await crash_everywhere(stubborn)).clean.info.output == "one done"
    assert not issubclass(SimulatedCrash, Exception)


async def test_what_is_over() -> None:
    report: CrashReport = await crash_everywhere(order, 7, commits_max=1)
    history = report.clean.history
    assert is_over("charge", history)
    assert is_over("both/pack/anything", history), "it is inside of what is over"
    assert not is_over("new", history)
    assert not is_over("charge", None)
    turns = [run.then for run in (await crash_everywhere(order, 7)).runs if run.then and "tries" in run.then]
    unfinished = [then for then in turns if not then["tries"].status.is_final and "tries/~4/try" in then]
    assert unfinished
    assert any(is_over("tries/~0/try", then) for then in unfinished), "it is of a turn that is not kept any more"
    assert not any(is_over("tries/~5/try", then) for then in unfinished if "tries/~5/try" not in then)


def in_thread(what: str) -> str:
    return what


async def test_the_order_in_which_branches_end_is_nobodys_fault() -> None:
    @workflow
    async def saga(ctx: Context) -> None:
        async def one(ctx: Context, what: str) -> str:
            return await ctx.step("book", in_thread, what, rollback=take_back)

        await ctx.map("all", one, ["flight", "hotel", "car"])
        raise ValueError("no")

    assert (await crash_everywhere(saga)).clean.info.status is Status.ROLLED_BACK


async def test_how_far_a_loser_came_is_chance() -> None:
    @workflow
    async def races(ctx: Context) -> str:
        async def wins(ctx: Context) -> str:
            await ctx.sleep("nap", 5)
            return "won"

        async def loses(ctx: Context) -> str:
            await ctx.step("book", in_thread, "room", rollback=take_back)
            await ctx.sleep("long", 50)
            return "lost"

        return (await ctx.race("race", {"wins": wins, "loses": loses})).winner

    assert (await crash_everywhere(races)).clean.info.output == "wins"


async def test_retries_take_the_same_time_in_every_run() -> None:
    async def flaky() -> None:
        raise OSError("not yet")

    @workflow
    async def times(ctx: Context) -> str:
        try:
            await ctx.step(flaky)
        except StepExhaustedError:
            await ctx.sleep("nap", 1)
        return ctx.now().isoformat()

    assert (await crash_everywhere(times)).ok


async def test_memory_that_is_kept_over_a_wait_is_found() -> None:
    @workflow
    async def remembers(ctx: Context) -> int:
        seen: list[str] = []

        async def see() -> None:
            seen.append("it")

        await ctx.step("see", see)
        await ctx.sleep("nap", 60)
        return len(seen)

    with pytest.raises(AssertionError, match="ends differently without any crash: the output is 1, not 0"):
        await crash_everywhere(remembers)


async def test_one_that_is_stuck_has_not_passed() -> None:
    @workflow
    async def mistakes(ctx: Context) -> None:
        await ctx.step("same", note, "a")
        await ctx.step("same", note, "b")

    with pytest.raises(AssertionError, match="mistakes is stuck without any crash: DuplicateNameError"):
        await crash_everywhere(mistakes)


async def test_one_without_an_end_is_told() -> None:
    @workflow
    async def for_ever(ctx: Context) -> None:
        async def turn(ctx: Context, state: int) -> Any:
            await ctx.sleep("long", 800 * 86_400)
            return Continue(state + 1)

        await ctx.loop("loop", turn, 0)

    with pytest.raises(AssertionError, match="for_ever has no end"):
        await crash_everywhere(for_ever)


async def test_a_text_is_no_script() -> None:
    with pytest.raises(DefinitionError, match="a list of messages"):
        await crash_everywhere(order, 7, script="go")


async def test_one_that_stays_due_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not run ten thousand times."""
    runs: list[RunResult[Any]] = []

    async def does_nothing(*args: Any, clock: VirtualClock, **options: Any) -> RunResult[Any]:
        await run_workflow(*args, clock=clock, **options)
        runs.append(RunResult(Status.SLEEPING, wake_at=clock.now()))
        return runs[-1]

    @workflow
    async def waits(ctx: Context) -> Any:
        return await ctx.listen("never")

    monkeypatch.setattr("workflow_sdk.testing.crashing.run_workflow", does_nothing)
    with pytest.raises(AssertionError, match="waits has no end: it is due at 2030-01-01T00:00:00"):
        await crash_everywhere(waits)
    assert len(runs) < 20


@pytest.mark.parametrize("seconds", [1 / 3, 4e9 + 1 / 3])
async def test_a_time_is_reached_to_the_last_bit(seconds: float) -> None:
    """Also where it is so far away that floats get coarse."""

    @workflow
    async def naps(ctx: Context) -> str:
        for nap in range(10):
            await ctx.sleep(f"nap {nap}", seconds)
        return "awake"

    report = await crash_everywhere(naps, commits_max=1)
    assert report.clean.info.output == "awake"
