"""Law 15: an input from whoever does not know the workflow is checked by the worker, before anything is done."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.rows import change_row
from tests.runtime.parts import until_status
from workflow_sdk import (
    ChildFailedError,
    Client,
    Context,
    Driver,
    Runtime,
    Status,
    Workflow,
    WorkflowFailedError,
    run_workflow,
    workflow,
)
from workflow_sdk.rows.keys import Field
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

pytestmark = pytest.mark.law(15)

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Every test begins with nothing run."""
    ran.clear()


@dataclass
class Order:
    id: str
    count: int = 1


async def note(what: Any) -> None:
    ran.append(what)


async def undo(result: object) -> None:
    ran.append("undone")


@workflow
async def order(ctx: Context, order: Order) -> str:
    await ctx.step("note", note, order, rollback=undo)
    return order.id


@workflow
async def nothing(ctx: Context) -> str:
    await ctx.step("note", note, "nothing")
    return "nothing"


@workflow
async def defaults(ctx: Context, order: Order = Order("default")) -> str:  # noqa: B008
    await ctx.step("note", note, order)
    return order.id


@workflow
async def parent(ctx: Context, name: str) -> str:
    try:
        return str(await ctx.child("child", name, 3, id="child"))
    except ChildFailedError as error:
        return error.error.kind


FLOWS: list[Workflow[Any, Any]] = [order, nothing, defaults, parent]


@asynccontextmanager
async def begun(driver: Driver, name: str, input: Any) -> AsyncGenerator[None]:
    """An instance that somebody has started who knows the workflow by its name only."""
    async with Client(driver) as client:
        await client.start(name, input, id="i")
    yield


WRONG: list[tuple[str, Any]] = [
    ("order", 3),
    ("order", "3"),
    ("order", {}),
    ("order", {"id": 3}),
    ("order", {"id": "a", "count": "many"}),
    ("order", [{"id": "a"}]),
    ("order", None),
    ("nothing", 3),
    ("defaults", "text"),
]


@pytest.mark.parametrize(("name", "input"), WRONG)
async def test_a_worker_refuses_an_input_that_does_not_fit(driver: Driver, name: str, input: Any) -> None:
    async with begun(driver, name, input), Runtime(driver, workflows=FLOWS) as runtime:
        handle = runtime.handle(name, "i")
        with pytest.raises(WorkflowFailedError) as caught:
            await handle.result(timeout=PATIENCE)
        error = caught.value.error
        assert error is not None
        assert (error.type, error.kind) == ("workflow_sdk.errors.InputError", "definition")
        assert f"workflow {name!r}" in error.message
        info = await handle.info()
        assert (info.status, info.input) == (Status.FAILED, input)
        assert list(await handle.history()) == []
    assert ran == []


@pytest.mark.parametrize(("name", "input"), WRONG)
async def test_so_does_a_run_of_one_instance(driver: Driver, name: str, input: Any) -> None:
    flow = next(flow for flow in FLOWS if flow.name == name)
    async with begun(driver, name, input):
        result = await run_workflow(flow, driver=driver, instance_id="i")
    assert result.status is Status.FAILED
    assert result.error is not None
    assert result.error.kind == "definition"
    assert ran == []


@pytest.mark.parametrize(
    ("name", "input", "output"),
    [
        ("order", {"id": "a"}, "a"),
        ("order", {"id": "a", "count": 2}, "a"),
        ("nothing", None, "nothing"),
        ("defaults", None, "default"),
        ("defaults", {"id": "b"}, "b"),
    ],
)
async def test_what_fits_is_run(driver: Driver, name: str, input: Any, output: str) -> None:
    async with begun(driver, name, input), Runtime(driver, workflows=FLOWS) as runtime:
        assert await runtime.handle(name, "i").result(timeout=PATIENCE) == output
    assert len(ran) == 1


async def test_a_child_that_is_given_the_wrong_input_has_failed(driver: Driver) -> None:
    async with Client(driver) as client:
        handle = await client.start(parent, "order", id="i")
        async with Runtime(driver, workflows=[parent]):
            await until_status(handle, Status.WAITING, Status.COMPLETED)
        async with Runtime(driver, workflows=FLOWS):
            assert await handle.result(timeout=PATIENCE) == "definition"
    assert ran == []


async def test_when_the_worker_dies_before_that_is_recorded(driver: Driver) -> None:
    async with begun(driver, "order", 3):
        with pytest.raises(SimulatedCrash):
            await run_workflow(order, driver=FaultyDriver(driver, crash_after=1), instance_id="i")
        result = await run_workflow(order, driver=driver, instance_id="i")
    assert result.status is Status.FAILED
    assert ran == []


async def test_with_mended_code_it_is_recovered(driver: Driver) -> None:
    @workflow(name="order")
    async def mended(ctx: Context, number: int) -> int:
        return number

    async with begun(driver, "order", 3):
        assert (await run_workflow(order, driver=driver, instance_id="i")).status is Status.FAILED
        async with Client(driver) as client:
            await client.handle("order", "i").recover()
        assert (await run_workflow(order, driver=driver, instance_id="i")).status is Status.FAILED
        async with Client(driver) as client:
            await client.handle("order", "i").recover()
        assert (await run_workflow(mended, driver=driver, instance_id="i")).output == 3


@pytest.mark.parametrize("begins", [False, True])
async def test_an_input_that_did_fit_and_does_no_more_is_no_failure(driver: Driver, begins: bool) -> None:
    """A deploy has given the input another type: the instance waits for mended code."""

    @workflow(name="changes")
    async def before(ctx: Context, order: Order) -> str:
        await ctx.listen("go")
        return order.id

    @workflow(name="changes")
    async def after(ctx: Context, order: int) -> str:
        await ctx.listen("go")
        return str(order)

    async with Client(driver) as client:
        await client.start(before, Order("a"), id="i")
        if begins:
            assert (await run_workflow(before, driver=driver, instance_id="i")).status is Status.WAITING
        result = await run_workflow(after, driver=driver, instance_id="i")
        assert result.status is Status.STUCK
        assert result.error is not None
        assert result.error.kind == "consistency"
        await client.handle("changes", "i").send("go")
        assert (await run_workflow(before, driver=driver, instance_id="i")).output == "a"


async def test_an_input_that_is_damaged_is_no_failure_of_whoever_sent_it(driver: Driver) -> None:
    async with begun(driver, "order", {"id": "a"}):
        await change_row(driver, "i", Field.BIRTH, input=b"\x78\x9cgarbage")
        result = await run_workflow(order, driver=driver, instance_id="i")
    assert result.status is Status.STUCK
    assert ran == []
