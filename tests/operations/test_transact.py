"""`ctx.transact`: an author's writes and the record of them are one commit."""

from __future__ import annotations

from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from tests.ledger import Gate, add, read, total
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Backoff,
    Break,
    Context,
    Continue,
    CriticalError,
    Driver,
    LeaseLostError,
    RollbackError,
    Status,
    StepCriticalError,
    StepExhaustedError,
    run_workflow,
    workflow,
)
from workflow_sdk.driver import transacting
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

pytestmark = pytest.mark.law(1)

COMMITS_MAX = 60


transacts = pytest.mark.settings(store=("sqlite", "fdb"))
fdb = pytest.mark.settings(store="fdb")
memory = pytest.mark.settings(store="memory")


async def effect() -> str:
    return "done"


@workflow
async def transfer(ctx: Context, amount: int) -> list[int]:
    await ctx.step("before", effect)
    left = await ctx.transact("withdraw", add, "a", -amount)
    await ctx.step("between", effect)
    right = await ctx.transact("deposit", add, "b", amount)
    return [left, right]


@transacts
async def test_it_writes_and_records(world: World) -> None:
    result = await world.run(transfer, 5)
    assert result.output == [-5, 5]
    assert (await read(world.driver, "a"), await read(world.driver, "b")) == (-5, 5)
    entry = (await world.history())["withdraw"]
    assert (entry.kind, entry.status, entry.value, entry.attempts) == ("transact", "completed", -5, 1)
    assert (await world.run(transfer, 5)).output == [-5, 5]
    assert await read(world.driver, "a") == -5


@transacts
@pytest.mark.parametrize("side", ["crash_before", "crash_after", "fail_at", "conflict_at"])
async def test_it_writes_once_wherever_it_is_killed(world: World, side: str) -> None:
    for number in range(1, COMMITS_MAX):
        id = f"i{number}"
        at: Any = [number] if side.endswith("_at") else number
        faulty = FaultyDriver(world.driver, **{side: at})
        ended = False
        try:
            await world.run(transfer, 1, id=id, driver=faulty)
            ended = faulty.commits < number
        except BaseExceptionGroup as group:
            assert group.subgroup(SimulatedCrash) is not None  # noqa: PT017  # of a group
        except (SimulatedCrash, Exception):  # noqa: BLE001  # of the store, or of the lease
            assert faulty.commits >= number
        result = await world.run(transfer, 1, id=id)
        assert result.status is Status.COMPLETED
        assert result.output == [-number, number], (side, number)
        assert (await read(world.driver, "a"), await read(world.driver, "b")) == (-number, number)
        if ended:
            return
    raise AssertionError("it has no end")


@transacts
async def test_what_it_raises_undoes_its_writes_and_is_a_failed_step(world: World) -> None:
    class Overdrawn(Exception):
        pass

    def withdraw(transaction: Any, amount: int) -> None:
        if add(transaction, "a", -amount) < 0:
            raise Overdrawn("no money")

    @workflow
    async def careful(ctx: Context) -> str:
        try:
            await ctx.transact("withdraw", withdraw, 5)
        except StepExhaustedError as error:
            return f"{error.step} {error.attempts} {error.error.message}"
        return "paid"

    assert (await world.run(careful)).output == "withdraw 1 no money"
    assert await read(world.driver, "a") == 0
    assert (await world.history())["withdraw"].status == "failed"
    assert (await world.run(careful)).output == "withdraw 1 no money"


@transacts
async def test_an_iterator_that_ends_is_a_failure_like_others(world: World) -> None:
    def ends(transaction: Any) -> int:
        add(transaction, "a")
        return next(iter(()))

    @workflow
    async def iterates(ctx: Context) -> str:
        try:
            await ctx.transact("ends", ends)
        except StepExhaustedError as error:
            return error.error.message
        return "went on"

    with anyio.fail_after(PATIENCE):
        assert (await world.run(iterates)).output == "the function raised StopIteration"
    assert await read(world.driver, "a") == 0


