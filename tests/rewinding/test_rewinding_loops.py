"""`restart_from` inside loops: a turn that is kept happens again, with what it began with, and all after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Break,
    Context,
    Continue,
    DefinitionError,
    EntryStatus,
    RollbackError,
    Runtime,
    Status,
    Workflow,
    workflow,
)
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.rewind import recover
from workflow_sdk.client import handle as control
from workflow_sdk.driver import Batch
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.rows.keys import BASES, COMPENSATIONS, INBOX, NAMES, TAKINGS, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash
from workflow_sdk.values import Codec

ran: list[str] = []
undone: list[str] = []
down: set[str] = set()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()
    undone.clear()
    down.clear()


def work(name: str) -> str:
    """Fails while its name is down."""
    ran.append(name)
    if name in down:
        raise ConnectionError(f"{name} is down")
    return name


def undo(result: str) -> None:
    """What undoes `work`."""
    undone.append(result)


@contextmanager
def rerun() -> Generator[list[str]]:
    """What runs in here."""
    start = len(ran)
    found: list[str] = []
    yield found
    found += ran[start:]


async def restart(world: World, path: str | None) -> None:
    await control.restart_from(world.driver, "i", path, world.clock.time())


async def count(world: World, part: bytes) -> int:
    return len(await world.driver.scan(*InstanceKeys("i").range(part)))


async def until_it_waits(world: World, flow: Workflow[Any, Any]) -> None:
    """Run it until it waits for a message."""
    while (waiting := await world.once(flow, mode="yield")).wake_at is not None:
        world.clock.advance(10)
    assert waiting.status is Status.WAITING, waiting.error


def states(kind: str) -> Callable[[int], Any]:
    """What a loop begins a turn with: its number can be read from it, but for one without a state."""
    kinds: dict[str, Callable[[int], Any]] = {
        "number": lambda n: n,
        "seldom": lambda n: n // 3,
        "none": lambda n: None,
        "large": lambda n: [n, "x" * 6_000],
        "seldom large": lambda n: [n // 3, "x" * 15_000],
        "growing": lambda n: list(range(n)),
    }
    return kinds[kind]


def turning(kind: str, turns: int, *, stop: int | None = None, **options: Any) -> Workflow[None, list[Any]]:
    """Turns of two steps each. It waits in turn `stop`, and tells what every turn began with."""
    state_of = states(kind)

    async def body(ctx: Context, state: Any) -> Continue[Any] | Break[list[Any]]:
        number = int(ctx.path.rpartition("~")[2])
        assert state == state_of(number)
        await ctx.step("a", work, f"a{number}")
        if number == stop:
            await ctx.listen("go")
        await ctx.step(f"b {number}", work, f"b{number}")
        await ctx.sleep("nap", 10)
        if number == turns - 1:
            return Break([number, state_of(number)])
        return Continue(state_of(number + 1))

    @workflow
    async def turning(ctx: Context) -> list[Any]:
        await ctx.step("before", work, "before")
        value = await ctx.loop("loop", body, state_of(0), **options)
        await ctx.step("after", work, "after")
        return value

    return turning


def steps_from(number: int, turns: int, *, second: bool = False) -> list[str]:
    """The steps of the turns from this one on, and what comes after."""
    found = [f"{step}{n}" for n in range(number, turns) for step in "ab"]
    return [*found[second:], "after"]


KINDS = ["number", "seldom", "none", "large", "seldom large", "growing"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"commit_interval": 3}, {"commit_interval": 4, "history_keep": 6}], ids=str)
async def test_a_loop_that_has_ended_begins_again_with_any_turn_it_keeps(
    world: World, kind: str, options: dict[str, int]
) -> None:
    flow = turning(kind, 10, **options)
    first = await world.run(flow)
    assert first.status is Status.COMPLETED, first.error
    names, history = await count(world, NAMES), [entry.path for entry in await world.history()]
    kept = [n for n in range(10) if f"loop/~{n}/a" in history]
    assert len(kept) >= options.get("history_keep", 3)
    for number in kept:
        paths = [(f"loop/~{number}/a", False)]
        if number in (kept[0], kept[-1]):
            paths += [(f"loop/~{number}", False), (f"loop/~{number}/b {number}", True)]
        for path, second in paths:
            await restart(world, path)
            entries = await world.history()
            assert (entries.status, entries["loop"].status) == (Status.RUNNING, EntryStatus.RUNNING)
            assert f"loop/~{number}/b {number}" not in entries
            with rerun() as again:
                result = await world.run(flow)
            assert (result.status, result.output) == (Status.COMPLETED, first.output), result.error
            assert again == steps_from(number, 10, second=second)
            assert await count(world, NAMES) == names
            assert [entry.path for entry in await world.history()] == history


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [0, 4, 7, 9])
async def test_a_loop_under_way_begins_again_with_any_turn_it_keeps(world: World, kind: str, stop: int) -> None:
    flow = turning(kind, 10, stop=stop, commit_interval=4, history_keep=5)
    await until_it_waits(world, flow)
    kept = [n for n in range(10) if f"loop/~{n}/a" in await world.history()]
    # Half of the turns were stored since, half are known from their history only.
    assert kept[0] == (3 if stop == 9 and kind != "large" else 0)
    for number in reversed(kept):
        await restart(world, f"loop/~{number}/a")
        with rerun() as again:
            await until_it_waits(world, flow)
        assert again == steps_from(number, stop + 1)[:-2]
    result = await world.run(flow, script=[("go", None)])
    assert (result.status, result.output) == (Status.COMPLETED, [9, states(kind)(9)]), result.error
    assert ran[-2:] == ["b9", "after"]


async def test_a_turn_that_is_not_there_is_refused_with_those_that_are(world: World) -> None:
    flow = turning("number", 10, commit_interval=4, history_keep=2)
    await world.run(flow)
    rows = await world.driver.scan(b"", b"\xff")
    for path in ("loop/~3", "loop/~7/a", "loop/~10", "loop/~99/a/b"):
        with pytest.raises(
            DefinitionError, match=r"turn ~\d+ of loop 'loop' is not there; there are the turns ~8 to ~9"
        ):
            await restart(world, path)
    for path in ("loop/~8/nothing", "loop/~", "loop/8", "loop/~8/a/~3", "nothing/~8", "~8", "loop/~x"):
        with pytest.raises(DefinitionError, match="there is no entry"):
            await restart(world, path)
    assert await world.driver.scan(b"", b"\xff") == rows


async def test_a_loop_that_keeps_nothing(world: World) -> None:
    flow = turning("number", 10, commit_interval=4, history_keep=0)
    assert (await world.run(flow)).status is Status.COMPLETED
    assert await count(world, BASES) == 0
    with pytest.raises(DefinitionError, match="it keeps none"):
        await restart(world, "loop/~9")
    with rerun() as again:
        await restart(world, "loop")
        assert (await world.run(flow)).status is Status.COMPLETED
    assert again == steps_from(0, 10)


async def test_turns_without_operations(world: World) -> None:
    entered: list[int] = []

    async def body(ctx: Context, number: int) -> Continue[int] | Break[int]:
        entered.append(number)
        return Break(number) if number == 9 else Continue(number + 1)

    @workflow
    async def spins(ctx: Context) -> int:
        return await ctx.loop("loop", body, 0, commit_interval=4)

    assert (await world.run(spins)).output == 9
    entered.clear()
    await restart(world, "loop/~7")
    assert (await world.run(spins)).output == 9
    assert entered == [7, 8, 9]


async def test_loops_in_loops(world: World) -> None:
    async def inner(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[int]:
        outer, number = state
        await ctx.step(f"step {outer} {number}", work, f"{outer}.{number}")
        await ctx.sleep("nap", 1)
        return Break(number) if number == 4 else Continue([outer, number + 1])

    async def tried(ctx: Context) -> int:
        number = int(ctx.path.split("~")[1].partition("/")[0])
        return await ctx.loop("inner", inner, [number, 0], commit_interval=2, history_keep=3)

    async def outer(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.attempt("try", tried)
        await ctx.join("join", {"one": tried})
        return Break(number) if number == 5 else Continue(number + 1)

    @workflow
    async def nested(ctx: Context) -> int:
        return await ctx.loop("outer", outer, 0, commit_interval=2)

    assert (await world.run(nested)).output == 5
    names = await count(world, NAMES)
    for path, expected in [
        ("outer/~4/try/inner/~3", ["4.3", "4.4", *(["4.0", "4.1", "4.2", "4.3", "4.4"])]),
        ("outer/~5/join/one/inner/~4/step 5 4", ["5.4"]),
        ("outer/~4/join/one/inner/~2/nap", ["4.3", "4.4"]),
        ("outer/~5/join", ["5.0", "5.1", "5.2", "5.3", "5.4"]),
        ("outer/~5", ["5.0", "5.1", "5.2", "5.3", "5.4"] * 2),
    ]:
        await restart(world, path)
        with rerun() as again:
            result = await world.run(nested)
        assert (result.status, result.output) == (Status.COMPLETED, 5), result.error
        rest = [] if path.startswith("outer/~5") else [f"5.{n}" for n in range(5)] * 2
        assert again == [*expected, *rest]
        assert await count(world, NAMES) == names
    with pytest.raises(DefinitionError, match="turn ~3 of loop 'outer' is not there; there are the turns ~4 to ~5"):
        await restart(world, "outer/~3/try/inner/~4")
    with pytest.raises(DefinitionError, match=r"turn ~1 of loop 'outer/~4/try/inner' is not there; .* ~2 to ~4"):
        await restart(world, "outer/~4/try/inner/~1")


async def test_a_loop_beside_begins_again_with_what_finished_later(world: World) -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        branch = ctx.path.split("/")[1]
        await ctx.sleep("nap", 10 if branch == "slow" else 1)
        await ctx.step("same", work, f"{branch}{number}")
        return Break(number) if number == 5 else Continue(number + 1)

    async def branch(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 0, commit_interval=3, history_keep=6)

    @workflow
    async def beside(ctx: Context) -> dict[str, int]:
        return await ctx.join("join", {"slow": branch, "quick": branch})

    assert (await world.run(beside)).output == {"slow": 5, "quick": 5}
    # Both have the name `same`, of which only one is now the root's.
    for path, expected in [
        ("join/quick/loop/~3/same", {"quick3", "quick4", "quick5", *(f"slow{n}" for n in range(6))}),
        ("join/slow/loop/~2/same", {f"slow{n}" for n in range(2, 6)}),
        ("join/slow/loop/~5", {"slow5"}),
    ]:
        await restart(world, path)
        with rerun() as again:
            result = await world.run(beside)
        assert (result.status, result.output) == (Status.COMPLETED, {"slow": 5, "quick": 5}), result.error
        assert sorted(again) == sorted(expected)


async def test_recovering_two_loops_that_use_the_same_names(world: World) -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.step("same", work, f"{ctx.path.split('/')[1]} {number}")
        await ctx.sleep("nap", 1)
        await ctx.step("fails", work, f"{ctx.path.split('/')[1]} fails {number}", retries=0)
        return Break(number) if number == 3 else Continue(number + 1)

    async def branch(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 0, commit_interval=2)

    @workflow
    async def both(ctx: Context) -> dict[str, int]:
        return await ctx.join("join", {"a": branch, "b": branch})

    down.update({"a fails 2", "b fails 2"})
    assert (await world.run(both)).status is Status.FAILED
    down.clear()
    await apply(world.driver, recover("i", world.clock.time()))
    with rerun() as again:
        result = await world.run(both)
    assert (result.status, result.output) == (Status.COMPLETED, {"a": 3, "b": 3}), result.error
    assert sorted(again) == sorted(f"{b} {step}" for b in "ab" for step in ("fails 2", "3", "fails 3"))


async def test_messages_and_what_is_to_be_undone(world: World) -> None:
    async def turn(ctx: Context, got: list[int]) -> Continue[list[int]] | Break[list[int]]:
        number = await ctx.listen("number", type=int)
        await ctx.step("book", work, f"book {number}", rollback=undo)
        got = [*got, number]
        return Break(got) if len(got) == 5 else Continue(got)

    @workflow
    async def books(ctx: Context, how: str) -> list[int]:
        got = await ctx.loop("loop", turn, [], commit_interval=2, history_keep=3)
        if await ctx.step("check", lambda: how in down):
            raise RollbackError("enough")
        return got

    for number in range(5):
        await world.once(books, "bad", mode="yield")
        await world.send("number", number)
    assert (await world.run(books)).output == [0, 1, 2, 3, 4]
    assert await count(world, COMPENSATIONS) == 5
    await restart(world, "loop/~3/book")
    assert (await count(world, INBOX), await count(world, COMPENSATIONS)) == (1, 3)
    assert (await world.run(books)).output == [0, 1, 2, 3, 4]
    await restart(world, "loop/~2")
    assert (await count(world, INBOX), await count(world, COMPENSATIONS)) == (3, 2)
    down.add("bad")
    assert (await world.run(books)).status is Status.ROLLED_BACK
    assert undone == [f"book {n}" for n in (4, 3, 2, 1, 0)]
    down.clear()
    undone.clear()
    with pytest.raises(DefinitionError, match=r"'loop/~0/book' was undone.*Restart from 'loop', or from the beginning"):
        await restart(world, "loop/~4/number")
    await restart(world, "loop")
    assert (await count(world, INBOX), await count(world, COMPENSATIONS)) == (3, 0)
    for number in range(2):
        await world.send("number", number)
    result = await world.run(books)
    assert (result.status, result.output) == (Status.COMPLETED, [2, 3, 4, 0, 1]), result.error
    assert not undone


async def take_away(world: World, name: str) -> None:
    """Lose a message."""
    batch = Batch()
    for key, raw in await world.driver.scan(*InstanceKeys("i").range(INBOX)):
        if InboxMessage.unpack(b"", raw).name == name:
            batch.clear(key)
    await world.driver.commit(batch)


async def test_messages_taken_in_a_race_that_is_open_again(world: World) -> None:
    async def takes(ctx: Context) -> str:
        first = await ctx.listen("first", type=str)
        return first + await ctx.listen("second", type=str)

    async def other(ctx: Context) -> str:
        return await ctx.listen("third", type=str)

    async def turn(ctx: Context, number: int) -> Continue[int] | Break[list[Any]]:
        won = await ctx.race("race", {"takes": takes, "other": other})
        if number == 0:
            return Continue(1)
        return Break([won.value, await ctx.listen_many("rest", ["first", "second"], count=2, timeout=5)])

    @workflow
    async def races(ctx: Context) -> list[Any]:
        return await ctx.loop("loop", turn, 0, commit_interval=1)

    for message, payload in (("third", "3"), ("first", "a"), ("second", "b")):
        # One by one: of two that are there at once, either may be taken first.
        await until_it_waits(world, races)
        await world.send(message, payload)
    assert (await world.run(races)).output == ["ab", []]
    await restart(world, "loop/~1/race/takes/second")
    assert (await count(world, INBOX), await count(world, TAKINGS)) == (1, 1)
    # Whichever wins: no message is lost, and none is there twice.
    await restart(world, "loop/~1/race/takes/first")
    assert (await count(world, INBOX), await count(world, TAKINGS)) == (2, 0)
    assert (await world.run(races)).output == ["ab", []]
    await restart(world, "loop/~1/race/takes/second")
    await world.send("third", "3")
    await take_away(world, "second")
    assert (await world.run(races)).output == ["3", ["a"]]
    assert (await count(world, INBOX), await count(world, TAKINGS)) == (0, 0)


async def test_version_time_and_chance_in_turns_are_what_they_were(world: World) -> None:
    seen: dict[str, list[Any]] = {}
    latest = 1

    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        begun = ctx.now()
        await ctx.step("a", work, f"a{number}")
        version = await ctx.version("version", latest)
        await ctx.sleep("nap", 60)
        seen[ctx.path] = [begun, version, str(ctx.uuid()), ctx.random.random()]
        await ctx.step("b", work, f"b{number}")
        return Break(number) if number == 6 else Continue(number + 1)

    @workflow
    async def notes(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 0, commit_interval=3, history_keep=4)

    await world.run(notes)
    first, latest = dict(seen), 2
    await restart(world, "loop/~5/b")
    await world.run(notes)
    assert seen["loop/~5"] == first["loop/~5"], "b only is run again"
    assert [seen["loop/~6"][1], *seen["loop/~6"][2:]] == [2, *first["loop/~6"][2:]]
    await restart(world, "loop/~5/version")
    await world.run(notes)
    assert seen["loop/~5"] == [first["loop/~5"][0], 2, *first["loop/~5"][2:]]


@pytest.mark.parametrize("end", ["failed", "rolled_back", "cancelled", "stuck"])
async def test_whatever_its_status(world: World, end: str) -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        rollback = undo if end == "rolled_back" and number == 5 else None
        await ctx.step("a", work, f"a{number}", rollback=rollback)
        if number == 5 and "ends" in down:
            if end == "cancelled":
                await ctx.listen("never")
            elif end == "stuck":
                await ctx.step("a", work, "a")
        await ctx.step("b", work, f"b{number}", retries=0)
        return Break(number) if number == 7 else Continue(number + 1)

    @workflow
    async def ends(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 0, commit_interval=2, history_keep=3)

    down.update({"ends"} | ({"b5"} if end in ("failed", "rolled_back") else set()))
    result = await world.once(ends, mode="yield")
    if end == "cancelled":
        await control.cancel(world.driver, "i", Codec(), world.clock.time(), rollback=False)
        result = await world.once(ends)
    assert result.status is Status(end)
    down.clear()
    for path, expected in [("loop/~5", 5), ("loop/~6/b", 6), ("loop/~5/b", 5)]:
        await restart(world, path)
        with rerun() as again:
            done = await world.run(ends)
        assert (done.status, done.output) == (Status.COMPLETED, 7), done.error
        assert again == [s for n in range(expected, 8) for s in (f"a{n}", f"b{n}")][path.endswith("b") :]


@pytest.mark.parametrize("kind", KINDS)
async def test_crashes_after_it(world: World, kind: str) -> None:
    flow = turning(kind, 9, commit_interval=2, history_keep=5)
    await world.run(flow)
    await restart(world, "loop/~5/b 5")
    with rerun() as again:
        for crash_at in (2, 1, 3, 2, 1):
            with suppress(SimulatedCrash):
                await world.once(flow, driver=FaultyDriver(world.driver, crash_after=crash_at), mode="yield")
            world.clock.advance(10)
        result = await world.run(flow)
    assert (result.status, result.output) == (Status.COMPLETED, [8, states(kind)(8)]), result.error
    assert Counter(again) == Counter(steps_from(5, 9, second=True))


async def test_after_a_change_of_the_settings(world: World) -> None:
    """What was stored with other settings is gone on with as far as it goes."""
    await until_it_waits(world, turning("large", 9, stop=8, commit_interval=4, history_keep=8))
    flow = turning("large", 12, stop=8, commit_interval=3, history_keep=5)
    assert (await world.run(flow, script=[("go", None)])).status is Status.COMPLETED
    kept = [n for n in range(12) if f"loop/~{n}/a" in await world.history()]
    assert kept == list(range(6, 12))
    # Of states so large only those are stored that the loop had when it was stored: it was with 8, and not with 6.
    with pytest.raises(DefinitionError, match="there are the turns ~8 to ~11"):
        await restart(world, "loop/~6")
    for number in range(8, 12):
        with rerun() as again:
            await restart(world, f"loop/~{number}")
            result = await world.run(flow, script=[("go", None)] if number == 8 else ())
        assert (result.status, again) == (Status.COMPLETED, steps_from(number, 12)), result.error


async def test_by_a_handle_while_it_runs() -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.step("a", work, f"a{number}")
        if number == 30:
            await ctx.listen("go")
        return Break(number) if number == 40 else Continue(number + 1)

    @workflow
    async def counts(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 0, commit_interval=8)

    async with Runtime("memory://", workflows=[counts]) as runtime:
        handle = await runtime.start(counts, id="i")
        await handle.send("go")
        assert await handle.result(timeout=PATIENCE) == 40
        for number in (36, 35, 38):
            with rerun() as again:
                await handle.restart_from(f"loop/~{number}/a")
                assert await handle.result(timeout=PATIENCE) == 40
            assert again == [f"a{n}" for n in range(number, 41)]
