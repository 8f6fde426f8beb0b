"""No control flow in `Exception`: waiting parks the coroutine, and a run that is over unwinds it by cancellation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Backoff,
    Break,
    Context,
    Continue,
    JoinError,
    RaceError,
    Status,
    StepExhaustedError,
    StorageError,
    WorkflowSDKError,
    workflow,
)
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.testing import FaultyDriver

Operation = Callable[[Context], Awaitable[Any]]


async def give(value: Any) -> Any:
    return value


async def refuse() -> None:
    raise ValueError("no")


def shaky() -> Callable[[], Awaitable[str]]:
    """A step that fails twice, and waits for an hour each time."""
    tries: list[int] = []

    async def shake() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return "done"

    return shake


async def sleep(ctx: Context) -> Any:
    return await ctx.sleep("wait", 3600)


async def listen(ctx: Context) -> Any:
    return await ctx.listen("wait", timeout=3600, default="nothing")


def retry() -> Operation:
    fn = shaky()
    return lambda ctx: ctx.step("wait", fn, backoff=Backoff(initial=3600))


def join(inner: Operation) -> Operation:
    return lambda ctx: ctx.join("scope", {"a": inner, "b": sleep})


def race(inner: Operation) -> Operation:
    return lambda ctx: ctx.race("scope", {"a": inner})


def attempt(inner: Operation) -> Operation:
    return lambda ctx: ctx.attempt("scope", inner)


def loop(inner: Operation) -> Operation:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await inner(ctx)
        return Break(n) if n else Continue(1)

    return lambda ctx: ctx.loop("scope", turn, 0)


WAITS: dict[str, Callable[[], Operation]] = {
    "sleep": lambda: sleep,
    "listen": lambda: listen,
    "retry": retry,
    "sleep in join": lambda: join(sleep),
    "listen in race": lambda: race(listen),
    "retry in attempt": lambda: attempt(retry()),
    "sleep in loop": lambda: loop(sleep),
    "listen in loop in join": lambda: join(loop(listen)),
}


def guarded(operation: Operation, caught: list[BaseException], after: list[str]) -> Operation:
    """The operation, and code around it that catches every exception there is."""

    async def guard(ctx: Context) -> str:
        try:
            await operation(ctx)
        except Exception as error:  # noqa: BLE001  # what an author would write
            caught.append(error)
        except BaseException as error:
            if not isinstance(error, anyio.get_cancelled_exc_class()):
                caught.append(error)
            raise
        after.append(ctx.path)
        return "went on"

    return guard


@pytest.mark.parametrize("name", WAITS)
async def test_waiting_is_never_an_exception(world: World, name: str) -> None:
    """Also where the wait ends the run, in yield mode, and the coroutine is unwound."""
    caught: list[BaseException] = []
    after: list[str] = []
    guard = guarded(WAITS[name](), caught, after)

    @workflow
    async def waits(ctx: Context) -> Any:
        return await guard(ctx)

    result = await world.run(waits)
    assert (result.status, result.output) == (Status.COMPLETED, "went on")
    assert (caught, after) == ([], [""])
    assert world.runs > 1 or world.setting.mode == "live"


@pytest.mark.parametrize("name", WAITS)
async def test_cancelling_the_run_is_never_an_exception(world: World, name: str) -> None:
    """The lease is given back, and another run goes on."""
    caught: list[BaseException] = []
    after: list[str] = []
    begun = anyio.Event()

    async def endless() -> None:
        begun.set()
        await anyio.sleep_forever()

    async def step(ctx: Context) -> None:
        await ctx.step("endless", endless)

    both = guarded(
        lambda ctx: ctx.join("both", {"wait": WAITS[name](), "step": guarded(step, caught, after)}), caught, after
    )

    @workflow
    async def waits(ctx: Context) -> Any:
        return await both(ctx)

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: world.once(waits))
        await begun.wait()
        group.cancel_scope.cancel()
    assert (caught, after) == ([], [])
    assert await world.driver.get(InstanceKeys("i").lease) is None
    assert (await world.history()).status in (Status.RUNNING, Status.SLEEPING, Status.WAITING)


@pytest.mark.parametrize("name", WAITS)
async def test_a_storage_failure_is_never_an_exception_in_the_code(world: World, name: str) -> None:
    caught: list[BaseException] = []
    after: list[str] = []
    guard = guarded(WAITS[name](), caught, after)

    @workflow
    async def waits(ctx: Context) -> Any:
        return await guard(ctx)

    with pytest.raises(StorageError):
        await world.run(waits, driver=FaultyDriver(world.driver, fail_at=[2]))
    assert (caught, after) == ([], [])


@pytest.mark.parametrize("name", WAITS)
async def test_divergence_is_never_an_exception(world: World, name: str) -> None:
    caught: list[BaseException] = []
    after: list[str] = []
    operation = WAITS[name]()

    async def two(ctx: Context) -> None:
        await ctx.step("old", give, 1)
        await operation(ctx)

    async def other(ctx: Context) -> None:
        await ctx.step("new", give, 1)
        await operation(ctx)

    @workflow(name="w")
    async def before(ctx: Context) -> Any:
        return await two(ctx)

    @workflow(name="w")
    async def changed(ctx: Context) -> Any:
        return await guarded(other, caught, after)(ctx)

    await world.once(before, mode="yield")
    result = await world.run(changed)
    assert result.status is Status.STUCK
    assert (caught, after) == ([], [])


class Stubborn:
    """Code that swallows its cancellation, and does as if nothing were."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def work(self, name: str) -> str:
        self.ran.append(name)
        return name

    async def swallow(self, ctx: Context) -> str:
        try:
            await ctx.sleep("nap", 60)
        except BaseException:  # noqa: BLE001  # the worst an author can write
            return await ctx.step("instead", self.work, "instead")
        return await ctx.step("after", self.work, "after")

    async def clean_up(self, ctx: Context) -> str:
        try:
            await ctx.sleep("nap", 60)
        finally:
            await ctx.step("after", self.work, "after")
        return "after"

    async def shield(self, ctx: Context) -> str:
        with anyio.CancelScope(shield=True):
            await ctx.sleep("nap", 60)
        return await ctx.step("after", self.work, "after")

    async def give_up(self, ctx: Context) -> str:
        try:
            await ctx.sleep("nap", 60)
        except BaseException as error:
            raise RuntimeError("interrupted") from error
        return await ctx.step("after", self.work, "after")