@transacts
async def test_it_is_tried_again_if_that_is_asked_for(world: World) -> None:
    calls: list[int] = []

    def flaky(transaction: Any) -> int:
        calls.append(add(transaction, "a"))
        if len(calls) < 3:
            raise OSError("try again")
        return calls[-1]

    @workflow
    async def retrying(ctx: Context) -> int:
        return await ctx.transact("add", flaky, retries=4, backoff=Backoff(initial=10, jitter=0))

    before = world.clock.time()
    assert (await world.run(retrying)).output == 1
    assert calls == [1, 1, 1], "each try begins without what the one before has written"
    assert world.clock.time() - before >= 30
    assert (await world.history())["add"].attempts == 3


@transacts
async def test_it_is_not_tried_again_if_that_is_no_use(world: World) -> None:
    calls: list[str] = []

    def critical(transaction: Any) -> None:
        calls.append("critical")
        raise CriticalError("no")

    def excluded(transaction: Any) -> None:
        calls.append("excluded")
        raise KeyError("no")

    def unwritable(transaction: Any) -> object:
        calls.append("unwritable")
        add(transaction, "a")
        return object()

    @workflow
    async def failing(ctx: Context) -> int:
        failures = 0
        for fn in (critical, excluded, unwritable):
            try:
                await ctx.transact(fn.__name__, fn, retries=3, no_retry=KeyError)
            except StepCriticalError:
                failures += 1
        return failures

    assert (await world.run(failing)).output == 3
    assert calls == ["critical", "excluded", "unwritable"]
    assert await read(world.driver, "a") == 0, "what can't be recorded is not written"


async def number(value: int) -> int:
    return value


async def take_back(amount: int) -> None:
    taken_back.append(amount)


taken_back: list[int] = []


@transacts
async def test_it_is_undone_like_a_step(world: World) -> None:
    taken_back.clear()

    def fails(transaction: Any) -> None:
        add(transaction, "c")
        raise RollbackError("enough")

    @workflow
    async def saga(ctx: Context) -> None:
        await ctx.transact("one", add, "a", 1, rollback=take_back)
        await ctx.transact("two", add, "a", 1, rollback=take_back)
        await ctx.transact("three", fails, retries=5)

    result = await world.run(saga)
    assert result.status is Status.ROLLED_BACK
    assert taken_back == [2, 1]
    assert await read(world.driver, "c") == 0


class SlowToTell:
    """A store that says late that a transaction is committed."""

    def __init__(self, driver: Driver, told: anyio.Event) -> None:
        self._driver = driver
        self._told = told
        self.committed = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def transact(self, fn: Any, finish: Any, /) -> None:
        await transacting(self._driver).transact(fn, finish)  # type: ignore[union-attr]
        self.committed.set()
        await self._told.wait()


@pytest.mark.law(11)
@transacts
async def test_a_step_that_completes_while_it_commits_is_undone_too(world: World) -> None:
    taken_back.clear()
    completed, may_tell = anyio.Event(), anyio.Event()
    driver = SlowToTell(world.driver, may_tell)

    async def while_it_commits() -> int:
        await driver.committed.wait()
        completed.set()
        return 100

    async def tells() -> None:
        await completed.wait()
        for _ in range(20):  # until it is registered, too: that waits for nothing
            await anyio.lowlevel.checkpoint()
        may_tell.set()

    @workflow
    async def saga(ctx: Context) -> None:
        async def writes(ctx: Context) -> None:
            await ctx.transact("write", add, "a", 1, rollback=take_back)

        async def steps(ctx: Context) -> None:
            await ctx.step("meanwhile", while_it_commits, rollback=take_back)

        async def other(ctx: Context) -> None:
            await ctx.step("tell", tells)

        await ctx.step("first", number, 1000, rollback=take_back)
        await ctx.join("both", {"writes": writes, "steps": steps, "other": other})
        raise RollbackError("enough")

    result = await world.run(saga, driver=cast("Driver", driver))
    assert result.status is Status.ROLLED_BACK, result.error
    assert taken_back == [100, 1, 1000]


@transacts
async def test_many_side_by_side(world: World) -> None:
    @workflow
    async def wide(ctx: Context) -> list[int]:
        async def one(ctx: Context, number: int) -> int:
            await ctx.step("before", effect)
            value = await ctx.transact("add", add, "a", 1)
            await ctx.step("after", effect)
            return value

        return sorted(await ctx.map("all", one, range(10)))

    assert (await world.run(wide)).output == list(range(1, 11))
    assert await read(world.driver, "a") == 10


