"""One flush is in flight; those who ask meanwhile share the next."""

from __future__ import annotations

import anyio
import pytest

from tests.patience import PATIENCE
from workflow_drivers.memory import MemoryDriver
from workflow_sdk.driver import Batch
from workflow_sdk.errors import ConflictError, StorageError
from workflow_sdk.instance.flushing import Flusher
from workflow_sdk.journal.journal import Journal
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.keys import HISTORY, InstanceKeys
from workflow_sdk.rows.location import pack_segment
from workflow_sdk.rows.status import Kind
from workflow_sdk.testing import SimulatedCrash

KEYS = InstanceKeys("i")


pytestmark = [pytest.mark.law(2), pytest.mark.usefixtures("host")]


class Gate(MemoryDriver):
    """A driver whose commits wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []
        self.open = anyio.Event()
        self.failure: BaseException | None = None

    async def commit(self, batch: Batch, /) -> None:
        self.batches.append(batch)
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        await super().commit(batch)


class Writer:
    """A flusher, and what it is asked."""

    def __init__(self) -> None:
        self.driver = Gate()
        self.journal = Journal(KEYS)
        self.failures: list[Exception] = []
        self.flusher = Flusher(self.driver, self.journal, b"lease", self.failures.append)
        self.answers: list[bool] = []
        self.count = 0

    async def hold(self) -> None:
        """Take the lease."""
        batch = Batch()
        batch.set(KEYS.lease, b"lease")
        await MemoryDriver.commit(self.driver, batch)

    def change(self) -> None:
        self.journal.history.put(pack_segment(self.count), Entry(Kind.STEP, self.count, 1.0))
        self.count += 1

    async def flush(self) -> None:
        self.change()
        self.answers.append(await self.flusher.flush())

    async def stored(self) -> int:
        return len(await self.driver.scan(*KEYS.range(HISTORY)))


async def settle() -> None:
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def test_those_who_ask_meanwhile_share_the_next() -> None:
    writer = Writer()
    await writer.hold()
    too_early: list[bool] = []
    async with anyio.create_task_group() as group:
        group.start_soon(writer.flush)
        await settle()
        for _ in range(50):
            group.start_soon(writer.flush)
        await settle()
        assert len(writer.driver.batches) == 1, "one is in flight"
        too_early += writer.answers
        writer.driver.open.set()
    assert too_early == [], "nobody goes on before it is stored"
    assert writer.answers == [True] * 51
    assert len(writer.driver.batches) == 2
    # One row more counts the commits.
    assert [len(batch.writes) - 1 for batch in writer.driver.batches] == [1, 50]
    assert await writer.stored() == 51
    assert not writer.journal.unwritten.is_dirty


async def test_nothing_to_write_is_not_written() -> None:
    writer = Writer()
    assert await writer.flusher.flush()
    assert writer.driver.batches == []


async def test_every_commit_checks_the_lease() -> None:
    writer = Writer()
    writer.driver.open.set()
    await writer.flush()
    assert writer.answers == [False], "nobody holds the lease"
    assert isinstance(writer.failures[0], ConflictError)
    assert writer.driver.batches[0].checks == [(KEYS.lease, b"lease")]
    assert await writer.stored() == 0
    assert writer.journal.unwritten.is_dirty, "what was not stored is still to be stored"


async def test_after_a_failure_nothing_is_written_any_more() -> None:
    writer = Writer()
    await writer.hold()
    writer.driver.failure = StorageError("the disk is full")
    async with anyio.create_task_group() as group:
        group.start_soon(writer.flush)
        await settle()
        for _ in range(5):
            group.start_soon(writer.flush)
        await settle()
        writer.driver.open.set()
    assert writer.answers == [False] * 6
    assert writer.failures == [writer.driver.failure]
    assert len(writer.driver.batches) == 1
    await writer.flush()
    assert writer.answers[-1] is False
    assert len(writer.driver.batches) == 1
    assert writer.journal.unwritten.is_dirty


async def test_a_cancelled_flush_is_finished_first() -> None:
    writer = Writer()
    await writer.hold()
    scopes: list[anyio.CancelScope] = []

    async def cancelled() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await writer.flush()
            await anyio.lowlevel.checkpoint()
            raise AssertionError("the cancellation is not forgotten")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(cancelled)
            await settle()
            group.start_soon(writer.flush)
            await settle()
            scopes[0].cancel()
            await settle()
            assert writer.answers == []
            writer.driver.open.set()
    assert await writer.stored() == 2
    assert writer.answers == [True, True]


async def test_one_who_shares_a_flush_and_is_cancelled_goes_on_once_it_is_stored() -> None:
    writer = Writer()
    await writer.hold()
    scope, stored, too_early = anyio.CancelScope(), list[int](), list[int]()

    async def cancelled() -> None:
        with scope:
            try:
                await writer.flush()
            finally:
                with anyio.CancelScope(shield=True):
                    stored.append(await writer.stored())

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(writer.flush)
            await settle()
            group.start_soon(writer.flush)
            await settle()
            group.start_soon(cancelled)
            await settle()
            scope.cancel()
            await settle()
            too_early += stored
            writer.driver.open.set()
    assert too_early == [], "it does not go on before it is stored"
    assert stored == [3]
    assert scope.cancelled_caught, "the cancellation is not forgotten"
    assert writer.answers == [True, True]


async def test_a_crash_leaves_nobody_waiting() -> None:
    writer = Writer()
    await writer.hold()
    writer.driver.failure = SimulatedCrash("the process has died")
    crashes: list[BaseException] = []

    async def flush() -> None:
        try:
            await writer.flush()
        except SimulatedCrash as crash:
            crashes.append(crash)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(flush)
            await settle()
            for _ in range(5):
                group.start_soon(flush)
            await settle()
            writer.driver.open.set()
    assert len(crashes) == 1
    assert writer.answers == [False] * 5, "nobody takes it for stored"
