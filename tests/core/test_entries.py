"""Entries, and their bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workflow_sdk.rows.entries import (
    BranchesData,
    Entry,
    EntryTrouble,
    ListenData,
    LoopData,
    RetryData,
    SleepData,
    Taken,
)
from workflow_sdk.rows.status import EntryStatus, Kind
from workflow_sdk.rows.wire import ErrorRow, Text, pack_record

times = st.floats(0, 4e9)
raw = st.binary(max_size=20)
maybe = st.none() | raw
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
takens = st.builds(Taken, raw, texts, times, raw, maybe)

DATA: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.STEP: st.none() | st.builds(RetryData, times),
    Kind.SLEEP: st.builds(SleepData, times),
    Kind.LISTEN: st.builds(
        ListenData,
        st.lists(texts, min_size=1).map(tuple),
        st.none() | times,
        st.integers(1, 9),
        st.lists(takens).map(tuple),
        st.booleans(),
    ),
    Kind.LOOP: st.builds(LoopData, st.integers(0, 10**9), raw, times),
    Kind.JOIN: st.builds(
        BranchesData,
        st.lists(texts, unique=True).map(tuple),
        st.integers(0, 99),
        st.none() | st.lists(st.tuples(maybe, maybe)).map(tuple),
        st.none() | st.integers(0, 9),
    ),
}
DATA[Kind.RACE] = DATA[Kind.MAP] = DATA[Kind.JOIN]


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    kind = draw(st.sampled_from(Kind))
    return Entry(
        kind,
        draw(st.integers(0, 10**6)),
        draw(times),
        status=draw(st.sampled_from(EntryStatus)),
        attempts=draw(st.integers(1, 100)),
        finished_at=draw(st.none() | times),
        value=draw(maybe),
        error=draw(maybe),
        data=draw(DATA.get(kind, st.none())),
        digest=draw(maybe),
    )


@given(entries())
@example(
    Entry(Kind.STEP, 0, 1.7e9 + 0.1, status=EntryStatus.COMPLETED, finished_at=1.7e9 + 0.2, value=b"v", error=b"e")
)
def test_an_entry_comes_back(entry: Entry) -> None:
    again = Entry.unpack(entry.pack())
    assert again == entry
    for name in Entry.__struct_fields__:
        assert getattr(again, name) == getattr(entry, name)
        assert type(getattr(again, name)) is type(getattr(entry, name))


def test_every_kind_and_status_can_be_written() -> None:
    packed = {Entry(kind, 0, 1.0, status=status).pack() for kind in Kind for status in EntryStatus}
    assert len(packed) == len(Kind) * len(EntryStatus)


@pytest.mark.parametrize(
    ("entry", "packed"),
    [
        (Entry(Kind.STEP, 0, 1.0), ["step", 0, 1.0, "running", 1, None, None, None, None, None, 0]),
        (
            Entry(Kind.BRANCH, 3, 1.0, status=EntryStatus.FAILED, error=b"e"),
            ["branch", 3, 1.0, "failed", 1, None, None, b"e", None, None, 0],
        ),
        (
            Entry(Kind.SLEEP, 1, 2.0, data=SleepData(3.0)),
            ["sleep", 1, 2.0, "running", 1, None, None, None, [2, 3.0], None, 0],
        ),
        (
            Entry(Kind.STEP, 0, 1.0, digest=b"d"),
            ["step", 0, 1.0, "running", 1, None, None, None, None, b"d", 0],
        ),
    ],
)
def test_the_bytes_are_these(entry: Entry, packed: list[object]) -> None:
    assert entry.pack() == pack_record(packed)


def test_a_number_without_a_fraction_is_still_a_time() -> None:
    assert isinstance(Entry.unpack(Entry(Kind.STEP, 0, 5).pack()).created_at, float)


@pytest.mark.parametrize("status", [EntryStatus.RUNNING, EntryStatus.WAITING])
def test_an_open_entry_gets_an_outcome(status: EntryStatus) -> None:
    done, failed = Entry(Kind.STEP, 0, 1.0, status=status), Entry(Kind.STEP, 0, 1.0, status=status)
    assert not done.is_final
    done.complete(b"v", 2.0)
    failed.fail(b"e", 3.0)
    assert (done.status, done.value, done.error, done.finished_at) == (EntryStatus.COMPLETED, b"v", None, 2.0)
    assert (failed.status, failed.value, failed.error, failed.finished_at) == (EntryStatus.FAILED, None, b"e", 3.0)
    assert done.is_final
    assert failed.is_final


@pytest.mark.parametrize("status", [EntryStatus.COMPLETED, EntryStatus.FAILED])
def test_an_outcome_is_never_another_one(status: EntryStatus) -> None:
    entry = Entry(Kind.STEP, 0, 1.0, status=status)
    with pytest.raises(AssertionError):
        entry.complete(b"v", 2.0)
    with pytest.raises(AssertionError):
        entry.fail(b"e", 2.0)


def test_entries_are_compared_by_what_is_written() -> None:
    assert Entry(Kind.STEP, 0, 1.0) == Entry(Kind.STEP, 0, 1.0)
    assert Entry(Kind.STEP, 0, 1.0) != Entry(Kind.STEP, 1, 1.0)
    assert repr(Entry(Kind.STEP, 0, 1.0)) == "<Entry step running>"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Entry(Kind.STEP, 0, 1.0))


@given(st.integers(0, 99), times, texts)
def test_a_trouble_comes_back(attempts: int, at: float, message: str) -> None:
    error = ErrorRow("app.Error", Text(message), Text.of(b"sealed"), "application", {"a": b"1"})
    trouble = EntryTrouble("a/b", attempts, at, error)
    assert EntryTrouble.unpack(trouble.pack()) == trouble
