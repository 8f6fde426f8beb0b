"""A step that asks for an idempotency key is given one: the same for every attempt, and for no other step."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

import pytest

from tests.support import World
from workflow_sdk import Backoff, Break, Context, Continue, Status, step, workflow
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

keys: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    keys.clear()


async def charge(amount: int, *, idempotency_key: str = "") -> int:
    keys.append(idempotency_key)
    return amount


def in_thread(amount: int, idempotency_key: str = "") -> int:
    keys.append(idempotency_key)
    return amount


@step(retries=1)
async def decorated(idempotency_key: str = "") -> None:
    keys.append(idempotency_key)


class Bank:
    async def charge(self, amount: int, idempotency_key: str = "") -> int:
        keys.append(idempotency_key)
        return amount

    async def __call__(self, *, idempotency_key: str = "") -> None:
        keys.append(idempotency_key)


@workflow
async def pays(ctx: Context) -> list[int]:
    bank = Bank()
    found = [
        await ctx.step("one", charge, 1),
        await ctx.step("two", in_thread, 2),
        await ctx.step("three", partial(charge, 3)),
        await ctx.step("four", bank.charge, 4),
    ]
    await ctx.step("five", bank)
    await ctx.step(decorated)

    async def turn(ctx: Context, state: int) -> Any:
        await ctx.step("again", charge, state)
        return Break(None) if state else Continue(1)

    await ctx.loop("loop", turn, 0)
    return found


@pytest.mark.law(13)
async def test_every_step_has_one_of_its_own(world: World) -> None:
    assert (await world.run(pays)).output == [1, 2, 3, 4]
    assert len(keys) == len(set(keys)) == 8
    assert all(len(key) == 32 and int(key, 16) for key in keys)
    await world.run(pays, id="other")
    assert len(set(keys)) == 16


@pytest.mark.law(4)
async def test_it_is_the_same_after_a_crash_and_for_every_attempt(world: World) -> None:
    calls: list[str] = []

    async def flaky(*, idempotency_key: str = "") -> str:
        calls.append(idempotency_key)
        if len(calls) < 4:
            raise OSError("not yet")
        return idempotency_key

    @workflow
    async def persistent(ctx: Context) -> str:
        await ctx.step("first", charge, 1)
        return await ctx.step("flaky", flaky, retries=5, backoff=Backoff(initial=10))

    try:
        await world.run(persistent, driver=FaultyDriver(world.driver, crash_before=2))
    except* SimulatedCrash:
        pass
    result = await world.run(persistent)
    assert keys[0] == keys[1], "what was in flight at the crash runs again, with the same key"
    assert calls == [result.output] * 4
    assert result.output != keys[0]


async def test_what_is_given_is_left_alone(world: World) -> None:
    @workflow
    async def own(ctx: Context) -> None:
        await ctx.step("one", partial(charge, 1, idempotency_key="mine"))
        await ctx.step("two", in_thread, 2, "yours")
        await ctx.step("three", partial(in_thread, 2, "theirs"))

    await world.run(own)
    assert keys == ["mine", "yours", "theirs"]


async def take_back(amount: int, idempotency_key: str = "") -> None:
    keys.append(idempotency_key)


@pytest.mark.law(11)
async def test_handlers_have_one_too(world: World) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        await ctx.step("one", charge, 1, rollback=take_back)
        await ctx.step("two", charge, 1, rollback=take_back)
        raise ValueError("no")

    assert (await world.run(fails)).status is Status.ROLLED_BACK
    assert len(set(keys)) == 4


async def test_all_else_is_called_as_before(world: World) -> None:
    def other(**options: Any) -> int:
        return len(options)

    @workflow
    async def plain(ctx: Context) -> list[Any]:
        return [
            await ctx.step("one", other),
            await ctx.step("two", abs, -3),
            await ctx.step("three", partial(other, a=1)),
        ]

    assert (await world.run(plain)).output == [0, 3, 1]


def wrapping(fn: Any) -> Any:
    @wraps(fn)
    async def wrapper(*args: Any) -> Any:
        return await fn(*args)

    return wrapper


def handing_on(fn: Any) -> Any:
    @wraps(fn)
    async def wrapper(*args: Any, **options: Any) -> Any:
        return await fn(*args, **options)

    return wrapper


async def positional(amount: int, idempotency_key: str = "", /) -> None:
    keys.append(idempotency_key)


async def test_only_who_can_take_it_is_given_it(world: World) -> None:
    @workflow
    async def wrapped(ctx: Context) -> None:
        await ctx.step("one", wrapping(charge), 1)
        await ctx.step("two", handing_on(charge), 1)
        await ctx.step("three", positional, 1)

    await world.run(wrapped)
    assert [bool(key) for key in keys] == [False, True, False]


@pytest.mark.law(11)
async def test_a_handler_has_no_steps_key(world: World) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        await ctx.step("pay", charge, 1, rollback=take_back)
        await ctx.step("undo pay", charge, 1)
        await ctx.step("~undo pay", charge, 1)
        raise ValueError("no")

    await world.run(fails)
    assert len(set(keys)) == 4
