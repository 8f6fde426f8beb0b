"""Everything that one event changes is one batch: there is never a second call that a crash could fall before."""

from __future__ import annotations

import pytest

from tests.laws.watching import Change, WatchedDriver, everywhere
from tests.support import World
from workflow_sdk import Break, Context, Continue, Status, send_message, workflow
from workflow_sdk.rows.keys import FIELDS, INBOX, Field, InstanceKeys


async def give(value: int) -> int:
    return value


async def undo(value: int) -> None:
    """A rollback handler."""


async def refuse() -> None:
    raise ValueError("no")


def only(changes: list[Change]) -> Change:
    assert len(changes) == 1, f"one commit, not {len(changes)}"
    return changes[0]


async def test_creating_an_instance_is_one_commit(world: World) -> None:
    @workflow
    async def nothing(ctx: Context, n: int) -> int:
        return n

    driver = WatchedDriver(world.driver)
    await world.run(nothing, 1, driver=driver)
    first = driver.changes[0]
    assert first.fields == {Field.HEAD, Field.BIRTH, Field.TALLY}
    assert first.lease_taken
    assert len(driver.changes) == 2


async def test_a_step_its_name_and_its_compensation_are_one_commit(world: World) -> None:
    @workflow
    async def pay(ctx: Context) -> int:
        return await ctx.step("charge", give, 3, rollback=undo)

    driver = WatchedDriver(world.driver)
    await world.run(pay, driver=driver)
    done = only(driver.of("charge"))
    assert done.names == ["charge"]
    assert [item.path for item in done.compensations] == ["charge"]
    assert only([change for change in driver.changes if change.compensations]) is done
    assert only([change for change in driver.changes if change.names]) is done


async def test_a_compensation_is_one_commit_with_its_step_in_every_kind_of_scope(world: World) -> None:
    async def branch(ctx: Context) -> int:
        return await ctx.step("s", give, 1, rollback=undo)

    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.step("s", give, n, rollback=undo)
        return Break(n) if n else Continue(1)

    @workflow
    async def scopes(ctx: Context) -> None:
        await ctx.join("join", {"a": branch, "b": branch})
        await ctx.race("race", {"a": branch})
        await ctx.loop("loop", turn, 0)
        await ctx.attempt("attempt", branch)

    driver = WatchedDriver(world.driver, turns=1)
    await world.run(scopes, driver=driver)
    steps = ["join/a/s", "join/b/s", "race/a/s", "loop/~0/s", "loop/~1/s", "attempt/s"]
    registered: list[str] = []
    for change in driver.changes:
        final = [path for path in change.entries if change.is_final(path) and path.endswith("/s")]
        assert len(final) == len(change.compensations)
        registered += final
    assert sorted(registered) == sorted(steps)


async def test_the_message_leaves_the_inbox_with_the_entry_that_took_it(world: World) -> None:
    @workflow
    async def wait(ctx: Context) -> str:
        return await ctx.listen("approve", type=str)

    driver = WatchedDriver(world.driver)
    result = await world.run(wait, script=[("approve", "yes")], driver=driver)
    assert result.output == "yes"
    taken = only([change for change in driver.changes if change.consumed])
    assert taken.is_final("approve")
    assert len(taken.consumed) == 1


async def test_several_messages_leave_together(world: World) -> None:
    @workflow
    async def wait(ctx: Context) -> list[int]:
        return await ctx.listen_many("votes", "vote", count=3, type=int)

    driver = WatchedDriver(world.driver)
    result = await world.run(wait, script=[("vote", 1), ("vote", 2), ("vote", 3)], driver=driver)
    assert result.output == [1, 2, 3]
    taken = only([change for change in driver.changes if change.consumed])
    assert taken.is_final("votes")
    assert len(taken.consumed) == 3


