"""What is stale is refused in the commit of whoever sends it, whatever happens between his looking and his writing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.runtime.interleaving import Interleaved
from tests.runtime.looking import Bench, dump
from workflow_sdk import Client, Context, DefinitionError, Delivery, Driver, Status, open_driver, read_history, workflow
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(19)

is_broken = [False]


@workflow
async def waits(ctx: Context) -> list[Any]:
    """Waits twice for the same, the first time not for long; beside a timer."""

    async def messages(ctx: Context) -> list[Any]:
        return [await ctx.listen("first", "m", timeout=60, default="late"), await ctx.listen("second", "m")]

    async def timer(ctx: Context) -> None:
        await ctx.sleep("short", 10)
        await ctx.sleep("timer", 30)
        if is_broken[0]:
            await ctx.sleep("", 1)

    return (await ctx.join("both", {"messages": messages, "timer": timer}))["messages"] or []


Deed = Callable[[Bench, Client, str], Awaitable[object]]


async def times_out(bench: Bench, client: Client, token: str) -> None:
    """The wait ends by itself."""
    await bench.go(60)


async def somebody_else(bench: Bench, client: Client, token: str) -> None:
    """Another message for the same wait."""
    assert await client.handle(waits, "i").send("m", "else", token=token) is Delivery.ACCEPTED


async def taken(bench: Bench, client: Client, token: str) -> None:
    """A message for any wait is taken by this one."""
    await client.handle(waits, "i").send("m", "any")
    await bench.go()


async def cancelled(bench: Bench, client: Client, token: str) -> None:
    """The instance ends."""
    await client.handle(waits, "i").cancel()


async def restarted(bench: Bench, client: Client, token: str) -> None:
    """It begins again, and waits in the same place."""
    await client.handle(waits, "i").restart_from()
    await bench.go()


async def moved_on(bench: Bench, client: Client, token: str) -> None:
    """The wait is the same, but the instance has another version."""
    await bench.go(30)


async def run_again(bench: Bench, client: Client, token: str) -> None:
    """Nothing happens."""
    await bench.go()


STALE: list[tuple[Deed, str]] = [
    (times_out, "token"),
    (times_out, "version"),
    (somebody_else, "token"),
    (taken, "token"),
    (taken, "version"),
    (cancelled, "token"),
    (restarted, "token"),
    (restarted, "version"),
    (moved_on, "info"),
]


async def interleaved(driver: Driver, deed: Deed, how: str, number: int) -> tuple[int, Delivery, bool]:
    """Send, and do something before a call of that: how many calls there were, the answer, and if anything changed."""
    bench = Bench(driver, waits)
    await bench.go()
    await bench.go(10)
    info = await bench.info()
    wait = (await bench.waits())["first"]
    options: dict[str, Any] = {"token": wait.token}
    if how == "version":
        options = {"expected_version": wait.version}
    elif how == "info":
        # It answers a state in which the wait was there, and not the one in which it began.
        assert info.version > wait.version
        options["expected_version"] = info.version
    after: list[Any] = []

    async def happen() -> None:
        async with Client(driver, clock=bench.clock) as client:
            await deed(bench, client, wait.token)
        after.append(await dump(driver))

    inside = Interleaved(driver, {number: happen})
    async with Client(inside, clock=bench.clock) as client:
        delivery = await client.handle(waits, "i").send("m", "mine", **options)
    return inside.calls, delivery, not after or await dump(driver) != after[0]


@pytest.mark.parametrize(("deed", "how"), STALE, ids=lambda part: getattr(part, "__name__", part))
async def test_something_happens_in_between(deed: Deed, how: str) -> None:
    found: set[Delivery] = set()
    for number in range(1, 20):
        driver = await open_driver("memory://")
        calls, delivery, is_changed = await interleaved(driver, deed, how, number)
        found.add(delivery)
        if calls < number:
            assert delivery is Delivery.ACCEPTED
            break
        assert delivery in (Delivery.STALE, Delivery.CLOSED)
        assert not is_changed, "nothing changes"
    assert Delivery.ACCEPTED in found
    assert len(found) == 2


@pytest.mark.parametrize("how", ["token", "version"])
async def test_nothing_happens_in_between(how: str) -> None:
    for number in range(1, 20):
        driver = await open_driver("memory://")
        calls, delivery, _ = await interleaved(driver, run_again, how, number)
        assert delivery is Delivery.ACCEPTED
        if calls < number:
            break


async def test_the_state_it_answers_is_gone_but_the_wait_is_not(driver: Driver) -> None:
    """An answer to a state that is neither that of the wait nor the newest is an old one."""
    bench = Bench(driver, waits)
    await bench.go()
    await bench.go(10)
    wait = (await bench.waits())["first"]
    async with Client(driver, clock=bench.clock) as client:
        handle = client.handle(waits, "i")
        old = (await bench.info()).version
        await bench.go(30)
        assert (await bench.info()).version > old > wait.version
        before = await dump(driver)
        for version in (old, old + 99, wait.version - 1):
            assert await handle.send("m", token=wait.token, expected_version=version) is Delivery.STALE
        assert await dump(driver) == before
        assert await handle.send("m", 1, token=wait.token, expected_version=wait.version) is Delivery.ACCEPTED
        await bench.go()
        (second,) = (await bench.info()).waits
        assert await handle.send("m", 2, token=second.token) is Delivery.ACCEPTED
        assert (await bench.go()).output == [1, 2]


async def test_to_one_that_is_stuck(driver: Driver) -> None:
    """Its waits can't be seen, but they are not over."""
    bench = Bench(driver, waits)
    await bench.go()
    await bench.go(10)
    wait = (await bench.waits())["first"]
    is_broken[0] = True
    try:
        assert (await bench.go(30)).status is Status.STUCK
        async with Client(driver, clock=bench.clock) as client:
            handle = client.handle(waits, "i")
            assert (await handle.info()).waits == []
            assert await handle.send("m", "kept", token=wait.token) is Delivery.QUEUED
            before = await dump(driver)
            assert await handle.send("m", "too many", token=wait.token) is Delivery.STALE
            assert await dump(driver) == before
            is_broken[0] = False
            await bench.go()
            (second,) = (await bench.info()).waits
            await handle.send("m", "end", token=second.token)
            assert (await bench.go()).output == ["kept", "end"]
    finally:
        is_broken[0] = False


