"""Commits in the event loop: only those that are alone, small, and short of late; all others in their thread."""

# pyright: reportPrivateUsage=false
# Where a statement runs can only be seen from inside.

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest

from tests.patience import PATIENCE
from workflow_drivers import sqlite
from workflow_drivers.sqlite import SqliteDriver
from workflow_drivers.sqlite._pace import HERE_MOST, SHORT_ENOUGH, Pace
from workflow_drivers.sqlite._queue import HERE_BYTES_MAX, HERE_WRITES_MAX
from workflow_sdk.driver import Batch
from workflow_sdk.errors import ConflictError, StorageError

HERE = "here"
THREAD = "in the thread"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit is a short one, whatever the machine."""
    monkeypatch.setattr("workflow_drivers.sqlite._pace.SHORT_SECONDS", 60.0)


class Store:
    """A store that tells where it commits."""

    def __init__(self, driver: SqliteDriver) -> None:
        self.driver = driver
        self.statements: list[tuple[str, str]] = []
        here = threading.get_ident()

        def note(sql: str) -> None:
            self.statements.append((HERE if threading.get_ident() == here else THREAD, sql))

        driver._writes.connection.set_trace_callback(note)

    async def put(self, *keys: bytes, size: int = 1) -> str:
        """Set the keys in one batch; where that was committed."""
        batch = Batch()
        for key in keys or (b"k",):
            batch.set(key, bytes(size))
        await self.driver.commit(batch)
        return self.where("COMMIT")[-1]

    def where(self, sql: str) -> list[str]:
        """Where a statement was run, each time."""
        return [where for where, what in self.statements if what.startswith(sql)]

    async def warm_up(self) -> None:
        """As many commits as it takes."""
        assert [await self.put() for _ in range(SHORT_ENOUGH)] == [THREAD] * SHORT_ENOUGH


@asynccontextmanager
async def opened(directory: Path, options: str = "synchronous=normal") -> AsyncGenerator[Store]:
    driver = await sqlite.open(f"sqlite:///{directory}/app.db?{options}")
    try:
        yield Store(driver)
    finally:
        await driver.aclose()


async def test_after_some_short_ones(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        assert await store.put(b"a") == HERE
        assert await store.driver.get(b"a") == b"\0"


async def test_never_if_not_wanted(tmp_path: Path) -> None:
    async with opened(tmp_path, "inline=no") as store:
        await store.warm_up()
        assert await store.put() == THREAD


async def test_now_and_then_the_thread_copies_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        assert [await store.put() for _ in range(HERE_MOST + 2)] == [HERE] * HERE_MOST + [THREAD, HERE]
        pragmas = [sql for _, sql in store.statements if "wal_autocheckpoint" in sql]
        assert [sql.rpartition("=")[2].strip() for sql in pragmas] == ["0", "1000", "0"]


async def test_the_log_does_not_grow_without_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for number in range(1500):
            await store.put(b"%d" % number, b"other", size=3000)
        # 1,000 pages, and what may come until the thread's next turn.
        assert (tmp_path / "app.db-wal").stat().st_size < 4120 * (1000 + 6 * HERE_MOST)
        assert len(await store.driver.scan(b"", b"\xff")) == 1501


async def test_a_long_one_sends_the_next_to_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        with monkeypatch.context() as slow:
            slow.setattr("workflow_drivers.sqlite._pace.SHORT_SECONDS", 0.0)
            assert await store.put() == HERE
        await store.warm_up()
        assert await store.put() == HERE


async def test_several_go_to_the_thread_together(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        before = store.driver.transactions
        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(store.put(b"%d" % number))
        assert store.driver.transactions - before == 1
        assert store.where("COMMIT")[-1] == THREAD
        await store.warm_up()  # those who come together now, will again


async def test_what_becomes_ready_meanwhile_joins(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        second: list[asyncio.Task[str]] = []
        asyncio.get_running_loop().call_soon(lambda: second.append(asyncio.ensure_future(store.put(b"b"))))
        before = store.driver.transactions
        await store.put(b"a")
        await second[0]
        assert store.driver.transactions - before <= 2
        assert {key for key, _ in await store.driver.scan(b"", b"\xff")} == {b"a", b"b", b"k"}


@pytest.mark.parametrize(
    "put",
    [
        lambda store: store.put(*[b"%d" % number for number in range(HERE_WRITES_MAX + 1)]),
        lambda store: store.put(size=HERE_BYTES_MAX),
    ],
    ids=["writes", "bytes"],
)
async def test_a_large_one_goes_to_the_thread(tmp_path: Path, put: Callable[[Store], asyncio.Future[str]]) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        assert await put(store) == THREAD


async def test_a_busy_file_holds_up_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            commit = asyncio.ensure_future(store.put(b"a"))
            await asyncio.sleep(0.05)
            assert not commit.done()
            assert await store.driver.get(b"a") is None
            other.execute("COMMIT")
        assert await commit == THREAD


async def test_a_check_that_does_not_hold(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        batch = Batch()
        batch.check(b"k", b"another")
        batch.set(b"a", b"")
        with pytest.raises(ConflictError):
            await store.driver.commit(batch)
        assert store.where("COMMIT")[-1] == HERE
        assert await store.driver.get(b"a") is None
        assert await store.put() == HERE


async def test_a_row_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        trigger = (
            "CREATE TRIGGER t BEFORE INSERT ON entry WHEN NEW.key = x'626164' BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        await store.driver._writer.call(lambda: store.driver._writes.cursor.execute(trigger))
        with pytest.raises(StorageError, match="no") as caught:
            await store.put(b"half", b"bad")
        assert isinstance(caught.value.__cause__, sqlite3.Error)
        assert store.where("ROLLBACK") == [HERE]
        assert await store.driver.get(b"half") is None
        assert await store.put() == HERE


async def test_cancelled_it_is_decided_when_it_returns(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        task = asyncio.ensure_future(store.put(b"a"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        found = await store.driver.get(b"a")
        with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # nothing is under way
            other.execute("COMMIT")
        assert await store.put() == HERE
        assert await store.driver.get(b"a") == found


async def test_those_who_wait_for_a_change_hear_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow_drivers.sqlite._driver.POLL_SECONDS_MIN", 3600.0)
    async with opened(tmp_path) as store:
        await store.warm_up()
        wait = asyncio.ensure_future(store.driver.changed(b"a", None))
        await asyncio.sleep(0.05)
        assert await store.put(b"a") == HERE
        with anyio.fail_after(PATIENCE):
            await wait


async def test_closing_finishes_what_waits(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        commit = asyncio.ensure_future(store.put(b"a"))
        closing_ = asyncio.ensure_future(store.driver.aclose())
        await asyncio.gather(commit, closing_)
    async with opened(tmp_path) as again:
        assert await again.driver.get(b"a") == b"\0"


def test_the_pace() -> None:
    pace = Pace(possible=True)
    for _ in range(SHORT_ENOUGH):
        assert not pace.is_short
        pace.note(0.0001, 1, here=False)
    assert pace.is_short
    pace.note(0.0001, 2, here=False)
    assert not pace.is_short, "there are many"
    impossible = Pace(possible=False)
    for _ in range(2 * SHORT_ENOUGH):
        impossible.note(0.0001, 1, here=False)
    assert not impossible.is_short
