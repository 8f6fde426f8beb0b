"""What is told apart by its order alone has to come in the same order: derived names, and the items of a map."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.laws.parts import give
from tests.laws.test_law_08_divergence import SCOPES
from tests.support import World
from workflow_sdk import Context, Driver, RunResult, Status, Workflow, run_workflow, step, workflow
from workflow_sdk.driver import Batch, Set
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.keys import HISTORY, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

Run = Callable[[Context, Sequence[Any]], Any]
"""What is done with some items."""


class Shop:
    """Charges customers, and writes down what it has done."""

    def __init__(self) -> None:
        self.charged: list[object] = []
        self.shipped: list[object] = []
        self.undone: list[object] = []
        self.dies_after: int | None = None
        """The process dies once so many charges are recorded."""

    async def charge(self, item: object) -> str:
        self.charged.append(item)
        return f"paid for {item}"

    async def ship(self, item: object, paid: object = None) -> None:
        self.shipped.append(item)

    async def undo(self, paid: object) -> None:
        self.undone.append(paid)

    def driver(self, driver: Driver) -> FaultyDriver:
        """The store, as the process that dies sees it."""
        return FaultyDriver(driver, crash_after=lambda number, batch: len(self.charged) == self.dies_after)


def of(run: Run, items: Sequence[Any]) -> Workflow[None, Any]:
    """A workflow, as it stands in a process in which the items come in this order."""

    @workflow(name="w")
    async def w(ctx: Context) -> Any:
        return await run(ctx, items)

    return w


async def die(world: World, shop: Shop, run: Run, items: Sequence[Any], *, charges: int) -> None:
    """A process dies that has made some of the charges."""
    shop.dies_after = charges
    driver = shop.driver(world.driver)
    try:
        await world.run(of(run, items), driver=driver)
    except* SimulatedCrash:
        pass
    assert driver.crashed
    assert shop.charged == list(items[:charges])


def assert_stopped(result: RunResult[Any], *says: str) -> None:
    assert result.status is Status.STUCK
    assert result.error is not None
    assert (result.error.kind, result.error.type) == ("consistency", "workflow_sdk.errors.HistoryDivergedError")
    for text in says:
        assert text in result.error.message


# Derived names.


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize("charges", [1, 2])
async def test_a_set_that_comes_in_another_order_charges_nobody_twice(world: World, shop: Shop, charges: int) -> None:
    async def run(ctx: Context, items: Sequence[Any]) -> list[str]:
        return [await ctx.step(shop.charge, item) for item in items]

    await die(world, shop, run, ["a", "b", "c"], charges=charges)
    result = await world.run(of(run, ["b", "a", "c"]))
    assert_stopped(result, "step 'charge'", "sort it", "same order")
    assert shop.charged == ["a", "b", "c"][:charges]
    # Mended code goes on.
    result = await world.run(of(run, ["a", "b", "c"]))
    assert (result.status, result.output) == (Status.COMPLETED, ["paid for a", "paid for b", "paid for c"])
    assert shop.charged == ["a", "b", "c"]


async def test_nothing_is_done_with_the_value_of_another_item(world: World, shop: Shop) -> None:
    """Though nobody can know yet that the name will come again."""

    async def pay(ctx: Context, item: object) -> str:
        return await ctx.step(shop.charge, item)

    async def run(ctx: Context, items: Sequence[Any]) -> None:
        for item in items:
            paid = await pay(ctx, item)
            await ctx.step(f"ship-{item}", shop.ship, item, paid)

    await die(world, shop, run, ["a", "b"], charges=1)
    assert_stopped(await world.run(of(run, ["b", "a"])), "step 'charge'")
    assert (shop.charged, shop.shipped) == (["a"], [])


async def test_two_calls_that_are_not_in_a_loop_are_told_apart_at_the_second(world: World, shop: Shop) -> None:
    async def run(ctx: Context, items: Sequence[Any]) -> None:
        first, second = items
        await ctx.step(shop.charge, first)
        await ctx.step(shop.charge, second)

    await die(world, shop, run, ["a", "b"], charges=1)
    assert_stopped(await world.run(of(run, ["b", "a"])), "step 'charge'")
    assert shop.charged == ["a"]


async def test_a_second_call_that_is_recorded_says_it_at_the_first(world: World, shop: Shop) -> None:
    async def run(ctx: Context, items: Sequence[Any]) -> None:
        first, second = items
        await ctx.step(shop.charge, first)
        await ctx.step(f"ship-{first}", shop.ship, first)
        await ctx.step(shop.charge, second)
        await ctx.step(f"ship-{second}", shop.ship, second)

    await die(world, shop, run, ["a", "b"], charges=2)
    assert_stopped(await world.run(of(run, ["b", "a"])), "step 'charge'")
    assert (shop.charged, shop.shipped) == (["a", "b"], ["a"])


@pytest.mark.parametrize("scope", [scope for scope in SCOPES if scope != "stored loop"])
async def test_in_every_scope(world: World, shop: Shop, scope: str) -> None:
    path, around = SCOPES[scope]

    async def run(ctx: Context, items: Sequence[Any]) -> None:
        async def body(ctx: Context) -> None:
            for item in items:
                await ctx.step(shop.charge, item)
            await ctx.sleep("wait", 60)

        await around(body)(ctx)

    await die(world, shop, run, ["a", "b"], charges=1)
    assert_stopped(await world.run(of(run, ["b", "a"])), f"step '{path}charge'")
    assert shop.charged == ["a"]


async def test_a_call_that_failed_and_is_tried_again_is_still_for_the_same_item(world: World, shop: Shop) -> None:
    async def refuse(item: object) -> None:
        shop.charged.append(item)
        raise ValueError("later")

    async def run(ctx: Context, items: Sequence[Any]) -> None:
        for item in items:
            await ctx.step(refuse, item, retries=1)

    await world.once(of(run, ["a", "b"]), mode="yield")
    assert shop.charged == ["a"]
    assert_stopped(await world.run(of(run, ["b", "a"])), "step 'refuse'")
    assert shop.charged == ["a"]


async def test_a_failure_is_not_given_to_another_item(world: World, shop: Shop) -> None:
    async def charge(item: object) -> None:
        shop.charged.append(item)
        if item == "a":
            raise ValueError("no")

    async def run(ctx: Context, items: Sequence[Any]) -> list[object]:
        refused: list[object] = []
        for item in items:
            try:
                await ctx.step(charge, item, retries=0)
            except Exception:  # noqa: BLE001  # what fails is noted
                refused.append(item)
        return refused

    await die(world, shop, run, ["a", "b"], charges=1)
    assert_stopped(await world.run(of(run, ["b", "a"])), "step 'charge'")
    assert shop.charged == ["a"]


async def test_a_charge_is_not_undone_with_the_arguments_of_another(world: World, shop: Shop) -> None:
    """The code is walked over its history to find what undoes it."""

    async def refuse() -> None:
        raise ValueError("no")

    class DiesWhenItFails(FaultyDriver):
        async def commit(self, batch: Batch, /) -> None:
            await super().commit(batch)
            if any(b"ValueError" in write.value for write in batch.writes if isinstance(write, Set)):
                self.crash()

    async def run(ctx: Context, items: Sequence[Any]) -> None:
        for item in items:
            await ctx.step(shop.charge, item, rollback=lambda paid, item=item: shop.undo(item))
        await ctx.step("refuse", refuse, retries=0)

    driver = DiesWhenItFails(world.driver)
    try:
        await world.run(of(run, ["a", "b"]), driver=driver)
    except* SimulatedCrash:
        pass
    assert driver.crashed
    result = await world.run(of(run, ["b", "a"]))
    assert (result.status, shop.undone) == (Status.STUCK, [])


@dataclass(frozen=True)
class Customer:
    name: str

    async def pay(self, *amounts: int, **named: int) -> int:
        return sum(amounts) + sum(named.values())

    @step
    async def owe(self, amount: int) -> int:
        return amount


GIVEN: dict[str, Callable[[Context, Any], Any]] = {
    "positionally": lambda ctx, x: ctx.step(give, x),
    "in a list": lambda ctx, x: ctx.step(give, [1, {"key": x}]),
    "by a partial": lambda ctx, x: ctx.step(partial(give, x)),
    "by name": lambda ctx, x: ctx.step(partial(give, value=x)),
    "by a method of a value": lambda ctx, x: ctx.step(Customer(x).pay, 1),
    "by a step that is a method": lambda ctx, x: ctx.step(Customer(x).owe, 1),
    "by the type of what can't be encoded": lambda ctx, x: ctx.step(repr, object() if x == "a" else print),
}


@pytest.mark.parametrize("way", GIVEN)
async def test_however_the_arguments_are_given(world: World, way: str) -> None:
    async def run(ctx: Context, items: Sequence[Any]) -> None:
        for item in items:
            await GIVEN[way](ctx, item)
        await ctx.sleep("wait", 60)

    await world.once(of(run, ["a", "b"]), mode="yield")
    assert_stopped(await world.run(of(run, ["b", "a"])), "other arguments")


Plain = Callable[[], Any]

EQUAL: dict[str, tuple[Plain, Plain]] = {
    "dicts": (lambda: {"x": 1, "y": [2]}, lambda: {"y": [2], "x": 1}),
    "sets": (lambda: {1, 2, "x", (3, 4)}, lambda: {(3, 4), "x", 2, 1}),
    "connections": (object, object),
    "functions": (lambda: give, lambda: of),
    "text that is none": (lambda: ["\ud800"], lambda: ["\ud801"]),
    "methods of services": (lambda: Shop().ship, lambda: Shop().ship),
}
"""What can't be encoded counts by its type alone."""


