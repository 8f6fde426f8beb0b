"""Law 15: whatever is given as an argument, and whatever is decorated, the error is the documented one and says why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.laws.parts import give
from tests.support import World
from workflow_sdk import (
    AlreadyExistsError,
    Backoff,
    Client,
    Context,
    DefinitionError,
    Runtime,
    Status,
    open_driver,
    run_workflow,
    send_message,
    step,
    workflow,
)
from workflow_sdk.testing import VirtualClock, crash_everywhere


class Hostile:
    """Can't even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


HUGE = -(10**5000)
"""Python refuses to show so many digits: ValueError."""

ODD: dict[str, Any] = {"a huge number": HUGE, "an object that can't be shown": Hostile()}


@workflow
async def plain(ctx: Context) -> None:
    pass


@workflow
async def takes(ctx: Context, value: Any) -> None:
    pass


Operation = Callable[[Context, Any], Awaitable[object]]

MISTAKES: dict[str, Operation] = {
    "a duration": lambda ctx, odd: ctx.sleep("nap", odd),
    "a time": lambda ctx, odd: ctx.sleep_until("nap", odd),
    "a function": lambda ctx, odd: ctx.step("step", odd),
    "retries": lambda ctx, odd: ctx.step("step", give, 1, retries=odd),
    "a timeout of a step": lambda ctx, odd: ctx.step("step", give, 1, timeout=odd),
    "a rollback": lambda ctx, odd: ctx.step("step", give, 1, rollback=odd),
    "what is not retried": lambda ctx, odd: ctx.step("step", give, 1, no_retry=odd),
    "a backoff": lambda ctx, odd: ctx.step("step", give, 1, backoff=odd),
    "a limit": lambda ctx, odd: ctx.join("join", {"a": give}, limit=odd),
    "a branch": lambda ctx, odd: ctx.join("join", {"a": odd}),
    "the name of a branch": lambda ctx, odd: ctx.join("join", {odd: give}),
    "branches": lambda ctx, odd: ctx.race("race", odd),
    "an interval": lambda ctx, odd: ctx.loop("loop", cast("Any", give), commit_interval=odd),
    "what is kept": lambda ctx, odd: ctx.loop("loop", cast("Any", give), history_keep=odd),
    "messages": lambda ctx, odd: ctx.listen("wait", odd),
    "a message": lambda ctx, odd: ctx.listen("wait", [odd]),
    "a count": lambda ctx, odd: ctx.listen_many("wait", count=odd),
    "a version": lambda ctx, odd: ctx.version("version", odd),
    "a target": lambda ctx, odd: ctx.send("send", odd, "hello"),
    "a message to send": lambda ctx, odd: ctx.send("send", "other", odd),
    "a child": lambda ctx, odd: ctx.child("child", odd),
    "what becomes of a child": lambda ctx, odd: ctx.child("child", plain, on_cancel=odd),
    "an assignee": lambda ctx, odd: ctx.task("task", assignee=odd),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_is_one_whatever_was_given(world: World, mistake: str, odd: str) -> None:
    @workflow
    async def mistakes(ctx: Context) -> None:
        await MISTAKES[mistake](ctx, ODD[odd])

    result = await world.run(mistakes)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert (result.error.kind, result.error.type) == ("definition", "workflow_sdk.errors.DefinitionError")


Call = Callable[[Client, Any], Awaitable[object]]

CALLS: dict[str, Call] = {
    "an id": lambda client, odd: client.start(plain, id=odd),
    "a workflow": lambda client, odd: client.start(odd),
    "input for one that takes none": lambda client, odd: client.start(plain, odd),
    "a limit": lambda client, odd: client.list(limit=odd),
    "a status": lambda client, odd: client.list(status=odd),
    "a time": lambda client, odd: client.list(created_after=odd),
    "a cursor": lambda client, odd: client.list(cursor=odd),
    "a limit of tasks": lambda client, odd: client.tasks.list(limit=odd),
    "someone": lambda client, odd: client.tasks.assign("task", odd),
    "a name of a message": lambda client, odd: client.handle(plain, "i").send(odd),
    "a key": lambda client, odd: client.handle(plain, "i").send("hello", key=odd),
    "a token": lambda client, odd: client.handle(plain, "i").send("hello", token=odd),
    "a version": lambda client, odd: client.handle(plain, "i").send("hello", expected_version=cast("Any", [odd])),
    "an id of a schedule": lambda client, odd: client.schedule(odd, plain, every=60),
    "a period": lambda client, odd: client.schedule("daily", plain, every=odd),
    "an overlap": lambda client, odd: client.schedule("daily", plain, every=60, overlap=odd),
    "how long ago": lambda client, odd: client.prune(older_than=odd),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_is_refused_whatever_was_given(call: str, odd: str) -> None:
    async with Client("memory://") as client:
        with pytest.raises(DefinitionError):
            await CALLS[call](client, ODD[odd])


ELSEWHERE: dict[str, Callable[[Any], Any]] = {
    "a workflow for a runtime": lambda odd: Runtime("memory://", workflows=[odd]),
    "how many residents": lambda odd: Runtime("memory://", workflows=[plain], max_resident=odd),
    "a name of a workflow": lambda odd: workflow(name=odd),
    "a version of a workflow": lambda odd: workflow(version=odd),
    "a divergence": lambda odd: workflow(divergence=odd),
    "a retention": lambda odd: workflow(retention=odd),
    "retries": lambda odd: step(retries=odd),
    "a backoff": lambda odd: Backoff(initial=odd),
    "a start": lambda odd: VirtualClock(odd),
}

ELSEWHERE_AWAITED: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
    "a workflow to run": lambda driver, odd: run_workflow(odd, driver=driver, instance_id="i"),
    "a mode": lambda driver, odd: run_workflow(plain, driver=driver, instance_id="i", mode=odd),
    "a driver": lambda driver, odd: run_workflow(plain, driver=odd, instance_id="i"),
    "a message": lambda driver, odd: send_message(driver, "i", odd),
    "a workflow to crash": lambda driver, odd: crash_everywhere(odd),
    "a script": lambda driver, odd: crash_everywhere(plain, script=odd),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("call", ELSEWHERE)
def test_the_same_of_what_is_made(call: str, odd: str) -> None:
    with pytest.raises(DefinitionError):
        ELSEWHERE[call](ODD[odd])


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("call", ELSEWHERE_AWAITED)
async def test_the_same_elsewhere(call: str, odd: str) -> None:
    driver = await open_driver("memory://")
    with pytest.raises(DefinitionError):
        await ELSEWHERE_AWAITED[call](driver, ODD[odd])


async def test_another_input_is_told_whatever_it_is(world: World) -> None:
    async with Client(world.driver, clock=world.clock) as client:
        await client.start(takes, HUGE, id="i")
        assert (await client.start(takes, HUGE, id="i")).id == "i"
        for other in (-HUGE, 1, [HUGE]):
            with pytest.raises(AlreadyExistsError, match="started with the input <int>"):
                await client.start(takes, other, id="i")


# What is decorated.


def test_a_method_is_no_workflow() -> None:
    async def checkout(self: object, ctx: Context) -> None:
        pass

    checkout.__qualname__ = "Shop.checkout"
    with pytest.raises(DefinitionError, match=r"'checkout' is a method of Shop: .* without self"):
        workflow(checkout)
    for decorator in (staticmethod, classmethod):
        with pytest.raises(DefinitionError, match=f"@{decorator.__name__} belongs above @workflow"):
            workflow(cast("Any", decorator(checkout)))


async def test_a_function_in_a_class_is_one(world: World) -> None:
    class Shop:
        @workflow
        async def checkout(ctx: Context, order: str) -> str:  # pyright: ignore[reportGeneralTypeIssues]  # it takes no self
            return order

    below = cast("Any", staticmethod)(Shop.checkout)
    assert (await world.run(Shop.checkout, "o-1")).output == "o-1"
    assert (await world.run(below.__func__, "o-1")).output == "o-1"


def test_what_calls_a_workflow_is_told_how_to_run_it() -> None:
    called: Any = takes
    with pytest.raises(DefinitionError, match=r"'takes' is not called.*runtime\.start.*ctx\.child.*takes\.fn"):
        called(None, 1)


NOT_FUNCTIONS: dict[str, tuple[Callable[[Context, Any], Awaitable[object]], str]] = {
    "a step": (lambda ctx, flow: ctx.step("step", flow), "ctx.child"),
    "a step without a name": (lambda ctx, flow: ctx.step(flow), "ctx.child"),
    "a branch": (lambda ctx, flow: ctx.join("join", {"a": flow}), "not a function"),
    "a racer": (lambda ctx, flow: ctx.race("race", {"a": flow}), "not a function"),
    "the function of a map": (lambda ctx, flow: ctx.map("map", flow, [1]), "a function to call"),
    "what is attempted": (lambda ctx, flow: ctx.attempt("attempt", flow), "a function to call"),
    "a turn": (lambda ctx, flow: ctx.loop("loop", flow), "a function to call"),
    "a handler": (lambda ctx, flow: ctx.step("step", give, 1, rollback=flow), "rollback takes a function"),
}


@pytest.mark.parametrize("place", NOT_FUNCTIONS)
async def test_a_workflow_is_no_function(world: World, place: str) -> None:
    use, says = NOT_FUNCTIONS[place]

    @workflow
    async def mistakes(ctx: Context) -> None:
        await use(ctx, plain)

    result = await world.run(mistakes)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert says in result.error.message
