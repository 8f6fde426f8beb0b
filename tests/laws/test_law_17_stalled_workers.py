"""Law 17: a worker whose event loop is blocked lives, and nobody counts it among the dead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast
from uuid import uuid4

import anyio
import anyio.to_thread
import pytest

from tests.patience import PATIENCE
from tests.runtime.polling import until
from workflow_sdk import Batch, Client, Context, Driver, Runtime, Status, Workflow, open_driver, run_workflow, workflow
from workflow_sdk.rows.instance import Lease
from workflow_sdk.rows.keys import Field, InstanceKeys, WorkerKeys
from workflow_sdk.worker import stalls

pytestmark = pytest.mark.law(10, 16, 17)

TTL = 0.3
LONGER = 1.0
"""A lease that does not run out because the machine has much else to do."""

KEYS = InstanceKeys("i")


class Plain:
    """A driver of somebody else's, which has the five methods and no more."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def get(self, key: bytes, /) -> bytes | None:
        return await self._driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        return await self._driver.scan(begin, end, limit=limit, reverse=reverse)

    async def commit(self, batch: Batch, /) -> None:
        await self._driver.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        await self._driver.changed(key, since)

    async def aclose(self) -> None:
        await self._driver.aclose()


class Blocking:
    """A workflow whose step blocks the event loop until it is released; only the first tries do."""

    def __init__(self, blocked: int = 1) -> None:
        self.tries = 0
        self.blocked = blocked
        self.release = Event()

        @workflow(name="blocks")
        async def job(ctx: Context) -> str:
            return await ctx.step("holds the loop", self.holds_the_loop)

        self.job: Workflow[Any, str] = job

    async def holds_the_loop(self) -> str:
        self.tries += 1
        if self.tries <= self.blocked:
            assert self.release.wait(PATIENCE), "nobody has released it"
        return "done"

    async def has_begun(self, tries: int = 1) -> None:
        """Return once it was tried so often."""

        async def begun() -> bool:
            return self.tries >= tries

        await until(begun)


