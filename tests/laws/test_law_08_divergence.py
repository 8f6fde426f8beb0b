"""Divergence is seen early and costs nothing: in every scope, before anything new is done in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.laws.parts import Branch, endless, give
from tests.support import World
from workflow_sdk import Break, Context, Continue, HistoryDivergedError, Status, Workflow, workflow
from workflow_sdk.rows.keys import HISTORY, InstanceKeys

Body = Callable[[Context], Awaitable[Any]]


class Effects:
    """Steps that write down that they ran, and how they were undone."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.undone: list[str] = []

    async def _do(self, name: str) -> str:
        self.ran.append(name)
        return name

    async def _undo(self, name: str) -> None:
        self.undone.append(name)

    async def step(self, ctx: Context, name: str) -> str:
        if "loop" in ctx.path:
            # A handler in here would have to be importable.
            return await ctx.step(name, self._do, name)
        return await ctx.step(name, self._do, name, rollback=self._undo)

    def body(self, *operations: str) -> Body:
        """One operation after the other: steps, or other kinds as `sleep name`."""

        async def run(ctx: Context) -> str:
            for operation in operations:
                kind, _, name = operation.rpartition(" ")
                await OTHER_KINDS[kind](ctx, name) if kind else await self.step(ctx, name)
            return "end"

        return run


async def join_of(ctx: Context, name: str) -> None:
    await ctx.join(name, {"only": lambda ctx: ctx.step("s", give, 1)})


async def loop_of(ctx: Context, name: str) -> None:
    async def turn(ctx: Context, state: None) -> Break[int]:
        await ctx.step("s", give, 1)
        return Break(1)

    await ctx.loop(name, turn)


OTHER_KINDS: dict[str, Callable[[Context, str], Awaitable[Any]]] = {
    "sleep": lambda ctx, name: ctx.sleep(name, 3600),
    "listen": lambda ctx, name: ctx.listen(name, timeout=3600, default=None),
    "join": join_of,
    "loop": loop_of,
    "race": lambda ctx, name: ctx.race(name, {"only": lambda ctx: ctx.step("s", give, 1)}),
    "map": lambda ctx, name: ctx.map(name, lambda ctx, n: ctx.step("s", give, n), range(2)),
    "attempt": lambda ctx, name: ctx.attempt(name, lambda ctx: ctx.step("s", give, 1)),
    "version": lambda ctx, name: ctx.version(name, 2),
    "checkpoint": lambda ctx, name: ctx.checkpoint(name),
}


def in_root(body: Body) -> Body:
    return body


def in_branch(body: Body) -> Body:
    return lambda ctx: ctx.join("join", {"x": body, "y": lambda ctx: ctx.sleep("nap", 9000)})


def in_race(body: Body) -> Body:
    return lambda ctx: ctx.race("race", {"x": body, "y": endless})


def in_map(body: Body) -> Body:
    return lambda ctx: ctx.map("map", lambda ctx, _: body(ctx), ["only"])


def in_attempt(body: Body) -> Body:
    return lambda ctx: ctx.attempt("attempt", body)


def in_loop(body: Body) -> Body:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        if n == 0:
            await ctx.step("zero", give, n)
            return Continue(1)
        await body(ctx)
        return Break(n)

    return lambda ctx: ctx.loop("loop", turn, 0)


def in_stored_loop(body: Body) -> Body:
    """The turn is the first one after the state was stored."""

    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        if n < 2:
            await ctx.step("zero", give, n)
            return Continue(n + 1)
        await body(ctx)
        return Break(n)

    return lambda ctx: ctx.loop("loop", turn, 0, commit_interval=2, history_keep=0)


def nested(body: Body) -> Body:
    return in_attempt(in_branch(in_loop(in_race(body))))


SCOPES: dict[str, tuple[str, Callable[[Body], Body]]] = {
    "root": ("", in_root),
    "branch": ("join/x/", in_branch),
    "race": ("race/x/", in_race),
    "map": ("map/0/", in_map),
    "attempt": ("attempt/", in_attempt),
    "loop": ("loop/~1/", in_loop),
    "stored loop": ("loop/~2/", in_stored_loop),
    "nested": ("attempt/join/x/loop/~1/race/x/", nested),
}

RECORDED = ("a", "b", "sleep wait", "c")

