"""Law 17: code that catches whatever ends it, in a loop, keeps nobody else from going on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from time import monotonic
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.laws import undoing
from tests.laws.undoing import undo
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Client, Context, Runtime, Status, WorkflowStuckError, open_driver, workflow
from workflow_sdk.instance import life

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001  # that is the mistake


async def give() -> int:
    return 1


async def duplicate(ctx: Any) -> None:
    await ctx.step("same", give)
    await ctx.step("same", give)


async def no_function(ctx: Any) -> None:
    await ctx.step("step", 5)


async def bad_option(ctx: Any) -> None:
    await ctx.step("step", give, retries=-1)


async def naive(ctx: Any) -> None:
    await ctx.sleep_until("nap", NAIVE)


async def bad_state(ctx: Any) -> None:
    ctx.state["key"] = object()
    await ctx.step(give)


async def bad_payload(ctx: Any) -> None:
    await ctx.send("send", "other", "message", object())


async def bad_output(ctx: Any) -> None:
    async def branch(ctx: Context) -> object:
        return object()

    await ctx.join("join", {"a": branch})


async def no_branches(ctx: Any) -> None:
    await ctx.race("race", {})


async def unnamed(ctx: Any) -> None:
    await ctx.step("", give)


async def of_another_ctx(ctx: Any) -> None:
    async def fn(inner: Context) -> None:
        await ctx.step("outer", give)

    await ctx.attempt("attempt", fn)


MISTAKES = [
    duplicate,
    no_function,
    bad_option,
    naive,
    bad_state,
    bad_payload,
    bad_output,
    no_branches,
    unnamed,
    of_another_ctx,
]


def endless(mistake: Callable[[Any], Any], *, shielded: bool = False) -> Callable[[Context], Any]:
    """A function that makes the mistake again and again, and swallows what it is told."""

    async def fn(ctx: Context) -> None:
        while True:
            try:
                if shielded:
                    with anyio.CancelScope(shield=True):
                        await mistake(ctx)
                else:
                    await mistake(ctx)
            except Exception:  # noqa: BLE001  # what an author would write, who wants to go on whatever happens
                pass

    return fn


@pytest.mark.parametrize("shielded", [False, True])
@pytest.mark.parametrize("where", ["root", "branch"])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
async def test_a_mistake_that_is_swallowed_again_and_again(
    world: World, mistake: Callable[[Any], Any], where: str, shielded: bool
) -> None:
    """The instance is stuck, as if it had been swallowed once, and nothing is undone."""
    undoing.undone.clear()
    fn = endless(mistake, shielded=shielded)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("booked", undoing.name, "hotel", rollback=undo)
        if where == "branch":
            await ctx.join("both", {"a": fn, "b": lambda ctx: ctx.sleep("nap", 3600)})
        await fn(ctx)

    result = await world.run(job)
    assert (result.status, undoing.undone) == (Status.STUCK, [])
    assert result.error is not None
    assert result.error.kind == "definition"


async def test_a_walk_of_such_code_ends(world: World) -> None:
    """It was mended into that while the workflow was to be undone."""
    undone: list[str] = []

    def version(number: int) -> Any:
        async def undo_here(result: str) -> None:
            undone.append(result)

        @workflow(name="job", version=number)
        async def job(ctx: Context) -> None:
            await ctx.step("booked", undoing.name, "hotel", rollback=undo_here if number != 1 else undo_badly)
            if number == 2:
                await endless(no_function)(ctx)
            raise ValueError("no")

        async def undo_badly(result: str) -> None:
            raise ValueError("not now")

        return job

    assert (await world.run(version(1))).status is Status.STUCK
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle("job", "i").recover()
    assert (await world.run(version(2))).status is Status.ROLLED_BACK
    assert undone == ["hotel"]


async def test_who_catches_everything_is_slowed_down(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can end such code; but others have the event loop meanwhile, and it says so."""
    pause = 0.1
    monkeypatch.setattr(life, "UNWOUND_SECONDS", pause)
    calls, is_over = 0, False
    driver = await open_driver("memory://")

    @workflow
    async def hopeless(ctx: Context) -> None:
        nonlocal calls
        while True:
            calls += 1
            try:
                await ctx.step("same", give)
            except BaseException:
                if is_over:
                    raise

    @workflow
    async def other(ctx: Context) -> int:
        return await ctx.step(give)

    with anyio.fail_after(PATIENCE), caplog.at_level(logging.ERROR, "workflow_sdk.runtime"):
        async with Runtime(driver, workflows=[hopeless, other]) as runtime:
            await runtime.start(hopeless, id="i")
            while not caplog.records:
                await anyio.lowlevel.checkpoint()
            before, began = calls, monotonic()
            for _ in range(20):
                assert await runtime.run(other) == 1
            assert calls - before <= (monotonic() - began) / pause + 1
            is_over = True
            with pytest.raises(WorkflowStuckError):
                await runtime.handle(hopeless, "i").result()
    assert "workflow 'hopeless' catches what ends it, in instance i, again and again" in caplog.text
