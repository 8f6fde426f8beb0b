"""`restart_from` of what was undone, of a race, and of what a cancel has ended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import World
from workflow_sdk import Break, Client, Context, Continue, RollbackError, Status, workflow
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.rewind import recover
from workflow_sdk.client import handle as control
from workflow_sdk.rows.keys import ARCHIVE, InstanceKeys
from workflow_sdk.values import Codec

pytestmark = pytest.mark.law(11)


class Shop:
    """What is charged, what is shipped, and which keys the payment service has seen."""

    def __init__(self) -> None:
        self.balance = 0
        self.shipped: list[int] = []
        self.keys: list[str] = []
        self.is_broken = True

    async def charge(self, amount: int, *, idempotency_key: str = "") -> int:
        if idempotency_key not in self.keys:
            self.keys.append(idempotency_key)
            self.balance += amount
        return amount

    async def refund(self, amount: int, *, idempotency_key: str = "") -> None:
        if idempotency_key not in self.keys:
            self.keys.append(idempotency_key)
            self.balance -= amount

    async def ship(self) -> None:
        if self.is_broken:
            raise RollbackError("no stock")
        self.shipped.append(self.balance)


async def restart(world: World, path: str | None) -> None:
    await control.restart_from(world.driver, "i", path, world.clock.time())


@pytest.mark.parametrize("path", ["ship", "pack", None, "charge"])
@pytest.mark.parametrize("around", ["nothing", "attempt", "join"])
async def test_what_was_undone_happens_again(world: World, path: str | None, around: str) -> None:
    """Nothing is shipped that was refunded; and the payment service does not take it for a repetition."""
    shop = Shop()

    async def pays(ctx: Context) -> None:
        await ctx.step("charge", shop.charge, 50, rollback=shop.refund)

    @workflow
    async def orders(ctx: Context) -> None:
        if around == "attempt":
            await ctx.attempt("paying", pays)
        elif around == "join":
            await ctx.join("paying", {"pays": pays})
        else:
            await pays(ctx)
        await ctx.step("pack", lambda: None)
        await ctx.step("ship", shop.ship)

    for round_ in range(2):
        assert (await world.run(orders)).status is Status.ROLLED_BACK, round_
        assert shop.balance == 0
        if path == "charge":
            path = {"nothing": path, "attempt": "paying/charge", "join": "paying/pays/charge"}[around]
        await restart(world, path)
    shop.is_broken = False
    result = await world.run(orders)
    assert result.status is Status.COMPLETED, result.error
    assert (shop.shipped, shop.balance) == ([50], 50)
    assert len(shop.keys) == 5, "three charges, two refunds, each with a key of its own"


async def test_what_is_done_again_in_a_loop(world: World) -> None:
    shop = Shop()

    @workflow
    async def orders(ctx: Context) -> None:
        async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
            await ctx.step("charge", shop.charge, 10**number, rollback=charged_back)
            return Continue(number + 1) if number < 3 else Break()

        await ctx.checkpoint("nothing before")
        await ctx.loop("loop", turn, 0)
        await ctx.step("ship", shop.ship)

    _shops[:] = [shop]
    assert (await world.run(orders)).status is Status.ROLLED_BACK
    assert shop.balance == 0
    shop.is_broken = False
    await restart(world, "ship")
    assert (await world.run(orders)).status is Status.COMPLETED
    assert shop.shipped == [1111]


async def test_what_was_undone_before_a_loop_takes_the_loop_with_it(world: World) -> None:
    """Also if a turn of that very loop is what is restarted from."""
    shop = Shop()
    turns: list[int] = []

    @workflow
    async def orders(ctx: Context) -> None:
        async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
            await ctx.step("pack", lambda: turns.append(number))
            if number < 2:
                return Continue(number + 1)
            await ctx.step("ship", shop.ship)
            return Break()

        await ctx.step("charge", shop.charge, 50, rollback=shop.refund)
        await ctx.loop("loop", turn, 0, commit_interval=1, history_keep=10)

    assert (await world.run(orders)).status is Status.ROLLED_BACK
    shop.is_broken = False
    turns.clear()
    await restart(world, "loop/~1")
    result = await world.run(orders)
    assert result.status is Status.COMPLETED, result.error
    assert (turns, shop.shipped) == ([0, 1, 2], [50])


_shops: list[Shop] = []


async def charged_back(amount: int) -> None:
    _shops[0].balance -= amount


async def test_half_of_it_was_undone(world: World) -> None:
    """What is still to be undone is kept as it is done."""
    shop = Shop()
    refuses = [True]

    async def may_refuse(result: str) -> None:
        if refuses:
            raise ConnectionError("not now")

    async def note(name: str) -> str:
        done.append(name)
        return name

    async def forget(name: str) -> None:
        done.remove(name)

    done: list[str] = []

    @workflow
    async def orders(ctx: Context) -> None:
        await ctx.step("a", note, "a", rollback=may_refuse)
        await ctx.step("b", note, "b", rollback=forget)
        await ctx.step("ship", shop.ship)

    assert (await world.run(orders)).status is Status.STUCK
    assert done == ["a"]
    await restart(world, "ship")
    assert (await world.run(orders)).status is Status.STUCK
    assert done == ["a"], "b was done again, and undone again"
    shop.is_broken = False
    await restart(world, "ship")
    assert (await world.run(orders)).status is Status.COMPLETED
    assert done == ["a", "b"]


async def test_a_race_that_is_run_again_leaves_nothing_of_the_last_time(world: World) -> None:
    """Handlers of losers are given what they hold by the race that was run last."""
    undone: list[tuple[int, int]] = []
    prices = iter([1, 2, 3, 4])

    async def price() -> int:
        return next(prices)

    @workflow
    async def races(ctx: Context) -> None:
        async def loses(ctx: Context) -> None:
            held = await ctx.step("price", price)

            async def undo(result: int) -> None:
                undone.append((held, result))

            await ctx.step("charge", lambda: held * 10, rollback=undo)
            await ctx.sleep("long", 1000)

        async def wins(ctx: Context) -> None:
            await ctx.sleep("short", 10)

        await ctx.step("first", lambda: 0, rollback=lambda _: None)
        await ctx.race("race", {"loses": loses, "wins": wins})
        if await ctx.listen("ok", type=str) == "no":
            raise RollbackError("enough")

    async def archive() -> int:
        return len(await world.driver.scan(*InstanceKeys("i").range(ARCHIVE)))

    await run_until_waiting(world, races)
    assert await archive() > 0
    await restart(world, "race")
    assert await archive() == 0
    await run_until_waiting(world, races)
    await world.send("ok", "no")
    assert (await world.run(races)).status is Status.ROLLED_BACK
    assert undone == [(2, 20)]


async def run_until_waiting(world: World, job: Any) -> None:
    """Every run is one of a process that has seen nothing before."""
    while not (result := await world.once(job, mode="yield")).waiting_for:
        assert result.wake_at is not None
        world.clock.advance(result.wake_at.timestamp() - world.clock.time())


@pytest.mark.parametrize("on_cancel", ["cancel", "abandon"])
@pytest.mark.parametrize("what", ["child", "task"])
async def test_a_wait_that_a_cancel_has_ended_begins_anew(world: World, what: str, on_cancel: Any) -> None:
    ran: list[str] = []

    async def work() -> None:
        ran.append("work")

    @workflow
    async def child(ctx: Context) -> str:
        return await ctx.listen("go", type=str)

    @workflow
    async def parent(ctx: Context) -> Any:
        async def waits(ctx: Context) -> Any:
            if what == "child":
                return await ctx.child("child", child, on_cancel=on_cancel)
            return (await ctx.task("task", type=str)).value

        async def works(ctx: Context) -> None:
            await ctx.step("work", work)
            await ctx.listen("ok")

        return (await ctx.join("join", {"waits": waits, "works": works}))["waits"]

    async with Client(world.driver, clock=world.clock) as client:
        await world.once(parent, mode="yield")
        await client.handle(parent, "i").cancel()
        await restart(world, "join/works/work")
        await world.once(parent, mode="yield")
        await world.send("ok")
        if what == "task":
            (task,) = (await client.tasks.list(instance="i")).items
            await client.tasks.complete(task.id, "yes", by="somebody")
        else:
            children = (await client.list(workflow=child)).items
            open_ones = [info for info in children if not info.status.is_terminal]
            assert len(open_ones) == 1
            assert len(children) == (1 if on_cancel == "abandon" else 2)
            await client.handle(child, open_ones[0].id).send("go", "yes")
            await world.once(child, id=open_ones[0].id, mode="yield")
        result = await world.once(parent, mode="yield")
    assert (result.status, result.output) == (Status.COMPLETED, "yes"), result
    assert ran == ["work", "work"]


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("rollback", [False, True])
async def test_a_cancel_while_it_rolls_back_lets_it_finish(world: World, refuses: bool, rollback: bool) -> None:
    undone: list[str] = []

    async def undo(name: str) -> None:
        if name == "b" and not undone:
            undone.append("fails once")
            raise ConnectionError("once more")
        if name == "a" and refuses:
            raise ConnectionError("not at all")
        undone.append(name)

    async def note(name: str) -> str:
        return name

    @workflow
    async def fails(ctx: Context) -> None:
        await ctx.step("a", note, "a", rollback=undo)
        await ctx.step("b", note, "b", rollback=undo)
        raise RollbackError("enough")

    assert (await world.once(fails, mode="yield")).status is Status.ROLLING_BACK
    assert undone == ["fails once"]
    await control.cancel(world.driver, "i", Codec(), world.clock.time(), rollback=rollback)
    result = await world.run(fails)
    if not refuses:
        assert result.status is Status.CANCELLED
        assert undone == ["fails once", "b", "a"]
        return
    assert result.status is Status.STUCK
    refuses = False
    await apply(world.driver, recover("i", world.clock.time()))
    assert (await world.run(fails)).status is Status.CANCELLED
    assert undone == ["fails once", "b", "a"]
