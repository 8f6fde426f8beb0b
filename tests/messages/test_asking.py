"""Asking an instance: whoever runs it, wherever it goes meanwhile, and if there is never an answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Rows, Stop, opened, until_status
from tests.runtime.polling import settle, until
from workflow_sdk import Batch, Client, Context, Driver, Handle, InstanceStateError, Runtime, Status, Workflow, workflow
from workflow_sdk.testing import FaultyDriver, VirtualClock

ROOT = Path(__file__).parents[2]

stop = [Stop()]
thought = [Stop()]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    stop[0], thought[0] = Stop(), Stop()


@workflow
async def answers(ctx: Context) -> str:
    """Answers twice its payload, again and again."""
    number = 0
    while True:
        message = await ctx.listen_message(f"wait {number}", ["ask", "slow", "end", "fail", "stop"])
        number += 1
        if message.name == "slow":
            await ctx.step(f"think {number}", stop[0].here)
        if message.name == "end":
            return "ended"
        if message.name == "fail":
            raise ValueError("no answer")
        if message.name == "stop":
            await ctx.listen(f"never {number}", "never")
        await message.reply([message.payload] * 2)


@workflow
async def answers_slowly(ctx: Context) -> None:
    """Its turn is over when it answers."""
    message = await ctx.listen_message("wait", "ask")
    await ctx.step("go on", lambda: None)
    await thought[0].here()
    await message.reply(message.payload)
    await ctx.listen("never")


FLOWS: list[Workflow[Any, Any]] = [answers]


async def waiting(client: Client, id: str = "i") -> Handle[Any]:
    """One that waits for questions."""
    handle = await client.start("answers", id=id)
    await until_status(handle, Status.WAITING)
    return handle


async def answers_left(driver: Driver) -> int:
    """How many rows of answers there are."""
    return len([key for key in (await Rows.of(driver)).keys if key[0] == 11])


async def asked(driver: Driver) -> None:
    """Return once a question is in the store."""

    async def there() -> bool:
        return await answers_left(driver) == 1

    await until(there)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance in the memory here has not much time to answer before the store is watched as well."""
    monkeypatch.setattr("workflow_sdk.client.asking.HERE_SECONDS", 0.01)


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("asker", ["here", "elsewhere"])
@pytest.mark.parametrize("how", ["end", "fail", "cancel", "delete"])
async def test_an_end_without_an_answer(driver: Driver, asker: str, how: str) -> None:
    async with Client(driver) as other, Runtime(driver, workflows=FLOWS) as runtime:
        handle = (runtime if asker == "here" else other).handle("answers", (await waiting(runtime)).id)
        errors: list[Exception] = []

        async def ask() -> None:
            try:
                await handle.ask("stop" if how in ("cancel", "delete") else how)
            except InstanceStateError as error:
                errors.append(error)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                if how in ("cancel", "delete"):
                    await asked(driver)
                    await handle.cancel()
                    if how == "delete":
                        await other.delete(handle.id)
        assert ["'i' has ended, and answers no" in str(error) for error in errors] == [True]
    assert await answers_left(driver) == 0


@pytest.mark.parametrize("asker", ["here", "elsewhere"])
@pytest.mark.parametrize("gives_up", ["time", "cancelled"])
async def test_an_answer_that_comes_late_goes_nowhere(driver: Driver, asker: str, gives_up: str) -> None:
    async with Client(driver) as other, Runtime(driver, workflows=FLOWS) as runtime:
        handle = (runtime if asker == "here" else other).handle("answers", (await waiting(runtime)).id)
        if gives_up == "time":
            # On a slow machine the time is up before the question was taken.
            while not stop[0].reached.is_set():
                with pytest.raises(TimeoutError):
                    await handle.ask("slow", 1, timeout=0.05)
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(handle.ask, "slow", 1)
                await stop[0].reached.wait()
                group.cancel_scope.cancel()
        await stop[0].reached.wait()
        assert await answers_left(driver) == 0
        stop[0].go_on.set()
        assert await handle.ask("ask", 2, timeout=PATIENCE) == [2, 2]
        assert await answers_left(driver) == 0
        assert runtime.access.here is not None
        assert runtime.access.here.answers == {}


