"""The suite sees it when a driver is wrong: each of these breaks one promise."""

# pyright: reportPrivateUsage=false
# Some promises can only be seen from inside.

from __future__ import annotations

import re
from collections.abc import Iterable

import anyio
import pytest

from tests.drivers.jumping import run_without_waiting
from workflow_drivers.memory import MemoryDriver
from workflow_sdk.driver import Append, Batch, ClearRange, Driver, Set, Write
from workflow_sdk.errors import StorageError, StorageLimitError
from workflow_sdk.testing.contract import check_driver

pytestmark = pytest.mark.law(1)


def batch_of(writes: Iterable[Write], checks: Iterable[tuple[bytes, bytes | None]] = ()) -> Batch:
    batch = Batch()
    batch.writes, batch.checks = list(writes), list(checks)
    return batch


class EndIsInTheRange(MemoryDriver):
    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        return await super().scan(begin, end + b"\x00", limit=limit, reverse=reverse)


class LimitBeforeReverse(MemoryDriver):
    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        rows = await super().scan(begin, end, limit=limit)
        return rows[::-1] if reverse else rows


class ScansInPieces(MemoryDriver):
    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        rows = await super().scan(begin, end, limit=limit, reverse=reverse)
        half = len(rows) // 2
        await anyio.lowlevel.checkpoint()
        return rows[:half] + (await super().scan(begin, end, limit=limit, reverse=reverse))[half:]


class RangesByPrefix(MemoryDriver):
    async def commit(self, batch: Batch, /) -> None:
        widened: list[Write] = []
        for write in batch.writes:
            prefix = write.begin[:-1] if type(write) is ClearRange else None
            widened.append(write if prefix is None else ClearRange(prefix, prefix + b"\xff\xff"))
        await super().commit(batch_of(widened, batch.checks))


class WritesBeforeItChecks(MemoryDriver):
    async def commit(self, batch: Batch, /) -> None:
        await super().commit(batch_of(batch.writes))
        await super().commit(batch_of((), batch.checks))


class ChecksThenWaits(MemoryDriver):
    async def commit(self, batch: Batch, /) -> None:
        await super().commit(batch_of((), batch.checks))
        await anyio.lowlevel.checkpoint()
        await super().commit(batch_of(batch.writes))


class ClearsFirst(MemoryDriver):
    async def commit(self, batch: Batch, /) -> None:
        ordered = sorted(batch.writes, key=lambda write: type(write) in (Set, Append))
        await super().commit(batch_of(ordered, batch.checks))


class EmptyIsAbsent(MemoryDriver):
    async def get(self, key: bytes, /) -> bytes | None:
        return await super().get(key) or None


class NumbersAppendsByRows(MemoryDriver):
    async def commit(self, batch: Batch, /) -> None:
        writes: list[Write] = []
        for write in batch.writes:
            if type(write) is Append:
                taken = len(await self.scan(write.prefix, write.prefix + b"\xff"))
                taken += sum(type(w) is Set and w.key.startswith(write.prefix) for w in writes)
                writes.append(Set(write.prefix + b"\x33" + taken.to_bytes(12, "big"), write.value))
            else:
                writes.append(write)
        await super().commit(batch_of(writes, batch.checks))


class WaitsForAnEdge(MemoryDriver):
    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        del since
        await super().changed(key, await self.get(key))


class WakesForNothing(MemoryDriver):
    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        with anyio.move_on_after(0.01):
            await super().changed(key, since)


class HalfOfACancelledCommit(MemoryDriver):
    async def commit(self, batch: Batch, /) -> None:
        for number, write in enumerate(batch.writes):
            await super().commit(batch_of([write], () if number else batch.checks))
            await anyio.lowlevel.checkpoint()


class CommitsBehindTheBack(MemoryDriver):
    """A cancelled commit returns at once, and is applied some time later."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Batch] = []

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        rows = await super().scan(begin, end, limit=limit, reverse=reverse)
        for batch in self.pending:
            await super().commit(batch)
        self.pending.clear()
        return rows

    async def commit(self, batch: Batch, /) -> None:
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException:
            self.pending.append(batch)
            raise
        await super().commit(batch)


class TruncatesValues(MemoryDriver):
    async def commit(self, batch: Batch, /) -> None:
        cut = [Set(w.key, w.value[:100_000]) if type(w) is Set else w for w in batch.writes]
        await super().commit(batch_of(cut, batch.checks))


class NamesNoLimit(MemoryDriver):
    async def commit(self, batch: Batch, /) -> None:
        if len(batch.writes) > 1000:
            raise StorageLimitError("too much")
        await super().commit(batch)


class WritesWhatItRefuses(MemoryDriver):
    async def commit(self, batch: Batch, /) -> None:
        await super().commit(batch_of(batch.writes[:1000], batch.checks))
        if len(batch.writes) > 1000:
            raise StorageLimitError("at most 1000 keys")


class ClosesOnce(MemoryDriver):
    async def aclose(self) -> None:
        if self._closed:
            raise StorageError("closed twice")
        await super().aclose()


class StaysOpen(MemoryDriver):
    async def aclose(self) -> None:
        return


BROKEN: dict[type[MemoryDriver], str] = {
    EndIsInTheRange: "the end is not",
    LimitBeforeReverse: "limit=1 from the end",
    ScansInPieces: "a scan sees one state",
    RangesByPrefix: "clearing a subtree leaves its neighbours",
    WritesBeforeItChecks: "a batch with a conflict writes nothing",
    ChecksThenWaits: "exactly one wins",
    ClearsFirst: "the writes of a batch take effect in their order",
    EmptyIsAbsent: "get returns what was set: b''",
    NumbersAppendsByRows: "sorts after keys that have been cleared",
    WaitsForAnEdge: "returns at once",
    WakesForNothing: "goes on waiting while the value is the same",
    HalfOfACancelledCommit: "a scan sees one state",
    CommitsBehindTheBack: "has happened or never will",
    TruncatesValues: "a value of 100,001 bytes is read as it was written",
    NamesNoLimit: "the error names the limit",
    WritesWhatItRefuses: "nothing of a refused batch is written",
    ClosesOnce: "closed twice",
    StaysOpen: "a closed driver refuses every call",
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_it_is_seen(wrong: type[MemoryDriver]) -> None:
    async def make() -> Driver:
        return wrong()

    with pytest.raises((AssertionError, StorageError), match=re.escape(BROKEN[wrong])):
        run_without_waiting(check_driver, make)


def test_a_driver_that_is_right_passes() -> None:
    async def make() -> Driver:
        return MemoryDriver()

    checked: list[None] = [run_without_waiting(check_driver, make)]
    assert checked == [None]
