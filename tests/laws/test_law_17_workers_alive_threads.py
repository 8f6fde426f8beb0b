"""Law 17: plain functions that don't return keep their threads, and nothing else."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Generator
from inspect import CORO_CLOSED, getcoroutinestate
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from tests.patience import PATIENCE
from tests.runtime.polling import until
from tests.support import World
from workflow_sdk import (
    Backoff,
    Client,
    Context,
    DefinitionError,
    Handle,
    Runtime,
    Status,
    open_driver,
    run_workflow,
    workflow,
)
from workflow_sdk.instance import calls
from workflow_sdk.instance.threads import Call, Threads

ROOT = Path(__file__).parents[2]


class Hanging:
    """A plain function that returns when it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = 0
        self.at_once = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        """As a step."""
        with self._lock:
            self.begun += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        self.go_on.wait(PATIENCE)
        with self._lock:
            self.at_once -= 1
        return "returned"

    async def until_begun(self, times: int) -> None:
        """Return once it was called so often."""

        async def has_begun() -> bool:
            return self.begun >= times

        await until(has_begun)


@pytest.fixture
def hanging() -> Generator[Hanging]:
    function = Hanging()
    yield function
    function.go_on.set()


@pytest.fixture
def _seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WAITS_UNSEEN_SECONDS", 0.01)


@pytest.mark.every_host
@pytest.mark.usefixtures("host")
async def test_those_that_timed_out_count_until_they_return(hanging: Hanging) -> None:
    """A step that is tried again waits for a thread, and that is no part of the attempt's time."""

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step(
            "hang", hanging, timeout=0.01, retries=50, retry_on_timeout=True, backoff=Backoff(initial=0)
        )

    with anyio.fail_after(PATIENCE):
        async with Runtime("memory://", workflows=[job], threads=3, grace=PATIENCE) as runtime:
            handles = [await runtime.start(job) for _ in range(8)]
            await hanging.until_begun(3)
            await anyio.sleep(0.1)  # for more to begin, if they did
            assert (hanging.begun, hanging.most) == (3, 3)
            hanging.go_on.set()
            assert [await handle.result() for handle in handles] == ["returned"] * 8
    assert hanging.most == 3


@pytest.mark.usefixtures("_seen_at_once")
@pytest.mark.every_host
@pytest.mark.usefixtures("host")
async def test_who_waits_for_a_thread_is_shown(hanging: Hanging, caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def job(ctx: Context) -> str:
        async def branch(ctx: Context) -> str:
            return await ctx.step("hang", hanging)

        return (await ctx.join("both", {"a": branch}))["a"]

    async def waits(handle: Handle[str]) -> bool:
        return [(wait.kind, wait.path) for wait in (await handle.info()).waits] == [("thread", "both/a/hang")]

    with anyio.fail_after(PATIENCE), caplog.at_level(logging.WARNING, "workflow_sdk.runtime"):
        async with Runtime("memory://", workflows=[job], threads=1) as runtime:
            first = await runtime.start(job)
            await hanging.until_begun(1)
            second = await runtime.start(job, id="second")
            await until(lambda: waits(second))
            assert (await second.info()).status is Status.RUNNING
            assert not (await first.info()).waits
            hanging.go_on.set()
            assert (await first.result(), await second.result()) == ("returned", "returned")
            assert not (await second.info()).waits
    (record,) = [record for record in caplog.records if "waits for a thread" in record.getMessage()]
    assert "step 'both/a/hang' of instance second waits for a thread: all 1 are taken" in record.getMessage()


@pytest.mark.every_host
@pytest.mark.usefixtures("host")
async def test_what_waits_for_a_thread_is_not_begun_when_the_worker_stops(hanging: Hanging) -> None:
    """What returns within the grace period is recorded."""
    driver = await open_driver("memory://")

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step("hang", hanging)

    async def return_soon() -> None:
        await anyio.sleep(0.05)
        hanging.go_on.set()

    with anyio.fail_after(PATIENCE):
        async with (
            anyio.create_task_group() as group,
            Runtime(driver, workflows=[job], threads=1, grace=PATIENCE) as runtime,
        ):
            await runtime.start(job, id="first")
            await hanging.until_begun(1)
            await runtime.start(job, id="second")
            await anyio.sleep(0.05)
            group.start_soon(return_soon)
        async with Client(driver) as client:
            assert (await client.handle(job, "first").history())["hang"].value == "returned"
            assert (await client.handle(job, "second").info()).status is Status.RUNNING
            assert hanging.begun == 1
        async with Runtime(driver, workflows=[job]) as runtime:
            assert await runtime.handle(job, "first").result() == "returned"
            assert await runtime.handle(job, "second").result() == "returned"
    assert hanging.begun == 2
    await driver.aclose()


@pytest.mark.every_host
@pytest.mark.usefixtures("host")
async def test_one_that_does_not_return_is_left_behind(hanging: Hanging, caplog: pytest.LogCaptureFixture) -> None:
    driver = await open_driver("memory://")

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step("hang", hanging)

    with anyio.fail_after(PATIENCE), caplog.at_level(logging.WARNING, "workflow_sdk.runtime"):
        async with Runtime(driver, workflows=[job], grace=0.01) as runtime:
            await runtime.start(job, id="i")
            await hanging.until_begun(1)
        assert hanging.at_once == 1
    assert any("1 plain functions have not returned" in record.getMessage() for record in caplog.records)
    hanging.go_on.set()
    async with Runtime(driver, workflows=[job]) as runtime:
        assert await runtime.handle(job, "i").result() == "returned"
    await driver.aclose()


async def test_a_result_that_is_there_when_the_time_is_up_is_recorded() -> None:
    """The event loop was busy, and finds both at once."""
    returned = threading.Event()
    driver = await open_driver("memory://")

    def quick() -> str:
        returned.set()
        return "returned"

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step("quick", quick)

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_workflow(job, driver=driver, instance_id="i"))
            while not returned.is_set():
                await anyio.lowlevel.checkpoint()
            time.sleep(0.01)  # noqa: ASYNC251  # the result is on its way to an event loop that is busy
            scope.cancel()
    async with Client(driver) as client:
        assert (await client.handle(job, "i").history())["quick"].value == "returned"
    await driver.aclose()


