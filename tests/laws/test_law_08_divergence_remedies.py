"""How code is changed under way: `ctx.version`, `ctx.removed`, and the lenient way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

from tests.laws.parts import give
from tests.support import World
from workflow_sdk import Break, Context, Continue, Status, Workflow, workflow

Body = Callable[[Context], Awaitable[Any]]


class Ran:
    """Steps that write down that they ran."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def _run(self, name: str) -> str:
        self.names.append(name)
        return name

    async def step(self, ctx: Context, name: str) -> str:
        return await ctx.step(name, self._run, name)


def code(body: Body, divergence: Literal["strict", "lenient"] = "strict") -> Workflow[None, Any]:
    @workflow(name="w", divergence=divergence)
    async def w(ctx: Context) -> Any:
        return await body(ctx)

    return w


def in_root(body: Body) -> Body:
    return body


def in_branch(body: Body) -> Body:
    async def run(ctx: Context) -> Any:
        return (await ctx.join("join", {"x": body}))["x"]

    return run


def in_loop(body: Body) -> Body:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[Any]:
        value = await body(ctx)
        return Break(value) if n == 1 else Continue(n + 1)

    return lambda ctx: ctx.loop("loop", turn, 0)


SCOPES: dict[str, Callable[[Body], Body]] = {"root": in_root, "branch": in_branch}


@pytest.mark.parametrize("scope", SCOPES)
async def test_version_guards_what_is_inserted(world: World, scope: str) -> None:
    ran = Ran()

    async def before(ctx: Context) -> str:
        await ran.step(ctx, "a")
        await ctx.sleep("wait", 60)
        return await ran.step(ctx, "b")

    async def after(ctx: Context) -> str:
        if await ctx.version("with check", 2) >= 2:
            await ran.step(ctx, "check")
        return await before(ctx)

    await world.once(code(SCOPES[scope](before)), id="old", mode="yield")
    new_code = code(SCOPES[scope](after))
    await world.once(new_code, id="old", mode="yield")
    result = await world.run(new_code, id="old")
    assert (result.output, result.error) == ("b", None)
    assert ran.names == ["a", "b"]
    ran.names.clear()
    assert (await world.run(new_code, id="new")).output == "b"
    assert ran.names == ["check", "a", "b"]


async def test_version_is_asked_in_every_turn(world: World) -> None:
    """The turn that is under way goes on as it was, the next one is new."""
    ran = Ran()

    async def before(ctx: Context) -> str:
        await ran.step(ctx, "a")
        await ctx.sleep("wait", 60)
        return "end"

    async def after(ctx: Context) -> str:
        if await ctx.version("with check", 2) >= 2:
            await ran.step(ctx, "check")
        return await before(ctx)

    await world.once(code(in_loop(before)), mode="yield")
    result = await world.run(code(in_loop(after)))
    assert (result.output, result.error) == ("end", None)
    assert ran.names == ["a", "check", "a"]


async def test_version_is_the_same_ever_after(world: World) -> None:
    seen: list[int] = []

    def body(latest: int) -> Body:
        async def run(ctx: Context) -> int:
            version = await ctx.version("v", latest)
            seen.append(version)
            await ctx.sleep("wait", 60)
            return version

        return run

    await world.once(code(body(3)), mode="yield")
    assert (await world.run(code(body(5)))).output == 3
    assert set(seen) == {3}


async def everything(ctx: Context) -> None:
    """Every kind of operation, with much under it."""

    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.step("s", give, n)
        return Break(n) if n == 2 else Continue(n + 1)

    async def loops(ctx: Context) -> int:
        return await ctx.loop("inner", turn, 0)

    await ctx.step("step", give, 1)
    await ctx.loop("loop", turn, 0)
    await ctx.sleep("sleep", 0)
    await ctx.listen("listen", timeout=0, default=None)
    await ctx.join("join", {"a": loops, "b": loops})
    await ctx.race("race", {"a": loops})
    await ctx.map("map", lambda ctx, _: loops(ctx), range(2))
    await ctx.attempt("attempt", loops)
    await ctx.version("version", 2)
    await ctx.checkpoint("checkpoint")


KINDS = ["step", "loop", "sleep", "listen", "join", "race", "map", "attempt", "version", "checkpoint"]


async def test_removed_covers_every_kind_with_all_that_is_under_it(world: World) -> None:
    async def before(ctx: Context) -> None:
        await everything(ctx)
        await ctx.sleep("wait", 60)

    async def after(ctx: Context) -> str:
        for kind in KINDS:
            await ctx.removed(kind, kind)
        await ctx.sleep("wait", 60)
        await ctx.step("new", give, 1)
        await ctx.sleep("wait again", 60)
        return "end"

    await world.once(code(before), id="old", mode="yield")
    for id in ("old", "new"):
        result = await world.run(code(after), id=id)
        assert (result.output, result.error) == ("end", None)