@pytest.mark.parametrize("token", [5, b"abc", ["x"]])
async def test_what_is_not_even_a_text(driver: Driver, token: Any) -> None:
    bench = Bench(driver, waits)
    await bench.go()
    async with Client(driver, clock=bench.clock) as client:
        before = await dump(driver)
        with pytest.raises(DefinitionError, match="a token is a text"):
            await client.handle(waits, "i").send("m", token=token)
        with pytest.raises(DefinitionError, match="expected_version is a number"):
            await client.handle(waits, "i").send("m", expected_version=token if token != 5 else "5")  # type: ignore[arg-type]  # that is the mistake
        assert await dump(driver) == before


@pytest.mark.parametrize("how", ["token", "version", "any"])
@pytest.mark.parametrize("after", [False, True])
async def test_in_time_by_the_clock_of_the_sender(after: bool, how: str) -> None:
    """It comes while the wait is being given up: it is accepted and taken, or it is not accepted."""
    outcomes: set[str] = set()
    for number in range(1, 30):
        driver = await open_driver("memory://")
        bench, slow = Bench(driver, waits), VirtualClock()
        await bench.go()
        wait = (await bench.waits())["first"]
        slow.advance(59)
        ways: dict[str, dict[str, Any]] = {
            "token": {"token": wait.token},
            "version": {"expected_version": wait.version},
            "any": {},
        }
        found: list[Delivery] = []

        async def send(store: Driver = driver, clock: VirtualClock = slow, how: dict[str, Any] = ways[how]) -> None:
            async with Client(store, clock=clock) as client:
                found.append(await client.handle(waits, "i").send("m", "mine", **how))  # noqa: B023  # it is called here

        bench.driver = inside = Interleaved(driver, {number: send}, after=after)
        await bench.go(60)
        if number > inside.calls:
            break
        bench.driver = driver
        await bench.go()
        history = await read_history(driver, "i")
        value = history["both/messages/first"].value
        second = history["both/messages/second"].value if "both/messages/second" in history else None
        taken = "mine" in (value, second)
        assert taken == (found[0] in (Delivery.ACCEPTED, Delivery.QUEUED))
        if how != "any":
            assert value == ("mine" if taken else "late")
        outcomes.add(str(value))
    assert outcomes == {"mine", "late"}