async def test_sending_is_one_commit_with_the_stamp(world: World) -> None:
    @workflow
    async def wait(ctx: Context) -> str:
        return await ctx.listen("approve", type=str)

    await world.once(wait, mode="yield")
    driver = WatchedDriver(world.driver)
    await send_message(driver, "i", "approve", "yes", clock=world.clock)
    sent = only(driver.changes)
    assert sent.sent == 1
    assert sent.stamped
    assert InstanceKeys("i").field(Field.HEAD) in sent.checked
    assert InstanceKeys("i").lease in sent.checked


async def test_completing_is_one_commit(world: World) -> None:
    @workflow
    async def done(ctx: Context) -> int:
        return await ctx.step("s", give, 1)

    driver = WatchedDriver(world.driver)
    await world.run(done, driver=driver)
    last = only([change for change in driver.changes if Field.RESULT in change.fields])
    assert last is driver.changes[-1]
    assert last.status is Status.COMPLETED
    assert last.lease_released


async def test_failing_is_one_commit(world: World) -> None:
    @workflow
    async def fail(ctx: Context) -> None:
        await ctx.step("s", refuse, retries=0)

    driver = WatchedDriver(world.driver)
    await world.run(fail, driver=driver)
    last = only([change for change in driver.changes if Field.RESULT in change.fields])
    assert last is driver.changes[-1]
    assert last.status is Status.FAILED
    assert last.lease_released


async def test_becoming_stuck_is_one_commit(world: World) -> None:
    @workflow
    async def mistake(ctx: Context) -> None:
        await ctx.step("s", give, 1)
        await ctx.step("s", give, 1)

    driver = WatchedDriver(world.driver)
    await world.run(mistake, driver=driver)
    last = only([change for change in driver.changes if Field.RESULT in change.fields])
    assert last is driver.changes[-1]
    assert last.status is Status.STUCK
    assert last.lease_released


async def test_a_failure_with_compensations_is_recorded_with_the_status(world: World) -> None:
    @workflow
    async def fail(ctx: Context) -> None:
        await ctx.step("s", give, 1, rollback=undo)
        raise ValueError("no")

    driver = WatchedDriver(world.driver)
    result = await world.run(fail, driver=driver)
    assert result.status is Status.ROLLED_BACK
    failed = only([change for change in driver.changes if Field.RESULT in change.fields])
    assert failed.status is Status.ROLLING_BACK
    last = driver.changes[-1]
    assert last.status is Status.ROLLED_BACK
    assert last.lease_released


async def test_putting_away_is_one_commit(world: World) -> None:
    @workflow
    async def nap(ctx: Context) -> None:
        await ctx.step("rides along", give, 1, repeatable=True)
        await ctx.sleep("nap", 60)

    driver = WatchedDriver(world.driver)
    result = await world.once(nap, driver=driver, mode="yield")
    assert result.status is Status.SLEEPING
    away = only(driver.changes[1:])
    assert away.status is Status.SLEEPING
    assert away.head is not None
    assert away.head.alarm is not None
    assert (away.alarms, away.lease_released) == (1, True)
    assert set(away.entries) == {"rides along", "nap"}
    assert away.names == ["rides along", "nap"]
    # A message that comes between the last look into the inbox and this commit stops it.
    assert InstanceKeys("i").stamp in away.checked


async def test_waking_is_one_commit(world: World) -> None:
    @workflow
    async def nap(ctx: Context) -> None:
        await ctx.sleep("nap", 60)

    await world.once(nap, mode="yield")
    world.clock.advance(60)
    driver = WatchedDriver(world.driver)
    await world.once(nap, driver=driver)
    first = driver.changes[0]
    assert first.status is Status.RUNNING
    assert (first.alarms_cleared, first.lease_taken) == (1, True)


