"""When a schedule ticks: evenly, or by the clocks of some place, also when these are changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.schedules.test_overlaps_and_rows import ROW
from workflow_sdk import DefinitionError
from workflow_sdk.features.schedules.changes import check_cron, check_every, instance_of, ticks_of, time_zone
from workflow_sdk.features.schedules.rows import After, latest
from workflow_sdk.rows.wire import MOMENT_MAX

EXACT_MAX = float(2**33)
"""Up to the year 2242 a float tells one microsecond from the next."""

BERLIN = ZoneInfo("Europe/Berlin")
CRONS = [
    "0 3 * * *",
    "30 2 * * *",
    "*/7 * * * *",
    "0 */5 * * *",
    "15,45 1-3 * * *",
    "0 0 * * 0",
    "* 2 * * *",
    "0 12 L * *",
]


def by_cron(cron: str, timezone: str = "UTC") -> After:
    """The ticks of an expression."""
    return ticks_of(replace(ROW, cron=cron, every=None, timezone=timezone))


def following(after: After, when: datetime, count: int) -> list[str]:
    """So many ticks after a time, by the clocks of its place."""
    found: list[str] = []
    at: float | None = when.timestamp()
    for _ in range(count):
        assert at is not None
        at = after(at)
        assert at is not None
        found.append(datetime.fromtimestamp(at, when.tzinfo).strftime("%d. %H:%M %z"))
    return found


# -- Cron -------------------------------------------------------------------------------------------------------------


def test_by_the_clocks_of_a_place() -> None:
    after = by_cron("0 3 * * *", "Europe/Berlin")
    assert following(after, datetime(2026, 1, 10, 12, tzinfo=BERLIN), 2) == ["11. 03:00 +0100", "12. 03:00 +0100"]
    assert following(after, datetime(2026, 7, 10, 12, tzinfo=BERLIN), 1) == ["11. 03:00 +0200"]


def test_a_time_that_does_not_exist() -> None:
    """On 29 March 2026 it is 3 o'clock right after 2 o'clock."""
    after = by_cron("30 2 * * *", "Europe/Berlin")
    assert following(after, datetime(2026, 3, 27, 12, tzinfo=BERLIN), 3) == [
        *("28. 02:30 +0100", "29. 03:00 +0200", "30. 02:30 +0200"),
    ]


def test_a_time_that_exists_twice() -> None:
    """On 25 October 2026 the hour after 2 o'clock comes twice; from within it, too, once is enough."""
    after = by_cron("30 2 * * *", "Europe/Berlin")
    expected = ["25. 02:30 +0200", "26. 02:30 +0100"]
    assert following(after, datetime(2026, 10, 24, 12, tzinfo=BERLIN), 2) == expected
    for minute in (10, 40):
        again = datetime(2026, 10, 25, 2, minute, tzinfo=BERLIN, fold=1)
        assert following(after, again, 1) == expected[1:]


def test_every_hour_goes_on_evenly() -> None:
    after = by_cron("0 * * * *", "Europe/Berlin")
    assert following(after, datetime(2026, 10, 25, 1, 30, tzinfo=BERLIN), 3) == [
        *("25. 02:00 +0200", "25. 02:00 +0100", "25. 03:00 +0100"),
    ]
    assert following(after, datetime(2026, 3, 29, 0, 30, tzinfo=BERLIN), 2) == ["29. 01:00 +0100", "29. 03:00 +0200"]


@given(
    st.sampled_from(CRONS),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    st.integers(1_760_000_000, 1_800_000_000),
    st.integers(0, 3 * 86_400),
)
def test_it_does_not_matter_where_one_begins(cron: str, timezone: str, begin: int, more: int) -> None:
    """The ticks are the same from wherever they are counted: so they are the same for all workers."""
    after = by_cron(cron, timezone)
    first = after(begin)
    assert first is not None
    assert first > begin
    assert after((begin + first) / 2) == first
    assert after(first - 0.001) == first
    ticks = [first]
    while (tick := after(ticks[-1])) is not None and tick <= first + more:
        assert tick > ticks[-1]
        ticks.append(tick)
    assert latest(first, first + more, after) == ticks[-1]


def test_the_end_of_time() -> None:
    assert by_cron("0 0 * * *")(MOMENT_MAX) is None
    assert by_cron("0 0 * * *", "Asia/Tokyo")(MOMENT_MAX) is None
    assert by_cron("0 0 */31 * MON#5")(0) is None
    assert ticks_of(ROW)(MOMENT_MAX) is None


@pytest.mark.parametrize(
    "cron", ["", "* * * *", "a * * * *", "0 0 30 2 *", "*/0 * * * *", "@daily", "\0 * * * *", "LL L L L L"]
)
def test_no_cron(cron: str) -> None:
    with pytest.raises(DefinitionError, match="cron is five fields"):
        check_cron(cron)


@pytest.mark.parametrize("name", ["", "Berlin", "../x", "Europe", "Europe/Berlin\0", 5, None, "ä", "x" * 10_000])
def test_no_time_zone(name: object) -> None:
    with pytest.raises(DefinitionError, match="there is no time zone"):
        time_zone(name)


# -- Every so often ---------------------------------------------------------------------------------------------------


@given(
    st.integers(1_760_000_000_000_000, 1_800_000_000_000_000),
    st.one_of(st.integers(1000, 10_000_000), st.integers(1000, 10**14)),
    st.integers(0, 10**8),
    st.floats(0, 0.999),
)
def test_even_ticks(since: int, every: int, number: int, part: float) -> None:
    """However many there were: counted in whole microseconds, they never drift."""
    after = ticks_of(replace(ROW, every=every, since=since / 1e6))
    before, tick = ((since + so_many * every) / 1e6 for so_many in (number, number + 1))
    if tick > EXACT_MAX:
        return
    assert after(before) == tick
    assert after(tick - 1e-3) == tick
    assert after(before + (tick - before - 1e-3) * part) == tick


@given(st.floats(EXACT_MAX, MOMENT_MAX - 1), st.integers(1000, 10**9))
def test_ticks_of_later_centuries(when: float, every: int) -> None:
    """They go on."""
    found = ticks_of(replace(ROW, every=every))(when)
    assert found is None or when < found <= when + 2 * every / 1e6


def test_durations() -> None:
    assert check_every(1) == 1_000_000
    assert check_every(timedelta(milliseconds=1)) == 1000
    for every in (0, -5, 0.0001, True, "1"):
        with pytest.raises(DefinitionError, match="every is"):
            check_every(every)  # type: ignore[arg-type]


# -- Ids --------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 4_000_000_000_000_000))
def test_a_tick_is_told_by_its_time(microseconds: int) -> None:
    id = instance_of("a/b", microseconds / 1e6)
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert datetime.fromisoformat(id.removeprefix("a/b/")) == when
    assert id.endswith("Z")


def test_whole_seconds_have_no_fraction() -> None:
    when = datetime(2026, 11, 18, 3, tzinfo=UTC)
    assert instance_of("nightly", when.timestamp()) == "nightly/2026-11-18T03:00:00Z"
    assert instance_of("n", when.timestamp() + 0.25) == "n/2026-11-18T03:00:00.250000Z"
