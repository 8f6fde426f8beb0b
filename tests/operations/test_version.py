"""`ctx.version` and `ctx.removed`: changing code that has instances under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import World
from workflow_sdk import Break, Context, Continue, EntryStatus, Kind, Status, workflow

pytestmark = pytest.mark.law(8)


async def test_a_new_history_goes_with_the_latest(world: World) -> None:
    @workflow
    async def versioned(ctx: Context) -> list[int]:
        await ctx.step("first", lambda: 1)
        one = await ctx.version("v", 3)
        await ctx.sleep("pause", 60)
        return [one, await ctx.version("w", 1)]

    assert (await world.run(versioned)).output == [3, 1]
    entry = (await world.history())["v"]
    assert (entry.kind, entry.status, entry.value) == (Kind.VERSION, EntryStatus.COMPLETED, 3)


async def test_an_old_history_goes_with_the_first(world: World) -> None:
    ran: list[str] = []

    @workflow(name="changes")
    async def old(ctx: Context) -> str:
        await ctx.step("first", ran.append, "first")
        await ctx.step("second", ran.append, "second")
        await ctx.listen("go")
        return "old"

    @workflow(name="changes")
    async def new(ctx: Context) -> str:
        await ctx.step("first", ran.append, "first")
        if await ctx.version("inserted", 2) >= 2:
            await ctx.step("between", ran.append, "between")
        await ctx.step("second", ran.append, "second")
        await ctx.listen("go")
        if await ctx.version("at the end", 2) >= 2:
            await ctx.step("third", ran.append, "third")
        return "new"

    await world.once(old, mode="yield")
    assert (await world.run(new, script=[("go", None)])).output == "new"
    assert ran == ["first", "second", "third"]
    history = await world.history()
    assert (history["inserted"].value, history["at the end"].value) == (1, 2)
    ran.clear()
    assert (await world.run(new, id="other", script=[("go", None)])).output == "new"
    assert ran == ["first", "between", "second", "third"]


async def test_what_was_chosen_stays_chosen(world: World) -> None:
    def at(latest: int) -> Any:
        @workflow(name="changes")
        async def versioned(ctx: Context) -> int:
            version = await ctx.version("v", latest)
            await ctx.sleep("pause", 60)
            return version

        return versioned

    await world.once(at(2), mode="yield")
    assert (await world.run(at(5))).output == 2


async def test_every_turn_of_a_loop_has_its_own_version(world: World) -> None:
    log: list[str] = []

    def turning(changed: bool) -> Any:
        async def body(ctx: Context, n: int) -> Continue[int] | Break[str]:
            await ctx.step("a", lambda: n)
            if changed and await ctx.version("v", 2) >= 2:
                await ctx.step("new", log.append, f"new {n}")
            await ctx.listen("go")
            await ctx.step("b", log.append, f"b {n}")
            return Break("done") if n == 2 else Continue(n + 1)

        @workflow(name="turns")
        async def turns(ctx: Context) -> str:
            return await ctx.loop("loop", body, 0)

        return turns

    await world.once(turning(False), mode="yield")
    result = await world.run(turning(True), script=[("go", None)] * 3)
    assert result.output == "done"
    assert log == ["b 0", "new 1", "b 1", "new 2", "b 2"]


async def test_scopes_have_versions_of_their_own(world: World) -> None:
    def joining(changed: bool) -> Any:
        async def branch(ctx: Context) -> int:
            version = await ctx.version("v", 2) if changed else 0
            await ctx.sleep("pause", 60)
            return version

        async def fresh(ctx: Context) -> int:
            return await ctx.version("v", 2) if changed else 0

        @workflow(name="joins")
        async def joins(ctx: Context) -> Any:
            values = await ctx.join("join", {"a": branch})
            values |= await ctx.join("later", {"b": fresh})
            return values

        return joins

    await world.once(joining(False), mode="yield")
    assert (await world.run(joining(True))).output == {"a": 1, "b": 2}


# Removed.


async def _branch(ctx: Context) -> int:
    await ctx.sleep("nap", 1)
    return await ctx.step("s", lambda: 1)


async def _item(ctx: Context, n: int) -> int:
    return await _branch(ctx)


async def _turn(ctx: Context, state: None) -> Break[int]:
    return Break(await _branch(ctx))


OPERATIONS: dict[str, Callable[[Context], Any]] = {
    "step": lambda ctx: ctx.step("gone", lambda: 1),
    "loop": lambda ctx: ctx.loop("gone", _turn),
    "sleep": lambda ctx: ctx.sleep("gone", 5),
    "listen": lambda ctx: ctx.listen("gone", timeout=5, default=None),
    "join": lambda ctx: ctx.join("gone", {"a": _branch, "b": _branch}),
    "race": lambda ctx: ctx.race("gone", {"a": _branch, "b": _branch}),
    "map": lambda ctx: ctx.map("gone", _item, [1, 2]),
    "attempt": lambda ctx: ctx.attempt("gone", _branch),
    "version": lambda ctx: ctx.version("gone", 2),
    "checkpoint": lambda ctx: ctx.checkpoint("gone"),
}


def removing(kind: str, how: str) -> Any:
    """A workflow with an operation of that kind in it, or without it, properly or not."""

    @workflow(name="changes")
    async def changes(ctx: Context) -> str:
        await ctx.step("before", lambda: 1)
        if how == "there":
            await OPERATIONS[kind](ctx)
        elif how != "forgotten":
            await ctx.removed("gone", kind if how == "removed" else how)
        await ctx.step("after", lambda: 2)
        await ctx.listen("go")
        await ctx.step("new", lambda: 3)
        return how

    return changes


async def run_to_the_listen(world: World, workflow: Any) -> None:
    """Run it until it waits for `go` and for nothing else."""
    while (result := await world.once(workflow, mode="yield")).wake_at is not None:
        world.clock.advance(10)
    assert result.waiting_for == ["go"]


@pytest.mark.parametrize("kind", OPERATIONS)
async def test_every_kind_can_be_removed(world: World, kind: str) -> None:
    await run_to_the_listen(world, removing(kind, "there"))
    forgotten = await world.run(removing(kind, "forgotten"))
    assert forgotten.status is Status.STUCK
    assert forgotten.error is not None
    assert forgotten.error.kind == "consistency"
    assert (await world.run(removing(kind, "removed"), script=[("go", None)])).output == "removed"
    assert "gone" in await world.history(), "what is recorded stays"


@pytest.mark.parametrize("kind", OPERATIONS)
async def test_a_new_history_knows_nothing_of_it(world: World, kind: str) -> None:
    result = await world.run(removing(kind, "removed"), script=[("go", None)])
    assert result.output == "removed"
    assert [entry.name for entry in await world.history()] == ["before", "after", "go", "new"]


@pytest.mark.parametrize("kind", OPERATIONS)
async def test_an_operation_under_way_can_be_removed(world: World, kind: str) -> None:
    def changing(how: str) -> Any:
        @workflow(name="changes")
        async def changes(ctx: Context) -> str:
            if how == "there":
                await OPERATIONS[kind](ctx)
                await ctx.listen("go")
            else:
                await ctx.removed("gone", kind)
                await ctx.removed("go", "listen")
                await ctx.step("new", lambda: 3)
            return how

        return changes

    await world.once(changing("there"), mode="yield")
    assert (await world.run(changing("without"))).output == "without"


async def test_another_kind_than_recorded_is_divergence(world: World) -> None:
    await run_to_the_listen(world, removing("step", "there"))
    result = await world.run(removing("step", "sleep"))
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "consistency"
    assert "recorded as step" in result.error.message


async def test_removed_in_a_loop_covers_each_turn(world: World) -> None:
    def turning(how: str) -> Any:
        async def body(ctx: Context, n: int) -> Continue[int] | Break[str]:
            if how == "there":
                await ctx.sleep("gone", 0)
            else:
                await ctx.removed("gone", "sleep")
            await ctx.listen("go")
            return Break(how) if n == 2 else Continue(n + 1)

        @workflow(name="turns")
        async def turns(ctx: Context) -> str:
            return await ctx.loop("loop", body, 0)

        return turns

    await world.once(turning("there"), mode="yield")
    assert (await world.run(turning("without"), script=[("go", None)] * 3)).output == "without"


async def test_the_start_of_another_instance_can_be_removed_by_the_name_of_its_call(world: World) -> None:
    @workflow
    async def successor(ctx: Context) -> None: ...

    @workflow(name="changes")
    async def before(ctx: Context) -> None:
        await ctx.continue_with("gone", successor, id="successor")
        await ctx.listen("go")

    @workflow(name="changes")
    async def after(ctx: Context) -> str:
        await ctx.removed("gone", "continue_with")
        await ctx.listen("go")
        return "end"

    assert (await world.once(before, mode="yield")).status is Status.WAITING
    assert (await world.run(after, script=[("go", None)])).output == "end"