async def test_waiting_in_memory_is_one_commit(world: World) -> None:
    @workflow
    async def nap(ctx: Context) -> None:
        await ctx.sleep("nap", 60)

    driver = WatchedDriver(world.driver)
    await world.once(nap, driver=driver, mode="live")
    assert [change.status for change in driver.changes[:2]] == [Status.RUNNING, Status.SLEEPING]
    asleep = driver.changes[1]
    assert Field.HEAD in asleep.fields
    assert not asleep.is_final("nap")
    awake = only(driver.of("nap"))
    assert awake.status in (Status.RUNNING, Status.COMPLETED)


async def test_a_loop_stores_its_state_and_prunes_in_one_commit(world: World) -> None:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.step("s", give, n)
        return Break(n) if n == 5 else Continue(n + 1)

    @workflow
    async def count(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 0, commit_interval=2, history_keep=0)

    driver = WatchedDriver(world.driver)
    await world.run(count, driver=driver)
    stored = [change for change in driver.changes if "loop" in change.entries]
    # The first rides with the first step; then after turns 2 and 4, and the outcome.
    assert len(stored) == 4
    assert all(change.cleared for change in stored[1:])
    assert not any(change.cleared for change in driver.changes if "loop" not in change.entries)
    assert stored[-1].is_final("loop")


async def test_a_join_and_its_last_branches_are_one_commit(world: World) -> None:
    async def branch(ctx: Context) -> int:
        return await ctx.step("s", give, 1)

    @workflow
    async def both(ctx: Context) -> dict[str, int]:
        return await ctx.join("join", {"a": branch, "b": branch})

    driver = WatchedDriver(world.driver, turns=1)
    await world.run(both, driver=driver)
    done = only(driver.of("join"))
    assert done.is_final("join/a") or done.is_final("join/b")


async def test_a_reply_is_stored_once(world: World) -> None:
    @workflow
    async def answer(ctx: Context) -> None:
        message = await ctx.listen_message("question")
        await message.reply(42)

    driver = WatchedDriver(world.driver)
    result = await world.run(answer, script=[("question", None)], driver=driver)
    assert result.status is Status.COMPLETED
    # Nobody asked, so there is nothing to write for the reply.
    assert sum(bool(change.consumed) for change in driver.changes) == 1


async def check_whole(world: World, id: str, with_message: bool) -> None:
    """What is stored of `exchange` is of one event after the other, none of them by halves."""
    keys = InstanceKeys(id)
    fields = {key for key, _ in await world.driver.scan(*keys.range(FIELDS))}
    if not fields:
        assert await world.driver.scan(*keys.all()) == []
        assert await world.driver.get(keys.lease) is None
        return
    history = await world.history(id)
    for path in ("charge", "book"):
        registered = any(item.path == path for item in history.compensations)
        assert registered == (path in history and history[path].status.is_final)
    inbox = await world.driver.scan(*keys.range(INBOX))
    taken = "wait" in history and history["wait"].status.is_final
    assert len(inbox) == (1 if with_message and not taken else 0)
    assert history.status.is_terminal == (keys.field(Field.RESULT) in fields)
    if history.status.is_terminal:
        assert await world.driver.get(keys.lease) is None
    assert not [entry.path for entry in history if "?" in entry.path], "every name is stored"


@workflow
async def exchange(ctx: Context) -> str:
    await ctx.step("charge", give, 1, rollback=undo)
    name = await ctx.listen("wait", "name", type=str, timeout=60, default="nobody")
    await ctx.step("book", give, 2, rollback=undo)
    return name


@pytest.mark.parametrize("with_message", [True, False])
async def test_no_crash_leaves_half_an_event(world: World, with_message: bool) -> None:
    """At every commit, before and after: the message is in the inbox or taken, a step has its compensation."""

    async def prepare(id: str) -> None:
        if with_message:
            await world.once(exchange, id=id, mode="yield")
            await world.send("name", "Ada", id=id)

    async def check(id: str) -> None:
        await check_whole(world, id, with_message)

    crashes = await everywhere(world, exchange, check, prepare=prepare)
    # Claim, charge, idle, take, book, end; with the message there, only the claim and what comes after it.
    assert crashes >= (8 if with_message else 10)
