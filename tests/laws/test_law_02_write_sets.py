"""A flush takes what changed as it stands; what changes meanwhile stays changed, and so does all that failed."""

from __future__ import annotations

from collections import Counter

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from tests.laws.watching import Change, WatchedDriver, crash_at, everywhere
from tests.support import World
from workflow_sdk import (
    Break,
    Context,
    Continue,
    InstanceNotFoundError,
    Status,
    StorageError,
    send_message,
    workflow,
)
from workflow_sdk.journal.journal import Journal
from workflow_sdk.journal.unwritten import WriteSet
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.instance import Head
from workflow_sdk.rows.keys import HISTORY, INBOX, NAMES, Field, InstanceKeys
from workflow_sdk.rows.location import pack_segment, subtree
from workflow_sdk.rows.status import Kind
from workflow_sdk.testing import FaultyDriver

KEYS = InstanceKeys("i")
RUNNING = Head("w", 1, "", 1.0, Status.RUNNING, 1, 1.0)
WAITING = replace(RUNNING, status=Status.WAITING)
AT = pack_segment(0)
ROW = KEYS.space + HISTORY + AT


def changed(writes: WriteSet) -> dict[bytes, bytes | None]:
    """The rows, without the one that counts the commits."""
    return {key: row for key, row in writes.rows.items() if key != KEYS.field(Field.TALLY)}


async def give(value: int) -> int:
    return value


# The journal by itself.


def test_a_write_set_is_what_the_entry_was_then() -> None:
    journal = Journal(KEYS)
    entry = Entry(Kind.STEP, 0, 1.0)
    journal.history.put(AT, entry)
    before = entry.pack()
    writes = journal.unwritten.take()
    entry.complete(b"value", 2.0)
    assert writes.rows[ROW] == before


def test_what_changes_while_it_is_written_goes_with_the_next() -> None:
    journal = Journal(KEYS)
    entry = Entry(Kind.STEP, 0, 1.0)
    journal.history.put(AT, entry)
    journal.unwritten.take()
    assert not journal.unwritten.is_dirty
    entry.complete(b"value", 2.0)
    journal.history.put(AT, entry)
    assert journal.unwritten.is_dirty
    assert changed(journal.unwritten.take()) == {ROW: entry.pack()}


def test_a_failed_write_leaves_everything_dirty() -> None:
    journal = Journal(KEYS)
    journal.history.put(AT, Entry(Kind.STEP, 0, 1.0))
    journal.set_row(Field.HEAD, RUNNING)
    journal.names.root.intern("charge")
    journal.history.clear_turns(pack_segment(5), pack_segment(6), shown=True)
    failed = journal.unwritten.take()
    journal.unwritten.restore(failed)
    assert journal.unwritten.is_dirty
    again = journal.unwritten.take()
    assert again.rows == failed.rows
    assert again.clears == failed.clears
    assert len(changed(again)) == 3


def test_what_changed_during_a_failed_write_is_newer() -> None:
    journal = Journal(KEYS)
    entry = Entry(Kind.STEP, 0, 1.0)
    journal.history.put(AT, entry)
    failed = journal.unwritten.take()
    entry.complete(b"value", 2.0)
    journal.history.put(AT, entry)
    journal.unwritten.restore(failed)
    assert changed(journal.unwritten.take()) == {ROW: entry.pack()}


def test_what_was_cleared_during_a_failed_write_does_not_come_back() -> None:
    journal = Journal(KEYS)
    below = pack_segment(5) + pack_segment(6)
    journal.history.put(below, Entry(Kind.STEP, 0, 1.0))
    failed = journal.unwritten.take()
    journal.history.clear_turns(*subtree(pack_segment(5)), shown=True)
    journal.unwritten.restore(failed)
    writes = journal.unwritten.take()
    assert KEYS.space + HISTORY + below not in writes.rows
    assert writes.clears


def test_a_clear_does_not_reach_what_is_put_after_it() -> None:
    journal = Journal(KEYS)
    below = pack_segment(5) + pack_segment(6)
    journal.history.put(below, Entry(Kind.STEP, 0, 1.0))
    journal.history.clear_turns(*subtree(pack_segment(5)), shown=True)
    assert KEYS.space + HISTORY + below not in journal.unwritten.take().rows
    journal.history.clear_turns(*subtree(pack_segment(5)), shown=True)
    journal.history.put(below, Entry(Kind.STEP, 1, 1.0))
    assert journal.unwritten.take().rows[KEYS.space + HISTORY + below] is not None