@pytest.mark.parametrize("what", EQUAL)
async def test_equal_arguments_are_the_same(world: World, what: str) -> None:
    async def run(ctx: Context, items: Sequence[Any]) -> int:
        for item in items:
            await ctx.step(repr, item())
        await ctx.sleep("wait", 60)
        return 1

    first, second = EQUAL[what]
    await world.once(of(run, [first, second]), mode="yield")
    assert (await world.run(of(run, [second, first]))).status is Status.COMPLETED


@pytest.mark.parametrize("now", ["a field more", "a field less", "another module"])
async def test_a_class_that_has_changed_is_not_taken_for_other_arguments(world: World, now: str) -> None:
    was = dataclasses.make_dataclass("Order", [("id", int), ("note", str, "")], namespace={"__module__": __name__})
    is_now = {
        "a field more": dataclasses.make_dataclass("Order", [("id", int), ("note", str, ""), ("vat", int, 19)]),
        "a field less": dataclasses.make_dataclass("Order", [("id", int)]),
        "another module": dataclasses.make_dataclass("Order", [("id", int), ("note", str, "")]),
    }[now]

    async def run(ctx: Context, orders: Sequence[Any]) -> int:
        for order in orders:
            await ctx.step(repr, order)
        await ctx.sleep("wait", 60)
        return 1

    await world.once(of(run, [was(1), was(2)]), mode="yield")
    assert (await world.run(of(run, [is_now(1), is_now(2)]))).status is Status.COMPLETED