PROCESS = """
import sys, threading, time
import {backend} as backend
import anyio
from workflow_sdk import Context, Runtime, StepTimeoutError, workflow

def hang():
    time.sleep(1_000_000)

@workflow
async def job(ctx: Context) -> str:
    try:
        await ctx.step("hang", hang, timeout=0.05, retries=0)
    except StepTimeoutError:
        pass
    await ctx.step("hang once more", hang)

async def main():
    async with Runtime("memory://", workflows=[job], grace=0.05) as runtime:
        handle = await runtime.start(job)
        while threading.active_count() < 3:
            await anyio.sleep(0.01)
    print("left")

anyio.run(main, backend="{backend}")
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_process_ends_though_functions_hang(backend: str) -> None:
    code = PROCESS.format(backend=backend)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == "left\n"
    assert "never awaited" not in done.stderr


async def test_a_plain_function_reaches_the_event_loop(world: World) -> None:
    """As it does from the threads of anyio."""

    async def here(number: int) -> int:
        await anyio.lowlevel.checkpoint()
        return 2 * number

    def plain(number: int) -> int:
        anyio.from_thread.check_cancelled()
        return anyio.from_thread.run(here, number)

    def another_loop(number: int) -> int:
        return anyio.run(here, number)

    @workflow
    async def job(ctx: Context) -> list[int]:
        return [await ctx.step("plain", plain, 21), await ctx.step("another", another_loop, 21)]

    assert (await world.run(job)).output == [42, 42]


@pytest.mark.every_host
@pytest.mark.usefixtures("host")
async def test_a_plain_function_can_see_that_its_time_is_up() -> None:
    seen = threading.Event()
    driver = await open_driver("memory://")

    def plain() -> None:
        try:
            while True:
                anyio.from_thread.check_cancelled()
                time.sleep(0.001)
        finally:
            seen.set()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("plain", plain, timeout=0.05, retries=0)

    result = await run_workflow(job, driver=driver)
    assert result.error is not None
    assert result.error.type == "workflow_sdk.errors.StepTimeoutError"
    assert await anyio.to_thread.run_sync(seen.wait, PATIENCE)
    await driver.aclose()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_coroutine_that_nobody_awaits_is_closed(backend: str) -> None:
    """A lambda around an async function, whose caller has given up before it returned."""
    go_on = threading.Event()
    made: list[Coroutine[object, object, None]] = []

    async def never() -> None:
        """It is not begun."""

    def late() -> object:
        go_on.wait(PATIENCE)
        made.append(never())
        return made[-1]

    async def main() -> None:
        threads = Threads(1)
        call = Call(late, ())
        await threads.wait(call)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(threads.run, call)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        go_on.set()
        with anyio.fail_after(PATIENCE):
            await threads.wait(Call(late, ()))
        assert getcoroutinestate(made[0]) == CORO_CLOSED

    anyio.run(main, backend=backend)


async def test_threads_are_used_again(world: World) -> None:
    idents: set[int] = set()

    def note() -> None:
        idents.add(threading.get_ident())

    @workflow
    async def job(ctx: Context) -> None:
        for number in range(20):
            await ctx.step(f"note {number}", note)

    assert (await world.run(job)).status is Status.COMPLETED
    assert len(idents) <= 2


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "3", None])
def test_the_number_of_threads_is_a_number(threads: object) -> None:
    with pytest.raises(DefinitionError, match="threads is a number of threads from 1 on"):
        Runtime("memory://", workflows=[], threads=threads)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_what_a_plain_function_raises_is_raised(world: World) -> None:
    def stops() -> None:
        raise StopIteration("over")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("stops", stops, retries=0)

    result = await world.run(job)
    assert result.status is Status.FAILED
    assert result.error is not None
    assert "StopIteration" in result.error.message
