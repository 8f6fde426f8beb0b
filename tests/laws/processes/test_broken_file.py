"""A database that is cut short or overwritten: what is read is right, or it is an error that names the file."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.chaos import effort
from tests.laws.examples import EXAMPLES_MIN
from tests.laws.processes.parts import Workers, chance, is_whole
from tests.laws.processes.worker import stores
from tests.ledger import read
from tests.patience import PATIENCE
from tests.runtime.parts import opened
from workflow_sdk import Batch, Client, StorageError, WorkflowSDKError
from workflow_sdk.rows.keys import Field, InstanceKeys

pytestmark = pytest.mark.law(3)

INSTANCES = 30
STEPS = 4
PAGE = 4096


async def fill(workers: Workers) -> bytes:
    """A store with instances that have ended, and one that has not; its bytes."""
    async with workers.finishing() as runtime:
        for number in range(INSTANCES):
            await runtime.start(stores, (workers.log, STEPS, 200), id=f"i{number}")
        for number in range(INSTANCES):
            await runtime.handle(stores, f"i{number}").result(timeout=PATIENCE)
    async with Client(workers.url) as client:
        await client.start(stores, (workers.log, STEPS, 200), id="open")
    assert not workers.database.with_name("app.db-wal").exists(), "the last to close has tidied up"
    return workers.database.read_bytes()


async def read_all(url: str) -> dict[str, Any]:
    """What a client is told of every instance, and all rows."""
    found: dict[str, Any] = {}
    async with Client(url) as client:
        for info in (await client.list()).items:
            history = await client.handle(stores, info.id).history()
            found[info.id] = (info.status, info.output, [(entry.path, entry.value) for entry in history])
    async with opened(url) as driver:
        found["rows"] = await driver.scan(b"", b"\xff")
    return found


async def expect_right_or_refused(workers: Workers, right: dict[str, Any]) -> bool:
    """Whether everything was read as it had been written; if not, an error of the store has said so."""
    name = str(workers.database)
    found: dict[str, Any] = {}
    said: str | None = None
    with anyio.fail_after(PATIENCE):
        try:
            found = await read_all(workers.url)
        except StorageError as error:
            said = str(error)
    if said is not None:
        assert name in said
        assert "\n" not in said
        return False
    assert found == right
    return True


Damage = Callable[[bytes, random.Random], bytes]


def cut(share: float) -> Damage:
    """Only the first part is left."""
    return lambda whole, _: whole[: int(len(whole) * share)]


def without_last(count: int) -> Damage:
    """Some bytes are missing at the end."""
    return lambda whole, _: whole[:-count]


def last_pages(count: int) -> Damage:
    """Chance has written the last pages."""
    return lambda whole, dice: whole[: -count * PAGE] + dice.randbytes(count * PAGE)


def zeroed(first: int, last: int) -> Damage:
    """Some bytes are zero."""
    return lambda whole, _: whole[:first] + bytes(last - first) + whole[last:]


DAMAGES: dict[str, Damage] = {
    "a byte short": without_last(1),
    "a page short": without_last(PAGE),
    "half a page short": without_last(PAGE // 2),
    "half": cut(0.5),
    "the first page": lambda whole, _: whole[:PAGE],
    "less than a header": lambda whole, _: whole[:60],
    "the last page": last_pages(1),
    "the last pages": last_pages(5),
    "no header": zeroed(0, 100),
    "no magic": zeroed(0, 16),
    "garbage as header": lambda whole, dice: dice.randbytes(100) + whole[100:],
    "no first page": zeroed(100, PAGE),
    "pages in between": zeroed(2 * PAGE, 6 * PAGE),
}


async def filled(workers: Workers) -> tuple[bytes, dict[str, Any]]:
    """Fill a store; its bytes, and what is read of them."""
    found = await fill(workers)
    return found, await read_all(workers.url)


def put(database: Path, content: bytes) -> None:
    """Have nothing but this there."""
    for name in ("", "-wal", "-shm"):
        database.with_name(f"app.db{name}").unlink(missing_ok=True)
    database.write_bytes(content)


async def test_damage_is_an_error_and_not_another_answer(workers: Workers) -> None:
    content, right = await filled(workers)
    dice = chance()
    assert len(content) > 20 * PAGE
    unseen: list[str] = []
    for name, damage in DAMAGES.items():
        put(workers.database, damage(content, dice))
        if await expect_right_or_refused(workers, right):
            unseen.append(name)
    # SQLite has no use for a page that is free.
    assert set(unseen) <= {"a page short", "the last page"}, unseen
    put(workers.database, content)
    assert await expect_right_or_refused(workers, right)


async def test_garbage_anywhere_never_ends_in_another_error(workers: Workers) -> None:
    """Whole pages, from the second on: in the middle of a page, a value can be changed with nobody to tell."""
    content, right = await filled(workers)
    dice = chance()
    for _ in range(max(EXAMPLES_MIN, effort(40))):
        broken = bytearray(content)
        for _ in range(dice.choice([1, 1, 3])):
            begin = dice.randrange(1, len(content) // PAGE) * PAGE
            broken[begin : begin + PAGE] = dice.choice([dice.randbytes(PAGE), bytes(PAGE)])
        put(workers.database, bytes(broken))
        await expect_right_or_refused(workers, right)


async def test_a_worker_says_that_the_file_is_broken(workers: Workers) -> None:
    content = await fill(workers)
    for name in ("half", "no header", "garbage as header", "no first page"):
        put(workers.database, DAMAGES[name](content, chance()))
        worker = workers.start()
        assert await workers.ended(worker) == 1, name
        assert workers.said(worker).startswith("StorageError: ")
        assert f"'{workers.database}'" in workers.said(worker)
        assert workers.said(worker).count("\n") == 1


async def test_rows_that_nobody_can_read_are_an_error_of_this_library(workers: Workers) -> None:
    """As after damage in which SQLite sees nothing amiss."""
    await fill(workers)
    async with opened(workers.url) as driver:
        for number, field in enumerate(Field):
            batch = Batch()
            batch.clear(InstanceKeys(f"i{number}").field(field))
            await driver.commit(batch)
    async with Client(workers.url) as client:
        for number, field in enumerate(Field):
            with suppress(WorkflowSDKError):
                await client.handle(stores, f"i{number}").info()
            print(f"without {field!r}, it is as it should be")


LOG_DAMAGES: dict[str, Damage] = {
    "a byte short": without_last(1),
    "half": cut(0.5),
    "the first byte": lambda whole, _: whole[:1],
    "the last page": last_pages(1),
    "no header": zeroed(0, 32),
    "somewhere": lambda whole, dice: zeroed(at := dice.randrange(32, len(whole) - 100), at + 100)(whole, dice),
}


async def test_a_broken_log_of_a_dead_worker_is_read_as_far_as_it_is_whole(workers: Workers) -> None:
    steps = 30
    async with Client(workers.url) as client:
        await client.start(stores, (workers.log, steps, 10), id="i")
    workers.hold(25)
    worker = workers.start()
    await workers.lines.reach(15)
    workers.kill(worker)
    workers.let_go()
    log = workers.database.with_name("app.db-wal")
    left = workers.database.read_bytes(), log.read_bytes()
    dice = chance()
    for name, damage in LOG_DAMAGES.items():
        print(name)
        put(workers.database, left[0])
        log.write_bytes(damage(left[1], dice))
        assert is_whole(workers.database)
        async with workers.finishing() as runtime:
            result = await runtime.handle(stores, "i").result(timeout=PATIENCE)
        assert result == [*range(1, steps + 1)]
        async with opened(workers.url) as driver:
            assert await read(driver, "stored") == steps
        assert is_whole(workers.database)
