"""What is particular to the store in an SQLite file: the file itself, group commit, and other processes."""

# pyright: reportPrivateUsage=false
# Some promises can only be seen from inside: that nobody polls, that a thread has ended.

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from tests.drivers.until import some_turns, until, until_waiting
from tests.environment import clean_environment
from tests.patience import PATIENCE
from workflow_drivers import sqlite
from workflow_drivers.sqlite import SqliteDriver
from workflow_drivers.sqlite._file import APPLICATION_ID, FORMAT, LOOK_SECONDS
from workflow_sdk.driver import Batch
from workflow_sdk.errors import ConflictError, StorageError, StorageLimitError

pytestmark = pytest.mark.law(1)


def one(key: bytes, value: bytes = b"v") -> Batch:
    batch = Batch()
    batch.set(key, value)
    return batch


def url(directory: Path, options: str = "synchronous=normal") -> str:
    return f"sqlite:///{directory}/app.db?{options}"


@asynccontextmanager
async def opened(directory: Path, options: str = "synchronous=normal") -> AsyncGenerator[SqliteDriver]:
    driver = await sqlite.open(url(directory, options))
    try:
        yield driver
    finally:
        await driver.aclose()


@contextmanager
def locked(directory: Path) -> Generator[sqlite3.Connection]:
    """Hold the file as another process would that is in the middle of a transaction."""
    with closing(sqlite3.connect(directory / "app.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


async def execute(driver: SqliteDriver, sql: str) -> list[Any]:
    """Run a statement on the connection that writes."""
    return await driver._writer.call(lambda: driver._writer.session.cursor.execute(sql).fetchall())


# The file.


async def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    async with opened(tmp_path, "") as driver:
        names = ("application_id", "user_version", "journal_mode", "synchronous")
        values = [(await execute(driver, f"PRAGMA {name}"))[0][0] for name in names]
        assert values == [APPLICATION_ID, FORMAT, "wal", 2]
    async with opened(tmp_path) as driver:
        assert await execute(driver, "PRAGMA synchronous") == [(1,)]


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        ((f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {FORMAT + 1}"), "newer version"),
        (("CREATE TABLE theirs (x)",), "another program"),
        (("PRAGMA user_version = 3",), "another program"),
        (("PRAGMA application_id = 77",), "another program"),
    ],
)
async def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path, statements: tuple[str, ...], says: str) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        for statement in statements:
            connection.execute(statement)
    before = (tmp_path / "app.db").read_bytes()
    with pytest.raises(StorageError, match=says):
        await sqlite.open(url(tmp_path))
    assert (tmp_path / "app.db").read_bytes() == before


async def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no directory"):
        await sqlite.open(url(tmp_path / "missing"))
    (tmp_path / "app.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(StorageError, match="not a database") as caught:
        await sqlite.open(url(tmp_path))
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    assert no_threads()


async def test_a_full_disk_is_an_error_and_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        await execute(driver, "PRAGMA max_page_count = 20")
        with pytest.raises(StorageError, match="full") as caught:
            await driver.commit(one(b"large", bytes(1_000_000)))
        assert isinstance(caught.value.__cause__, sqlite3.Error)
        await driver.commit(one(b"small"))
        assert await driver.scan(b"", b"\xff") == [(b"small", b"v")]


@pytest.mark.law(3)
@pytest.mark.parametrize("names", [("-shm",), ("-wal", "-shm")], ids="".join)
async def test_new_files_are_not_opened_beside_old_ones(tmp_path: Path, names: tuple[str, ...]) -> None:
    """In one process, which would write to the new ones by what it knows of the old."""
    async with opened(tmp_path) as driver:
        await driver.commit(one(b"k"))
        for name in names:
            (tmp_path / f"app.db{name}").unlink()
        with writer(tmp_path, 3) as process:
            assert await asyncio.to_thread(process.wait) == 0
        for _ in range(2):
            with pytest.raises(StorageError, match=r"can't open .*was deleted or replaced"):
                await sqlite.open(url(tmp_path))
    async with opened(tmp_path) as driver:
        await driver.commit(one(b"l"))
        assert await execute(driver, "PRAGMA integrity_check") == [("ok",)]
    assert no_threads()


@pytest.mark.law(3)
async def test_a_file_that_could_not_be_opened_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two connections, the second has failed: nothing is left of the first."""

    def fails(connection: object, settings: object) -> None:
        raise StorageError("its pages can't be read")

    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "prepare_to_read", fails)
        with pytest.raises(StorageError, match="pages") as raised:
            await sqlite.open(url(tmp_path))
    for name in ("-wal", "-shm"):
        (tmp_path / f"app.db{name}").unlink(missing_ok=True)
    async with opened(tmp_path) as driver:
        await driver.commit(one(b"k"))
    assert raised.value is not None, "what it refers to was there all the time"


@pytest.mark.law(3)
@pytest.mark.parametrize("there_again", [False, True], ids=["gone", "replaced"])
@pytest.mark.parametrize("name", ["", "-wal", "-shm"])
async def test_a_sibling_has_the_same_files(tmp_path: Path, name: str, there_again: bool) -> None:
    """SQLite shares the index of the log within a process: whoever writes with an old one ruins files that are new."""
    async with opened(tmp_path) as driver:
        await driver.commit(one(b"k"))
        before = await driver.sibling()
        path, held = tmp_path / f"app.db{name}", tmp_path / "held"
        path.rename(held)
        if there_again:
            path.write_bytes(held.read_bytes())
        says = f"'{path}' was deleted or replaced"
        with pytest.raises(StorageError, match=f"can't open .*{says}"):
            await driver.sibling()
        await asyncio.sleep(2 * LOOK_SECONDS)
        with pytest.raises(StorageError, match=f"can't write .*{says}"):
            await before.commit(one(b"l"))
        await before.aclose()
    assert no_threads()


@pytest.mark.parametrize("name", ["", "-wal", "-shm"])
async def test_a_file_that_is_taken_away_is_missed(tmp_path: Path, name: str) -> None:
    """SQLite itself goes on with what it has open, and others with what they find."""
    async with opened(tmp_path) as driver:
        await driver.commit(one(b"k"))
        wait = asyncio.ensure_future(driver.changed(b"k", b"v"))
        await until_waiting(driver)
        path = tmp_path / f"app.db{name}"
        path.unlink()
        says = f"'{path}' was deleted or replaced"
        with anyio.fail_after(PATIENCE), pytest.raises(StorageError, match=f"can't read .*{says}"):
            await wait
        for read in (driver.get(b"k"), driver.scan(b"", b"\xff"), driver.changed(b"k", None)):
            with pytest.raises(StorageError, match=f"can't read .*{says}"):
                await read
        for write in (driver.commit(one(b"l")), driver.transact(lambda _: None, lambda _: one(b"l"))):
            with pytest.raises(StorageError, match=f"can't (write|open) .*{says}") as caught:
                await write
            assert str(caught.value).count("can't") == 1
    assert no_threads()


async def test_what_others_wrote_since_is_not_undone_by_closing(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        await driver.commit(one(b"k", b"old"))
        for name in ("-wal", "-shm"):
            (tmp_path / f"app.db{name}").unlink()
        with writer(tmp_path, 3) as process:
            assert await asyncio.to_thread(process.wait) == 0
    async with opened(tmp_path) as driver:
        assert {value for _, value in await driver.scan(b"k", b"l")} == {b"2"}
        assert await execute(driver, "PRAGMA integrity_check") == [("ok",)]


async def test_a_row_that_is_not_of_bytes_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        await execute(driver, "INSERT INTO entry VALUES (x'6b', 'text')")
        for read in (driver.get(b"k"), driver.scan(b"", b"\xff")):
            with pytest.raises(StorageError, match=f"can't read '{tmp_path}/app.db': .*not of bytes"):
                await read


async def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        await driver.commit(one(b"k", bytes(20_000)))
    path = tmp_path / "app.db"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(StorageError, match="cut short"):
        await sqlite.open(url(tmp_path))
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    with pytest.raises(StorageError, match="malformed"):
        await sqlite.open(url(tmp_path))
    assert no_threads()


# Group commit.


def copy_by_statement(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))


def copy_by_backup(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as connection, closing(sqlite3.connect(target)) as copy:
        connection.backup(copy)


def copy_without_a_log(source: Path, target: Path) -> None:
    copy_by_backup(source, target)
    with closing(sqlite3.connect(target)) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)


@pytest.mark.parametrize("copy", [copy_by_statement, copy_by_backup, copy_without_a_log])
async def test_a_copy_made_while_the_file_is_open_can_be_opened(
    tmp_path: Path, copy: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "copied").mkdir()
    async with opened(tmp_path) as driver:
        await driver.commit(one(b"k", b"before"))
        copy(tmp_path / "app.db", tmp_path / "copied" / "app.db")
        await driver.commit(one(b"k", b"after"))
    async with opened(tmp_path / "copied") as first, opened(tmp_path / "copied") as second:
        assert [await first.get(b"k"), await second.get(b"k")] == [b"before", b"before"]
        await first.commit(one(b"k", b"by the first"))
        assert await second.get(b"k") == b"by the first"
        await second.commit(one(b"k", b"by the second"))
        assert await first.get(b"k") == b"by the second"


async def test_batches_that_wait_share_a_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        before = driver.transactions
        async with asyncio.TaskGroup() as tasks:
            for number in range(500):
                tasks.create_task(driver.commit(one(b"%03d" % number)))
        assert driver.transactions - before < 50
        assert len(await driver.scan(b"", b"\xff")) == 500


@asynccontextmanager
async def opened_refusing(tmp_path: Path) -> AsyncGenerator[SqliteDriver]:
    """A store in which the key `bad` can't be written, as if something were wrong with this one row."""
    async with opened(tmp_path) as driver:
        trigger = (
            "CREATE TRIGGER t BEFORE INSERT ON entry WHEN NEW.key = x'626164' BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        await execute(driver, trigger)
        yield driver


async def test_a_batch_fails_alone(tmp_path: Path) -> None:
    async with opened_refusing(tmp_path) as refusing:
        conflict, bad, first = one(b"conflict"), one(b"half"), one(b"first", b"1")
        conflict.check(b"first", None)  # not so any more, once the batch before it in the group is written
        bad.set(b"bad", b"")
        follows = one(b"follows")
        follows.check(b"first", b"1")
        follows.check(b"half", None)
        before = refusing.transactions
        with locked(tmp_path):
            commits = [asyncio.ensure_future(refusing.commit(batch)) for batch in (first, conflict, bad, follows)]
            await until(lambda: len(refusing._queue._waiting) == 4)
        errors = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(error) for error in errors] == [type(None), ConflictError, StorageError, type(None)]
        assert [key for key, _ in await refusing.scan(b"", b"\xff")] == [b"first", b"follows"]
        assert refusing.transactions - before == 1
        with pytest.raises(StorageError, match="no"):
            await refusing.commit(bad)


async def test_a_large_batch_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        before = driver.transactions
        with locked(tmp_path):
            commits = [asyncio.ensure_future(driver.commit(one(b"%d" % n, bytes(5_000_000)))) for n in range(4)]
            await until(lambda: len(driver._queue._waiting) == 4)
        await asyncio.gather(*commits)
        assert driver.transactions - before == 4


async def test_a_limit_is_refused_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        with locked(tmp_path), pytest.raises(StorageLimitError, match="10,000 bytes"):
            await driver.commit(one(b"k" * 10_001))


# Other processes.


async def test_a_busy_file_is_waited_for(tmp_path: Path, refused: threading.Event) -> None:
    async with opened(tmp_path) as driver:
        with locked(tmp_path):
            commit = asyncio.ensure_future(driver.commit(one(b"k")))
            await until(refused.is_set)
            assert not commit.done()
            assert await driver.get(b"k") is None  # reads don't wait
        await commit
        assert await driver.get(b"k") == b"v"


async def test_a_file_that_stays_busy_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path, "busy_timeout=0.05") as driver:
        with locked(tmp_path), pytest.raises(StorageError, match=r"busy.*0\.05") as caught:
            await driver.commit(one(b"k"))
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        await driver.commit(one(b"k"))
        assert await driver.get(b"k") == b"v"


async def test_a_commit_cancelled_while_it_waits_is_withdrawn(tmp_path: Path, refused: threading.Event) -> None:
    async with opened(tmp_path) as driver:
        with locked(tmp_path):
            cancelled = asyncio.ensure_future(driver.commit(one(b"cancelled")))
            await until(refused.is_set)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            other = asyncio.ensure_future(driver.commit(one(b"other")))
            await until(lambda: len(driver._queue._waiting) == 1)
        await other
        assert [key for key, _ in await driver.scan(b"", b"\xff")] == [b"other"]


@pytest.mark.parametrize("outcome", [None, ConflictError("no")], ids=["written", "refused"])
async def test_a_commit_cancelled_while_it_is_written_waits_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Exception | None
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(cursor: sqlite3.Cursor, batches: list[Batch]) -> list[Exception | None]:
        began.set()
        go_on.wait(PATIENCE)
        cursor.execute("COMMIT")
        return [outcome]

    async with opened(tmp_path) as driver:
        with monkeypatch.context() as patched:
            patched.setattr("workflow_drivers.sqlite._queue.write", slow)
            commit = asyncio.ensure_future(driver.commit(one(b"k")))
            await until(began.is_set)
            for _ in range(2):
                commit.cancel()
                await some_turns()
                assert not commit.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await commit
        await driver.commit(one(b"k"))


async def test_appends_of_two_handles_keep_their_order(tmp_path: Path) -> None:
    async with opened(tmp_path) as first, opened(tmp_path) as second:
        for number in range(20):
            batch = Batch()
            batch.append(b"q", b"%02d" % number)
            await (first, second)[number % 2].commit(batch)
        values = [value for _, value in await first.scan(b"q", b"r")]
    assert values == [b"%02d" % number for number in range(20)]


WRITER = """
import asyncio, sys
from workflow_drivers import sqlite
from workflow_sdk.driver import Batch

async def main(url, count):
    driver = await sqlite.open(url)
    for number in range(int(count)):
        batch = Batch()
        for key in range(50):
            batch.set(b"k%02d" % key, b"%d" % number)
        batch.append(b"q", b"%d" % number)
        await driver.commit(batch)
        print(number, flush=True)
    await driver.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


def writer(directory: Path, count: int, options: str = "synchronous=normal") -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", WRITER, url(directory, options), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment())


async def test_two_processes_share_a_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        with writer(tmp_path, 100) as process:
            with anyio.fail_after(PATIENCE):
                await driver.changed(b"k00", None)
                for _ in range(100):
                    batch = Batch()
                    batch.append(b"q", b"own")
                    await driver.commit(batch)
                seen = await driver.get(b"k00")
                while seen != b"99":
                    await driver.changed(b"k00", seen)
                    seen = await driver.get(b"k00")
            assert await asyncio.to_thread(process.wait) == 0
        values = [value for _, value in await driver.scan(b"q", b"r")]
    assert len(values) == 200
    assert [value for value in values if value != b"own"] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("options", ["synchronous=full", "synchronous=normal"])
async def test_a_killed_process_leaves_whole_batches(tmp_path: Path, options: str) -> None:
    for lines in (3, 40):
        with writer(tmp_path, 1_000_000, options) as process:
            assert process.stdout is not None
            last = [int(process.stdout.readline()) for _ in range(lines)][-1]
            os.kill(process.pid, signal.SIGKILL)
            # What it still reported before it died was committed, too.
            last = max([last, *(int(line) for line in process.stdout if line.endswith("\n"))])
        async with opened(tmp_path) as driver:
            rows = await driver.scan(b"k", b"l")
            assert len(rows) == 50
            assert len({value for _, value in rows}) == 1
            assert int(rows[0][1]) >= last
            assert (await driver.scan(b"q", b"r", limit=1, reverse=True))[0][1] == rows[0][1]


# Waiting for a change.


async def test_nobody_is_asked_while_nobody_waits(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        wait = asyncio.ensure_future(driver.changed(b"k", None))
        await until_waiting(driver)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        # A poll that is under way would ask for the next one, if anybody waited.
        await until(lambda: driver._timer is None and not driver._polling)
        assert not driver._watch


async def test_polls_become_rare(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        wait = asyncio.ensure_future(driver.changed(b"k", None))
        await until(lambda: driver._interval > 0.03)  # the intervals are what this is about, and are real
        async with opened(tmp_path) as other:
            await other.commit(one(b"k"))
        with anyio.fail_after(PATIENCE):
            await wait
        assert await driver.get(b"k") == b"v"


async def until_polls_are_far(driver: SqliteDriver) -> None:
    """The next poll is the last one that comes soon."""
    await until_waiting(driver)
    driver._interval = 1800.0
    await until(lambda: driver._interval == 3600.0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no notice of writes")
async def test_a_write_by_another_handle_is_noticed_between_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflow_drivers.sqlite.POLL_SECONDS_MAX", 3600.0)
    async with opened(tmp_path) as driver, opened(tmp_path) as other:
        for number in range(3):  # each notice comes once
            wait = asyncio.ensure_future(driver.changed(b"k%d" % number, None))
            await until_polls_are_far(driver)
            await other.commit(one(b"k%d" % number))
            with anyio.fail_after(PATIENCE):
                await wait
            assert await driver.get(b"k%d" % number) == b"v"


async def test_without_notice_of_writes_there_are_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow_drivers.sqlite._notice.sys", SimpleNamespace(platform="another"))
    async with opened(tmp_path) as driver, opened(tmp_path) as other:
        wait = asyncio.ensure_future(driver.changed(b"k", None))
        await until(lambda: driver._interval > 0.03)
        await other.commit(one(b"k"))
        with anyio.fail_after(PATIENCE):
            await wait
        assert await driver.get(b"k") == b"v"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing tells which files are open")
async def test_no_file_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow_drivers.sqlite.POLL_SECONDS_MAX", 3600.0)
    before = len(os.listdir("/proc/self/fd"))
    async with opened(tmp_path) as driver:
        wait = asyncio.ensure_future(driver.changed(b"k", None))
        await until_polls_are_far(driver)
        await driver.commit(one(b"k"))
        await wait
    assert len(os.listdir("/proc/self/fd")) == before


async def test_own_commits_are_seen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow_drivers.sqlite.POLL_SECONDS_MIN", 3600.0)
    monkeypatch.setattr("workflow_drivers.sqlite.POLL_SECONDS_MAX", 3600.0)
    async with opened(tmp_path) as driver:
        wait = asyncio.ensure_future(driver.changed(b"k", None))
        await until_waiting(driver)  # the next poll is far
        await driver.commit(one(b"k"))
        with anyio.fail_after(PATIENCE):
            await wait


async def test_those_who_wait_hear_of_a_broken_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        wait = asyncio.ensure_future(driver.changed(b"k", None))
        await until_waiting(driver)
        await execute(driver, "ALTER TABLE entry RENAME TO lost")
        with anyio.fail_after(PATIENCE), pytest.raises(StorageError, match="can't read") as caught:
            await wait
        assert isinstance(caught.value.__cause__, sqlite3.Error)
        with pytest.raises(StorageError, match="no such table"):
            await driver.get(b"k")
        await execute(driver, "ALTER TABLE lost RENAME TO entry")
        await driver.commit(one(b"k"))
        await driver.changed(b"k", None)


# Opening and closing.


def no_threads() -> bool:
    return not [thread for thread in threading.enumerate() if "_connection_worker_thread" in thread.name]


async def test_closing_finishes_what_is_in_flight(tmp_path: Path) -> None:
    driver = await sqlite.open(url(tmp_path))
    with locked(tmp_path):
        commit = asyncio.ensure_future(driver.commit(one(b"k")))
        wait = asyncio.ensure_future(driver.changed(b"other", None))
        await until_waiting(driver)
        assert not commit.done()
        closings = [asyncio.ensure_future(driver.aclose()) for _ in range(2)]
        with pytest.raises(StorageError, match="closed"):
            await wait
    await asyncio.gather(commit, *closings)
    assert no_threads()
    async with opened(tmp_path) as again:
        assert await again.get(b"k") == b"v"


async def test_a_cancelled_closing_closes(tmp_path: Path) -> None:
    driver = await sqlite.open(url(tmp_path))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await driver.aclose()
    assert no_threads()
    task = asyncio.ensure_future((await sqlite.open(url(tmp_path))).aclose())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert no_threads()


async def test_a_cancelled_opening_leaves_nothing(tmp_path: Path, refused: threading.Event) -> None:
    (tmp_path / "app.db").touch()
    with locked(tmp_path):
        opening = asyncio.ensure_future(sqlite.open(url(tmp_path, "busy_timeout=3600")))
        await until(refused.is_set)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    for delay in range(10):
        with anyio.move_on_after(delay / 2000):
            await (await sqlite.open(url(tmp_path))).aclose()
    gc.collect()  # a connection that was left open would warn here
    assert no_threads()


async def test_several_can_open_a_new_file_at_once(tmp_path: Path) -> None:
    for attempt in range(10):
        name = f"sqlite:///{tmp_path}/{attempt}.db?synchronous=normal"
        drivers = await asyncio.gather(*(sqlite.open(name) for _ in range(5)))
        await asyncio.gather(*(driver.commit(one(b"%d" % number)) for number, driver in enumerate(drivers)))
        assert [len(await driver.scan(b"", b"\xff")) for driver in drivers] == [5] * 5
        await asyncio.gather(*(driver.aclose() for driver in drivers))
