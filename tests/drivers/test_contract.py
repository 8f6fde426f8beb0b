"""Every driver keeps every promise, on every event loop that it runs on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import anyio
import pytest
from fdb.tuple import Versionstamp, pack, unpack

from tests.fdb_store import open_fdb
from workflow_drivers import memory, sqlite
from workflow_sdk.driver import APPENDED_BYTES, Batch, Driver, open_driver
from workflow_sdk.errors import ConflictError
from workflow_sdk.testing.contract import CHECKS, Check, Make, check_driver, check_durability

pytestmark = pytest.mark.law(1, 6, 10)

# `anyio.run` rather than the marker of anyio's pytest plugin: with `asyncio_mode = "auto"`, pytest-asyncio takes
# marked tests over, and what was meant for trio passes on asyncio.
BACKENDS = [("memory", "asyncio"), ("memory", "trio"), ("sqlite", "asyncio"), ("fdb", "asyncio"), ("fdb", "trio")]


def check_on(backend: str, check: Callable[..., Awaitable[None]], *args: object) -> None:
    anyio.run(check, *args, backend=backend)


@pytest.fixture
def make(store: str, tmp_path: Path) -> Make:
    async def fresh() -> Driver:
        if store == "fdb":
            return await open_fdb(tmp_path)
        # SQLite's other setting is tried in its own tests; this one keeps a thousand commits off the disk.
        return await open_driver(
            "memory://" if store == "memory" else f"sqlite:///{tmp_path}/app.db?synchronous=normal"
        )

    return fresh


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: cast("str", getattr(check, "__name__", "check")))
@pytest.mark.parametrize(("store", "backend"), BACKENDS)
def test_promise(check: Check, make: Make, backend: str) -> None:
    check_on(backend, check, make)


@pytest.mark.parametrize(("store", "backend"), BACKENDS)
def test_an_appended_key_reads_as_a_versionstamp(make: Make, backend: str) -> None:
    """In the drivers that come with us, so that every tool for FoundationDB's tuples can read it."""

    async def check() -> None:
        driver = await make()
        batch = Batch()
        batch.append(pack(("q",)), b"")
        await driver.commit(batch)
        ((key, _),) = await driver.scan(b"", b"\xff")
        await driver.aclose()
        name, stamp = unpack(key)
        assert (name, isinstance(stamp, Versionstamp), len(key)) == ("q", True, len(pack(("q",))) + APPENDED_BYTES)

    check_on(backend, check)


@pytest.mark.parametrize(("store", "backend"), BACKENDS)
def test_hundreds_of_appends_keep_their_order(make: Make, backend: str) -> None:
    """Also where the number of an append becomes longer by a byte: in one batch, and from one to the next."""

    async def check() -> None:
        driver = await make()
        values = [b"%d" % number for number in range(600)]
        for begin, end in [(0, 200), (200, 500), (500, 501), (501, 600)]:
            batch = Batch()
            for value in values[begin:end]:
                batch.append(b"q", value)
            await driver.commit(batch)
        assert [value for _, value in await driver.scan(b"q", b"r")] == values
        await driver.aclose()

    check_on(backend, check)


@pytest.mark.parametrize(("store", "backend"), BACKENDS)
def test_a_check_tells_large_values_of_one_length_apart(make: Make, backend: str) -> None:
    async def check() -> None:
        driver = await make()
        value = bytes(300_000)
        other = value[:-1] + b"x"
        batch = Batch()
        batch.set(b"k", value)
        await driver.commit(batch)
        batch = Batch()
        batch.check(b"k", other)
        batch.set(b"k", b"overwritten")
        with pytest.raises(ConflictError):
            await driver.commit(batch)
        assert await driver.get(b"k") == value
        await driver.aclose()

    check_on(backend, check)


@pytest.mark.parametrize(("store", "backend"), [BACKENDS[0], *BACKENDS[2:4]])
def test_what_is_committed_survives_closing(make: Make, backend: str, store: str, tmp_path: Path) -> None:
    async def make_named() -> Driver:
        return await memory.open(f"memory://{tmp_path}")

    async def reopen(driver: Driver) -> Driver:
        await driver.aclose()
        return await (make_named() if store == "memory" else make())

    check_on(backend, check_durability, make_named if store == "memory" else make, reopen)


async def test_the_whole_suite_in_one_call(tmp_path: Path) -> None:
    opened: list[Driver] = []

    async def make() -> Driver:
        opened.append(await sqlite.open(f"sqlite:///{tmp_path}/{len(opened)}.db?synchronous=full"))
        return opened[-1]

    async def reopen(driver: Driver) -> Driver:
        await driver.aclose()
        return await sqlite.open(f"sqlite:///{tmp_path}/{len(opened) - 1}.db")

    await check_driver(make, reopen=reopen)
    assert len(opened) == len(CHECKS) + 1
