"""What can't be shown: bad values, and places to assign from, are the author's mistakes. Nothing is lost by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.looking import Bench
from workflow_sdk import Context, Driver, Status, open_driver, workflow


def nothing() -> None:
    """A step."""


class Unknown:
    """Can't be stored."""


def nest(ctx: Context) -> None:
    """Unknown to the state, which can't see it."""
    ctx.state["fine"] = []
    ctx.state["fine"].append(Unknown())


def large(ctx: Context) -> None:
    """Each is small enough."""
    for number in range(3):
        ctx.state[str(number)] = "x" * 900_000


def assign_whole(ctx: Context, value: Any) -> None:
    """As a statement."""
    ctx.state = value


def refer(ctx: Context, value: Any) -> None:
    """As a statement."""
    ctx.reference = value


BAD: list[tuple[Callable[[Context], Any], str]] = [
    (lambda ctx: ctx.state.__setitem__("key", Unknown()), "ctx.state['key']"),
    (lambda ctx: ctx.state.__setitem__("key", "x" * 2_100_000), "ctx.state['key']"),
    (lambda ctx: ctx.state.__setitem__(1, 1), "ctx.state[1]"),  # type: ignore[index]  # that is the mistake
    (lambda ctx: ctx.state.__setitem__("", 1), "ctx.state['']"),
    (lambda ctx: ctx.state.update({"a": 1, "b": Unknown()}), "ctx.state['b']"),
    (lambda ctx: assign_whole(ctx, {"a": 1, "b": Unknown()}), "ctx.state['b']"),
    (lambda ctx: assign_whole(ctx, [1]), "ctx.state takes a dict"),
    (nest, "ctx.state['fine']"),
    (large, "ctx.state: the value is 2,7"),
    (lambda ctx: refer(ctx, 5), "ctx.reference"),
    (lambda ctx: refer(ctx, ""), "ctx.reference"),
    (lambda ctx: ctx.progress("1"), "progress"),  # type: ignore[arg-type]  # that is the mistake
    (lambda ctx: ctx.progress(float("nan")), "progress"),
    (lambda ctx: ctx.progress(1, 2, "x" * 2_100_000), "ctx.progress"),
    (lambda ctx: ctx.progress(1, 2, "\ud800"), "ctx.progress"),
]


@pytest.mark.parametrize(("mistake", "words"), BAD)
@pytest.mark.parametrize("where", ["start", "middle", "end", "branch", "caught"])
async def test_bad_values(mistake: Callable[[Context], Any], words: str, where: str) -> None:
    """They are the author's mistake: nothing of it is stored, and it goes on once the code is mended."""
    is_mended = [False]

    def mistakes(ctx: Context) -> None:
        if not is_mended[0]:
            mistake(ctx)

    @workflow
    async def flow(ctx: Context) -> str:
        ctx.state["good"] = 1
        if where == "start":
            mistakes(ctx)
        await ctx.step("a", nothing)
        if where == "middle":
            mistakes(ctx)
            await ctx.sleep("b", 1)
        if where == "branch":

            async def branch(ctx: Context) -> None:
                mistakes(ctx)

            await ctx.join("c", {"d": branch})
        if where == "caught":
            try:
                mistakes(ctx)
                await ctx.step("d", nothing)
            except Exception:  # noqa: BLE001  # the run is over all the same
                return "swallowed"
        if where == "end":
            mistakes(ctx)
        return "done"

    driver = await open_driver("memory://")
    bench = Bench(driver, flow)
    result = await bench.go()
    assert (result.status, result.error and result.error.kind) == (Status.STUCK, "definition")
    assert result.error is not None
    assert words in result.error.message
    info = await bench.info()
    assert (info.state, info.reference, info.progress) == ({} if where == "start" else {"good": 1}, None, None)
    assert info.output is None
    is_mended[0] = True
    await bench.go()
    assert (await bench.go(1)).output == "done"
    assert (await bench.info()).state == {"good": 1}


@pytest.mark.parametrize("is_async", [True, False])
async def test_not_in_a_step(driver: Driver, is_async: bool) -> None:
    """A replay does not run it."""

    @workflow
    async def flow(ctx: Context) -> None:
        def assign() -> None:
            ctx.state["a"] = 1

        async def wait() -> None:
            assign()

        await ctx.step("a", wait if is_async else assign)

    result = await Bench(driver, flow).go()
    assert result.status is Status.STUCK
    assert result.error is not None
    assert "was assigned inside a step" in result.error.message