CHANGES: dict[str, tuple[tuple[str, ...], str, str]] = {
    # What the code is now; what it asks for that does not fit; what is recorded instead.
    "renamed": (("a2", "b", "sleep wait", "c"), "step '{}a2'", "step '{}a', step '{}b', sleep '{}wait'"),
    "renamed second": (("a", "b2", "sleep wait", "c"), "step '{}b2'", "step '{}b', sleep '{}wait'"),
    "renamed sleep": (("a", "b", "sleep pause", "c"), "sleep '{}pause'", "sleep '{}wait'"),
    "dropped": (("a", "sleep wait", "c"), "goes on with sleep '{}wait'", "step '{}b'"),
    "dropped sleep": (("a", "b", "c"), "step '{}c'", "sleep '{}wait'"),
    "reordered": (("a", "c", "b", "sleep wait"), "step '{}c'", "step '{}b', sleep '{}wait'"),
    "inserted": (("new", "a", "b", "sleep wait", "c"), "step '{}new'", "step '{}a'"),
    "inserted join": (("a", "join new", "b", "sleep wait", "c"), "join '{}new'", "step '{}b'"),
    "ends early": (("a",), "ended", "step '{}b', sleep '{}wait'"),
    "kind changed": (("a", "sleep b", "sleep wait", "c"), "sleep", "'{}b' is recorded as step"),
    "kind of wait changed": (("a", "b", "listen wait", "c"), "listen", "'{}wait' is recorded as sleep"),
}


def versions(body_before: Body, body_after: Body, *, lenient: bool = False) -> tuple[Workflow[Any, Any], ...]:
    """The same workflow, before and after its code was changed."""

    @workflow(name="w")
    async def before(ctx: Context) -> str:
        await body_before(ctx)
        return "end"

    @workflow(name="w", divergence="lenient" if lenient else "strict")
    async def after(ctx: Context) -> str:
        await body_after(ctx)
        return "end"

    return before, after


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("change", CHANGES)
async def test_changed_code_is_stopped_before_it_does_anything(world: World, scope: str, change: str) -> None:
    effects = Effects()
    path, around = SCOPES[scope]
    operations, asked, recorded = CHANGES[change]
    before, after = versions(around(effects.body(*RECORDED)), around(effects.body(*operations)))
    await world.once(before, mode="yield")
    assert effects.ran == ["a", "b"]

    result = await world.run(after)
    assert result.status is Status.STUCK
    assert effects.ran == ["a", "b"]
    assert effects.undone == []
    error = result.error
    assert error is not None
    assert (error.kind, error.type) == ("consistency", f"workflow_sdk.errors.{HistoryDivergedError.__name__}")
    assert asked.replace("{}", path) in error.message
    assert recorded.replace("{}", path) in error.message
    assert "ctx.removed" in error.message

    # It goes on after the code is mended, where it was.
    result = await world.run(before)
    assert (result.status, result.output) == (Status.COMPLETED, "end")
    assert (effects.ran, effects.undone) == (["a", "b", "c"], [])


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_stuck_instance_is_nobodys_and_whole(world: World, scope: str) -> None:
    effects = Effects()
    _, around = SCOPES[scope]
    before, after = versions(around(effects.body(*RECORDED)), around(effects.body("new", *RECORDED)))
    await world.once(before, mode="yield")
    keys = InstanceKeys("i")
    rows = await world.driver.scan(*keys.range(HISTORY))
    compensations = (await world.history()).compensations
    for _ in range(2):
        result = await world.once(after)
        assert result.status is Status.STUCK
        assert await world.driver.scan(*keys.range(HISTORY)) == rows
        assert (await world.history()).compensations == compensations
        assert await world.driver.get(keys.lease) is None


async def mistake(ctx: Context, _: object = None) -> Any:
    """Mistaken code, which is stopped: an operation needs a name."""
    await ctx.sleep("", 1)


BEGUN: dict[str, Callable[[Context], Awaitable[Any]]] = {
    "attempt": lambda ctx: ctx.attempt("new", mistake),
    "join": lambda ctx: ctx.join("new", {"only": mistake}),
    "loop": lambda ctx: ctx.loop("new", mistake),
    "map": lambda ctx: ctx.map("new", mistake, [1]),
    "race": lambda ctx: ctx.race("new", {"only": mistake}),
}


@pytest.mark.parametrize("kind", BEGUN)
async def test_what_mistaken_code_had_begun_is_not_recorded(world: World, kind: str) -> None:
    """So the mended code need not have it."""

    @workflow(name="job")
    async def wrong(ctx: Context) -> None:
        await ctx.step("first", give, 1)
        await BEGUN[kind](ctx)

    @workflow(name="job")
    async def mended(ctx: Context) -> list[int]:
        return [await ctx.step("first", give, 1), await ctx.step("second", give, 2)]

    assert (await world.run(wrong)).status is Status.STUCK
    assert [entry.path for entry in await world.history()] == ["first"]
    result = await world.run(mended)
    assert (result.status, result.output) == (Status.COMPLETED, [1, 2])