@pytest.mark.parametrize("kind", ["step", "sleep", "join"])
async def test_removed_does_not_cover_another_kind(world: World, kind: str) -> None:
    async def before(ctx: Context) -> None:
        await ctx.race("op", {"a": lambda ctx: ctx.step("s", give, 1)})
        await ctx.sleep("wait", 60)

    async def after(ctx: Context) -> None:
        await ctx.removed("op", kind)
        await ctx.sleep("wait", 60)

    await world.once(code(before), mode="yield")
    result = await world.run(code(after))
    assert result.status is Status.STUCK
    assert result.error is not None
    assert "'op' is recorded as race" in result.error.message


@pytest.mark.parametrize("kind", ["sleep", "join", "race", "loop", "attempt"])
async def test_removed_covers_what_is_still_open(world: World, kind: str) -> None:
    async def nap(ctx: Context) -> None:
        await ctx.step("s", give, 1)
        await ctx.sleep("nap", 60)

    async def turn(ctx: Context, state: None) -> None:
        await nap(ctx)

    opens: dict[str, Body] = {
        "sleep": lambda ctx: ctx.sleep("op", 60),
        "join": lambda ctx: ctx.join("op", {"a": nap, "b": nap}),
        "race": lambda ctx: ctx.race("op", {"a": nap, "b": nap}),
        "loop": lambda ctx: ctx.loop("op", turn),
        "attempt": lambda ctx: ctx.attempt("op", nap),
    }

    async def after(ctx: Context) -> str:
        await ctx.removed("op", kind)
        await ctx.step("instead", give, 1)
        await ctx.sleep("wait", 60)
        return "end"

    await world.once(code(opens[kind]), mode="yield")
    result = await world.run(code(after))
    assert (result.output, result.error) == ("end", None)


async def test_a_changed_kind_gets_a_new_name_and_the_old_one_is_removed(world: World) -> None:
    ran = Ran()

    async def before(ctx: Context) -> None:
        await ran.step(ctx, "op")
        await ctx.sleep("wait", 60)

    async def after(ctx: Context) -> str:
        await ctx.removed("op", "step")
        await ctx.sleep("wait", 60)
        await ctx.join("op-2", {"a": lambda ctx: ran.step(ctx, "inner")})
        return "end"

    await world.once(code(before), mode="yield")
    assert (await world.run(code(after))).output == "end"
    assert ran.names == ["op", "inner"]


# The lenient way.


@pytest.mark.parametrize("scope", SCOPES)
async def test_lenient_code_may_do_something_new_first(world: World, scope: str) -> None:
    ran = Ran()

    async def before(ctx: Context) -> str:
        await ran.step(ctx, "a")
        await ctx.sleep("wait", 60)
        return await ran.step(ctx, "b")

    async def after(ctx: Context) -> str:
        await ran.step(ctx, "new")
        return await before(ctx)

    await world.once(code(SCOPES[scope](before)), mode="yield")
    result = await world.run(code(SCOPES[scope](after), "lenient"))
    assert (result.output, result.error) == ("b", None)
    assert ran.names == ["a", "new", "b"]


@pytest.mark.parametrize("scope", [*SCOPES, "loop"])
async def test_lenient_code_must_come_to_its_history_before_the_scope_ends(world: World, scope: str) -> None:
    ran = Ran()
    around = SCOPES.get(scope, in_loop)

    def body(first: str) -> Body:
        async def run(ctx: Context) -> str:
            await ran.step(ctx, first)
            await ctx.sleep("wait", 60)
            return await ran.step(ctx, "b")

        return run

    await world.once(code(around(body("a"))), mode="yield")
    result = await world.run(code(around(body("renamed")), "lenient"))
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "consistency"
    assert "a'" in result.error.message
    assert "ended" in result.error.message
    assert ran.names[:2] == ["a", "renamed"]


async def test_lenient_code_may_not_change_a_kind(world: World) -> None:
    ran = Ran()

    async def before(ctx: Context) -> None:
        await ran.step(ctx, "op")
        await ctx.sleep("wait", 60)

    async def after(ctx: Context) -> None:
        await ctx.sleep("op", 1)
        await ran.step(ctx, "never")
        await ctx.sleep("wait", 60)

    await world.once(code(before), mode="yield")
    result = await world.run(code(after, "lenient"))
    assert result.status is Status.STUCK
    assert ran.names == ["op"]
