"""The tables of moves, walked."""

from __future__ import annotations

import itertools

import pytest

from workflow_sdk.rows.status import ENTRY_MOVES, STATUS_MOVES, EntryStatus, Kind, Status, move, move_entry

pytestmark = pytest.mark.law(9)

TERMINAL = {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.ROLLED_BACK}


def test_every_status_is_in_its_table() -> None:
    assert set(STATUS_MOVES) == set(Status)
    assert set(ENTRY_MOVES) == set(EntryStatus)
    assert all(to in Status for moves in STATUS_MOVES.values() for to in moves)
    assert all(to in EntryStatus for moves in ENTRY_MOVES.values() for to in moves)


@pytest.mark.parametrize(("now", "to"), list(itertools.product(Status, Status)))
def test_an_instance_moves_as_the_table_says(now: Status, to: Status) -> None:
    if to in STATUS_MOVES[now]:
        assert move(now, to) is to
    else:
        with pytest.raises(AssertionError, match=f"that is {now.value} can't become {to.value}"):
            move(now, to)


@pytest.mark.parametrize(("now", "to"), list(itertools.product(EntryStatus, EntryStatus)))
def test_an_entry_moves_as_the_table_says(now: EntryStatus, to: EntryStatus) -> None:
    if to in ENTRY_MOVES[now]:
        assert move_entry(now, to) is to
    else:
        with pytest.raises(AssertionError, match=f"that is {now.value} can't become {to.value}"):
            move_entry(now, to)


def test_an_end_has_no_exit() -> None:
    assert {status for status in Status if status.is_terminal} == TERMINAL
    assert {status for status in Status if not STATUS_MOVES[status]} == TERMINAL
    final = {status for status in EntryStatus if status.is_final}
    assert final == {status for status in EntryStatus if not ENTRY_MOVES[status]}
    assert final == {EntryStatus.COMPLETED, EntryStatus.FAILED}


def test_every_status_can_be_reached() -> None:
    reached, todo = set[Status](), [Status.PENDING]
    while todo:
        now = todo.pop()
        reached.add(now)
        todo += STATUS_MOVES[now] - reached
    assert reached == set(Status)


def test_a_rollback_never_becomes_a_run_again() -> None:
    assert not STATUS_MOVES[Status.ROLLING_BACK] & {Status.RUNNING, Status.SLEEPING, Status.WAITING, Status.COMPLETED}


def test_what_the_words_are() -> None:
    assert [status.value for status in Status] == [
        *("pending", "running", "sleeping", "waiting", "completed", "failed", "cancelled", "rolling_back"),
        *("rolled_back", "stuck"),
    ]
    assert {kind for kind in Kind if kind.is_composite} == {
        *(Kind.LOOP, Kind.JOIN, Kind.RACE, Kind.MAP, Kind.ATTEMPT, Kind.BRANCH, Kind.GRAPH, Kind.FIRING)
    }