@contextmanager
def elsewhere(serve: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> Generator[None]:
    """Something that runs in an event loop of its own, in a thread, until the block is left."""
    over, errors = Event(), list[BaseException]()

    async def until_over() -> None:
        while not over.is_set():  # noqa: ASYNC110  # another thread sets it
            await anyio.sleep(0.005)

    async def main() -> None:
        await serve(until_over)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001  # it is raised where it is looked at
            errors.append(error)

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert errors == []


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several threads open."""
    return (
        f"memory://{uuid4().hex}" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db?synchronous=normal"
    )


def worker(url: str, *flows: Workflow[Any, Any], plain: bool = False, **options: Any) -> Any:
    """A worker in a thread of its own."""

    async def serve(until_over: Callable[[], Awaitable[None]]) -> None:
        driver = await open_driver(url)
        try:
            options.setdefault("lease_ttl", TTL)
            async with Runtime(Plain(driver) if plain else driver, workflows=flows, **options):
                await until_over()
        finally:
            await driver.aclose()

    return elsewhere(serve)


async def owner(driver: Driver) -> str:
    """Who has the instance."""
    raw = await driver.get(KEYS.lease)
    return "" if raw is None else Lease.unpack(raw).worker


async def until_it_beats(driver: Driver, name: str, times: int) -> None:
    """Return once the heartbeat of a worker has changed so often."""
    seen: set[bytes | None] = set()

    async def often() -> bool:
        seen.add(await driver.get(WorkerKeys(name).heartbeat))
        return len(seen) > times

    await until(often)


async def test_it_keeps_what_it_has(url: str, caplog: pytest.LogCaptureFixture) -> None:
    blocking = Blocking()
    caplog.set_level(logging.WARNING, "workflow_sdk")
    async with Client(url) as client:
        driver = client.access.driver
        with worker(url, blocking.job, lease_ttl=LONGER):
            handle = await client.start(blocking.job, id="i")
            try:
                await blocking.has_begun()
                name = await owner(driver)
                async with Runtime(url, workflows=[blocking.job], lease_ttl=LONGER):
                    await until_it_beats(driver, name, 6)  # that is two leases
                    assert await owner(driver) == name
                    assert blocking.tries == 1
                    told = [record.getMessage() for record in caplog.records if "blocked" in record.getMessage()]
                    assert told, "it is said while it lasts"
                    assert "holds_the_loop" in told[0], "with the stack"
                    blocking.release.set()
                    assert await handle.result(timeout=PATIENCE) == "done"
            finally:
                blocking.release.set()
        assert blocking.tries == 1


async def test_for_no_longer_than_it_may(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Then it gives it back itself, before its lease runs out; and goes on when its loop does."""
    blocking = Blocking()

    @workflow
    async def other(ctx: Context) -> str:
        return await ctx.step("s", lambda: "other")

    async with Client(url) as client:
        with worker(url, blocking.job, other, stall_max=0.5):
            handle = await client.start(blocking.job, id="i")
            try:
                await blocking.has_begun()
                async with Runtime(url, workflows=[blocking.job], lease_ttl=TTL):
                    assert await handle.result(timeout=PATIENCE) == "done"
                    assert not blocking.release.is_set()
                    assert blocking.tries == 2
                    assert await client.access.driver.get(KEYS.field(Field.DEATHS)) is None
                    assert "are given back" in caplog.text
            finally:
                blocking.release.set()
            assert await (await client.start(other)).result(timeout=PATIENCE) == "other"


async def test_a_run_of_its_own_keeps_what_it_has(url: str) -> None:
    blocking = Blocking()
    results: list[Any] = []

    async def serve(until_over: Callable[[], Awaitable[None]]) -> None:
        driver = await open_driver(url)
        try:
            results.append(await run_workflow(blocking.job, driver=driver, instance_id="i", lease_ttl=LONGER))
        finally:
            await driver.aclose()

    async with Client(url) as client:
        driver = client.access.driver
        with elsewhere(serve):
            try:
                await blocking.has_begun()
                name = await owner(driver)
                async with Runtime(url, workflows=[blocking.job], lease_ttl=LONGER):
                    await until_it_beats(driver, name, 6)
                    assert await owner(driver) == name
            finally:
                blocking.release.set()
    assert [result.output for result in results] == ["done"]
    assert blocking.tries == 1


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers know as little of each other as if each had a process of its own."""
    monkeypatch.setattr("workflow_sdk.worker.lease.lives_here", lambda worker: None)


@pytest.mark.usefixtures("strangers")
async def test_a_worker_that_comes_back_takes_its_death_back(url: str) -> None:
    """On a driver that has only the five methods, the lease runs out."""
    blocking = Blocking()
    async with Client(url) as client:
        driver = client.access.driver
        with worker(url, blocking.job, plain=True):
            await client.start(blocking.job, id="i")
            try:
                await blocking.has_begun()
                first = await owner(driver)
                other = Blocking(blocked=1)
                with worker(url, other.job, plain=True):
                    try:
                        await other.has_begun()
                        assert await owner(driver) != first
                        assert await driver.get(KEYS.field(Field.DEATHS)) is not None, "it seems to be dead"
                        blocking.release.set()

                        async def is_taken_back() -> bool:
                            return await driver.get(KEYS.field(Field.DEATHS)) is None

                        await until(is_taken_back)
                    finally:
                        other.release.set()
                    assert await client.handle(blocking.job, "i").result(timeout=PATIENCE) == "done"
            finally:
                blocking.release.set()


@pytest.mark.usefixtures("strangers")
async def test_nobody_has_died_of_it_however_many_are_blocked() -> None:
    """Five workers are taken for dead, one after the other. When they come back, the instance is not stuck any more."""
    url = f"memory://{uuid4().hex}"
    blocking = Blocking(blocked=5)
    async with Client(url) as client:
        handle = await client.start(blocking.job, id="i")

        async def has(status: Status) -> bool:
            return (await handle.info()).status is status

        workers: list[Any] = []
        try:
            for number in range(5):
                workers.append(worker(url, blocking.job, plain=True))
                workers[-1].__enter__()
                await blocking.has_begun(number + 1)
            async with Runtime(url, workflows=[blocking.job], lease_ttl=TTL):
                await until(lambda: has(Status.STUCK))
                blocking.release.set()
                await until(lambda: has(Status.COMPLETED))
        finally:
            blocking.release.set()
            for each in workers:
                await anyio.to_thread.run_sync(each.__exit__, None, None, None)
    assert blocking.tries > 5


def test_who_stood_still_itself_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stood still as a whole for five seconds: the event loop goes round before it is looked at."""
    now, looks = [0.0], list[float]()

    def pass_time(seconds: float) -> None:
        now[0] += 5.0 if len(looks) == 3 and now[0] < 5 else seconds

    class Looked:
        tick = 0.1

        def look(self) -> None:
            looks.append(now[0])
            if len(looks) == 6:
                watchdog._watched.clear()  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(stalls, "sleep", pass_time)
    monkeypatch.setattr(stalls, "monotonic", lambda: now[0])
    watchdog = stalls._Watchdog()  # pyright: ignore[reportPrivateUsage]
    watchdog._watched.append(cast("Any", Looked()))  # pyright: ignore[reportPrivateUsage]
    watchdog._look()  # pyright: ignore[reportPrivateUsage]
    assert [round(at, 1) for at in looks] == [0.0, 0.1, 0.2, 5.3, 5.4, 5.5]
