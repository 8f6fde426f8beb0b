"""What an instance failed for is of a kind, which its operator sees; once the cause is mended, it is recovered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.patience import PATIENCE
from tests.rows import change_row
from tests.support import World
from workflow_sdk import (
    Client,
    Context,
    DefinitionError,
    ErrorInfo,
    Runtime,
    Status,
    WorkflowFailedError,
    read_history,
    run_workflow,
    workflow,
)
from workflow_sdk.driver import Driver
from workflow_sdk.rows.keys import Field
from workflow_sdk.values import Codec
from workflow_sdk.values.failures import pack_error_info

pytestmark = [pytest.mark.law(17), pytest.mark.every_host]

down: list[Exception] = []
tries: list[str] = []


class Declined(Exception):
    """Says of itself what it is."""

    kind = "authorization"


def call(name: str) -> str:
    tries.append(name)
    if down:
        raise down[0]
    return name


@workflow
async def order(ctx: Context) -> str:
    await ctx.step("reserve", lambda: 7)
    return await ctx.step("charge", call, "charge", retries=0)


@workflow
async def both(ctx: Context) -> dict[str, str]:
    async def branch(ctx: Context) -> str:
        return await ctx.step("call", call, ctx.path, retries=0)

    return await ctx.join("both", {"a": branch, "b": branch})


@pytest.fixture(autouse=True)
def _fresh() -> None:
    down.clear()
    tries.clear()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionError("no route to the bank"), "transport"),
        (TimeoutError("too slow"), "timeout"),
        (PermissionError("not you"), "authorization"),
        (Declined("not you"), "authorization"),
        (KeyError("price"), "expression"),
        (ValueError("out of stock"), "application"),
    ],
)
async def test_a_failed_instance_shows_its_kind_and_runs_again(world: World, error: Exception, kind: str) -> None:
    down.append(error)
    async with Runtime(world.driver, workflows=[order]) as runtime:
        handle = await runtime.start(order, id="i")
        with pytest.raises(WorkflowFailedError) as failure:
            await handle.result(timeout=PATIENCE)
        assert failure.value.error is not None
        assert failure.value.error.kind == kind
        info = await handle.info()
        assert info.status is Status.FAILED
        assert info.error is not None
        assert (info.error.kind, info.error.is_mendable) == (kind, kind != "application")
        (_, charge) = await handle.history()
        assert charge.error is not None
        assert charge.error.kind == kind
        down.clear()
        await handle.recover()
        assert await handle.result(timeout=PATIENCE) == "charge"
        assert tries == ["charge", "charge"]


async def test_branches_that_fail_alike_have_one_kind(world: World) -> None:
    down.append(ConnectionError("no route"))
    result = await world.run(both)
    assert result.error is not None
    assert (result.status, result.error.kind) == (Status.FAILED, "transport")
    history = await read_history(world.driver, "i")
    assert {entry.error.kind for entry in history if entry.error is not None} == {"transport"}
    (joined,) = history.roots
    assert joined.error is not None
    assert joined.error.kind == "transport"


async def rewrite(driver: Driver, change: Callable[[ErrorInfo], ErrorInfo], info: ErrorInfo) -> None:
    """Store another error of the instance."""
    await change_row(driver, "i", Field.RESULT, error=pack_error_info(change(info), Codec()), failed_operations=())


@pytest.mark.parametrize(
    ("type", "kind", "runs"),
    [
        ("workflow_sdk.errors.DefinitionError", "definition", True),
        ("workflow_sdk.errors.HistoryDivergedError", "consistency", True),
        ("workflow_sdk.errors.WorkflowStuckError", "consistency", False),
        ("workflow_sdk.errors.DefinitionError", "application", False),
    ],
)
async def test_only_what_is_stuck_for_its_code_is_tried_by_every_run(
    world: World, type: str, kind: str, runs: bool
) -> None:
    @workflow
    async def job(ctx: Context) -> str:
        if not tries:
            tries.append("made a mistake")
            await ctx.sleep("", 1)
        return "end"

    first = await world.once(job)
    assert first.status is Status.STUCK
    assert first.error is not None
    await rewrite(
        world.driver, lambda info: ErrorInfo(type, info.message, info.traceback, info.attributes, kind), first.error
    )
    async with Client(world.driver) as client:
        info = await client.handle(job, "i").info()
    assert info.error is not None
    assert (info.error.type, info.error.kind, info.error.is_mendable) == (type, kind, kind != "application")
    second = await world.once(job)
    assert second.status is (Status.COMPLETED if runs else Status.STUCK)


async def test_a_handler_that_fails_for_a_definition_is_not_tried_by_every_run(world: World) -> None:
    undone: list[int] = []

    async def undo(value: int) -> None:
        undone.append(value)
        raise DefinitionError("the handler's own")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("reserve", lambda: 7, rollback=undo)
        raise ValueError("no")

    first = await world.run(job)
    assert first.error is not None
    assert (first.status, first.error.kind, undone) == (Status.STUCK, "definition", [7])
    assert await run_workflow(job, driver=world.driver, instance_id="i", clock=world.clock) == first
    assert undone == [7]
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(job, "i").recover()
    assert (await world.run(job)).error == first.error
    assert undone == [7, 7]
