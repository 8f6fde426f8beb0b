"""`ctx.step`: which functions it runs, under which names, and what it gives back. Failures are in `test_retries.py`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support import World
from workflow_sdk import (
    Backoff,
    Context,
    EntryStatus,
    Kind,
    Status,
    StepExhaustedError,
    step,
    workflow,
)
from workflow_sdk.definitions import StepOverrides
from workflow_sdk.testing import FaultyDriver


@dataclass
class Charge:
    amount: int
    parts: tuple[int, ...]


async def async_one(value: int) -> int:
    return value + 1


def plain_one(value: int) -> int:
    return value + 1


@step
async def decorated(value: int) -> int:
    return value + 1


@step(retries=0, timeout=5)
def decorated_plain(value: int) -> int:
    return value + 1


class Shop:
    def __init__(self, plus: int) -> None:
        self.plus = plus

    async def waits(self, value: int) -> int:
        return value + self.plus

    def plain(self, value: int) -> int:
        return value + self.plus

    @step(retries=0)
    async def stepped(self, value: int) -> int:
        return value + self.plus

    @staticmethod
    async def static(value: int) -> int:
        return value + 1

    @classmethod
    def of_class(cls, value: int) -> int:
        return value + 1

    def __call__(self, value: int) -> int:
        return value + self.plus


class AsyncShop:
    async def __call__(self, value: int) -> int:
        return value + 1


SHOP = Shop(1)

# Every form of a function, the name that its step has, and all of them add one.
FORMS: list[tuple[str, Callable[[int], Any]]] = [
    ("async_one", async_one),
    ("plain_one", plain_one),
    ("decorated", decorated),
    ("decorated_plain", decorated_plain),
    ("waits", SHOP.waits),
    ("plain", SHOP.plain),
    ("stepped", SHOP.stepped),
    ("static", SHOP.static),
    ("of_class", Shop.of_class),
    ("Shop", SHOP),
    ("AsyncShop", AsyncShop()),
    ("<lambda>", lambda value: value + 1),
    ("<lambda>:1", lambda value: async_one(value)),
    ("async_one:1", functools.partial(async_one)),
    ("plain_one:1", functools.partial(plain_one)),
    ("waits:1", functools.partial(SHOP.waits)),
    ("decorated:1", functools.partial(decorated)),
]


async def test_every_form_of_function_can_be_a_step(world: World) -> None:
    @workflow
    async def count(ctx: Context) -> list[int]:
        values = [await ctx.step(fn, number) for number, (_, fn) in enumerate(FORMS)]
        await ctx.sleep("pause", 60)
        return values

    result = await world.run(count)
    assert result.output == [number + 1 for number in range(len(FORMS))]
    assert [entry.path for entry in await world.history()] == [*(name for name, _ in FORMS), "pause"]


async def test_a_step_runs_once_and_gives_its_value(world: World) -> None:
    ran: list[int] = []

    async def charge(amount: int) -> int:
        ran.append(amount)
        return amount * 2

    @workflow
    async def pay(ctx: Context, amount: int) -> int:
        first = await ctx.step("charge", charge, amount)
        await ctx.sleep("pause", 60)
        return first

    result = await world.run(pay, 21)
    assert (result.status, result.output) == (Status.COMPLETED, 42)
    assert ran == [21]


async def test_a_step_without_a_value_is_recorded_too(world: World) -> None:
    ran: list[None] = []

    @workflow
    async def quiet(ctx: Context) -> None:
        nothing: Any = await ctx.step("nothing", lambda: ran.append(None))
        assert nothing is None
        await ctx.sleep("pause", 60)

    result = await world.run(quiet)
    assert (result.status, result.output, ran) == (Status.COMPLETED, None, [None])


async def test_a_plain_function_runs_in_a_worker_thread(world: World) -> None:
    here = threading.get_ident()

    @workflow
    async def threads(ctx: Context) -> list[bool]:
        plain = await ctx.step("plain", threading.get_ident)

        async def ident() -> int:
            return threading.get_ident()

        return [plain == here, await ctx.step("async", ident) == here]

    assert (await world.run(threads)).output == [False, True]


async def test_names_are_derived_once_for_each_use(world: World) -> None:
    @workflow
    async def names(ctx: Context) -> None:
        await ctx.step("plain_one:1", plain_one, 0)
        await ctx.step(plain_one, 1)
        await ctx.step(plain_one, 2)
        await ctx.step(functools.partial(plain_one, 3))

    await world.run(names)
    assert [entry.name for entry in await world.history()] == ["plain_one:1", "plain_one", "plain_one:2", "plain_one:3"]


async def test_the_options_of_a_call_go_over_those_of_the_step(world: World) -> None:
    ran: list[str] = []

    @step(retries=0)
    async def fails(what: str) -> None:
        ran.append(what)
        raise ValueError(what)

    @workflow
    async def tries(ctx: Context) -> list[int]:
        attempts: list[int] = []
        options: list[StepOverrides] = [{}, {"retries": 2, "backoff": Backoff(initial=1, jitter=0)}]
        for overrides in options:
            try:
                await ctx.step(fails, "x", **overrides)
            except StepExhaustedError as error:
                attempts.append(error.attempts)
        try:
            await ctx.step("partial", functools.partial(fails, "y"))
        except StepExhaustedError as error:
            attempts.append(error.attempts)
        return attempts

    result = await world.run(tries)
    assert result.output == [1, 3, 1]
    assert ran == ["x", "x", "x", "x", "y"]


async def test_a_decorated_step_is_still_a_function() -> None:
    assert await decorated(1) == 2
    assert decorated_plain(value=1) == 2
    assert await SHOP.stepped(1) == 2
    assert (decorated.__name__, repr(decorated)) == ("decorated", "<step decorated>")


async def test_the_record_of_a_repeatable_step_rides_with_the_next_commit(world: World) -> None:
    commits: dict[bool, int] = {}
    for repeatable in (False, True):

        @workflow(name="counted")
        async def counted(ctx: Context, repeatable: bool) -> int:
            for number in range(10):
                await ctx.step(f"s{number}", plain_one, number, repeatable=repeatable)
            return await ctx.step("last", plain_one, 0)

        driver = FaultyDriver(world.driver)
        assert (await world.run(counted, repeatable, id=f"{repeatable}", driver=driver)).output == 1
        commits[repeatable] = driver.commits
        assert len(await world.history(f"{repeatable}")) == 11
    # Ten records in one commit, which the last step waits for.
    assert commits[False] - commits[True] == 9


async def test_what_is_recorded_of_a_step(world: World) -> None:
    @workflow
    async def one(ctx: Context) -> None:
        await ctx.sleep("before", 10)
        await ctx.step("a/b", plain_one, 1)

    await world.run(one)
    history = await world.history()
    entry = history["a%2Fb"]
    assert (entry.name, entry.path, entry.kind, entry.status) == ("a/b", "a%2Fb", Kind.STEP, EntryStatus.COMPLETED)
    assert (entry.value, entry.error, entry.attempts, entry.children) == (2, None, 1, ())
    assert entry.finished_at is not None
    assert entry.finished_at.timestamp() == world.clock.time()
