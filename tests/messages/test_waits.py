"""What an instance waits for can be seen, and reached: the same wait has the same token, and no other wait has it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from tests.patience import PATIENCE
from tests.runtime.looking import Bench, dump
from tests.runtime.parts import Rows, Stop, until_status
from tests.runtime.polling import until
from workflow_sdk import (
    Backoff,
    Break,
    Client,
    Context,
    Continue,
    ContinueAsNew,
    Delivery,
    Driver,
    Runtime,
    Status,
    Wait,
    Workflow,
    open_driver,
    workflow,
)
from workflow_sdk.instance.clock import Clock

LATER = Backoff(initial=600, factor=1, maximum=600, jitter=0)


@workflow
async def inner(ctx: Context) -> str:
    """A child."""
    return str(await ctx.listen("go"))


def breaks() -> None:
    """A step that fails."""
    raise ValueError("not yet")


@workflow
async def everything(ctx: Context) -> Any:
    """Waits for one of each kind at once."""

    async def timer(ctx: Context) -> None:
        await ctx.sleep("timer", 3600)

    async def message(ctx: Context) -> Any:
        return await ctx.listen("message", "m", timeout=7200)

    async def retry(ctx: Context) -> None:
        await ctx.step("retry", breaks, retries=5, backoff=LATER)

    async def child(ctx: Context) -> str:
        return await ctx.child("child", inner)

    async def task(ctx: Context) -> Any:
        return (await ctx.task("task", roles=["clerk"], timeout=1800)).value

    return await ctx.join("all", {"a": timer, "b": message, "c": retry, "d": child, "e": task})


@workflow
async def twice(ctx: Context) -> list[Any]:
    """Takes a message in two branches, of which one has a timer as well."""

    async def one(ctx: Context) -> Any:
        await ctx.sleep("nap", 60)
        return await ctx.listen("one", "m")

    async def two(ctx: Context) -> Any:
        return await ctx.listen("two", ["m", "n"])

    return list((await ctx.join("both", {"one": one, "two": two})).values())


@workflow
async def turns(ctx: Context, count: int) -> int:
    """Waits in every turn of a loop, and begins again."""

    async def body(ctx: Context, turn: int) -> Continue[int] | Break[int]:
        await ctx.listen("wait", "m")
        return Continue(turn + 1) if turn < count else Break(turn)

    await ctx.loop("turns", body, 0, commit_interval=2)
    return ContinueAsNew(count)  # type: ignore[return-value]  # that is how it is said


@workflow
async def times_out(ctx: Context) -> list[Any]:
    """A wait that ends by itself, and one that loses a race."""

    async def timer(ctx: Context) -> None:
        await ctx.sleep("timer", 30)

    async def message(ctx: Context) -> Any:
        return await ctx.listen("raced", "m")

    first = await ctx.listen("late", "m", timeout=60, default="none")
    second = await ctx.race("race", {"timer": timer, "message": message})
    return [first, second.winner, await ctx.listen("end", "m")]


FLOWS: list[Workflow[Any, Any]] = [everything, inner, twice, turns, times_out]


async def test_all_that_is_awaited_is_listed(driver: Driver) -> None:
    bench = Bench(driver, everything)
    await bench.go()
    info, waits = await bench.info(), await bench.waits()
    assert {name: (wait.kind, wait.path, wait.message) for name, wait in waits.items()} == {
        "timer": ("timer", "all/a/timer", None),
        "message": ("message", "all/b/message", "m"),
        "retry": ("retry", "all/c/retry", None),
        "child": ("child", "all/d/child", None),
        "task": ("task", "all/e/task", None),
    }
    now = bench.clock.now()
    assert {name: wait.until and wait.until - now for name, wait in waits.items()} == {
        "timer": timedelta(hours=1),
        "message": timedelta(hours=2),
        "retry": timedelta(minutes=10),
        "child": None,
        "task": timedelta(minutes=30),
    }
    assert info.wake_at == now + timedelta(minutes=10)
    assert waits["retry"].attempts == 1
    assert waits["retry"].error is not None
    assert (waits["retry"].error.type, waits["retry"].error.message) == ("ValueError", "not yet")
    assert waits["child"].target == "i/all/d/child"
    async with Client(driver, clock=bench.clock) as client:
        assert waits["task"].target == (await client.tasks.list()).items[0].id
    assert all(1 < wait.version <= info.version for wait in waits.values())
    assert len({wait.token for wait in waits.values()}) == 5


async def test_a_wait_stays_what_it_is(driver: Driver) -> None:
    """Run again, evicted, taken over, and after a restart of whoever ran it."""
    bench = Bench(driver, everything)
    await bench.go()
    before = await bench.info()

    async def same() -> bool:
        info = await bench.info()
        return (info.waits, info.version) == (before.waits, before.version)

    async def resident() -> bool:
        return (await Rows.of(driver)).leases != []

    async def away() -> bool:
        return not await resident()

    for _ in range(3):
        await bench.go()
        assert await same()
    for _ in range(2):
        async with Runtime(driver, workflows=[everything], clock=cast("Clock", Still(bench))) as runtime:
            handle = runtime.handle(everything, "i")
            await handle.wake()
            await until(resident)
            await until(same)
            await handle.evict()
            await until(away)
            assert await same()
        assert await same()


class Still:
    """The clock of a bench, on which nobody waits for a timer: so that it stands still."""

    def __init__(self, bench: Bench) -> None:
        self._clock = bench.clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    async def wait(self, event: anyio.Event, until: float | None, activity: Any, **_: Any) -> None:
        """Return when the event is set, or if it is time."""
        with anyio.move_on_after(None if until is None or until > self._clock.time() else 0):
            await event.wait()


async def test_every_retry_is_a_wait_of_its_own(driver: Driver) -> None:
    bench = Bench(driver, everything)
    seen: list[Wait] = []
    for number in range(3):
        await bench.go(600 if number else 0)
        seen.append((await bench.waits())["retry"])
        assert (await bench.info()).attempts == {"all/c/retry": number + 1}
    assert [wait.attempts for wait in seen] == [1, 2, 3]
    assert len({wait.token for wait in seen}) == 3
    assert sorted({wait.version for wait in seen}) == [wait.version for wait in seen]


@pytest.mark.law(19)
async def test_every_turn_is_a_wait_of_its_own(driver: Driver) -> None:
    """And every generation of the instance, and every restart."""
    bench = Bench(driver, turns, 3)
    tokens: list[str] = []
    async with Client(driver, clock=bench.clock) as client:
        handle = client.handle(turns, "i")
        for _ in range(10):
            await bench.go()
            (wait,) = (await bench.info()).waits
            tokens.append(wait.token)
            assert await handle.send("m", token=wait.token) is Delivery.ACCEPTED
        await bench.go()
        for path in ("turns/~2", "turns", None, None):
            await handle.restart_from(path)
            await bench.go()
            tokens.append((await bench.info()).waits[0].token)
            for old in tokens[:-1]:
                assert await handle.send("m", token=old) is Delivery.STALE
    assert len(set(tokens)) == len(tokens)


@pytest.mark.law(19)
async def test_what_is_stale_changes_nothing(driver: Driver) -> None:
    bench = Bench(driver, times_out)
    await bench.go()
    async with Client(driver, clock=bench.clock) as client:
        handle = client.handle(times_out, "i")
        late = (await bench.waits())["late"]

        async def refused(**options: Any) -> None:
            before = await dump(driver)
            assert await handle.send("m", "stale", **options) is Delivery.STALE
            assert await dump(driver) == before

        await refused(token=late.token[:-2])
        await refused(token=late.token, expected_version=late.version - 1)
        bench.clock.advance(60)
        # Nobody has run it yet, but its time is over.
        await refused(token=late.token)
        await bench.go()
        await refused(token=late.token)
        await refused(token=late.token, expected_version=(await bench.info()).version)
        waits = await bench.waits()
        raced, timer = waits["raced"], waits["timer"]
        assert raced.version > late.version
        await bench.go(30)
        await refused(token=raced.token)
        await refused(token=timer.token)
        end = (await bench.waits())["end"]
        await refused(expected_version=raced.version)
        assert await handle.send("m", "end", token=end.token, expected_version=end.version) is Delivery.ACCEPTED
        # It is on its way: a second one would be too many.
        await refused(token=end.token)
        await refused(token=end.token, expected_version=end.version)
        result = await bench.go()
        assert result.output == ["none", "timer", "end"]
        before = await dump(driver)
        assert await handle.send("m", token=end.token) is Delivery.CLOSED
        assert await dump(driver) == before


@settings(max_examples=effort(40))
@given(token=st.text(max_size=40) | st.binary(max_size=40).map(bytes.hex))
def test_what_is_no_token_is_stale(token: str) -> None:
    async def main() -> None:
        driver = await open_driver("memory://")
        bench = Bench(driver, twice)
        await bench.go()
        tokens = [wait.token for wait in (await bench.waits()).values()]
        async with Client(driver, clock=bench.clock) as client:
            handle = client.handle(twice, "i")
            before = await dump(driver)
            for wrong in (
                token,
                *(real + token for real in tokens if token),
                *(token + real for real in tokens if token),
            ):
                assert await handle.send("m", token=wrong) is Delivery.STALE or bytes.fromhex(wrong).hex() in tokens
                assert await dump(driver) == before or bytes.fromhex(wrong).hex() in tokens

    anyio.run(main)


@pytest.mark.parametrize("which", ["token", "version", "both", "info"])
async def test_of_two_that_answer_the_same_one_is_accepted(driver: Driver, which: str) -> None:
    bench = Bench(driver, twice)
    await bench.go()
    info = await bench.info()
    two = (await bench.waits())["two"]
    ways: dict[str, dict[str, Any]] = {
        "token": {"token": two.token},
        "version": {"expected_version": two.version},
        "both": {"token": two.token, "expected_version": two.version},
        "info": {"token": two.token, "expected_version": info.version},
    }
    options = ways[which]
    found: list[Delivery] = []

    async def send(client: Client, number: int) -> None:
        found.append(await client.handle(twice, "i").send("m", number, **options))

    async with Client(driver, clock=bench.clock) as one, Client(driver, clock=bench.clock) as other:
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(send, (one, other)[number % 2], number)
        assert sorted(found) == ["accepted", *["stale"] * 5]
        await bench.go()
        assert await one.handle(twice, "i").send("m", **options) is Delivery.STALE


async def test_an_answer_to_an_older_state(driver: Driver) -> None:
    """The wait is still there, but something else has happened to the instance since."""
    bench = Bench(driver, twice)
    await bench.go()
    older = (await bench.info()).version
    two = (await bench.waits())["two"]
    assert two.version == older
    await bench.go(60)
    info = await bench.info()
    assert info.version > older
    async with Client(driver, clock=bench.clock) as client:
        handle = client.handle(twice, "i")
        before = await dump(driver)
        assert await handle.send("m", expected_version=older - 1) is Delivery.STALE
        assert await handle.send("m", token=two.token, expected_version=older - 1) is Delivery.STALE
        assert await handle.send("m", token=two.token, expected_version=info.version + 1) is Delivery.STALE
        assert await dump(driver) == before
        # It is said to be the state that the wait has begun with: and it has.
        assert await handle.send("n", 2, token=two.token, expected_version=older) is Delivery.ACCEPTED
        one = (await bench.waits())["one"]
        assert await handle.send("m", 1, token=one.token, expected_version=info.version) is Delivery.ACCEPTED
        assert (await bench.go()).output == [1, 2]


@pytest.mark.law(19)
async def test_a_message_for_one_wait_is_taken_by_no_other(driver: Driver) -> None:
    bench = Bench(driver, twice)
    await bench.go()
    await bench.go(60)
    async with Client(driver, clock=bench.clock) as client:
        handle, waits = client.handle(twice, "i"), await bench.waits()
        assert await handle.send("m", "for two", token=waits["two"].token) is Delivery.ACCEPTED
        assert await handle.send("m", "for one", token=waits["one"].token) is Delivery.ACCEPTED
        assert (await bench.go()).output == ["for one", "for two"]


async def test_sent_while_it_is_run_again(driver: Driver) -> None:
    """A wait is not over because its instance was taken into memory, and has not come to it yet; nor if it is stuck."""
    bench = Bench(driver, slow)
    await bench.go()
    await bench.go(60)
    wait = (await bench.waits())["two"]
    stop = Stop()
    stops.append(stop)
    async with Client(driver, clock=bench.clock) as client, anyio.create_task_group() as group:
        handle = client.handle(slow, "i")
        group.start_soon(bench.go)
        await stop.reached.wait()
        stops.clear()
        assert (await bench.info()).waits == [], "it is not to be seen now"
        found = [await handle.send("m", number, token=wait.token, expected_version=wait.version) for number in range(3)]
        assert found == ["accepted", "stale", "stale"]
        assert await handle.send("other", token=wait.token) is Delivery.STALE
        stop.go_on.set()
    assert (await bench.go()).output == 0


stops: list[Stop] = []


@workflow
async def slow(ctx: Context) -> Any:
    """Takes its time before it comes to where it was."""
    await ctx.sleep("nap", 30)
    for stop in stops:
        await stop.here()
    return await ctx.listen("two", "m")


async def test_reached_from_where_it_runs_and_from_elsewhere(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime, Client(driver) as client:
        for sender in (runtime, client):
            handle = await runtime.start(inner)
            other = sender.handle(inner, handle.id)
            await until_status(handle, Status.WAITING)
            (wait,) = (await handle.info()).waits
            found = [await other.send("go", n, token=wait.token, expected_version=wait.version) for n in range(2)]
            assert found[0] is Delivery.ACCEPTED
            assert found[1] in (Delivery.STALE, Delivery.CLOSED)
            assert await handle.result(timeout=PATIENCE) == "0"