@pytest.mark.parametrize("kind", OTHER_KINDS)
@pytest.mark.parametrize("was_step", [True, False])
async def test_every_kind_is_told_from_a_step(world: World, kind: str, was_step: bool) -> None:
    effects = Effects()
    as_step = effects.body("op", "listen wait")
    as_other = effects.body(f"{kind} op", "listen wait")
    before, after = versions(*((as_step, as_other) if was_step else (as_other, as_step)))
    await world.once(before, mode="yield")
    ran = list(effects.ran)
    result = await world.run(after)
    assert result.status is Status.STUCK
    assert result.error is not None
    recorded, asked = ("step", kind) if was_step else (kind, "step")
    assert f"'op' is recorded as {recorded}, and the code asks for {asked}" in result.error.message
    assert effects.ran == ran


async def test_a_workflow_that_fails_before_its_history_is_reached_is_not_compensated(world: World) -> None:
    """The code raises where it did not before: that is not the failure of the workflow, as long as history is left."""
    effects = Effects()

    async def raises(ctx: Context) -> None:
        await effects.step(ctx, "a")
        raise ValueError("no")

    before, after = versions(effects.body(*RECORDED), raises)
    await world.once(before, mode="yield")
    result = await world.run(after)
    assert (result.status, effects.undone) == (Status.STUCK, [])
    assert (await world.run(before)).status is Status.COMPLETED


async def test_siblings_lose_nothing_to_a_branch_that_diverges(world: World) -> None:
    effects = Effects()

    def joins(*operations: str) -> Body:
        sibling = effects.body("x", "sleep first", "y", "sleep second", "z")
        return lambda ctx: ctx.join("join", {"changes": effects.body(*operations), "sibling": sibling})

    before, after = versions(joins("a", "sleep wait", "b"), joins("a", "sleep wait", "b2", "b"))
    await world.once(before, mode="yield")
    # The first wakes to find no other history than its own, so b2 is new and may run; then b is not there.
    result = await world.run(after)
    assert result.status is Status.COMPLETED
    assert sorted(effects.ran) == ["a", "b", "b2", "x", "y", "z"]


async def test_finished_operations_in_another_order_give_their_own_values(world: World) -> None:
    async def one(ctx: Context) -> list[str]:
        return [await ctx.step("a", give, "A"), await ctx.step("b", give, "B")]

    async def other(ctx: Context) -> list[str]:
        return [await ctx.step("b", give, "no"), await ctx.step("a", give, "no")]

    def waits(body: Branch) -> Workflow[None, list[str]]:
        @workflow(name="w")
        async def w(ctx: Context) -> list[str]:
            values: list[str] = await body(ctx)
            await ctx.sleep("wait", 60)
            return values

        return w

    await world.once(waits(one), mode="yield")
    assert (await world.run(waits(other))).output == ["B", "A"]


async def divergence_of(world: World, before: Body, after: Body) -> str:
    """The message of a divergence."""
    first, second = versions(before, after)
    await world.once(first, mode="yield")
    result = await world.run(second)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "consistency"
    return result.error.message


def branches(kind: str, *names: str) -> Body:
    each: dict[str, Body] = {name: lambda ctx: ctx.sleep("nap", 60) for name in names}
    return lambda ctx: ctx.join("op", each) if kind == "join" else ctx.race("op", each)


@pytest.mark.parametrize("kind", ["join", "race"])
@pytest.mark.parametrize("now", [("a",), ("a", "b", "c"), ("a", "c")])
async def test_branches_are_part_of_the_record(world: World, kind: str, now: tuple[str, ...]) -> None:
    message = await divergence_of(world, branches(kind, "a", "b"), branches(kind, *now))
    assert f"{kind} 'op' is recorded with the branches 'a', 'b'" in message
    assert f"the code asks for the branches {', '.join(map(repr, now))}" in message
    assert "ctx.removed" in message


@pytest.mark.parametrize("kind", ["join", "race"])
async def test_branches_of_a_finished_operation_are_part_of_the_record(world: World, kind: str) -> None:
    async def before(ctx: Context) -> None:
        await branches(kind, "a", "b")(ctx)
        await ctx.listen("wait")

    async def after(ctx: Context) -> None:
        await branches(kind, "a", "c")(ctx)
        await ctx.listen("wait")

    first, second = versions(before, after)
    await world.once(first, mode="yield")
    world.clock.advance(60)
    await world.once(first, mode="yield")
    result = await world.run(second)
    assert result.status is Status.STUCK


async def test_the_number_of_items_is_part_of_the_record(world: World) -> None:
    def over(count: int) -> Body:
        return lambda ctx: ctx.map("op", lambda ctx, n: ctx.sleep("nap", 60), range(count))

    message = await divergence_of(world, over(2), over(3))
    assert "map 'op' is recorded with 2 branches, and the code asks for 3 branches" in message
