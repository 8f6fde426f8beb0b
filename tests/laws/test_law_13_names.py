"""Law 13: names are data. Whatever is in them, they lead to one place each, and print differently."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import World
from workflow_sdk import Break, Client, Context, Continue, HistoryEntry, Kind, Status, Success, run_workflow, workflow
from workflow_sdk.rows.location import escape, join_path, pack_pair, pack_segment

NAMES = [
    "a",
    "a/b",
    "a/",
    "/",
    "//",
    "~",
    "~0",
    "~1",
    "a/~0",
    "%",
    "%2F",
    "a%2Fb",
    "a%252Fb",
    "%00",
    "a\x00",
    "a\x00b",
    "a\x00\xff",
    "\x00",
    "\x7f",
    "\x85",
    "\u2028",
    "\xff",
    "\uffff",
    "\U0010ffff",
    "\n",
    "a b",
    " ",
    ".",
    "..",
    "?",
    "0",
    "1",
    "00",
    "-1",
    "1.5",
    "None",
    "step",
    "ä",
    "a\u0308",
    "\u00e4",
    "日本語",
    "👩‍👩‍👧",
    "\u200b",
    "\u202e",
    "x" * 1000,
    "x" * 999 + "\x00",
    "\U0001f600" * 1000,
    "charge:1",
    ":1",
    "[0]",
    "'",
    '"',
    "\\",
]
DISTINCT = list(dict.fromkeys(NAMES))


async def give(value: Any) -> Any:
    return value


def flat(entries: tuple[HistoryEntry, ...]) -> list[HistoryEntry]:
    return [entry for root in entries for entry in root]


async def check_every_name_has_its_place(world: World, expected: int) -> None:
    """As many entries as were made, each with a printable path of its own."""
    history = await world.history()
    entries = flat(history.roots)
    paths = [entry.path for entry in entries]
    assert len(entries) == expected
    assert len(set(paths)) == len(paths)
    assert len(history) == expected
    for entry in entries:
        assert history[entry.path] is entry
        assert not any(ord(char) < 32 or ord(char) == 127 for char in entry.path)


async def test_steps_with_odd_names(world: World) -> None:
    ran: list[str] = []

    async def work(name: str) -> str:
        ran.append(name)
        return name

    @workflow
    async def job(ctx: Context) -> list[str]:
        first = [await ctx.step(name, work, name) for name in DISTINCT]
        await ctx.sleep("then", 5)
        return first

    result = await world.run(job)
    assert result.output == DISTINCT
    assert ran == DISTINCT
    await check_every_name_has_its_place(world, len(DISTINCT) + 1)
    assert [entry.name for entry in await world.history()][:-1] == DISTINCT


Operation = Callable[[Context, str], Awaitable[object]]


async def in_join(ctx: Context, name: str) -> object:
    async def branch(ctx: Context) -> str:
        return await ctx.step(name, give, name)

    return (await ctx.join(name, {name: branch, name[:999] + "!": branch}))[name]


async def in_race(ctx: Context, name: str) -> object:
    async def branch(ctx: Context) -> str:
        return await ctx.step(name, give, name)

    won = await ctx.race(name, {name: branch})
    assert won.winner == name
    return won.value


async def in_loop(ctx: Context, name: str) -> object:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[str]:
        value = await ctx.step(name, give, name)
        return Continue(number + 1) if number < 2 else Break(value)

    return await ctx.loop(name, turn, 0)


async def in_attempt(ctx: Context, name: str) -> object:
    async def fn(ctx: Context) -> str:
        return await ctx.step(name, give, name)

    done = await ctx.attempt(name, fn)
    assert isinstance(done, Success)
    return done.value


async def in_map(ctx: Context, name: str) -> object:
    async def each(ctx: Context, item: str) -> str:
        return await ctx.step(name, give, item)

    return (await ctx.map(name, each, [name, name]))[1]


@pytest.mark.parametrize(
    ("operation", "entries"), [(in_join, 5), (in_race, 3), (in_loop, 4), (in_attempt, 2), (in_map, 5)]
)
async def test_scopes_with_odd_names(world: World, operation: Operation, entries: int) -> None:
    @workflow
    async def job(ctx: Context) -> list[object]:
        found = [await operation(ctx, name) for name in DISTINCT]
        await ctx.sleep("then", 5)
        return found

    result = await world.run(job)
    assert (result.status, result.output, result.error) == (Status.COMPLETED, DISTINCT, None)
    await check_every_name_has_its_place(world, len(DISTINCT) * entries + 1)


async def test_messages_with_odd_names(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> list[object]:
        return [await ctx.listen(name) for name in DISTINCT]

    assert (await world.once(job, mode="yield")).waiting_for == ["a"]
    for name in reversed(DISTINCT):
        await world.send(name, name)
    assert (await world.run(job)).output == DISTINCT


async def test_names_that_are_numbers_of_branches_and_turns(world: World) -> None:
    """A map `m`, a loop `m` in it, and steps `0` and `~0` everywhere."""

    async def turn(ctx: Context, number: int) -> Continue[int] | Break[list[str]]:
        paths = [await ctx.step("0", give, ctx.path), await ctx.step("~0", give, ctx.path)]
        return Continue(number + 1) if number < 1 else Break(paths)

    async def each(ctx: Context, item: int) -> list[str]:
        await ctx.step("0", give, 0)
        await ctx.step("~0", give, 0)
        return await ctx.loop("m", turn, 0)

    @workflow
    async def job(ctx: Context) -> list[list[str]]:
        await ctx.step("0", give, 0)
        await ctx.step("~0", give, 0)
        await ctx.join("1", {"0": lambda ctx: each(ctx, 0), "~0": lambda ctx: each(ctx, 1)})
        found = await ctx.map("m", each, range(2))
        await ctx.sleep("then", 5)
        return found

    result = await world.run(job)
    assert result.output == [["m/0/m/~1"] * 2, ["m/1/m/~1"] * 2]
    scope = 2 + 1 + 2 * 2
    await check_every_name_has_its_place(world, 2 + 2 * (1 + 2 * (1 + scope)) + 1)


@pytest.mark.parametrize(
    ("winner", "loser"), [("a", "a\x00b"), ("a\x00b", "a"), ("a", "a/b"), ("1", "10"), ("10", "1")]
)
async def test_clearing_a_loser_does_not_touch_its_neighbour(world: World, winner: str, loser: str) -> None:
    ran: list[str] = []

    async def work(name: str) -> str:
        ran.append(name)
        return name

    @workflow
    async def job(ctx: Context) -> str:
        async def wins(ctx: Context) -> str:
            await ctx.step("before", work, "winner before")
            await ctx.sleep("nap", 5)
            return await ctx.step("after", work, "winner after")

        async def loses(ctx: Context) -> str:
            await ctx.step("before", work, "loser before")
            await ctx.sleep("nap", 500)
            return "never"

        async def stays(ctx: Context) -> str:
            return await ctx.step("before", work, ctx.path)

        for name in (loser, loser + "\x00", winner + "\x00", winner + "\xff"):
            await ctx.join(name, {name: stays, loser: stays})
        won = await ctx.race("race", {winner: wins, loser: loses})
        await ctx.sleep("then", 5)
        return won.value

    result = await world.run(job)
    assert result.output == "winner after"
    assert len(ran) == len(set(ran)) == 3 + 4 * 2 - 1
    history = await world.history()
    race = join_path("race", escape(winner))
    assert {f"{race}/before", f"{race}/nap", f"{race}/after"} <= {entry.path for entry in history}
    assert join_path("race", escape(loser)) not in history
    assert sum(entry.kind is Kind.JOIN and len(entry.children) >= 1 for entry in history.roots) == 4


IDS = ["a", "a\x00", "a\x00b", "a/b", "~0", "%", "1", "10", "ä", "日本語", "x" * 1000, "\x00", "\xff"]


async def test_instances_with_odd_ids_do_not_meet(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> str:
        await ctx.step("step", give, ctx.instance_id)
        return await ctx.listen("message", type=str)

    for id in IDS:
        assert (await world.once(job, id=id, mode="yield")).status is Status.WAITING
    for id in IDS:
        await world.send("message", id, id=id)
        assert (await world.run(job, id=id)).output == id
    for id in IDS:
        history = await world.history(id)
        assert [(entry.path, entry.value) for entry in history] == [("step", id), ("message", id)]


async def test_deleting_an_instance_leaves_those_whose_ids_begin_like_its_own(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step("step", give, ctx.instance_id)

    others = ["a\x00", "a\x00b", "a\x00\xff", "a/b", "ab", "a\xff"]
    for id in ("a", *others):
        await world.run(job, id=id)
    async with Client(world.driver) as client:
        await client.delete("a")
    for id in others:
        assert [(entry.path, entry.value) for entry in await world.history(id)] == [("step", id)]


@pytest.mark.parametrize("id", ["", "x" * 1001, 5, b"i"])
async def test_ids_that_are_none(world: World, id: Any) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        """Does nothing."""

    with pytest.raises(Exception, match="an instance id is a text of 1 to 1000 characters") as caught:
        await run_workflow(job, driver=world.driver, instance_id=id)
    assert type(caught.value).__name__ == "DefinitionError"
    assert await world.driver.scan(b"", b"\xff") == []


async def test_an_id_that_is_no_unicode_is_refused(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        """Does nothing."""

    with pytest.raises(Exception, match="instance id") as caught:
        await run_workflow(job, driver=world.driver, instance_id="half \ud800")
    assert type(caught.value).__name__ == "DefinitionError"
    assert await world.driver.scan(b"", b"\xff") == []


odd_names = st.text(st.sampled_from("a/~%0\x00\x01\x7f2F "), min_size=1, max_size=6) | st.text(min_size=1, max_size=6)


@given(st.lists(odd_names, min_size=1, max_size=3), st.integers(0, 100))
def test_no_name_prints_like_a_turn(names: list[str], turn: int) -> None:
    assert f"~{turn}" not in [escape(name) for name in names]


packed = st.lists(
    st.integers(0, 70_000).map(pack_segment)
    | st.tuples(st.integers(0, 300), st.integers(0, 300)).map(lambda p: pack_pair(*p)),
    min_size=1,
    max_size=3,
).map(b"".join)


def test_no_two_of_the_odd_names_print_alike() -> None:
    for one, other in combinations(DISTINCT, 2):
        assert escape(one) != escape(other)