def test_a_name_is_written_until_it_is_stored() -> None:
    journal = Journal(KEYS)
    index = journal.names.root.intern("charge")
    row = KEYS.space + NAMES + pack_segment(index)
    first = journal.unwritten.take()
    assert row in first.rows
    # In the air: an operation that uses it now does not write it again, since it may be stored ...
    assert journal.names.root.intern("charge") == index
    assert row not in journal.unwritten.take().rows
    # ... and if it is not, it is to be written still.
    journal.unwritten.restore(first)
    assert row in journal.unwritten.take().rows


def test_a_field_that_changes_back_during_a_write_is_written() -> None:
    journal = Journal(KEYS)
    journal.set_row(Field.HEAD, RUNNING)
    journal.unwritten.take()
    journal.set_row(Field.HEAD, WAITING)
    journal.set_row(Field.HEAD, RUNNING)
    stored = journal.unwritten.take().rows
    assert stored.keys() == {KEYS.field(Field.HEAD)}


# Over a store that takes its time.


async def test_three_branches_of_three_steps_survive_every_crash(world: World) -> None:
    runs: Counter[str] = Counter()

    async def work(id: str, name: str) -> str:
        runs[f"{id} {name}"] += 1
        return name

    async def line(ctx: Context, label: str) -> list[str]:
        return [
            await ctx.step(f"{label}{number}", work, ctx.instance_id, f"{label}{number}", retries=0)
            for number in range(3)
        ]

    async def a(ctx: Context) -> list[str]:
        return await line(ctx, "a")

    async def b(ctx: Context) -> list[str]:
        return await line(ctx, "b")

    async def c(ctx: Context) -> list[str]:
        return await line(ctx, "c")

    @workflow
    async def grid(ctx: Context) -> dict[str, list[str]]:
        return await ctx.join("grid", {"a": a, "b": b, "c": c})

    recorded: dict[str, set[str]] = {}

    async def check(id: str) -> None:
        """After the crash: what is recorded is remembered. At the end: none of it ran again."""
        try:
            history = await world.history(id)
        except InstanceNotFoundError:
            return
        assert not [entry.path for entry in history if "?" in entry.path], "every name is stored"
        final = {entry.path.rpartition("/")[2] for entry in history if entry.kind is Kind.STEP}
        if not history.status.is_terminal:
            recorded[id] = final
            return
        result = await world.once(grid, id=id)
        assert result.output == {label: [f"{label}{number}" for number in range(3)] for label in "abc"}
        assert not [name for name in recorded.get(id, ()) if runs[f"{id} {name}"] > 1]

    assert await everywhere(world, grid, check) >= 8


async def test_an_entry_that_changes_on_its_way_is_not_lost(world: World) -> None:
    """The commit that says that the loop has begun is held back until the loop has ended."""
    begun = anyio.Event()

    async def turn(ctx: Context, state: None) -> Break[str]:
        await begun.wait()
        return Break("done")

    async def loops(ctx: Context) -> str:
        return await ctx.loop("loop", turn)

    async def steps(ctx: Context) -> str:
        return str(await ctx.step("s", give, 1))

    on_its_way: list[Change] = []

    async def hold(change: Change) -> None:
        if "join/loops/loop" in change.entries:
            on_its_way.append(change)
            begun.set()
            for _ in range(100):  # turns of the event loop, in which the loop ends
                await anyio.lowlevel.checkpoint()

    @workflow
    async def both(ctx: Context) -> dict[str, str]:
        return await ctx.join("join", {"loops": loops, "steps": steps})

    driver = WatchedDriver(world.driver, before=hold)
    result = await world.run(both, driver=driver)
    assert result.output == {"loops": "done", "steps": "1"}
    assert [change.is_final("join/loops/loop") for change in on_its_way] == [False, True]
    assert (await world.history())["join/loops/loop"].value == "done"