async def test_objects_of_two_classes_are_told_apart(world: World, shop: Shop) -> None:
    @dataclass
    class Cash:
        cents: int

    @dataclass
    class Cheque:
        cents: int

    async def run(ctx: Context, items: Sequence[Any]) -> None:
        for item in items:
            await ctx.step(shop.charge, item)

    await die(world, shop, run, [Cash(1), Cheque(1)], charges=1)
    assert_stopped(await world.run(of(run, [Cheque(1), Cash(1)])))


# What may change.


async def test_a_call_that_comes_once_may_get_other_arguments(world: World, shop: Shop) -> None:
    """So code can be changed: the value that is recorded is still its own."""

    async def run(ctx: Context, items: Sequence[Any]) -> str:
        paid = await ctx.step(shop.charge, items[0])
        await ctx.step(shop.ship, items[0])
        return paid

    await die(world, shop, run, ["a"], charges=1)
    result = await world.run(of(run, ["b"]))
    assert (result.status, result.output) == (Status.COMPLETED, "paid for a")
    assert (shop.charged, shop.shipped) == (["a"], ["b"])


async def test_a_name_that_is_written_tells_what_it_is_for(world: World, shop: Shop) -> None:
    async def run(ctx: Context, items: Sequence[Any]) -> dict[str, str]:
        return {item: await ctx.step(f"charge {item}", shop.charge, item) for item in items}

    await die(world, shop, run, ["a", "b"], charges=2)
    result = await world.run(of(run, ["b", "a"]))
    assert result.output == {"a": "paid for a", "b": "paid for b"}
    assert shop.charged == ["a", "b"]


async def test_the_name_is_written_where_arguments_were_changed_on_purpose(world: World, shop: Shop) -> None:
    async def before(ctx: Context, items: Sequence[Any]) -> None:
        for item in items:
            await ctx.step(shop.charge, item)

    async def after(ctx: Context, items: Sequence[Any]) -> list[str]:
        names = ["charge", "charge:1"]
        return [await ctx.step(name, shop.charge, item) for name, item in zip(names, items, strict=True)]

    await die(world, shop, before, ["a", "b"], charges=1)
    result = await world.run(of(before, ["A", "B"]))
    assert_stopped(result, "ctx.step('charge', ...)")
    result = await world.run(of(after, ["A", "B"]))
    assert (result.status, result.output) == (Status.COMPLETED, ["paid for a", "paid for B"])


