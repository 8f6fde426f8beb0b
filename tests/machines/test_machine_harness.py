"""The harness itself: what it gives, its clock, awaiting, reopening, and its mistakes."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import workflow_sdk.machines
import workflow_sdk.testing
from tests.machines.shop import (
    Charge,
    Charged,
    Do,
    Notes,
    Order,
    OrderCreated,
    OrderPaid,
    Say,
    State,
    charge,
    does,
    harness_of,
    notes,
    order,
    ping,
    shop,
)
from workflow_sdk import CodecError, DefinitionError, Delivery, InstanceNotFoundError, InstanceStateError
from workflow_sdk.machines import (
    Cell,
    CellStatus,
    EffectReceipt,
    Harness,
    Intent,
    MachineContext,
    Manifest,
    Transition,
    route,
    timer,
)
from workflow_sdk.machines.index import Snapshot

CELL = "cell@1"


def test_an_order_from_its_beginning_to_its_end() -> None:
    with Harness(shop) as harness:
        assert harness.emit(OrderCreated("o-1", 500)) == [Delivery.ACCEPTED]
        assert harness.run_to_idle() == 1
        [intent] = harness.effects()
        assert (intent.effect, intent.params) == ("payment/charge@1", Charge("o-1", 500))
        assert harness.cell(order, "o-1") == Cell(
            "o-1", Order("o-1", "charging"), CellStatus.WAITING, {intent.id: intent}, 1, 1
        )
        harness.receipt(intent, Charged("c-1"))
        harness.run_to_idle()
        assert harness.cell(order, "o-1") == Cell("o-1", Order("o-1", "paid", "c-1"), CellStatus.COMPLETED, {}, 2, 2)
        assert harness.cell(notes).state == Notes(["o-1"])


async def test_every_call_can_be_awaited() -> None:
    async with Harness(shop) as harness:
        deliveries = await harness.emit(OrderCreated("o-1", 500))
        assert (type(deliveries), deliveries) == (list, [Delivery.ACCEPTED])
        taken = await harness.run_to_idle()
        assert (type(taken), taken) == (int, 1)
        found = await harness.effects()
        assert (type(found), len(found)) == (list, 1)
        cell = await harness.cell(order, "o-1")
        assert type(cell) is Cell
        assert cell == harness.cell(order, "o-1")
        assert await harness.cells(order) == [cell]
        assert await harness.receipt(found[0], Charged("c")) is Delivery.ACCEPTED
        assert await harness.receipt(found[0], Charged("c")) is Delivery.STALE
        await harness.run_to_idle()
        await harness.clock.advance(1)
        assert await harness.reopen() is harness
        snapshot = await harness.snapshot(order)
        assert type(snapshot) is Snapshot
        assert snapshot == harness.snapshot(order)
        assert (await harness.verify_replay(snapshot)).is_equal
        assert len(await harness.journal(order)) == 2
        assert await Harness(shop) is not harness


async def test_a_stuck_cell_is_recovered_by_a_call_that_can_be_awaited() -> None:
    broken = [True]

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        if broken[0]:
            raise ValueError

    harness = harness_of(did)
    harness.emit(Do("a"))
    harness.run_to_idle()
    broken[0] = False
    await harness.recover(CELL, "a")
    assert await harness.run_to_idle() == 1


def test_what_calls_give_is_shown_as_what_it_is() -> None:
    harness = Harness(shop)
    harness.emit(OrderCreated("o-1", 5))
    harness.run_to_idle()
    assert repr(harness.cell(order, "o-1")).startswith("Cell(key='o-1', ")
    assert repr(harness.receipt("nothing")) == repr(Delivery.STALE)
    assert repr(harness.snapshot(notes)).startswith("Snapshot(machine='acme/notes@1', ")
    assert harness.receipt("nothing") != Delivery.CLOSED
    assert len({harness.receipt("nothing"), Delivery.STALE}) == 1
    assert len({harness.snapshot(notes), harness.snapshot(notes)}) == 1


def test_cells_and_intents_do_not_change() -> None:
    harness = Harness(shop)
    harness.emit(OrderCreated("o-1", 5))
    harness.run_to_idle()
    cell = harness.cell(order, "o-1")
    harness.receipt(harness.effects()[0], Charged("c"))
    harness.run_to_idle()
    assert cell.state == Order("o-1", "charging")
    with pytest.raises(FrozenInstanceError):
        cell.state = None  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_machine_can_be_named() -> None:
    harness = Harness(shop)
    harness.emit(OrderCreated("o-1", 5))
    harness.run_to_idle()
    assert harness.cell("acme/order@1", "o-1") == harness.cell(order, "o-1")
    assert harness.effects(order) == harness.effects() != []
    assert harness.effects(notes) == []


def test_cells_are_in_the_order_in_which_they_came() -> None:
    harness = harness_of()
    for key in "bac":
        harness.emit(Do(key))
    harness.run_to_idle()
    assert [cell.key for cell in harness.cells(CELL)] == ["b", "a", "c"]


def test_a_cell_is_there_as_soon_as_something_has_come_for_it() -> None:
    harness = harness_of()
    harness.emit(Do("a"))
    assert harness.cell(CELL, "a") == Cell("a", None, CellStatus.WAITING, {}, 0, 0)
    with pytest.raises(InstanceNotFoundError, match="'b' of machine 'cell@1'"):
        harness.cell(CELL, "b")


# The ways to make one.


def test_a_harness_of_machines_and_routes() -> None:
    harness = Harness(order, notes, routes=shop.routes)
    harness.emit(OrderCreated("o-1", 5))
    assert harness.run_to_idle() == 1


def test_without_routes_the_cells_of_machines_without_keys_are_reached() -> None:
    single, keyed = does(name="single@1", key=None), does(name="keyed@1")
    harness = Harness(single, keyed)
    assert harness.emit(Do("a")) == harness.emit(Say("a")) == [Delivery.ACCEPTED]


@pytest.mark.parametrize("given", [(), (shop, shop), (shop, order), ("x",), (order, "x")])
def test_what_a_harness_is_not_made_of(given: tuple[Any, ...]) -> None:
    with pytest.raises(DefinitionError, match="one manifest, or machines"):
        Harness(*given)


def test_a_manifest_has_its_routes() -> None:
    with pytest.raises(DefinitionError, match="one manifest, or machines"):
        Harness(shop, routes=[])


def test_it_is_where_authors_look_for_it() -> None:
    assert workflow_sdk.testing.Harness is workflow_sdk.machines.Harness is Harness


# The clock.


def test_the_clock_stands_still_until_it_is_moved() -> None:
    harness = harness_of(lambda state, event, ctx: timer(after=5) if isinstance(event, Do) else None)
    began = harness.clock.now()
    assert began.tzinfo is UTC
    harness.emit(Do("a"))
    harness.run_to_idle()
    assert harness.clock.now() == began
    harness.clock.advance(1.5)
    harness.clock.advance(timedelta(minutes=1))
    assert harness.clock.now() == began + timedelta(seconds=61.5)


def test_a_transition_is_told_when_its_event_was_accepted() -> None:
    seen: list[datetime] = []

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        seen.append(ctx.now())

    harness = harness_of(did)
    times: list[datetime] = []
    for _ in range(3):
        harness.emit(Do("a"))
        times.append(harness.clock.now())
        harness.clock.advance(10)
    harness.run_to_idle()
    assert seen == times


@pytest.mark.parametrize("duration", [-1, "1", None, float("nan")])
def test_the_clock_goes_on_and_not_back(duration: Any) -> None:
    with pytest.raises(DefinitionError):
        Harness(shop).clock.advance(duration)


# Mistakes.


def test_machines_that_send_each_other_events_for_ever_are_told() -> None:
    harness = harness_of(lambda state, event, ctx: Transition(State(), [Do("b" if event.key == "a" else "a")]))
    harness.emit(Do("a"))
    with pytest.raises(DefinitionError, match="for ever"):
        harness.run_to_idle(limit=100)


def test_the_limit_is_exact() -> None:
    harness = harness_of()
    for _ in range(5):
        harness.emit(Do("a"))
    assert harness.run_to_idle(limit=5) == 5


def test_calls_that_are_refused() -> None:
    harness = Harness(shop)
    with pytest.raises(DefinitionError, match="no machine 'other'"):
        harness.cell("other")
    with pytest.raises(DefinitionError, match="the key"):
        harness.cell(order, 5)
    with pytest.raises(DefinitionError, match="one cell, without a key"):
        harness.cell(notes, "x")
    with pytest.raises(DefinitionError, match="say of which machine"):
        harness.snapshot()
    with pytest.raises(DefinitionError, match="status of a receipt"):
        harness.receipt("x", status="fine")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(CodecError):
        harness.receipt("x", object())
    with pytest.raises(InstanceStateError, match="not stuck"):
        harness.recover(order, "o-1")


def test_an_answer_that_can_not_be_stored_leaves_its_effect_open() -> None:
    harness = harness_of(lambda state, event, ctx: ping(1))
    harness.emit(Do("a"))
    harness.run_to_idle()
    [intent] = harness.effects()
    deep: Any = 0
    for _ in range(300):
        deep = [deep]
    with pytest.raises(CodecError):
        harness.receipt(intent, deep)
    assert harness.effects() == [intent]
    assert harness.receipt(intent, 5) == Delivery.ACCEPTED


async def test_only_an_executor_can_send_values_from_an_intent() -> None:
    harness = harness_of(lambda state, event, ctx: ping(1))
    harness.emit(Do("a"))
    harness.run_to_idle()
    [intent] = harness.effects()
    with pytest.raises(DefinitionError, match="executor"):
        await intent.send(5)
    sent: list[Any] = []

    async def sending(value: Any) -> None:
        sent.append(value)

    ours = replace(intent, sending=sending)
    await ours.send(5)
    assert sent == [5]
    assert ours == intent, "what it calls makes no other intent of it"


def test_an_intent_is_what_an_executor_needs() -> None:
    harness = harness_of(lambda state, event, ctx: ping(7).tagged("t"))
    harness.emit(Do("a"))
    harness.run_to_idle()
    [intent] = harness.effects()
    assert intent == Intent(intent.id, "ping", 7, CELL, "a", "t", 1, recorded_at=harness.clock.now())
    assert intent.attempt == 1


# Reopening.


def test_reopening_changes_nothing_that_can_be_seen() -> None:
    harness = harness_of(lambda state, event, ctx: [ping(1), timer(after=5), None][len(state.words) % 3])
    for key in "abcabca":
        harness.emit(Do(key, key))
    harness.run_to_idle()
    harness.emit(Do("a"))
    harness.receipt(harness.effects()[0], 5)

    def seen() -> list[Any]:
        return [harness.cells(CELL), harness.effects(), harness.journal(CELL), harness.clock.now()]

    before = seen()
    harness.reopen()
    assert seen() == before
    assert harness.run_to_idle() == 2


def test_mended_code_goes_on_after_it_is_opened_again() -> None:
    def broken(state: State, event: Any, ctx: MachineContext) -> Any:
        raise ValueError

    def manifest(did: Any) -> Manifest:
        made = does(did)
        return Manifest([made], [route(Do, made, "key")])

    harness = Harness(manifest(broken))
    harness.emit(Do("a", "1"))
    harness.run_to_idle()
    harness.reopen()
    assert harness.run_to_idle() == 0
    assert harness.problem(CELL, "a")
    harness.reopen(manifest(None))
    harness.run_to_idle()
    assert harness.cell(CELL, "a").state == State(["1"])
    harness.reopen()
    assert harness.cell(CELL, "a").status == "waiting"


def test_what_there_are_cells_of_has_to_be_there_still() -> None:
    harness = Harness(shop)
    harness.emit(OrderCreated("o-1", 5))
    with pytest.raises(DefinitionError, match="not in the manifest"):
        harness.reopen(Manifest([notes]))


def test_an_effect_that_is_not_declared_any_more_fails_what_waits_for_it() -> None:
    took, takes = (
        does(lambda state, event, ctx: ping(1), event=Do | EffectReceipt),
        does(event=Do | EffectReceipt, effects=[charge]),
    )
    harness = Harness(took, routes=[route(Do, took, "key")])
    harness.emit(Do("a"))
    harness.run_to_idle()
    harness.reopen(Manifest([takes]))
    [intent] = harness.effects()
    assert intent.params == 1
    harness.receipt(intent, 5)
    harness.run_to_idle()
    assert harness.cell(CELL, "a").status == "failed"
    assert "no effect 'ping' any more" in (harness.problem(CELL, "a") or "")


def test_the_journal_has_what_was_taken() -> None:
    harness = Harness(shop)
    harness.emit(OrderCreated("o-1", 5))
    harness.run_to_idle()
    [intent] = harness.effects()
    harness.clock.advance(5)
    harness.receipt(intent, Charged("c"))
    harness.emit(OrderPaid("other"))
    harness.run_to_idle()
    first, second = harness.journal(order)
    assert (first.kind, first.schema, first.intent_id, first.sequence) == ("event", "acme/OrderCreated@1", None, 0)
    assert (second.kind, second.schema, second.intent_id, second.sequence) == (
        "receipt", "sys/EffectReceipt@1", intent.id, 1,
    )  # fmt: skip
    assert second.at - first.at == 5
    assert [entry.kind for entry in harness.journal(notes)] == ["event"] * 2
