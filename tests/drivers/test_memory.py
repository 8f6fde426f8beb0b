"""What is particular to the store in memory: its URLs, sharing, and giving way to others."""

# pyright: reportPrivateUsage=false
# Some promises can only be seen from inside.

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.drivers.until import some_turns
from tests.patience import PATIENCE
from workflow_drivers import memory
from workflow_drivers.memory import MemoryDriver
from workflow_sdk.driver import BATCH_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX, Batch
from workflow_sdk.errors import DefinitionError, StorageError, StorageLimitError

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def one(key: bytes, value: bytes) -> Batch:
    batch = Batch()
    batch.set(key, value)
    return batch


def check_on(backend: str, body: Callable[[], Awaitable[None]]) -> None:
    anyio.run(body, backend=backend)


@both
def test_a_name_is_shared_and_none_is_fresh(backend: str) -> None:
    async def body() -> None:
        first, second = await memory.open(f"memory://shared-{backend}"), await memory.open(f"memory://shared-{backend}")
        fresh, other = await memory.open("memory://"), await memory.open("memory://other")
        await first.commit(one(b"k", b"1"))
        assert [await driver.get(b"k") for driver in (second, fresh, other)] == [b"1", None, None]
        await first.aclose()
        await second.commit(one(b"k", b"2"))
        await second.aclose()
        again = await memory.open(f"memory://shared-{backend}")
        assert await again.get(b"k") == b"2"
        with pytest.raises(StorageError, match="closed"):
            await first.get(b"k")

    check_on(backend, body)


@both
def test_a_change_through_one_handle_wakes_another(backend: str) -> None:
    async def body() -> None:
        first, second = await memory.open(f"memory://wake-{backend}"), await memory.open(f"memory://wake-{backend}")
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first.changed, b"k", None)
                await some_turns()
                await second.commit(one(b"k", b"1"))
        assert await first.get(b"k") == b"1"

    check_on(backend, body)


@both
@pytest.mark.parametrize("other", ["asyncio", "trio"])
def test_a_change_in_another_thread_is_seen(backend: str, other: str) -> None:
    name = f"memory://threads-{backend}-{other}"

    async def write() -> None:
        await (await memory.open(name)).commit(one(b"k", b"1"))

    async def body() -> None:
        driver = await memory.open(name)
        thread = threading.Thread(target=anyio.run, args=(write,), kwargs={"backend": other})
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(driver.changed, b"k", None)
                await some_turns()
                thread.start()
        thread.join()
        assert await driver.get(b"k") == b"1"

    check_on(backend, body)


@both
def test_a_busy_workflow_starves_nobody_and_seldom_waits(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    async def sibling() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    async def body() -> None:
        driver = MemoryDriver()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sibling)
            with anyio.fail_after(PATIENCE):
                while turns < 3:
                    await driver.commit(one(b"k", b"v"))
            monkeypatch.setattr(memory, "BUDGET_SECONDS", 0.1)
            before = turns
            for _ in range(1000):
                await driver.commit(one(b"k", b"v"))
            # With a turn for each commit it would be 1000; with one each tenth of a second a few, however slow it is.
            assert turns - before < 200
            tasks.cancel_scope.cancel()

    check_on(backend, body)


@both
def test_an_append_wakes_who_guessed_its_key(backend: str) -> None:
    async def body() -> None:
        driver, batch = MemoryDriver(), Batch()
        batch.append(b"q", b"message")
        key = b"q\x33" + bytes(11) + b"\x01"
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(driver.changed, key, None)
                await some_turns()
                await driver.commit(batch)
        assert await driver.get(key) == b"message"

    check_on(backend, body)


@both
def test_closing_ends_the_waits_of_this_handle(backend: str) -> None:
    async def body() -> None:
        driver = MemoryDriver()

        async def wait() -> None:
            with pytest.raises(StorageError, match="closed"):
                await driver.changed(b"k", None)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await some_turns()
            await driver.aclose()

    check_on(backend, body)


@both
def test_a_cancelled_wait_leaves_nothing_behind(backend: str) -> None:
    async def body() -> None:
        driver = MemoryDriver()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.changed, b"k", None)
            await some_turns()
            assert driver._store.waiting
            tasks.cancel_scope.cancel()
        assert not driver._store.waiting
        assert not driver._waiters

    check_on(backend, body)


async def test_limits_are_named_and_nothing_is_written() -> None:
    driver, value = MemoryDriver(), bytes(VALUE_BYTES_MAX)
    too_long, too_large, appended, too_much = (one(b"first", b"1") for _ in range(4))
    too_long.set(b"k" * (KEY_BYTES_MAX + 1), b"")
    too_large.set(b"k", value + b"!")
    appended.append(b"k" * (KEY_BYTES_MAX - 12), b"")
    for number in range(BATCH_BYTES_MAX // VALUE_BYTES_MAX):
        too_much.set(b"%d" % number, value)
    for batch, limit in (
        (too_long, "10,000"),
        (too_large, "10,000,000"),
        (appended, "10,000"),
        (too_much, "100,000,000"),
    ):
        with pytest.raises(StorageLimitError, match=f"limit of {limit} bytes"):
            await driver.commit(batch)
    assert await driver.scan(b"", b"\xff") == []


@pytest.mark.parametrize("wrong", ["text", None, bytearray(b"mutable"), 7])
async def test_only_bytes_are_taken(wrong: object) -> None:
    driver = MemoryDriver()
    for method, args in (
        ("set", (b"k", wrong)),
        ("clear", (wrong,)),
        ("append", (wrong, b"")),
        ("check", (wrong, None)),
    ):
        batch = one(b"first", b"1")
        getattr(batch, method)(*args)
        with pytest.raises(TypeError, match="bytes"):
            await driver.commit(batch)
    assert await driver.scan(b"", b"\xff") == []


@pytest.mark.parametrize("url", ["memory://name?option=1", "memory:/name", "sqlite:///app.db"])
async def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(DefinitionError, match="memory"):
        await memory.open(url)


async def test_a_closed_store_is_let_go() -> None:
    driver = MemoryDriver()
    await driver.commit(one(b"k", b"a value that nobody else has"))
    store = weakref.ref(driver._store)
    await driver.aclose()
    gc.collect()
    assert store() is None
