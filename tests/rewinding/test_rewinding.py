"""`recover`, `restart_from`, `evict`: a history that happens again, in part."""

from __future__ import annotations

import pytest

from tests.patience import PATIENCE
from tests.runtime.polling import until
from workflow_sdk import (
    Context,
    DefinitionError,
    InstanceStateError,
    Runtime,
    Status,
    WorkflowFailedError,
    workflow,
)

down: set[str] = set()
ran: list[str] = []


async def work(name: str) -> str:
    """Fails while its name is down."""
    ran.append(name)
    if name in down:
        raise ConnectionError(f"{name} is down")
    return name


@workflow
async def branching(ctx: Context) -> list[str]:
    """Two branches, of which one may fail, and an attempt that may."""

    async def one(ctx: Context) -> str:
        return await ctx.step("one", work, "one", retries=0)

    async def two(ctx: Context) -> str:
        await ctx.step("before", work, "before")
        return await ctx.step("two", work, "two", retries=0)

    async def tried(ctx: Context) -> str:
        return await ctx.step("tried", work, "tried", retries=0)

    await ctx.step("first", work, "first")
    attempted = await ctx.attempt("try", tried)
    both = await ctx.join("both", {"one": one, "two": two})
    said = await ctx.listen("say", type=str)
    await ctx.step("last", work, "last")
    return [str(attempted.ok), *both.values(), said]


pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    down.clear()
    ran.clear()


async def test_a_failed_instance_recovers_with_fresh_attempts() -> None:
    down.update({"two", "tried"})
    async with Runtime("memory://", workflows=[branching]) as runtime:
        handle = await runtime.start(branching, id="i")
        with pytest.raises(WorkflowFailedError):
            await handle.result(timeout=PATIENCE)
        assert (await handle.info()).status is Status.FAILED
        down.clear()
        before = list(ran)
        await handle.recover()
        await handle.send("say", "hello")
        # What the author caught stays as it was; only what made it fail is done again.
        assert await handle.result(timeout=PATIENCE) == ["False", "one", "two", "hello"]
        assert ran[len(before) :] == ["two", "last"]
        with pytest.raises(InstanceStateError, match="completed"):
            await handle.recover()


async def test_restart_from_a_path_forgets_what_came_after_it() -> None:
    async with Runtime("memory://", workflows=[branching]) as runtime:
        handle = await runtime.start(branching, id="i")
        await handle.send("say", "hello")
        await handle.result(timeout=PATIENCE)
        ran.clear()
        await handle.restart_from("both/two/two")
        assert await handle.result(timeout=PATIENCE) == ["True", "one", "two", "hello"]
        assert ran == ["two", "last"]


async def test_restart_from_the_beginning_gives_messages_back() -> None:
    async with Runtime("memory://", workflows=[branching]) as runtime:
        handle = await runtime.start(branching, id="i")
        await handle.send("say", "hello")
        await handle.result(timeout=PATIENCE)
        ran.clear()
        await handle.restart_from()
        assert await handle.result(timeout=PATIENCE) == ["True", "one", "two", "hello"]
        assert sorted(ran) == sorted(["first", "tried", "one", "before", "two", "last"])
        with pytest.raises(DefinitionError, match="no entry 'nowhere'"):
            await handle.restart_from("nowhere")


async def test_an_evicted_instance_goes_on_when_it_is_needed() -> None:
    async with Runtime("memory://", workflows=[branching]) as runtime:
        handle = await runtime.start(branching, id="i")

        async def waits() -> bool:
            return (await handle.info()).status is Status.WAITING

        async def is_away() -> bool:
            return runtime.resident == 0

        await until(waits)
        await handle.evict()
        await until(is_away)
        assert (await handle.info()).status is Status.WAITING
        await handle.send("say", "hello")
        assert await handle.result(timeout=PATIENCE) == ["True", "one", "two", "hello"]
        assert ran.count("first") == 1
