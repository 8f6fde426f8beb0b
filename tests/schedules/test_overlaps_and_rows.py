"""What becomes of the ticks of a schedule, and how it is stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from workflow_sdk import CodecError
from workflow_sdk.features.schedules.rows import (
    LATE_SECONDS_MAX,
    STARTS_MAX,
    WAITING_MAX,
    After,
    Plan,
    ScheduleRow,
    decide,
    latest,
)
from workflow_sdk.rows.wire import pack_record, unpack_record

ROW = ScheduleRow(
    workflow="reports",
    input=b"\xf6",
    cron=None,
    every=60_000_000,
    timezone="UTC",
    overlap="skip",
    catch_up="last",
    paused=False,
    created_at=0.0,
    since=0.0,
    next_at=60.0,
    last_at=None,
    last_instance=None,
    waiting=(),
)


def every(seconds: float) -> After:
    """Ticks at all multiples."""
    return lambda when: (when // seconds + 1) * seconds


def at(*times: float) -> After:
    """Ticks at these times."""
    return lambda when: min((time for time in times if time > when), default=None)


def planned(now: float, *, is_busy: bool = False, after: After | None = None, **fields: Any) -> Plan:
    """What is decided on a schedule that ticks once a minute."""
    return decide(replace(ROW, **fields), now, after or every(60), is_busy=is_busy)


# -- One tick ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow"])
@pytest.mark.parametrize("catch_up", ["last", "all", "none"])
def test_a_tick_in_time(overlap: str, catch_up: str) -> None:
    assert planned(59.9, overlap=overlap, catch_up=catch_up) == Plan((), (), 60)
    assert planned(60, overlap=overlap, catch_up=catch_up) == Plan((60,), (), 120)


@pytest.mark.parametrize(
    ("overlap", "plan"),
    [("skip", Plan((), (), 120)), ("queue", Plan((), (60,), 120)), ("allow", Plan((60,), (), 120))],
)
def test_a_tick_while_the_last_has_not_ended(overlap: str, plan: Plan) -> None:
    assert planned(61, is_busy=True, overlap=overlap) == plan


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_what_waits_comes_first(overlap: str) -> None:
    assert planned(59, waiting=(20, 40), overlap=overlap) == Plan((20,), (40,), 60)
    late = (40, 60) if overlap == "queue" else (40,)
    assert planned(60, waiting=(20, 40), overlap=overlap) == Plan((20,), late, 120)
    assert planned(59, waiting=(20, 40), overlap=overlap, is_busy=True) == Plan((), (20, 40), 60)


def test_no_more_ticks() -> None:
    assert planned(61, after=at(60)) == Plan((60,), (), None)
    assert planned(1e9, next_at=None) == Plan((), (), None)
    assert planned(1e9, after=at(60), catch_up="all") == Plan((60,), (), None)


def test_no_more_than_so_many_wait() -> None:
    full = tuple(float(number) for number in range(-WAITING_MAX, 0))
    plan = planned(60, waiting=full, overlap="queue", is_busy=True)
    assert plan == Plan((), full, 120, is_full=True)
    plan = planned(60, waiting=full, overlap="queue")
    assert plan == Plan(full[:1], (*full[1:], 60), 120)


def test_what_is_done_is_kept() -> None:
    row = Plan((60, 120), (180,), 240).applied(ROW)
    assert (row.last_at, row.waiting, row.next_at) == (120, (180,), 240)
    assert Plan((), (), 300).applied(row).last_at == 120


# -- Many at once -----------------------------------------------------------------------------------------------------

MISSED = st.integers(1, 400)
SPACING = st.sampled_from([1.0, 7.0, 59.0, 61.0, 3600.0, 86_400.0])
LATE = st.floats(0, 0.99)


@given(MISSED, SPACING, LATE, st.sampled_from(["skip", "queue", "allow"]))
def test_last_is_one(missed: int, spacing: float, late: float, overlap: str) -> None:
    now = (missed + late) * spacing
    plan = planned(now, after=every(spacing), next_at=spacing, overlap=overlap)
    assert plan == Plan((missed * spacing,), (), (missed + 1) * spacing)


@given(MISSED, SPACING, LATE)
def test_none_is_one_at_most_and_not_late(missed: int, spacing: float, late: float) -> None:
    now = (missed + late) * spacing
    plan = planned(now, after=every(spacing), next_at=spacing, catch_up="none")
    is_late = now - missed * spacing > LATE_SECONDS_MAX
    assert plan == Plan(() if is_late else (missed * spacing,), (), (missed + 1) * spacing)


@given(MISSED, SPACING, LATE)
def test_all_is_each_of_them(missed: int, spacing: float, late: float) -> None:
    """With `allow`, some with each commit, until there are none any more."""
    now, row = (missed + late) * spacing, replace(ROW, next_at=spacing, overlap="allow", catch_up="all")
    begun: list[float] = []
    while row.next_at is not None and row.next_at <= now:
        plan = decide(row, now, every(spacing), is_busy=True)
        assert 1 <= len(plan.starts) <= STARTS_MAX
        begun += plan.starts
        row = plan.applied(row)
    assert begun == [number * spacing for number in range(1, missed + 1)]
    assert row.next_at == (missed + 1) * spacing


@given(MISSED, SPACING, LATE, st.sampled_from(["skip", "queue"]))
def test_all_one_after_another(missed: int, spacing: float, late: float, overlap: str) -> None:
    """As many as may wait; more are left out, and that is said."""
    now, row = (missed + late) * spacing, replace(ROW, next_at=spacing, overlap=overlap, catch_up="all")
    plan = decide(row, now, every(spacing), is_busy=False)
    assert plan.next_at == (missed + 1) * spacing
    assert plan.is_full == (missed > WAITING_MAX + 1)
    begun: list[float] = []
    while True:
        assert len(plan.starts) <= 1
        begun += plan.starts
        row = plan.applied(row)
        if not row.waiting:
            break
        plan = decide(row, now, every(spacing), is_busy=False)
    assert begun == [number * spacing for number in range(1, min(missed, WAITING_MAX + 1) + 1)]


@given(
    st.lists(st.integers(1, 10_000), min_size=1, max_size=60, unique=True),
    st.integers(0, 11_000),
    st.sampled_from(["last", "all", "none"]),
    st.sampled_from(["skip", "queue", "allow"]),
    st.booleans(),
)
def test_each_tick_is_decided_on_once(times: list[int], now: int, catch_up: str, overlap: str, is_busy: bool) -> None:
    """Whatever their times are: none begins twice, none before its time, and the next one is the first after now."""
    after = at(*sorted(times))
    row = replace(ROW, next_at=float(min(times)), catch_up=catch_up, overlap=overlap)
    begun: list[float] = []
    for _ in range(100):
        plan = decide(row, now, after, is_busy=is_busy)
        begun += plan.starts
        row = plan.applied(row)
    assert begun == sorted(set(begun))
    assert all(time <= now for time in begun)
    assert row.next_at == after(now)
    due = [time for time in sorted(times) if time <= now]
    if overlap == "skip" and is_busy:
        assert begun == []
    elif catch_up == "all":
        assert [*begun, *row.waiting] == due
    elif catch_up == "last":
        assert [*begun, *row.waiting] == due[-1:]


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=80, unique=True), st.integers(0, 11_000))
def test_the_last_tick_is_found_by_halves(times: list[int], more: int) -> None:
    first = min(times)
    now = first + more
    assert latest(first, now, at(*times)) == max(time for time in times if time <= now)


def test_it_takes_few_looks() -> None:
    looks: list[float] = []

    def after(when: float) -> float:
        looks.append(when)
        return when // 1 + 1

    assert latest(1.0, 1e9 + 0.5, after) == 1e9
    assert len(looks) < 100


# -- As it is stored --------------------------------------------------------------------------------------------------

FULL = replace(
    ROW, cron="0 3 * * *", every=None, timezone="Europe/Berlin", overlap="queue", catch_up="all", last_at=1.5,
    last_instance="s/1", waiting=(2.5, 3.5), since=1.25,
)  # fmt: skip
STORED = bytes.fromhex(
    "019ea77265706f727473c401f6a9302033202a202a202ac0ad4575726f70652f4265726c696ea57175657565a3616c6c"
)
"""How the row of `FULL` begins."""


def test_it_reads_back() -> None:
    for row in (ROW, FULL, replace(ROW, paused=True, next_at=None)):
        assert ScheduleRow.unpack(row.pack()) == row


def test_bytes_once_written_are_read() -> None:
    assert FULL.pack().startswith(STORED)
    assert unpack_record(FULL.pack())[7:] == [False, 0.0, 1.25, 60.0, 1.5, "s/1", [2.5, 3.5]]


def broken(place: int, value: object) -> bytes:
    """A row with another value in one place."""
    fields = unpack_record(FULL.pack())
    fields[place] = value
    return pack_record(fields)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"\x01", b"\xff", pack_record([]), pack_record([1]), FULL.pack()[:-1]),
        *(broken(place, None) for place in (0, 1, 2, 4, 5, 6, 7, 8, 9, 13)),
        *(broken(place, {}) for place in range(14)),
        *(broken(3, 5), broken(5, "maybe"), broken(6, "some"), broken(10, 1e30), broken(8, float("nan"))),
        *(broken(13, [1.0, "2"]), broken(13, [1e30]), broken(13, [True])),
        pack_record([*unpack_record(ROW.pack())[:3], 0, *unpack_record(ROW.pack())[4:]]),
    ],
    ids=bytes.hex,
)
def test_a_damaged_row(raw: bytes) -> None:
    with pytest.raises(CodecError):
        ScheduleRow.unpack(raw)