async def test_what_was_recorded_without_a_digest_goes_on(world: World, shop: Shop) -> None:
    """As it was by earlier versions."""

    async def run(ctx: Context, items: Sequence[Any]) -> list[str]:
        return [await ctx.step(shop.charge, item) for item in items]

    await die(world, shop, run, ["a", "b"], charges=1)
    ((key, raw),) = await world.driver.scan(*InstanceKeys("i").range(HISTORY))
    entry = Entry.unpack(raw)
    assert entry.digest is not None
    entry.digest = None
    batch = Batch()
    batch.set(key, entry.pack())
    await world.driver.commit(batch)
    result = await world.run(of(run, ["A", "b"]))
    assert (result.status, result.output) == (Status.COMPLETED, ["paid for a", "paid for b"])


async def test_nothing_is_kept_of_calls_without_arguments(world: World, shop: Shop) -> None:
    """Nor of those whose name is written: a digest is for what can come in another order."""

    async def run(ctx: Context, items: Sequence[Any]) -> None:
        await ctx.step(list)
        await ctx.step("ship", shop.ship, 1)
        await ctx.step(shop.charge, 1)

    await world.once(of(run, []))
    rows = await world.driver.scan(*InstanceKeys("i").range(HISTORY))
    assert [Entry.unpack(raw).digest is not None for _, raw in rows] == [False, False, True]


class Secret:
    """A codec that hides what it is given."""

    def encode(self, data: bytes) -> bytes:
        return b"sealed" + bytes(byte ^ 0x55 for byte in data)

    def decode(self, data: bytes) -> bytes:
        assert data.startswith(b"sealed")
        return bytes(byte ^ 0x55 for byte in data[6:])


async def test_a_digest_of_what_is_secret_is_secret(world: World, shop: Shop) -> None:
    """Whoever guesses the arguments could find out from it that they are right."""

    async def run(ctx: Context, items: Sequence[Any]) -> None:
        for item in items:
            await ctx.step(shop.charge, item)

    for order, status in ((["a", "b"], Status.COMPLETED), (["b", "a"], Status.STUCK)):
        shop.charged.clear()
        shop.dies_after = 1
        driver = shop.driver(world.driver)
        try:
            await run_workflow(of(run, ["a", "b"]), driver=driver, instance_id=str(order), codec=Secret())
        except* SimulatedCrash:
            pass
        ((_, raw),) = await world.driver.scan(*InstanceKeys(str(order)).range(HISTORY))
        digest = Entry.unpack(raw).digest
        assert digest is not None
        assert b"sealed" in digest
        result = await run_workflow(of(run, order), driver=world.driver, instance_id=str(order), codec=Secret())
        assert result.status is status


# Items of a map.


@pytest.mark.parametrize("limit", [1, None])
async def test_the_items_of_a_map_come_in_the_same_order(world: World, shop: Shop, limit: int | None) -> None:
    async def run(ctx: Context, items: Sequence[Any]) -> list[str]:
        async def each(ctx: Context, item: object) -> str:
            if item == "b":
                await ctx.sleep("wait", 60)
            return await ctx.step("charge", shop.charge, item)

        return await ctx.map("charges", each, items, limit=limit)

    await world.once(of(run, ["a", "b"]), mode="yield")
    assert shop.charged == ["a"]
    assert_stopped(await world.run(of(run, ["b", "a"])), "map 'charges'", "other items", "sort it", "ctx.removed")
    assert shop.charged == ["a"]
    result = await world.run(of(run, ["a", "b"]))
    assert (result.status, result.output) == (Status.COMPLETED, ["paid for a", "paid for b"])


async def test_the_values_of_a_finished_map_go_to_no_other_items(world: World, shop: Shop) -> None:
    async def run(ctx: Context, items: Sequence[Any]) -> list[tuple[Any, str]]:
        values = await ctx.map("charges", lambda ctx, item: ctx.step("charge", shop.charge, item), items)
        await ctx.sleep("wait", 60)
        return list(zip(items, values, strict=True))

    await world.once(of(run, ["a", "b"]), mode="yield")
    assert_stopped(await world.run(of(run, ["b", "a"])), "map 'charges'")
    assert (await world.run(of(run, ["a", "b"]))).output == [("a", "paid for a"), ("b", "paid for b")]
