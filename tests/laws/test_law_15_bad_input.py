"""Law 15: values that can't be stored, and calls that can't be meant, are refused before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.laws.counting_driver import rows_of
from tests.support import World
from workflow_sdk import (
    AlreadyExistsError,
    Backoff,
    CodecError,
    Context,
    DefinitionError,
    InputError,
    InstanceNotFoundError,
    PayloadTooLargeError,
    Status,
    StepCriticalError,
    run_workflow,
    send_message,
    step,
    workflow,
)
from workflow_sdk.testing import VirtualClock

LARGE = "x" * 2_000_001


class Opaque:
    """Nothing is known of it that could be stored."""


@dataclass
class Order:
    id: str
    lines: list[int]


@workflow
async def take(ctx: Context, order: Order) -> str:
    return order.id


@workflow
async def nothing(ctx: Context) -> None:
    """Takes no input."""


UNENCODABLE: list[Callable[[], Any]] = [
    Opaque,
    lambda: [1, {"deep": Opaque()}],
    lambda: {Opaque(): 3},
    lambda: "half \ud800",
    lambda: lambda: 1,
    lambda: (number for number in [1]),
]


# Values of steps.


@pytest.mark.parametrize("make", UNENCODABLE)
async def test_a_value_of_a_step_that_can_not_be_stored_ends_it_at_once(world: World, make: Callable[[], Any]) -> None:
    ran: list[str] = []

    async def fetch() -> Any:
        ran.append("fetch")
        return make()

    @workflow
    async def job(ctx: Context) -> list[str]:
        with pytest.raises(StepCriticalError) as caught:
            await ctx.step("fetch", fetch, retries=5)
        await ctx.sleep("nap", 5)
        error = caught.value
        return [error.step, error.path, str(error.attempts), error.error.type, error.error.message]

    result = await world.run(job)
    assert result.output is not None
    assert result.output[:4] == ["fetch", "fetch", "1", "workflow_sdk.errors.CodecError"]
    assert "the value of step 'fetch'" in result.output[4]
    assert ran == ["fetch"]


async def test_a_value_of_a_step_that_is_too_large_ends_it_at_once(world: World) -> None:
    ran: list[str] = []

    async def fetch() -> str:
        ran.append("fetch")
        return LARGE

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("fetch", fetch)

    result = await world.run(job)
    assert result.status is Status.FAILED
    assert result.error is not None
    info: Any = result.error.attributes["error"]
    assert info.type == "workflow_sdk.errors.PayloadTooLargeError"
    for text in ("the value of step 'fetch'", "2,000,0", "limit", "2,000,000", "reference"):
        assert text in info.message
    assert ran == ["fetch"]
    assert sum(len(value) for _, value in await rows_of(world.driver)) < 100_000


async def test_a_value_of_the_largest_size_is_fine(world: World) -> None:
    size = 2_000_000 - 5

    async def fetch() -> str:
        return "x" * size

    @workflow
    async def job(ctx: Context) -> int:
        value = await ctx.step("fetch", fetch)
        await ctx.sleep("nap", 5)
        return len(value)

    assert (await world.run(job)).output == size


@pytest.mark.parametrize("limit", [100, 5_000_000])
async def test_the_limit_can_be_another(world: World, limit: int) -> None:
    async def fetch() -> str:
        return "x" * 99 if limit == 100 else LARGE

    @workflow
    async def job(ctx: Context) -> int:
        return len(await ctx.step("fetch", fetch))

    result = await run_workflow(job, driver=world.driver, instance_id="i", clock=world.clock, max_value_bytes=limit)
    assert result.status is (Status.FAILED if limit == 100 else Status.COMPLETED)


# Output, payloads, input.


@pytest.mark.parametrize("make", [*UNENCODABLE, lambda: LARGE])
async def test_an_output_that_can_not_be_stored_makes_the_instance_stuck(world: World, make: Callable[[], Any]) -> None:
    @workflow
    async def job(ctx: Context) -> Any:
        return make()

    result = await world.run(job)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert "the output of workflow 'job'" in result.error.message


async def waiting(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> Any:
        return await ctx.listen("message")

    await world.once(job, mode="yield")


@pytest.mark.parametrize("make", [*UNENCODABLE, lambda: LARGE])
async def test_a_payload_that_can_not_be_stored_is_not_sent(world: World, make: Callable[[], Any]) -> None:
    await waiting(world)
    before = await rows_of(world.driver)
    with pytest.raises(CodecError, match="the payload of message 'message' to 'i'"):
        await world.send("message", make())
    assert await rows_of(world.driver) == before


@pytest.mark.parametrize("name", ["", "x" * 1001, "\ud800", None, 5])
async def test_a_message_needs_a_name(world: World, name: Any) -> None:
    await waiting(world)
    before = await rows_of(world.driver)
    with pytest.raises(DefinitionError, match="a message can't be called"):
        await world.send(name, 1)
    assert await rows_of(world.driver) == before


async def test_a_message_to_nobody(world: World) -> None:
    with pytest.raises(InstanceNotFoundError, match="'nobody'"):
        await send_message(world.driver, "nobody", "message")
    with pytest.raises(InstanceNotFoundError, match="'nobody'"):
        await world.history("nobody")
    assert await rows_of(world.driver) == []


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ({"id": "a", "lines": []}, "order|Order"),
        (Order("a", ["one"]), "lines"),  # type: ignore[list-item]
        (Order(5, []), "id"),  # type: ignore[arg-type]
        ("a", "Order"),
        (None, "Order"),
        (5, "Order"),
    ],
)
async def test_an_input_that_does_not_fit_is_refused(world: World, order: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        await world.once(take, order)
    assert "the input of workflow 'take'" in str(caught.value)
    assert isinstance(caught.value, DefinitionError)
    assert await rows_of(world.driver) == []


async def test_an_input_that_is_too_large_or_can_not_be_stored_is_refused(world: World) -> None:
    @workflow
    async def job(ctx: Context, value: Any) -> None:
        """Takes anything."""

    with pytest.raises(PayloadTooLargeError, match=r"the input of workflow 'job'.*limit"):
        await world.once(job, LARGE)
    for make in UNENCODABLE:
        with pytest.raises(CodecError, match="the input of workflow 'job'"):
            await world.once(job, make())
    assert await rows_of(world.driver) == []


async def test_an_input_that_nobody_takes_is_refused(world: World) -> None:
    with pytest.raises(DefinitionError, match="workflow 'nothing' takes no input"):
        await world.once(nothing, 5)
    assert await rows_of(world.driver) == []


async def test_an_id_that_belongs_to_another_workflow_is_refused(world: World) -> None:
    await world.once(take, Order("a", []))
    before = await rows_of(world.driver)
    with pytest.raises(AlreadyExistsError, match="'i' runs workflow 'take', not 'nothing'"):
        await world.once(nothing)
    assert await rows_of(world.driver) == before


# The call of run_workflow.


async def plain(ctx: Context) -> None:
    """Not decorated."""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mode": "lively"}, 'mode is "yield" or "live"'),
        ({"max_value_bytes": 0}, "max_value_bytes"),
        ({"max_value_bytes": 10_000_001}, "10,000,000"),
        ({"max_value_bytes": True}, "max_value_bytes"),
        ({"max_value_bytes": 5.5}, "max_value_bytes"),
        ({"lease_ttl": math.nan}, "lease_ttl"),
        ({"lease_ttl": "10"}, "lease_ttl"),
        ({"lease_ttl": 0}, "lease_ttl"),
        ({"lease_ttl": timedelta(seconds=-1)}, "lease_ttl"),
    ],
)
async def test_a_call_that_can_not_be_meant(world: World, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        await run_workflow(nothing, driver=world.driver, instance_id="i", **changes)
    assert await rows_of(world.driver) == []


@pytest.mark.parametrize("what", [plain, "nothing", None, step(plain)])
async def test_a_call_without_a_workflow(world: World, what: Any) -> None:
    with pytest.raises(DefinitionError, match="@workflow"):
        await run_workflow(what, driver=world.driver, instance_id="i")
    assert await rows_of(world.driver) == []


# Definitions, which are wrong before there is anything to run.


async def without_ctx() -> None: ...
async def with_three(ctx: Context, one: int, two: int) -> None: ...
async def with_many(ctx: Context, *more: int) -> None: ...
async def with_keywords(ctx: Context, **more: int) -> None: ...
async def with_a_keyword(ctx: Context, *, more: int) -> None: ...
def synchronous(ctx: Context) -> None: ...
async def generator(ctx: Context) -> Any:
    yield 1


@pytest.mark.parametrize("fn", [without_ctx, with_three, with_many, with_keywords, with_a_keyword])
def test_a_workflow_takes_a_ctx_and_at_most_one_input(fn: Any) -> None:
    with pytest.raises(DefinitionError, match="takes a ctx and at most one input") as caught:
        workflow(fn)
    assert f"'{fn.__name__}'" in str(caught.value)


@pytest.mark.parametrize("fn", [synchronous, generator, 5, Opaque])
def test_a_workflow_is_a_coroutine_function(fn: Any) -> None:
    with pytest.raises(DefinitionError, match="async def"):
        workflow(fn)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
        ({"version": 0}, "version"),
        ({"version": True}, "version"),
        ({"version": "2"}, "version"),
        ({"divergence": "relaxed"}, "lenient"),
    ],
)
def test_options_of_a_workflow(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        workflow(**options)(plain)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retry": 3}, "no option retry.*retries"),
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"no_retry": (ValueError, 5)}, "no_retry"),
        ({"no_retry": BaseException}, "no_retry"),
        ({"backoff": 5}, "Backoff"),
        ({"rollback": "undo"}, "rollback"),
    ],
)
def test_options_of_a_step(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        step(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"initial": -1}, "initial"),
        ({"initial": math.nan}, "initial"),
        ({"maximum": -1}, "maximum"),
        ({"maximum": "30"}, "maximum"),
        ({"factor": 0.5}, "factor"),
        ({"factor": math.nan}, "factor"),
        ({"jitter": 1.5}, "jitter"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": math.nan}, "jitter"),
    ],
)
def test_options_of_a_backoff(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        Backoff(**options)


def test_a_virtual_clock_starts_at_an_aware_time() -> None:
    with pytest.raises(DefinitionError, match="aware"):
        VirtualClock(datetime(2030, 1, 1))  # noqa: DTZ001  # that is the mistake


async def test_a_function_with_a_ctx_is_async(world: World) -> None:
    def plain(ctx: Context) -> int:
        return 1

    @workflow
    async def confused(ctx: Context) -> None:
        await ctx.join("both", {"plain": plain})  # type: ignore[arg-type]  # what is to be refused

    result = await world.run(confused)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert "'both/plain' returned 1 and is not `async def`" in result.error.message