async def test_a_failed_commit_is_made_up_for_by_the_next(world: World) -> None:
    """A message stops the commit that evicts the instance: all that was in it goes with a later one."""
    sent = 0

    async def disturb(change: Change) -> None:
        nonlocal sent
        if change.status is Status.WAITING and not sent:
            sent += 1
            await send_message(world.driver, "i", "other", 1, clock=world.clock)

    @workflow
    async def wait(ctx: Context) -> int:
        kept = await ctx.step("kept for later", give, 1, repeatable=True)
        return kept + await ctx.listen("number", type=int)

    driver = WatchedDriver(world.driver, before=disturb)
    result = await world.once(wait, driver=driver, mode="yield")
    assert (result.status, sent) == (Status.WAITING, 1)
    assert len(driver.changes) == 2
    away = driver.changes[-1]
    assert away.names == ["kept for later", "number"]
    assert set(away.entries) == {"kept for later", "number"}
    assert (away.status, away.lease_released) == (Status.WAITING, True)
    await world.send("number", 2)
    assert (await world.run(wait)).output == 3
    assert len(await world.driver.scan(*KEYS.range(INBOX))) == 1


async def test_a_hundred_branches_share_their_commits(world: World) -> None:
    async def branch(ctx: Context, n: int) -> int:
        return await ctx.step("s", give, n) + await ctx.step("t", give, n)

    @workflow
    async def many(ctx: Context) -> list[int]:
        return await ctx.map("all", branch, range(100))

    driver = WatchedDriver(world.driver, turns=3)
    result = await world.run(many, driver=driver)
    assert result.output == [2 * n for n in range(100)]
    outcomes = sum(change.is_final(path) for change in driver.changes for path in change.entries)
    assert outcomes == 301, "two steps of each branch, each branch, and the map"
    # How many share a commit depends on when a store answers: ten or so in a quick one.
    assert len(driver.changes) < outcomes / 8
    assert driver.in_flight_max == 1


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_one_flush_is_in_flight_at_a_time(world: World, turns: int) -> None:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.step("s", give, n)
        await ctx.sleep("nap", 1)
        return Break(n) if n == 2 else Continue(n + 1)

    async def loops(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 0, commit_interval=1)

    async def races(ctx: Context) -> str:
        async def quick(ctx: Context) -> int:
            await ctx.step("s", give, 1)
            return await ctx.step("t", give, 1)

        return (await ctx.race("race", {"a": quick, "b": quick, "c": loops})).winner

    @workflow
    async def busy(ctx: Context) -> None:
        await ctx.join("join", {"a": loops, "b": races, "c": loops, "d": races})

    driver = WatchedDriver(world.driver, turns=turns)
    result = await world.run(busy, driver=driver)
    assert result.status is Status.COMPLETED
    assert driver.in_flight_max == 1


async def test_those_who_wait_for_a_flush_that_fails_do_not_go_on(world: World) -> None:
    after: list[int] = []

    async def branch(ctx: Context, n: int) -> None:
        await ctx.step("s", give, n)
        if n % 2:
            await ctx.step("t", give, n)
        after.append(n)

    @workflow
    async def many(ctx: Context) -> None:
        await ctx.map("all", branch, range(20))

    # The claim, the flush that all the first steps share, and that of the second ones.
    with pytest.raises(StorageError):
        await world.once(many, driver=FaultyDriver(world.driver, fail_at=[3], latency=1e-9))
    history = await world.history()
    stored = [entry for entry in history if entry.kind is Kind.STEP]
    assert sorted(after) == list(range(0, 20, 2))
    assert len(stored) == 20
    assert (await world.run(many)).status is Status.COMPLETED


async def test_names_of_loops_side_by_side_are_read_again(world: World) -> None:
    """Each loop has an index of its own for `s`; afterwards the root uses the same name."""

    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.step("s", give, n)
        return Break(n) if n == 2 else Continue(n + 1)

    async def short(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 1)

    async def long(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 0)

    @workflow
    async def both(ctx: Context) -> int:
        await ctx.join("join", {"first": short, "second": long})
        await ctx.step("s", give, 7)
        await ctx.sleep("nap", 60)
        return await ctx.step("t", give, 8)

    for number in range(3, 15):
        id = str(number)
        if not await crash_at(world, both, number, "after", id=id):
            break
        result = await world.run(both, id=id)
        assert (result.status, result.output, result.error) == (Status.COMPLETED, 8, None)