async def test_asked_from_another_process(tmp_path: Path) -> None:
    """There is no runtime in the process that asks, and none in the one that it is asked from."""
    url = f"sqlite:///{tmp_path}/app.db"
    ask = (
        "import anyio, sys; from workflow_sdk import Client\n"
        "async def main():\n"
        f"    async with Client({url!r}) as client:\n"
        f"        print(await client.handle('answers', 'i').ask('ask', 'far', timeout={PATIENCE}))\n"
        "anyio.run(main)\n"
    )
    async with opened(url) as driver, Runtime(driver, workflows=FLOWS) as runtime:
        await waiting(runtime)
        process = await anyio.run_process([sys.executable, "-c", ask], cwd=ROOT, stderr=subprocess.STDOUT)
        assert process.stdout.decode().strip() == "['far', 'far']"
        assert await answers_left(driver) == 0


async def ask_into(handle: Handle[Any], message: str, payload: Any, got: list[Any]) -> None:
    """Ask, and note the answer."""
    got.append(await handle.ask(message, payload, timeout=PATIENCE))


@pytest.mark.parametrize("max_resident", [0, 4096])
@pytest.mark.parametrize("asker", ["here", "elsewhere"])
async def test_evicted_between_question_and_answer(driver: Driver, asker: str, max_resident: int) -> None:
    """And taken by the other of two runtimes: the answer finds whoever has asked."""
    got: list[Any] = []
    async with Client(driver) as other, Runtime(driver, workflows=FLOWS, max_resident=max_resident) as two:
        async with anyio.create_task_group() as group:
            async with Runtime(driver, workflows=FLOWS, max_resident=max_resident, grace=0.02) as one:
                if asker == "here":
                    # The one that asks is the one that takes it over.
                    handle = two.handle("answers", (await waiting(one)).id)
                else:
                    handle = other.handle("answers", (await waiting(one)).id)
                group.start_soon(ask_into, handle, "slow", 1, got)
                await stop[0].reached.wait()
                older, stop[0] = stop[0], Stop()
            assert got == []
            for thought in (stop[0], older):
                thought.go_on.set()
        assert got == [[1, 1]]
    assert await answers_left(driver) == 0


async def test_two_runtimes_that_keep_nothing(driver: Driver) -> None:
    """Whichever of them takes it each time, and whichever is asked from."""
    one = Runtime(driver, workflows=FLOWS, max_resident=0)
    two = Runtime(driver, workflows=FLOWS, max_resident=0)
    async with one, two:
        await waiting(one)
        for number in range(6):
            runtime = (one, two)[number % 2]
            assert await runtime.handle("answers", "i").ask("ask", number, timeout=PATIENCE) == [number] * 2
        got: list[Any] = []
        async with anyio.create_task_group() as group:
            for number in range(10):
                handle = (one, two)[number % 2].handle("answers", "i")
                group.start_soon(ask_into, handle, "ask", number, got)
        assert sorted(got) == [[number] * 2 for number in range(10)]
    assert await answers_left(driver) == 0


async def test_many_at_once(driver: Driver) -> None:
    got: list[Any] = []
    async with Runtime(driver, workflows=FLOWS, concurrency=2) as runtime:
        handles = [await waiting(runtime, str(number)) for number in range(10)]
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(ask_into, handles[number % 10], "ask", number, got)
        assert sorted(got) == [[number] * 2 for number in range(100)]
    assert await answers_left(driver) == 0


