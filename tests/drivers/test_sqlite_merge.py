"""A group of batches that is written as one is the same as the batches, one after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from workflow_sdk import Batch, ConflictError, Driver, open_driver
from workflow_sdk.driver import Clear, ClearRange, Set, Write

pytestmark = pytest.mark.law(1)

KEYS = st.integers(0, 9).map(lambda number: b"k%d" % number)
VALUES = st.sampled_from([b"a", b"b"])
WRITES = st.one_of(
    st.builds(Set, KEYS, VALUES),
    st.builds(Clear, KEYS),
    st.tuples(KEYS, KEYS).map(lambda ends: ClearRange(min(ends), max(ends))),
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A batch of a few checks and writes; now and then with something appended."""
    batch = Batch()
    for key in draw(st.lists(KEYS, max_size=2)):
        batch.check(key, draw(st.one_of(st.none(), VALUES)))
    writes: list[Write] = draw(st.lists(WRITES, max_size=5))
    batch.writes += writes
    if draw(st.booleans()):
        batch.append(b"k", b"appended")
    return batch


async def outcome(driver: Driver, batch: Batch) -> str:
    """Whether it was applied."""
    try:
        await driver.commit(batch)
    except ConflictError:
        return "conflict"
    return "done"


async def compare(directory: Path, before: Batch, group: list[Batch]) -> None:
    """Commit the same in memory, one by one, and at once into a file."""
    memory = await open_driver("memory://")
    file = await open_driver(f"sqlite:///{directory}/store.db?synchronous=normal")
    try:
        for driver in (memory, file):
            await driver.commit(before)
        one_by_one = [await outcome(memory, batch) for batch in group]
        at_once = await asyncio.gather(*[outcome(file, batch) for batch in group])
        assert at_once == one_by_one
        rows, expected = [await driver.scan(b"", b"\xff") for driver in (file, memory)]
        # Keys that were appended hold a number of the store's own.
        plain = [[row for row in found if row[1] != b"appended"] for found in (rows, expected)]
        assert plain[0] == plain[1]
        assert len(rows) == len(expected)
    finally:
        await memory.aclose()
        await file.aclose()


@settings(max_examples=effort(100), deadline=None)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=6), st.lists(batches(), min_size=2, max_size=8))
def test_at_once_is_as_one_by_one(stored: list[tuple[bytes, bytes]], group: list[Batch]) -> None:
    before = Batch()
    for key, value in stored:
        before.set(key, value)
    before.check(b"none", None)
    with TemporaryDirectory() as directory:
        asyncio.run(compare(Path(directory), before, group))


async def test_a_batch_of_very_many(tmp_path: Path) -> None:
    driver = await open_driver(f"sqlite:///{tmp_path}/store.db")
    batch = Batch()
    for number in range(10_001):
        batch.check(b"%05d" % number, None)
        batch.set(b"%05d" % number, b"v")
    await driver.commit(batch)
    assert await outcome(driver, batch) == "conflict"
    assert len(await driver.scan(b"", b"\xff")) == 10_001
    await driver.aclose()
