"""Turns: one message for each cell that has one, in an order that is always the same. No cell hears of others."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.machines.shop import Do, State, charge, does, harness_of, ping
from workflow_sdk import Delivery
from workflow_sdk.machines import Harness, MachineContext, Manifest, Transition, route
from workflow_sdk.machines.kernel import Kernel

CELL = "cell@1"


def kernel_of(did: Any = None) -> Kernel:
    """The cells of one machine."""
    made = does(did)
    return Kernel(Manifest([made], [route(Do, made, "key")]))


def keys_taken(kernel: Kernel) -> list[Any]:
    """Whose turn it was."""
    read = kernel.manifest.machines[CELL].key_of
    return [read(entry.key) for entry in kernel.journal]


def test_ten_thousand_events_of_one_cell_delay_another_by_one_round() -> None:
    kernel = kernel_of(lambda state, event, ctx: Transition(State()))
    for _ in range(10_000):
        kernel.accept(Do("busy"), 0.0)
    kernel.step()
    kernel.accept(Do("other"), 0.0)
    kernel.step()
    kernel.step()
    assert keys_taken(kernel)[-2:] == ["busy", "other"]
    for _ in range(3):
        kernel.accept(Do("late"), 0.0)
    for _ in range(6):
        kernel.step()
    assert keys_taken(kernel)[-6:] == ["busy", "late"] * 3


def test_a_cell_that_sends_itself_events_for_ever_delays_no_other() -> None:
    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        return Transition(State(), [Do("busy")] if event.key == "busy" else [])

    kernel = kernel_of(did)
    kernel.accept(Do("busy"), 0.0)
    for _ in range(100):
        kernel.step()
    kernel.accept(Do("other"), 0.0)
    kernel.step()
    kernel.step()
    assert "other" in keys_taken(kernel)[-2:]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
@examples(100)
def test_cells_take_turns(keys: list[int]) -> None:
    kernel = kernel_of()
    for key in keys:
        kernel.accept(Do(str(key)), 0.0)
    while kernel.step():
        pass
    left, expected = Counter(keys), list[str]()
    while left:
        expected += [str(key) for key in left]
        left = Counter({key: count - 1 for key, count in left.items() if count > 1})
    assert keys_taken(kernel) == expected


def test_the_order_is_the_same_again() -> None:
    def run() -> list[tuple[bytes | None, bytes]]:
        def did(state: State, event: Any, ctx: MachineContext) -> Any:
            more = [Do(ctx.random.choice("abcdef"), "x") for _ in range(ctx.random.randint(0, 2))]
            return Transition(state, more if len(state.words) < 20 else [])

        kernel = kernel_of(did)
        for key in "abc":
            kernel.accept(Do(key), 0.0)
        while kernel.step():
            pass
        return [(entry.key, entry.value) for entry in kernel.journal]

    assert run() == run()
    assert len(run()) > 20


def test_a_kernel_that_is_idle_does_nothing() -> None:
    kernel = kernel_of()
    assert kernel.is_idle
    assert not kernel.step()
    kernel.accept(Do("a"), 0.0)
    assert not kernel.is_idle
    assert not kernel.retry(CELL, None)
    assert kernel.next_due() is None


# A thousand cells.


def asking(number: int) -> Harness:
    """Cells that have all asked for the same, with the same parameters, and tell what they were answered."""

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, Do):
            return Transition(State(), effects=[charge("same", 5), charge("same", 5)])
        return Transition(State([*state.words[:-1], f"{event.key} {event.intent_id} {event.payload.charge_id}"]))

    harness = harness_of(did)
    for key in range(number):
        harness.emit(Do(str(key)))
    harness.run_to_idle()
    return harness


@pytest.mark.parametrize("seed", range(3))
def test_of_a_thousand_cells_with_the_same_parameters_each_hears_its_own_receipts(seed: int) -> None:
    harness = asking(1000)
    intents = list(harness.effects())
    assert len({intent.id for intent in intents}) == 2000
    chance = Random(seed)
    chance.shuffle(intents)
    told: dict[Any, list[str]] = {}
    for number, intent in enumerate(intents):
        assert harness.receipt(intent, {"charge_id": f"c{number}"}) == Delivery.ACCEPTED
        told.setdefault(intent.key, []).append(f"{intent.key} {intent.id} c{number}")
        if chance.random() < 0.01:
            harness.run_to_idle()
    harness.run_to_idle()
    cells = harness.cells(CELL)
    assert {cell.key: cell.state.words for cell in cells} == told
    assert all(cell.inflight == {} for cell in cells)


@given(st.data())
@examples(100)
def test_receipts_that_are_late_or_doubled_or_unknown_reach_nobody_else(data: st.DataObject) -> None:
    harness = asking(data.draw(st.integers(2, 6)))
    intents = list(harness.effects())
    ids = [intent.id for intent in intents]
    sent = data.draw(st.lists(st.sampled_from([*ids, "unknown"]), max_size=20))
    first: dict[str, int] = {}
    for number, id in enumerate(sent):
        expected = Delivery.ACCEPTED if id in ids and id not in first else Delivery.STALE
        assert harness.receipt(id, {"charge_id": f"c{number}"}) == expected
        if expected is Delivery.ACCEPTED:
            first[id] = number
        if data.draw(st.booleans()):
            harness.run_to_idle()
    harness.run_to_idle()
    told = [word for cell in harness.cells(CELL) for word in cell.state.words if word]
    expected_words = [f"{intent.key} {intent.id} c{first[intent.id]}" for intent in intents if intent.id in first]
    assert sorted(told) == sorted(expected_words)
    assert {intent.id for intent in harness.effects()} == set(ids) - first.keys()


def test_an_effect_of_another_cell_is_never_answered_by_its_own_number() -> None:
    harness = harness_of(lambda state, event, ctx: ping(1) if isinstance(event, Do) else None)
    for key in "ab":
        harness.emit(Do(key))
    harness.run_to_idle()
    of_a, of_b = harness.effects()
    harness.receipt(of_a, 5)
    harness.run_to_idle()
    assert harness.cell(CELL, "a").inflight == {}
    assert list(harness.cell(CELL, "b").inflight) == [of_b.id]