async def test_an_answer_just_before_the_end(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stored, and then the instance is cancelled while it lets others go first: whoever has asked has it."""
    monkeypatch.setattr("workflow_sdk.instance.waits.TURN_SECONDS", 3600.0)
    got: list[Any] = []
    async with Runtime(driver, workflows=[answers, answers_slowly], concurrency=1) as runtime, Client(driver) as other:
        handle = await runtime.start(answers_slowly, id="i")
        await until_status(handle, Status.WAITING)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(ask_into, handle, "ask", 1, got)
                await asked(driver)
                await until_status(handle, Status.RUNNING)
                busy = await other.start("answers", id="busy")
                await busy.send("slow")
                await thought[0].reached.wait()
                await settle(driver)  # it waits for a turn
                monkeypatch.setattr("workflow_sdk.instance.waits.TURN_SECONDS", 0.0)
                thought[0].go_on.set()
                await stop[0].reached.wait()
                assert await answers_left(driver) == 0, "the answer is in the store"
                await handle.cancel()
        assert got == [1]
        stop[0].go_on.set()


async def test_asked_where_it_is_not(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the memory of another runtime; that takes no longer than it must."""
    monkeypatch.setattr("workflow_sdk.client.asking.HERE_SECONDS", 3600.0)
    async with Runtime(driver, workflows=FLOWS) as one, Runtime(driver, workflows=FLOWS) as two:
        await waiting(one)
        for number in range(5):
            assert await two.handle("answers", "i").ask("ask", number, timeout=PATIENCE) == [number] * 2


@pytest.mark.parametrize("kind", ["fail_at", "crash_after", "crash_before"])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_the_commit_of_the_answer_fails(driver: Driver, kind: str, number: int) -> None:
    """Nobody who asks waits for ever: there is an answer, or it is said that the instance has ended."""
    make: Callable[..., Armed] = Armed
    async with Client(driver) as client:
        async with Runtime(driver, workflows=FLOWS) as runtime:
            await waiting(runtime)
        faulty = make(driver)
        clock = VirtualClock()
        is_armed = anyio.Event()

        async def run() -> None:
            try:
                async with Runtime(faulty, workflows=FLOWS, clock=clock):
                    await settle(driver)  # what it commits when it is opened is over
                    faulty.arm(kind, number)
                    is_armed.set()
                    await anyio.sleep_forever()
            except BaseException as error:  # the crash, alone or in groups
                if "Crash" not in repr(error):
                    raise

        got: list[Any] = []
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            with anyio.fail_after(PATIENCE):
                await is_armed.wait()
                async with anyio.create_task_group() as asking:
                    asking.start_soon(ask_into, client.handle("answers", "i"), "ask", 1, got)

                    async def is_answered_or_fails() -> bool:
                        return bool(got) or faulty.has_failed

                    async def is_answered() -> bool:
                        return bool(got)

                    await until(is_answered_or_fails)
                    async with Runtime(driver, workflows=FLOWS, clock=clock):
                        await until(is_answered)  # by either of them
            group.cancel_scope.cancel()
        assert got == [[1, 1]]
    assert await answers_left(driver) == 0


class Armed(FaultyDriver):
    """Has a commit fail, or the process die with it, from when it is told to."""

    def __init__(self, driver: Driver) -> None:
        self.armed: tuple[str, int] | None = None
        self.has_failed: bool = False
        super().__init__(
            driver, fail_at=self.at("fail_at"), crash_before=self.at("crash_before"), crash_after=self.at("crash_after")
        )

    def at(self, kind: str) -> Callable[[int, Batch], bool]:
        def is_the_one(number: int, _: Batch) -> bool:
            found = self.armed == (kind, number)
            self.has_failed = self.has_failed or found
            return found

        return is_the_one

    def arm(self, kind: str, number: int) -> None:
        self.armed = (kind, self.commits + number)


@workflow
async def tells(ctx: Context) -> None:
    message = await ctx.listen_message("wait", "ask")
    ctx.state["asked"] = True
    await message.reply("yes")
    await ctx.step(stop[0].here)


async def test_who_was_answered_sees_what_was_assigned_before() -> None:
    async with Runtime("memory://", workflows=[tells]) as runtime:
        handle = await runtime.start(tells)
        assert await handle.ask("ask") == "yes"
        assert (await handle.info()).state == {"asked": True}
        stop[0].go_on.set()
        await handle.result()