@transacts
async def test_a_lost_branch_that_has_not_begun_writes_nothing(world: World) -> None:
    @workflow
    async def race(ctx: Context) -> str:
        async def quick(ctx: Context) -> str:
            return "quick"

        async def late(ctx: Context) -> str:
            await ctx.sleep("first", 10)
            await ctx.transact("add", add, "a", 1)
            return "late"

        return (await ctx.race("race", {"quick": quick, "late": late})).winner

    assert (await world.run(race)).output == "quick"
    assert await read(world.driver, "a") == 0


# In SQLite, nobody takes a lease as long as a transaction has the file.
@pytest.mark.law(10)
@fdb
async def test_who_lost_the_lease_writes_nothing(world: World) -> None:
    gate = Gate()
    first = True

    def slow(transaction: Any) -> int:
        nonlocal first
        if first:
            first = False
            gate.wait()
        return add(transaction, "a")

    @workflow
    async def slowly(ctx: Context) -> int:
        return await ctx.transact("add", slow)

    raised: list[Exception] = []

    async def fenced() -> None:
        try:
            await run_workflow(slowly, driver=world.driver, instance_id="i", clock=world.clock)
        except LeaseLostError as error:
            raised.append(error)

    results: list[object] = []
    async with anyio.create_task_group() as group:
        group.start_soon(fenced)
        await gate.reached()
        result = await run_workflow(slowly, driver=world.driver, instance_id="i", clock=world.clock)
        results.append(result.output)
        gate.open()
    assert len(raised) == 1
    assert results == [1]
    assert await read(world.driver, "a") == 1


@transacts
async def test_in_a_loop(world: World) -> None:
    @workflow
    async def looping(ctx: Context) -> int:
        async def turn(ctx: Context, state: int) -> Any:
            value = await ctx.transact("add", add, "a", 1)
            return Break(value) if value == 50 else Continue(state + 1)

        return await ctx.loop("loop", turn, 0)

    assert (await world.run(looping)).output == 50
    assert await read(world.driver, "a") == 50


async def a_coroutine(transaction: Any) -> None: ...


@transacts
@pytest.mark.parametrize(
    ("fn", "options", "says"),
    [
        (a_coroutine, {}, "a plain function"),
        (3, {}, "a function to call, not int"),
        (total, {"timeout": 3}, "no option timeout; it has backoff, no_retry, retries, rollback"),
        (total, {"retries": -1}, "retries"),
    ],
    ids=["coroutine", "no function", "timeout", "retries"],
)
async def test_a_wrong_call_is_a_mistake(world: World, fn: Any, options: dict[str, Any], says: str) -> None:
    @workflow
    async def wrong(ctx: Context) -> None:
        await ctx.transact("add", fn, "a", **options)

    result = await world.run(wrong)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert says in result.error.message


@memory
async def test_a_store_without_transactions_says_so(world: World) -> None:
    result = await world.run(transfer, 5)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert "transact 'withdraw': this store has no transactions to write in" in result.error.message


@transacts
async def test_taken_out_of_the_code(world: World) -> None:
    @workflow(name="job")
    async def old(ctx: Context) -> None:
        await ctx.transact("add", add, "a", 1)
        await ctx.listen("go", timeout=None)

    @workflow(name="job")
    async def new(ctx: Context) -> str:
        await ctx.removed("add", "transact")
        return str(await ctx.listen("go"))

    assert (await world.once(old, mode="yield")).status is Status.WAITING
    await world.send("go", "on")
    assert (await world.run(new)).output == "on"


@transacts
async def test_an_operation_inside_is_a_mistake(world: World) -> None:
    @workflow
    async def nested(ctx: Context) -> None:
        def inner(transaction: Any) -> None:
            add(transaction, "a")
            ctx.step("inner", effect).close()

        await ctx.transact("outer", inner)

    result = await world.run(nested)
    assert result.status is Status.STUCK
    assert await read(world.driver, "a") == 0
