"""Receipts: what cells hear of their effects, also when it can't be read, comes late or finds nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from tests.machines.shop import (
    Charged,
    Do,
    Order,
    OrderCreated,
    State,
    charge,
    harness_of,
    ping,
    shop,
)
from workflow_sdk import Delivery
from workflow_sdk.machines import (
    EffectReceipt,
    Harness,
    Intent,
    MachineContext,
    Transition,
    effect,
)

CELL = "cell@1"


def gives(found: Any) -> Any:
    return lambda state, event, ctx: found


# Receipts.


def charging() -> tuple[Harness, Intent]:
    """An order that waits for its charge."""
    harness = Harness(shop)
    harness.emit(OrderCreated("o-1", 5))
    harness.run_to_idle()
    [intent] = harness.effects()
    return harness, intent


def test_a_receipt_carries_where_it_comes_from() -> None:
    seen: list[Any] = []

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        seen.append(event)
        return charge("o-1", 5).tagged("payments") if isinstance(event, Do) else None

    harness = harness_of(did)
    harness.emit(Do("a"))
    harness.run_to_idle()
    [intent] = harness.effects()
    harness.receipt(intent, Charged("c"))
    harness.run_to_idle()
    assert seen[1] == EffectReceipt(CELL, "a", intent.id, "payment/charge@1", None, "payments", "ok", Charged("c"), 1)
    assert (intent.machine, intent.key, intent.issuer, intent.sequence) == (CELL, "a", "payments", 1)


@pytest.mark.parametrize("payload", [Charged("c-1"), {"charge_id": "c-1"}])
def test_a_receipt_that_is_ok(payload: Any) -> None:
    harness, intent = charging()
    assert harness.receipt(intent, payload) == Delivery.ACCEPTED
    assert harness.effects() == []
    assert list(harness.cell("acme/order@1", "o-1").inflight) == [intent.id], "it has not heard of it yet"
    harness.run_to_idle()
    cell = harness.cell("acme/order@1", "o-1")
    assert (cell.state, cell.status, cell.inflight) == (Order("o-1", "paid", "c-1"), "completed", {})
    assert harness.cell("acme/notes@1").state.paid == ["o-1"]


@pytest.mark.parametrize("status", ["error", "timeout", "fault"])
@pytest.mark.parametrize("payload", ["declined", {"code": 5}, None])
def test_a_receipt_that_is_not_ok_may_say_anything(status: Literal["error", "timeout", "fault"], payload: Any) -> None:
    harness, intent = charging()
    assert harness.receipt(intent, payload, status=status) == Delivery.ACCEPTED
    harness.run_to_idle()
    cell = harness.cell("acme/order@1", "o-1")
    assert (cell.state, cell.status) == (Order("o-1", status, str(payload)), "waiting")


@pytest.mark.parametrize("payload", [None, 5, {"charge_id": 5}, {"other": "x"}, [1], {}])
def test_a_payload_that_does_not_fit_is_rejected_where_there_is_an_arm_for_it(payload: Any) -> None:
    harness, intent = charging()
    assert harness.receipt(intent, payload) == Delivery.ACCEPTED
    harness.run_to_idle()
    cell = harness.cell("acme/order@1", "o-1")
    assert (cell.state.stage, cell.status, cell.inflight) == ("rejected", "waiting", {})
    assert "Charged" in cell.state.told
    assert harness.receipt(intent, Charged("c")) == Delivery.STALE


@pytest.mark.parametrize("event", [Do | EffectReceipt, Do])
def test_a_payload_that_does_not_fit_fails_a_cell_without_that_arm(event: Any) -> None:
    asking = gives(Transition(State(["asked"]), effects=[ping(1), ping(2)]))
    harness = harness_of(asking, event=event)
    harness.emit(Do("a"))
    harness.run_to_idle()
    first, second = harness.effects()
    harness.receipt(first, "no number")
    harness.run_to_idle()
    cell = harness.cell(CELL, "a")
    assert (cell.state, cell.status, cell.inflight) == (State(["asked"]), "failed", {})
    assert "can't be read" in (harness.problem(CELL, "a") or "")
    assert harness.effects() == [second], "what is out still runs"
    assert harness.receipt(second, 5) == Delivery.CLOSED, "its receipt is dropped"
    assert harness.receipt(second, 5) == Delivery.STALE
    assert harness.emit(Do("a")) == [Delivery.CLOSED]
    assert harness.run_to_idle() == 0


def test_receipts_that_wait_when_a_cell_fails_are_dropped() -> None:
    harness = harness_of(gives(Transition(State(), effects=[ping(1), ping(2)])), event=Do | EffectReceipt)
    harness.emit(Do("a"))
    harness.run_to_idle()
    first, second = harness.effects()
    harness.receipt(first, "no number")
    harness.receipt(second, 5)
    harness.emit(Do("a"))
    harness.run_to_idle()
    assert (harness.cell(CELL, "a").status, harness.cell(CELL, "a").last_sequence) == ("failed", 1)


def test_a_machine_that_does_not_hear_of_receipts_is_not_called() -> None:
    harness = harness_of(lambda state, event, ctx: ping(1), event=Do)
    harness.emit(Do("a", "1"))
    harness.run_to_idle()
    before = harness.cell(CELL, "a")
    harness.receipt(harness.effects()[0], 5)
    harness.run_to_idle()
    assert harness.cell(CELL, "a") == replace(before, inflight={})
    assert before.inflight


def test_an_effect_without_a_receipt_is_answered_with_nothing() -> None:
    plain = effect("plain")
    seen: list[Any] = []

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        seen.append(event)
        return plain() if isinstance(event, Do) else None

    harness = harness_of(did, effects=[plain])
    harness.emit(Do("a"))
    harness.run_to_idle()
    harness.receipt(harness.effects()[0])
    harness.run_to_idle()
    assert (seen[1].status, seen[1].payload) == ("ok", None)


def test_an_unknown_receipt_changes_nothing() -> None:
    harness, intent = charging()
    before = harness.cell("acme/order@1", "o-1")
    assert harness.receipt("nothing", Charged("c")) == Delivery.STALE
    assert harness.receipt(intent.id[:-1], Charged("c")) == Delivery.STALE
    assert harness.run_to_idle() == 0
    assert harness.cell("acme/order@1", "o-1") == before


def test_the_first_receipt_counts() -> None:
    harness, intent = charging()
    assert harness.receipt(intent, Charged("first")) == Delivery.ACCEPTED
    assert harness.receipt(intent, Charged("second")) == Delivery.STALE
    harness.run_to_idle()
    assert harness.receipt(intent, Charged("third"), status="error") == Delivery.STALE
    assert harness.run_to_idle() == 0
    assert harness.cell("acme/order@1", "o-1").state.told == "first"


def test_a_receipt_of_a_stuck_cell_waits_behind_what_is_refused() -> None:
    broken = [True]

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        if event.word == "break" and broken[0]:
            raise ValueError
        return ping(1) if event.word == "ask" else None

    harness = harness_of(lambda state, event, ctx: did(state, event, ctx) if isinstance(event, Do) else None)
    harness.emit(Do("a", "ask"))
    harness.emit(Do("a", "break"))
    harness.run_to_idle()
    assert harness.receipt(harness.effects()[0], 5) == Delivery.ACCEPTED
    assert harness.run_to_idle() == 0
    broken[0] = False
    harness.recover(CELL, "a")
    harness.run_to_idle()
    assert harness.cell(CELL, "a").state == State(["ask", "break", "EffectReceipt ok ping"])
