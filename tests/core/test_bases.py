"""The states that a loop had: whatever it keeps, every turn that is kept can be begun with one of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.journal import loop_states as bases
from workflow_sdk.journal.loop_states import Base, Bases, pack_bases, unpack_bases
from workflow_sdk.rows.entries import LoopData


def test_rows_hold_what_they_were_given() -> None:
    row = [Base(0, 3, 1.5, b"a"), Base(4, 4, 2.0, b""), Base(9, 9, 2.0, b"b")]
    assert unpack_bases(pack_bases(row)) == row


@given(
    lasts=st.lists(st.integers(1, 4), min_size=1, max_size=40),
    interval=st.integers(1, 6),
    keep=st.integers(0, 15),
    resumed=st.sets(st.integers(0, 30)),
    large=st.booleans(),
)
def test_every_turn_that_is_kept_has_a_state_to_begin_with(
    lasts: list[int], interval: int, keep: int, resumed: set[int], *, large: bool
) -> None:
    """`lasts`: for how many turns the loop has each of its states."""
    states = [b"%03d" % number for number, turns in enumerate(lasts) for _ in range(turns)]
    rows: dict[int, list[Base]] = {}
    data = LoopData(0, states[0], 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bases, "STATES_BYTES_MAX", 7 if large else 1000)
        collecting = Bases(data, keep)
        for turn in range(1, len(states)):
            if states[turn] != states[turn - 1]:
                collecting.change(turn, states[turn], float(turn))
            if turn % interval and turn < len(states) - 1:
                continue
            data, last, row = collecting.store(turn, states[turn], float(turn), interval)
            rows = {end: found for end, found in rows.items() if end >= data.first}
            if last is not None:
                rows[last] = unpack_bases(pack_bases(row))
            if turn in resumed:
                collecting = Bases(data, keep)
            check(data, rows, states, turn, keep, interval, large=large)


def check(
    data: LoopData,
    rows: dict[int, list[Base]],
    states: list[bytes],
    turn: int,
    keep: int,
    interval: int,
    *,
    large: bool,
) -> None:
    least = max(turn - keep, 0)
    assert data.first == least if not large else least - interval < data.first <= least
    assert states[data.since : turn + 1] == [data.state] * (turn + 1 - data.since)
    known = dict.fromkeys(range(data.since, turn), data.state)
    begun: set[int] = set()
    for last, row in rows.items():
        for base, end in zip(row, [*(b.first - 1 for b in row[1:]), last], strict=True):
            known |= dict.fromkeys(range(base.first, end + 1), base.state)
            assert states[base.turn] == base.state
            assert base.at == base.turn
            begun.add(base.turn)
    for number in range(data.first, turn):
        if number in known:
            assert known[number] == states[number]
        else:
            assert large
            assert any(data.first <= base <= number for base in begun)
