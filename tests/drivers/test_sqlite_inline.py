"""Commits and reads in the event loop: only what is alone, small, and was short of late; the rest in threads."""

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

from tests.drivers.until import some_turns, until, until_waiting
from tests.patience import PATIENCE
from workflow_drivers import sqlite
from workflow_drivers.sqlite import SqliteDriver
from workflow_drivers.sqlite._queue import (
    HERE_BATCHES_MAX,
    HERE_BYTES_MAX,
    HERE_MOST,
    HERE_ROWS_MAX,
    HERE_WRITES_MAX,
    SHORT_ENOUGH,
    Pace,
)
from workflow_sdk.driver import Batch
from workflow_sdk.errors import ConflictError, StorageError

pytestmark = pytest.mark.law(1)

HERE = "here"
THREAD = "in the thread"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit is a short one, whatever the machine."""
    monkeypatch.setattr("workflow_drivers.sqlite._queue.COMMIT_SECONDS", 60.0)
    monkeypatch.setattr("workflow_drivers.sqlite._queue.READ_SECONDS", 60.0)


class Store:
    """A store that tells where it commits."""

    def __init__(self, driver: SqliteDriver) -> None:
        self.driver = driver
        self.statements: list[tuple[str, str]] = []
        here = threading.get_ident()

        def note(sql: str) -> None:
            self.statements.append((HERE if threading.get_ident() == here else THREAD, sql))

        driver._writer.session.connection.set_trace_callback(note)
        driver._reader.thread.session.connection.set_trace_callback(note)

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
        for number in range(500):
            await store.put(b"%d" % number, b"other", size=9000)
        # 1,000 pages, and what may come until the thread's next turn: less than half of what was written.
        assert (tmp_path / "app.db-wal").stat().st_size < 4120 * (1000 + 10 * HERE_MOST)
        assert len(await store.driver.scan(b"", b"\xff")) == 501


async def test_a_long_one_sends_the_next_to_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        with monkeypatch.context() as slow:
            slow.setattr(store.driver._queue._pace, "_seconds", -1.0)
            assert await store.put() == HERE
        await store.warm_up()
        assert await store.put() == HERE


@pytest.mark.parametrize("count", [2, HERE_BATCHES_MAX, HERE_BATCHES_MAX + 1, 20])
async def test_many_go_to_the_thread_together(tmp_path: Path, count: int) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        before = store.driver.transactions
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(store.put(b"%d" % number))
        assert store.driver.transactions - before == 1
        assert len(await store.driver.scan(b"0", b"a")) == count
        if count <= HERE_BATCHES_MAX:
            assert store.where("COMMIT")[-1] == HERE
        else:
            assert store.where("COMMIT")[-1] == THREAD
            await store.warm_up()  # as many as come together now, will again


async def test_among_few_each_fails_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        batches = [Batch(), Batch(), Batch()]
        for number, batch in enumerate(batches):
            batch.set(b"%d" % number, b"")
        batches[1].check(b"k", b"another")
        errors = await asyncio.gather(*map(store.driver.commit, batches), return_exceptions=True)
        assert list(map(type, errors)) == [type(None), ConflictError, type(None)]
        assert [key for key, _ in await store.driver.scan(b"0", b"a")] == [b"0", b"2"]
        assert store.where("COMMIT")[-1] == HERE


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


async def test_a_busy_file_holds_up_nobody(tmp_path: Path, refused: threading.Event) -> None:
    async with opened(tmp_path) as store:
        await store.warm_up()
        with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            commit = asyncio.ensure_future(store.put(b"a"))
            await until(refused.is_set)
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
        await store.driver._writer.call(lambda: store.driver._writer.session.cursor.execute(trigger))
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
        # The thread was told to look at the queue. Until it has, whatever comes next is left to it.
        await store.driver._writer.call(lambda: None)
        assert await store.put() == HERE
        assert await store.driver.get(b"a") == found


async def test_those_who_wait_for_a_change_hear_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow_drivers.sqlite.POLL_SECONDS_MIN", 3600.0)
    async with opened(tmp_path) as store:
        await store.warm_up()
        wait = asyncio.ensure_future(store.driver.changed(b"a", None))
        await until_waiting(store.driver)
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


# Reads.


async def read_often(store: Store) -> None:
    """As often as it takes."""
    for _ in range(SHORT_ENOUGH):
        assert await store.driver.get(b"k") == b"\0"
    assert store.where("SELECT value") == [THREAD] * SHORT_ENOUGH


async def test_reads_after_some_short_ones(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put()
        await read_often(store)
        assert await store.driver.get(b"k") == b"\0"
        assert await store.driver.get(b"none") is None
        assert await store.driver.scan(b"", b"\xff") == [(b"k", b"\0")]
        assert (store.where("SELECT value")[-2:], store.where("SELECT key")) == ([HERE] * 2, [HERE])


@pytest.mark.parametrize("inline", ["auto", "no"])
async def test_reads_see_what_has_been_committed(tmp_path: Path, inline: str) -> None:
    async with opened(tmp_path, f"inline={inline}") as store, opened(tmp_path) as other:
        for number in range(100):
            batch = Batch()
            batch.set(b"k", b"%d" % number)
            await (store, other)[number % 2].driver.commit(batch)
            assert await store.driver.get(b"k") == b"%d" % number
    assert set(store.where("SELECT value")) == ({HERE, THREAD} if inline == "auto" else {THREAD})


@pytest.mark.parametrize("count", [HERE_ROWS_MAX, HERE_ROWS_MAX + 1])
@pytest.mark.parametrize("limit", [None, HERE_ROWS_MAX, HERE_ROWS_MAX + 1])
@pytest.mark.parametrize("reverse", [False, True])
async def test_many_rows_are_read_in_the_thread(tmp_path: Path, count: int, limit: int | None, reverse: bool) -> None:
    async with opened(tmp_path) as store:
        keys = [b"%03d" % number for number in range(count)]
        await store.put(b"k", *keys)
        await read_often(store)
        found = await store.driver.scan(b"0", b"a", limit=limit, reverse=reverse)
        assert [key for key, _ in found] == (keys[::-1] if reverse else keys)[:limit]
        few = count <= HERE_ROWS_MAX or limit == HERE_ROWS_MAX
        assert store.where("SELECT key") == ([HERE] if few else [HERE, THREAD])


async def test_who_reads_again_and_again_lets_others_run(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put()
        await read_often(store)
        ran: list[int] = []

        async def other() -> None:
            while len(ran) < 100:
                ran.append(len(ran))
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        for _ in range(50):
            await store.driver.get(b"k")
        assert len(ran) >= 49
        await task


async def test_a_read_waits_for_the_one_in_the_thread(tmp_path: Path) -> None:
    """The connection is used by one at a time, also when a read was cancelled that is still under way."""
    async with opened(tmp_path) as store:
        await store.put()
        await read_often(store)
        began, go_on = threading.Event(), threading.Event()

        def slow() -> None:
            with store.driver._reader._lock:
                began.set()
                go_on.wait(60)

        task = asyncio.ensure_future(store.driver._reader.thread.call(slow))
        await asyncio.to_thread(began.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        read = asyncio.ensure_future(store.driver.get(b"k"))
        await some_turns()
        assert not read.done()
        go_on.set()
        assert await read == b"\0"
        assert store.where("SELECT value")[-1] == THREAD


async def test_a_read_that_fails_here_is_tried_in_the_thread(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put()
        await read_often(store)
        await store.driver._writer.call(
            lambda: store.driver._writer.session.connection.execute("ALTER TABLE entry RENAME TO lost")
        )
        with pytest.raises(StorageError, match="no such table"):
            await store.driver.get(b"k")
        with pytest.raises(StorageError, match="no such table"):
            await store.driver.scan(b"", b"\xff")
        await store.driver._writer.call(
            lambda: store.driver._writer.session.connection.execute("ALTER TABLE lost RENAME TO entry")
        )
        assert await store.driver.get(b"k") == b"\0"


def test_the_pace() -> None:
    pace = Pace(0.001, possible=True)
    for _ in range(SHORT_ENOUGH):
        assert not pace.is_short
        pace.note(0.0001, here=False)
    assert pace.is_short
    pace.note(0.0011, here=True)
    assert not pace.is_short
    impossible = Pace(0.001, possible=False)
    for _ in range(2 * SHORT_ENOUGH):
        impossible.note(0.0001, here=False)
    assert not impossible.is_short
