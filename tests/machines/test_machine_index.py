"""The index that is addressed by content, snapshots, and replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.machines.shop import Charged, Do, OrderCreated, State, does, harness_of, notes, order, ping, shop
from workflow_sdk import CodecError, InstanceStateError
from workflow_sdk.machines import EffectReceipt, Harness, MachineContext, Transition, canonical
from workflow_sdk.machines.cell import CellData
from workflow_sdk.machines.index import hash_of, index_of, reachable, read_index, replay, snapshot_of

CELL = "cell@1"


def cell(number: int, state: bytes | None = b"state", at: float = 0.0) -> CellData:
    """A cell with a number as its key."""
    return CellData(canonical.bare(number), state, changed_at=at)


MANY = [cell(number, str(number).encode(), number / 3) for number in range(1000)]


# The index.


def test_equal_cells_have_the_same_root_in_whatever_order_they_come() -> None:
    assert index_of(MANY).root == index_of(reversed(MANY)).root
    assert index_of([]).root == index_of([cell(1, None)]).root, "a cell without a state is none"


@pytest.mark.parametrize("changed", [cell(500, b"other", 500 / 3), cell(500, b"500", 1), cell(5000), cell(500, None)])
def test_any_difference_gives_another_root(changed: CellData) -> None:
    assert index_of([*MANY, changed]).root != index_of(MANY).root


def test_what_the_root_does_not_depend_on() -> None:
    busy = [replace(one, sequence=7, revision=3) for one in MANY]
    assert index_of(busy).root == index_of(MANY).root


def test_entries_say_where_states_are() -> None:
    [entry] = index_of([cell(5, b"abc", 1.5)])
    assert entry.key == canonical.bare(5)
    assert (entry.state_hash.hex(), entry.size, entry.last_active) == (hash_of(b"abc"), 3, 1_500_000_000)
    [single] = index_of([CellData(None, b"abc")])
    assert single.key is None


def test_a_change_writes_its_page_and_the_root_and_no_more() -> None:
    before = index_of(MANY)
    after = before.updated([cell(500, b"other")])
    assert len(after.blobs.keys() - before.blobs.keys()) == 2
    assert len(before.pages) > 200
    assert before.root == index_of(MANY).root, "the one before has not changed"


def test_the_last_cell_of_a_page_takes_it_along() -> None:
    before = index_of([cell(1), cell(2)])
    assert before.updated([cell(2, None)]).root == index_of([cell(1)]).root
    assert before.updated([cell(1, None), cell(2, None)]).root == index_of([]).root


@given(st.lists(st.tuples(st.integers(0, 20), st.none() | st.binary(max_size=2), st.integers(0, 3)), max_size=30))
@examples(200)
def test_an_index_that_is_updated_is_that_of_the_cells_there_are(steps: list[tuple[int, bytes | None, int]]) -> None:
    index, cells = index_of([]), dict[int, CellData]()
    for number, state, at in steps:
        cells[number] = cell(number, state, at)
        index = index.updated([cells[number]])
    whole = index_of(cells.values())
    assert index.root == whole.root
    assert list(index) == list(whole)
    assert index.count == len(list(index)) == sum(one.state is not None for one in cells.values())
    assert list(read_index(index.root, index.blobs.__getitem__)) == list(index)


# What belongs to it.


def test_all_of_a_snapshot_can_be_reached_from_its_root() -> None:
    snapshot, blobs = snapshot_of("m", MANY)
    assert snapshot.count == 1000
    assert reachable(snapshot.root, snapshot.read) == set(blobs)
    found = {one.key: one for one in snapshot.cells()}
    assert {key: one.state for key, one in found.items()} == {one.key: one.state for one in MANY}
    assert all(found[one.key].changed_at == pytest.approx(one.changed_at) for one in MANY)


def test_equal_states_are_kept_once() -> None:
    _, blobs = snapshot_of("m", [cell(number, b"same") for number in range(50)])
    assert sum(data == b"same" for data in blobs.values()) == 1


def test_bytes_that_are_damaged_or_missing_are_told() -> None:
    snapshot, blobs = snapshot_of("m", MANY[:1])
    for hashed in blobs:
        for damaged in ({**blobs, hashed: blobs[hashed] + b"x"}, {k: v for k, v in blobs.items() if k != hashed}):
            with pytest.raises(CodecError, match=hashed):
                replace(snapshot, read=damaged.__getitem__).cells()


def test_snapshots_compare_by_what_they_are_of() -> None:
    one, _ = snapshot_of("m", MANY)
    other, _ = snapshot_of("m", MANY)
    assert one == other
    assert one != snapshot_of("n", MANY)[0]
    assert one != snapshot_of("m", MANY[1:])[0]


# Snapshots of a harness.


def settled(*keys: str) -> Harness:
    """Orders that are paid."""
    harness = Harness(shop)
    for key in keys:
        harness.emit(OrderCreated(key, 5))
    harness.run_to_idle()
    for intent in harness.effects():
        harness.receipt(intent, Charged(f"c-{intent.key}"))
    harness.run_to_idle()
    return harness


def test_equal_histories_have_equal_roots() -> None:
    assert settled("a", "b").snapshot(order) == settled("a", "b").snapshot(order)
    assert settled("a", "b").snapshot(order) == settled("b", "a").snapshot(order)
    assert settled("a").snapshot(order) != settled("b").snapshot(order)
    assert settled("a").snapshot(order).count == 1


def test_a_snapshot_needs_nothing_queued_and_nothing_in_flight_for_its_machine() -> None:
    harness = Harness(shop)
    harness.emit(OrderCreated("o-1", 5))
    with pytest.raises(InstanceStateError, match="1 messages queued and 0 effects in flight"):
        harness.snapshot(order)
    assert harness.snapshot(notes).count == 0
    harness.run_to_idle()
    with pytest.raises(InstanceStateError, match="0 messages queued and 1 effects in flight"):
        harness.snapshot(order)
    harness.receipt(harness.effects()[0], Charged("c"))
    with pytest.raises(InstanceStateError, match="1 messages queued"):
        harness.snapshot(order)
    harness.run_to_idle()
    assert harness.snapshot(order).count == 1


def test_a_snapshot_of_the_only_machine_needs_no_name() -> None:
    harness = harness_of()
    harness.emit(Do("a"))
    harness.run_to_idle()
    assert harness.snapshot() == harness.snapshot(CELL)


# Replay.


def test_a_journal_leads_to_the_same_bytes() -> None:
    harness = settled("a", "b", "c")
    for one in (order, notes):
        found = harness.verify_replay(harness.snapshot(one))
        assert (found.root, found.mismatches) == (harness.snapshot(one).root, ())
        assert found.is_equal


def test_a_journal_goes_on_from_a_snapshot() -> None:
    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        if event.word == "end":
            return Transition(None)
        return Transition(State([*state.words, str(ctx.uuid()), str(ctx.sequence)]))

    harness = harness_of(did)
    words = ["1", "2", "end", "3"]
    for word in words:
        for key in "abc":
            harness.emit(Do(key, word))
    harness.run_to_idle()
    start, taken = harness.snapshot(), len(harness.journal(CELL))
    for word in words[:2]:
        for key in "acd":
            harness.emit(Do(key, word))
    harness.emit(Do("b", "end"))
    harness.run_to_idle()
    machine = harness.manifest.machines[CELL]
    end = harness.snapshot()
    found = replay(
        machine, start.cells(), harness.journal(CELL)[taken:], read_index(end.root, end.read),
        manifest_hash=harness.manifest.hash,
    )  # fmt: skip
    assert (found.root, found.mismatches) == (end.root, ())


def mismatches(harness: Harness, journal: Any) -> dict[Any, str]:
    """What replay of the journal finds of the orders of a harness."""
    return dict(harness.verify_replay(harness.snapshot(order), journal).mismatches)


def test_a_mismatch_says_which_cell_it_is_in() -> None:
    harness = settled("a", "b", "c")
    journal = harness.journal(order)
    of_b = [entry for entry in journal if entry.key == canonical.bare("b")]
    assert mismatches(harness, journal) == {}
    assert mismatches(harness, [e for e in journal if e not in of_b]) == {"b": "replay has not led to this cell"}
    assert mismatches(harness, [e for e in journal if e is not of_b[1]]) == {"b": "replay has led to another state"}
    assert "nobody waits for it" in mismatches(harness, [e for e in journal if e is not of_b[0]])["b"]
    later = [replace(e, at=e.at + 1) if e is of_b[1] else e for e in journal]
    assert mismatches(harness, later) == {"b": "replay has led to this state at another time"}
    other = [replace(e, value=canonical.bare({"order_id": "b", "cents": 6})) if e is of_b[0] else e for e in journal]
    assert "nobody waits for it" in mismatches(harness, other)["b"], "another amount is another intent"
    twice = [*journal, of_b[0]]
    assert "replay has made 2" in mismatches(harness, twice)["b"]
    more = settled("a", "b", "c", "d").journal(order)
    assert mismatches(harness, more) == {"d": "replay has led to a cell that is not expected"}


def test_code_that_does_something_else_is_seen() -> None:
    odd = [False]

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        if odd[0] and event.key == "b":
            raise ValueError("odd")
        return Transition(State(["odd"])) if odd[0] and event.key == "c" else None

    harness = harness_of(did)
    for key in "abc":
        harness.emit(Do(key))
    harness.run_to_idle()
    snapshot = harness.snapshot()
    odd[0] = True
    found = harness.verify_replay(snapshot)
    assert not found.is_equal
    assert found.root != snapshot.root
    told = dict(found.mismatches)
    assert told.keys() == {"b", "c"}
    assert "odd" in told["b"]


def test_receipts_that_no_machine_hears_of_are_replayed() -> None:
    harness = harness_of(lambda state, event, ctx: ping(1), event=Do)
    harness.emit(Do("a"))
    harness.run_to_idle()
    harness.clock.advance(5)
    harness.receipt(harness.effects()[0], 5)
    harness.run_to_idle()
    [entry] = harness.snapshot().entries()
    assert entry.last_active == harness.clock.time() * 1_000_000_000, "it has heard of it, though its machine has not"
    assert harness.verify_replay(harness.snapshot()).is_equal


def test_a_cell_that_has_failed_is_replayed() -> None:
    harness = harness_of(lambda state, event, ctx: ping(1), event=Do | EffectReceipt)
    harness.emit(Do("a"))
    harness.run_to_idle()
    harness.receipt(harness.effects()[0], "no number")
    harness.run_to_idle()
    assert harness.cell(CELL, "a").status == "failed"
    assert harness.verify_replay(harness.snapshot()).is_equal


def test_replay_without_anything_expected_leads_to_a_root() -> None:
    harness = settled("a")
    found = replay(order, [], harness.journal(order), manifest_hash=shop.hash)
    assert (found.root, found.is_equal) == (harness.snapshot(order).root, True)
    assert replay(does(), [], harness.journal(order)).root == index_of([]).root, "of another machine"