@pytest.mark.parametrize("how", ["swallow", "clean_up", "give_up"])
@pytest.mark.parametrize("scope", ["root", "join", "race", "attempt"])
async def test_what_the_code_does_after_it_was_unwound_is_ignored(world: World, how: str, scope: str) -> None:
    author = Stubborn()
    inner = getattr(author, how)
    operation = {"root": inner, "join": join(inner), "race": race(inner), "attempt": attempt(inner)}[scope]

    @workflow
    async def stubborn(ctx: Context) -> Any:
        await operation(ctx)
        return "end"

    first = await world.once(stubborn, mode="yield")
    assert first.status is Status.SLEEPING
    assert author.ran == []
    result = await world.run(stubborn)
    assert (result.status, result.output) == (Status.COMPLETED, "end")
    assert author.ran == ["after"]


@pytest.mark.parametrize("fails", [True, False])
async def test_code_that_shields_itself_is_unwound_all_the_same(world: World, fails: bool) -> None:
    author = Stubborn()

    @workflow
    async def shielded(ctx: Context) -> str:
        await ctx.join("join", {"a": author.shield})
        return "end"

    with anyio.fail_after(PATIENCE):
        if fails:
            with pytest.raises(StorageError):
                await world.run(shielded, driver=FaultyDriver(world.driver, fail_at=[3]))
        result = await world.run(shielded)
    assert result.output == "end"
    assert set(author.ran) == {"after"}


@pytest.mark.parametrize("over", ["evicted", "store fails", "race lost"])
async def test_code_that_shields_itself_catches_no_exception_of_the_engine(world: World, over: str) -> None:
    caught: list[Exception] = []

    async def shielded(ctx: Context) -> str:
        with anyio.CancelScope(shield=True):
            try:
                await ctx.step("first", give, 1)
                await ctx.sleep("nap", 60)
            except Exception as error:
                caught.append(error)
                raise
        return "slept"

    @workflow
    async def job(ctx: Context) -> str:
        if over != "race lost":
            return await shielded(ctx)
        nap: Operation = lambda ctx: ctx.sleep("short nap", 1)  # noqa: E731
        return (await ctx.race("race", {"shielded": shielded, "nap": nap})).winner

    with anyio.fail_after(PATIENCE):
        if over == "store fails":
            with pytest.raises(StorageError):
                await world.run(job, driver=FaultyDriver(world.driver, fail_at=[2]))
        else:
            await world.once(job, mode="yield")
        result = await world.run(job)
    assert result.output == ("nap" if over == "race lost" else "slept")
    assert caught == []


async def test_cancelling_the_run_reaches_code_that_shields_itself(world: World) -> None:
    @workflow
    async def shielded(ctx: Context) -> None:
        with anyio.CancelScope(shield=True):
            await ctx.listen("never")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: world.once(shielded, mode="live"))
            await world.until_waiting()
            group.cancel_scope.cancel()
    assert await world.driver.get(InstanceKeys("i").lease) is None


async def test_a_loser_of_a_race_sees_no_exception(world: World) -> None:
    caught: list[BaseException] = []
    after: list[str] = []

    @workflow
    async def racing(ctx: Context) -> str:
        losers = {name: guarded(wait(), caught, after) for name, wait in WAITS.items()}
        quick = {"quick": lambda ctx: ctx.step("quick", give, 1)}
        return (await ctx.race("race", {**losers, **quick})).winner

    assert (await world.run(racing)).output == "quick"
    assert (caught, after) == ([], [])


async def test_except_handles_a_failed_step(world: World) -> None:
    @workflow
    async def handles(ctx: Context) -> list[str]:
        done: list[str] = []
        try:
            await ctx.step("first", refuse, retries=0)
        except StepExhaustedError as error:
            done.append(error.step)
        try:
            await ctx.join("join", {"a": lambda ctx: ctx.step("s", refuse, retries=0)})
        except JoinError as error:
            done.append(*error.errors)
        try:
            await ctx.race("race", {"b": lambda ctx: ctx.step("s", refuse, retries=0)})
        except RaceError as error:
            done.append(*error.errors)
        await ctx.sleep("nap", 60)
        try:
            await ctx.listen("nothing", timeout=1)
        except TimeoutError:
            done.append("listen")
        done.append(await ctx.step("last", give, "last"))
        return done

    result = await world.run(handles)
    assert result.output == ["first", "a", "b", "listen", "last"]


async def test_every_error_of_an_operation_is_caught_by_one_class(world: World) -> None:
    @workflow
    async def handles(ctx: Context) -> str:
        try:
            await ctx.step("s", refuse, retries=0)
        except WorkflowSDKError as error:
            return type(error).__name__
        return "nothing"

    assert (await world.run(handles)).output == "StepExhaustedError"
