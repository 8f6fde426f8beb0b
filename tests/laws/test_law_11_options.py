"""Law 11: handlers are steps, with the options of a step."""

from __future__ import annotations

from tests.support import World
from workflow_sdk import Backoff, Context, Status, step, workflow

calls: list[str] = []


@step(retries=6, backoff=Backoff(initial=1, jitter=0))
async def stubborn(charge: str) -> None:
    """Succeeds with the sixth attempt."""
    calls.append(charge)
    if len(calls) < 6:
        raise ConnectionError("not yet")


async def charge() -> str:
    """Something to undo."""
    return "charge"


async def test_a_handler_has_the_options_of_its_step(world: World) -> None:
    calls.clear()

    @workflow
    async def pay(ctx: Context) -> None:
        await ctx.step("charge", charge, rollback=stubborn)
        raise ValueError("undo it")

    result = await world.run(pay)
    assert result.status is Status.ROLLED_BACK
    assert calls == ["charge"] * 6
    assert result.instance_id == "i"


async def test_a_divergence_tells_what_the_new_code_raised(world: World) -> None:
    broken = False

    @workflow
    async def changing(ctx: Context) -> None:
        if broken:
            raise NameError("name 'foo' is not defined")
        await ctx.step("one", charge)
        await ctx.listen("go")

    await world.once(changing, mode="yield")
    broken = True
    result = await world.once(changing)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert "raised NameError (name 'foo' is not defined)" in result.error.message
    assert "step 'one'" in result.error.message
