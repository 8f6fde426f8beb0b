"""The records that are written all the time, packed by hand, are the bytes that `pack_record` gives."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from workflow_sdk.core.entries import Entry
from workflow_sdk.core.location import pack_segment
from workflow_sdk.core.status import EntryStatus, Kind
from workflow_sdk.core.tuples import pack
from workflow_sdk.core.wire import pack_count, pack_outcome, pack_record, pack_text

NUMBERS = st.integers(0, 70_000) | st.integers(0, 1 << 32) | st.sampled_from([0, 23, 24, 255, 256, 65_535, 65_536])
TIMES = (
    st.floats(1e9, 2.2e9)
    | st.integers(1_000_000_000, 2_200_000_000).map(float)
    | st.sampled_from([float(1 << 30), float(1 << 31), 1_763_420_160.0, 1_893_456_000.0, 0.0, -1.5, 1e300])
)
VALUES = st.binary(max_size=300) | st.sampled_from([23, 24, 255, 256, 65_535, 65_536]).map(bytes)


@given(index=NUMBERS | st.integers(0, 1 << 40))
def test_a_segment_of_a_key(index: int) -> None:
    assert pack_segment(index) == pack((index,))


@given(count=NUMBERS)
def test_a_count(count: int) -> None:
    assert pack_count(count) == pack_record([count])


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_text(text: str) -> None:
    assert pack_text(text) == pack_record([text])


@given(
    kind=st.integers(1, 16),
    status=st.integers(1, 4),
    ordinal=NUMBERS,
    created=TIMES,
    finished=TIMES,
    value=VALUES,
    digest=st.none() | st.binary(max_size=30),
)
@example(1, 3, 300, 1_763_420_000.25, 1_763_420_000.75, b"x" * 300, None)
@example(1, 3, 300, 1_763_420_000.25, 1_763_420_000.75, b"x" * 300, b"12345678")
def test_an_outcome(
    kind: int, status: int, ordinal: int, created: float, finished: float, value: bytes, digest: bytes | None
) -> None:
    packed = pack_outcome(kind, status, ordinal, created, finished, value, digest)
    last = [] if digest is None else [digest]
    assert packed in (None, pack_record([kind, status, ordinal, 1, created, finished, value, None, None, *last]))
    usual = 1.1e9 < created <= finished < 2.1e9 and created % 128 and finished % 128
    if usual and len(value) < 65_536 and len(digest or b"") < 24:
        assert packed is not None


@given(
    kind=st.sampled_from([kind for kind in Kind if kind is not Kind.BRANCH]),
    ordinal=NUMBERS,
    attempts=st.integers(1, 3),
    created=TIMES,
    finished=TIMES,
    value=VALUES | st.none(),
)
def test_an_entry(
    kind: Kind, ordinal: int, attempts: int, created: float, finished: float, value: bytes | None
) -> None:
    entry = Entry(kind, ordinal, created, attempts=attempts)
    entry.complete(value, finished)
    code = {Kind.STEP: 1}.get(kind)
    raw = entry.pack()
    if code is not None:
        assert raw == pack_record([code, 3, ordinal, attempts, created, finished, value, None, None])
    if 0 <= created <= 2.5e11 and 0 <= finished <= 2.5e11:
        again = Entry.unpack(raw)
        assert (again.kind, again.status, again.value) == (kind, EntryStatus.COMPLETED, value)
        assert (again.created_at, again.finished_at, again.ordinal) == (created, finished, ordinal)
