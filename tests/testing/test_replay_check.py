"""`replay_check`: what a change of the code would do to instances that are under way, without doing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workflow_sdk import (
    Break,
    CodecError,
    Context,
    Continue,
    CriticalError,
    DefinitionError,
    Driver,
    Status,
    Workflow,
    open_driver,
    run_workflow,
    send_message,
    workflow,
)
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock, dump_histories, replay_check

called: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    called.clear()


async def note(what: str) -> str:
    called.append(what)
    return what


async def undo(what: str) -> None:
    called.append(f"no {what}")


async def branch_of_steps(ctx: Context) -> str:
    await ctx.step("a", note, "a")
    await ctx.listen("go")
    return await ctx.step("b", note, "b")


@workflow(name="job")
async def job(ctx: Context) -> Any:
    await ctx.step("first", note, "first", rollback=undo)
    await ctx.join("both", {"one": branch_of_steps, "two": lambda ctx: ctx.step("c", note, "c")})
    await ctx.sleep("nap", 60)

    async def turn(ctx: Context, state: int) -> Any:
        await ctx.step("again", note, f"again {state}")
        return Break(state) if state == 3 else Continue(state + 1)

    return await ctx.loop("loop", turn, 0)


@workflow(name="job")
async def renamed(ctx: Context) -> Any:
    await ctx.step("renamed", note, "first")
    await ctx.join("both", {"one": branch_of_steps, "two": lambda ctx: ctx.step("c", note, "c")})


@workflow(name="job")
async def reshaped(ctx: Context) -> Any:
    await ctx.step("first", note, "first")
    await ctx.join("both", {"one": branch_of_steps, "three": lambda ctx: ctx.step("c", note, "c")})


@workflow(name="job")
async def inside(ctx: Context) -> Any:
    async def one(ctx: Context) -> str:
        await ctx.sleep("a", 1)
        return ""

    await ctx.step("first", note, "first")
    await ctx.join("both", {"one": one, "two": lambda ctx: ctx.step("c", note, "c")})


@workflow(name="job")
async def careful(ctx: Context) -> Any:
    await ctx.step("first", note, "first", rollback=undo)
    if await ctx.version("more", 2) >= 2:
        await ctx.step("more", note, "more")
    await ctx.join("both", {"one": branch_of_steps, "two": lambda ctx: ctx.step("c", note, "c")})
    return "another end"


@workflow(name="job")
async def broken(ctx: Context) -> Any:
    await ctx.step("first", note, "first")
    raise KeyError("a mistake of the new code")


async def under_way(driver: Driver, id: str = "i") -> None:
    assert (await run_workflow(job, driver=driver, instance_id=id)).status is Status.WAITING
    called.clear()


async def everything(driver: Driver) -> list[tuple[bytes, bytes]]:
    return await driver.scan(b"", b"\xff")


async def test_the_same_code_goes_on_and_nothing_is_done() -> None:
    driver = await open_driver("memory://")
    await under_way(driver)
    await send_message(driver, "i", "go")
    before = await everything(driver)
    report = await replay_check(driver, [job])
    assert report.ok
    assert dict(report.replayed) == {"job": 1}
    assert str(report) == "1 history replayed, none would not go on\n  job: 1"
    assert called == []
    assert await everything(driver) == before


@pytest.mark.parametrize(
    ("changed", "kind", "says"),
    [
        (renamed, "divergence", "the code asks for step 'renamed', which is not recorded"),
        (reshaped, "divergence", "three"),
        (inside, "divergence", "'both/one/a' is recorded as step, and the code asks for sleep"),
        (broken, "divergence", "both"),
    ],
)
async def test_a_change_that_does_not_fit_is_told(changed: Workflow[Any, Any], kind: str, says: str) -> None:
    driver = await open_driver("memory://")
    await under_way(driver)
    await under_way(driver, "j")
    report = await replay_check(driver, [changed])
    assert not report.ok
    assert [(problem.instance_id, problem.kind) for problem in report.problems] == [("i", kind), ("j", kind)]
    assert says in report.problems[0].message
    assert "2 histories replayed, 2 would not go on" in str(report)
    assert "job i (waiting): divergence:" in str(report)
    assert called == []


async def test_a_change_that_fits_is_not() -> None:
    driver = await open_driver("memory://")
    await under_way(driver)
    assert (await replay_check(driver, [careful])).ok


async def test_new_code_that_fails_on_the_way_is_told() -> None:
    @workflow(name="w")
    async def old(ctx: Context) -> None:
        await ctx.step("first", note, "first", rollback=undo)
        await ctx.listen("go")

    @workflow(name="w")
    async def new(ctx: Context) -> None:
        await ctx.step("first", note, "first", rollback=undo)
        await ctx.listen("go")
        raise KeyError("a mistake of the new code")

    driver = await open_driver("memory://")
    await run_workflow(old, driver=driver, instance_id="i")
    await send_message(driver, "i", "go")
    assert (await replay_check(driver, [old])).ok
    called.clear()
    (problem,) = (await replay_check(driver, [new])).problems
    assert (problem.kind, problem.status) == ("failure", "waiting")
    assert "KeyError: 'a mistake of the new code'" in problem.message
    assert called == [], "no handler runs either"


async def test_a_step_in_flight_waits() -> None:
    driver = await open_driver("memory://")

    @workflow(name="w")
    async def steps(ctx: Context) -> None:
        await ctx.step("one", note, "one")
        await ctx.step("two", note, "two")

    with pytest.raises(SimulatedCrash):
        await run_workflow(steps, driver=FaultyDriver(driver, crash_before=3), instance_id="i")
    called.clear()
    assert (await replay_check(driver, [steps])).ok
    assert called == []


async def test_stuck_ones_show_whether_they_are_mended() -> None:
    driver = await open_driver("memory://")
    await under_way(driver)
    assert (await run_workflow(renamed, driver=driver, instance_id="i")).status is Status.STUCK
    assert [problem.status for problem in (await replay_check(driver, [renamed])).problems] == ["stuck"]
    assert (await replay_check(driver, [job])).ok


async def test_one_that_is_being_rolled_back() -> None:
    async def refuses(what: str) -> None:
        raise OSError("not now")

    @workflow(name="w")
    async def fails(ctx: Context) -> None:
        await ctx.step("one", note, "one", rollback=refuses)
        raise CriticalError("no")

    @workflow(name="w")
    async def without(ctx: Context) -> None:
        await ctx.step("one", note, "one")
        raise CriticalError("no")

    driver = await open_driver("memory://")
    assert (await run_workflow(fails, driver=driver, instance_id="i")).status is Status.ROLLING_BACK
    assert (await replay_check(driver, [fails])).ok
    (problem,) = (await replay_check(driver, [without])).problems
    assert "the code has no rollback for step 'one' any more" in problem.message


async def test_finished_ones_are_replayed_if_asked_for() -> None:
    @workflow(name="w")
    async def adds(ctx: Context, n: int) -> int:
        return n + len(await ctx.step("one", note, "one"))

    @workflow(name="w")
    async def subtracts(ctx: Context, n: int) -> int:
        return n - len(await ctx.step("one", note, "one"))

    @workflow(name="w")
    async def more(ctx: Context, n: int) -> int:
        await ctx.step("zero", note, "zero")
        return n + len(await ctx.step("one", note, "one"))

    driver = await open_driver("memory://")
    for number in range(5):
        await run_workflow(adds, number, driver=driver, instance_id=str(number))
    assert (await replay_check(driver, [adds])).replayed.total() == 0
    report = await replay_check(driver, [adds], finished=3)
    assert (report.ok, report.replayed.total()) == (True, 3)
    assert [problem.kind for problem in (await replay_check(driver, [subtracts], finished=2)).problems] == [
        "output"
    ] * 2
    assert [problem.kind for problem in (await replay_check(driver, [more], finished=9)).problems] == ["divergence"] * 5


async def test_workflows_that_were_not_given_are_counted() -> None:
    driver = await open_driver("memory://")
    await under_way(driver)
    report = await replay_check(driver, [])
    assert report.ok
    assert "job: 1 left out, as it was not given" in str(report)
    with pytest.raises(DefinitionError, match="decorated"):
        await replay_check(driver, [note])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def test_a_dump_is_as_good_as_the_store(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/a.db?synchronous=normal", tmp_path / "histories"
    driver = await open_driver(url)
    for number in range(250):
        await under_way(driver, str(number))
    await driver.aclose()
    assert await dump_histories(url, path) == 250
    for store in (url, path, str(path)):
        report = await replay_check(store, [job])
        assert (report.ok, report.replayed["job"]) == (True, 250)
    assert len((await replay_check(path, [renamed])).problems) == 250


@pytest.mark.parametrize("size", [0, 10, 27, 40, 500])
async def test_a_damaged_dump_is_a_clear_error(tmp_path: Path, size: int) -> None:
    driver, path = await open_driver("memory://"), tmp_path / "histories"
    await under_way(driver)
    await dump_histories(driver, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CodecError, match="dump"):
        await replay_check(path, [job])


async def test_no_time_passes() -> None:
    clock = VirtualClock()
    driver = await open_driver("memory://")

    @workflow(name="w")
    async def naps(ctx: Context) -> None:
        await ctx.sleep("nap", 60)
        raise AssertionError("awake")

    await run_workflow(naps, driver=driver, instance_id="i", clock=clock)
    assert (await replay_check(driver, [naps])).ok


def write(transaction: Any) -> str:
    called.append("write")
    transaction.execute("CREATE TABLE IF NOT EXISTS mine (x)")
    return "written"


async def test_transactions_are_replayed_and_not_made(tmp_path: Path) -> None:
    @workflow(name="w")
    async def transacts(ctx: Context) -> None:
        await ctx.transact("one", write)
        await ctx.listen("go")
        await ctx.transact("two", write)

    driver = await open_driver(f"sqlite:///{tmp_path}/a.db?synchronous=normal")
    await run_workflow(transacts, driver=driver, instance_id="i")
    await send_message(driver, "i", "go")
    called.clear()
    assert (await replay_check(driver, [transacts])).ok
    assert called == []
    await driver.aclose()


async def test_code_that_mends_a_rollback_passes() -> None:
    async def refuses(what: str) -> None:
        raise CriticalError("broken")

    def made(handler: Any) -> Workflow[Any, Any]:
        @workflow(name="w")
        async def fails(ctx: Context) -> None:
            await ctx.step("one", note, "one", rollback=handler)
            raise ValueError("no")

        return fails

    driver = await open_driver("memory://")
    assert (await run_workflow(made(refuses), driver=driver, instance_id="i")).status is Status.STUCK
    assert (await replay_check(driver, [made(undo)])).ok


async def test_a_handler_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = await open_driver("memory://")
    await under_way(driver)
    monkeypatch.delattr(f"{__name__}.undo")
    (problem,) = (await replay_check(driver, [job])).problems
    assert (problem.kind, "undo" in problem.message) == ("definition", True)


async def test_the_newest_of_the_finished_ones() -> None:
    clock = VirtualClock()

    @workflow(name="w")
    async def old(ctx: Context, n: int) -> int:
        if n == 3:
            raise ValueError("no")
        return n

    @workflow(name="w")
    async def new(ctx: Context, n: int) -> int:
        if n == 3:
            raise ValueError("no")
        return n if n < 6 else -n

    driver = await open_driver("memory://")
    for number in range(8):
        clock.advance(10)
        await run_workflow(old, number, driver=driver, instance_id=str(number), clock=clock)
    assert [p.instance_id for p in (await replay_check(driver, [new], finished=5)).problems] == ["6", "7"]
    assert (await replay_check(driver, [new], finished=5)).replayed.total() == 5


async def test_what_goes_away_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = await open_driver("memory://")
    await under_way(driver)
    await under_way(driver, "j")
    scan = driver.scan

    async def without(begin: bytes, end: bytes, **how: Any) -> list[tuple[bytes, bytes]]:
        return [] if begin == InstanceKeys("i").all()[0] else await scan(begin, end, **how)

    monkeypatch.setattr(driver, "scan", without)
    assert (await replay_check(driver, [job])).replayed.total() == 1


async def test_one_that_got_stuck_while_it_was_rolled_back() -> None:
    @workflow(name="w")
    async def mistakes(ctx: Context) -> None:
        async def wrong(what: str) -> None:
            await ctx.step("undo", note, what)

        await ctx.step("one", note, "one", rollback=wrong)
        raise CriticalError("no")

    driver = await open_driver("memory://")
    result = await run_workflow(mistakes, driver=driver, instance_id="i")
    assert result.error is not None
    assert (result.status, result.error.kind) == (Status.STUCK, "definition")
    # The handler is there, and is not called; that the workflow fails is known.
    assert (await replay_check(driver, [mistakes])).ok
