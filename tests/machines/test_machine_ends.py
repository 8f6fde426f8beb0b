"""The ends of cells, the ids of intents, and timers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest

from tests.machines.shop import (
    Do,
    OrderPaid,
    State,
    harness_of,
    ping,
)
from workflow_sdk import Delivery, InstanceNotFoundError
from workflow_sdk.machines import (
    EffectReceipt,
    Harness,
    MachineContext,
    Transition,
    canonical,
    timer,
)
from workflow_sdk.machines.effects import Origin

CELL = "cell@1"


def gives(found: Any) -> Any:
    return lambda state, event, ctx: found


# The ends of cells.


def ending(end: Literal["done", "deleted"]) -> Harness:
    """A harness whose cells end at the word "end", and ask for an effect at every other."""

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return None
        if event.word != "end":
            return ping(1)
        return Transition(None) if end == "deleted" else Transition(state, done=True)

    return harness_of(did, event=Do | EffectReceipt)


@pytest.mark.parametrize("end", ["done", "deleted"])
def test_what_is_out_when_a_cell_ends_still_runs_and_nobody_hears_of_it(end: Literal["done", "deleted"]) -> None:
    harness = ending(end)
    harness.emit(Do("a", "go"))
    harness.run_to_idle()
    harness.emit(Do("a", "end"))
    harness.run_to_idle()
    [intent] = harness.effects()
    assert harness.receipt(intent, 5) == Delivery.CLOSED
    assert harness.receipt(intent, 5) == Delivery.STALE
    assert harness.effects() == []
    assert harness.run_to_idle() == 0


def test_a_cell_that_is_done_keeps_its_state_and_takes_nothing_more() -> None:
    harness = ending("done")
    for word in ("go", "end", "late"):
        harness.emit(Do("a", word))
    assert harness.run_to_idle() == 2
    cell = harness.cell(CELL, "a")
    assert (cell.state, cell.status, cell.inflight) == (State(["go", "end"]), "completed", {})
    assert (cell.last_sequence, cell.revision) == (2, 2)
    assert harness.emit(Do("a", "later")) == [Delivery.CLOSED]
    assert harness.run_to_idle() == 0
    assert harness.cell(CELL, "a") == cell


def test_a_cell_that_is_deleted_is_not_there_and_may_come_again() -> None:
    harness = ending("deleted")
    harness.emit(Do("a", "go"))
    harness.emit(Do("a", "end"))
    harness.run_to_idle()
    with pytest.raises(InstanceNotFoundError):
        harness.cell(CELL, "a")
    assert harness.cells(CELL) == []
    assert harness.emit(Do("a", "again")) == [Delivery.ACCEPTED]
    harness.run_to_idle()
    cell = harness.cell(CELL, "a")
    assert (cell.state, cell.last_sequence, cell.revision) == (State(["again"]), 3, 1)


def test_events_that_wait_when_a_cell_is_deleted_begin_it_again() -> None:
    harness = ending("deleted")
    for word in ("go", "end", "again"):
        harness.emit(Do("a", word))
    harness.run_to_idle()
    assert harness.cell(CELL, "a").state == State(["again"])


def test_the_receipt_of_a_deleted_cell_does_not_reach_the_one_that_comes_again() -> None:
    harness = ending("deleted")
    harness.emit(Do("a", "go"))
    harness.run_to_idle()
    [before] = harness.effects()
    harness.emit(Do("a", "end"))
    harness.emit(Do("a", "go"))
    harness.run_to_idle()
    assert harness.receipt(before, 5) == Delivery.CLOSED
    harness.run_to_idle()
    assert harness.cell(CELL, "a").state == State(["go"])


def test_a_receipt_that_waits_when_a_cell_is_deleted_is_dropped() -> None:
    harness = ending("deleted")
    harness.emit(Do("a", "go"))
    harness.run_to_idle()
    harness.emit(Do("a", "end"))
    assert harness.receipt(harness.effects()[0], 5) == Delivery.ACCEPTED
    harness.emit(Do("a", "again"))
    harness.run_to_idle()
    assert harness.cell(CELL, "a").state == State(["again"])
    assert [entry.kind for entry in harness.journal(CELL)] == ["event"] * 3


def test_a_machine_that_answers_with_nothing_makes_no_cell() -> None:
    harness = harness_of(gives(Transition(None, [OrderPaid("x")])))
    assert harness.emit(Do("a")) == [Delivery.ACCEPTED]
    assert harness.run_to_idle() == 1
    assert harness.cells(CELL) == []


def test_a_cell_may_send_itself_its_last_event() -> None:
    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        return Transition(state, [Do("a", "more")], done=event.word == "more") if len(state.words) < 5 else None

    harness = harness_of(did)
    harness.emit(Do("a", "go"))
    harness.run_to_idle()
    assert (harness.cell(CELL, "a").state, harness.cell(CELL, "a").status) == (State(["go", "more"]), "completed")


def test_a_cell_that_deletes_itself_and_tells_itself_begins_again() -> None:
    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        return Transition(None, [Do("a", "again")]) if event.word == "go" else None

    harness = harness_of(did)
    harness.emit(Do("a", "go"))
    harness.run_to_idle()
    cell = harness.cell(CELL, "a")
    assert (cell.state, cell.last_sequence, cell.revision) == (State(["again"]), 2, 1)


# Ids of intents.


def test_the_same_parameters_of_two_cells_are_two_intents() -> None:
    harness = harness_of(gives(ping(1)))
    for key in "abc":
        harness.emit(Do(key))
    harness.run_to_idle()
    assert len({intent.id for intent in harness.effects()}) == 3


def test_the_same_parameters_twice_are_two_intents() -> None:
    harness = harness_of(lambda state, event, ctx: Transition(state, effects=[ping(1), ping(1)]))
    harness.emit(Do("a"))
    harness.emit(Do("a"))
    harness.run_to_idle()
    assert len({intent.id for intent in harness.effects()}) == 4


def test_intents_of_other_machines_and_versions_are_others() -> None:
    ids: list[str] = []
    for options in ({"name": "x@1"}, {"name": "y@1"}, {"name": "x@2"}, {"name": "x@1", "key": None}):
        harness = harness_of(gives(ping(1)), **options)
        harness.emit(Do("a"))
        harness.run_to_idle()
        ids += [intent.id for intent in harness.effects()]
    assert len(set(ids)) == 4


def test_the_id_of_an_intent_follows_all_that_it_is_bound_to() -> None:
    origin, params = Origin("m", 1, b"a", 1), canonical.bare(1)
    others = [
        replace(origin, machine="n"),
        replace(origin, version=2),
        replace(origin, key=b"b"),
        replace(origin, key=None),
        replace(origin, sequence=2),
    ]
    ids = [one.intent_id("e", params, 0) for one in (origin, *others)]
    ids += [origin.intent_id("f", params, 0), origin.intent_id("e", b"", 0), origin.intent_id("e", params, 1)]
    assert len(set(ids)) == len(ids)
    assert origin.intent_id("e", params, 0) == Origin("m", 1, b"a", 1).intent_id("e", params, 0) == ids[0]


def test_a_key_that_comes_again_never_repeats_an_intent() -> None:
    harness = ending("deleted")
    ids: list[str] = []
    for _ in range(5):
        harness.emit(Do("a", "go"))
        harness.run_to_idle()
        ids.append(harness.effects()[-1].id)
        harness.emit(Do("a", "end"))
        harness.run_to_idle()
        harness.reopen()
    assert len(set(ids)) == 5


def test_the_same_history_has_the_same_intents() -> None:
    def ids() -> list[str]:
        harness = ending("deleted")
        for word in ("go", "go", "end", "go"):
            harness.emit(Do("a", word))
        harness.run_to_idle()
        return [intent.id for intent in harness.effects()]

    assert ids() == ids()


# Timers.


def test_a_timer_settles_when_it_is_due_and_not_before() -> None:
    harness = harness_of(lambda state, event, ctx: timer(after=60) if isinstance(event, Do) else None)
    harness.emit(Do("a", "go"))
    harness.run_to_idle()
    harness.clock.advance(59.5)
    assert harness.run_to_idle() == 0
    assert [intent.effect for intent in harness.effects()] == ["timer"]
    harness.clock.advance(0.5)
    assert harness.run_to_idle() == 1
    assert harness.cell(CELL, "a").state == State(["go", "EffectReceipt ok timer"])
    assert harness.effects() == []


def test_timers_settle_in_the_order_in_which_they_are_due() -> None:
    seen: list[Any] = []
    waits = {"one": 30, "two": 10, "three": 20}

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, Do):
            return Transition(state, effects=[timer(after=after).tagged(tag) for tag, after in waits.items()])
        seen.append((event.issuer, (ctx.now() - began).total_seconds()))
        return None

    harness = harness_of(did)
    began = harness.clock.now()
    harness.emit(Do("a"))
    harness.run_to_idle()
    harness.clock.advance(timedelta(days=1))
    harness.run_to_idle()
    assert seen == [("two", 10), ("three", 20), ("one", 30)]


def test_a_timer_that_sets_another_one_is_not_late() -> None:
    harness = harness_of(lambda state, event, ctx: timer(after=3600) if len(state.words) < 25 else None)
    harness.emit(Do("a"))
    harness.run_to_idle()
    harness.clock.advance(timedelta(days=1))
    harness.run_to_idle()
    assert len(harness.cell(CELL, "a").state.words) == 25


def test_a_time_that_is_over_is_due_at_once() -> None:
    harness = harness_of(
        lambda state, event, ctx: timer(at=ctx.now() - timedelta(days=1)) if isinstance(event, Do) else None
    )
    harness.emit(Do("a"))
    assert harness.run_to_idle() == 2


def test_a_timer_that_is_due_comes_before_what_is_sent_later() -> None:
    harness = harness_of(lambda state, event, ctx: timer(after=60) if isinstance(event, Do) else None)
    harness.emit(Do("a", "go"))
    harness.run_to_idle()
    harness.clock.advance(100)
    harness.emit(Do("a", "later"))
    harness.run_to_idle()
    assert harness.cell(CELL, "a").state == State(["go", "EffectReceipt ok timer", "later"])


def test_the_timer_of_a_cell_that_has_ended_wakes_nobody() -> None:
    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        return Transition(state, effects=[timer(after=1)], done=True)

    harness = harness_of(did)
    harness.emit(Do("a"))
    harness.run_to_idle()
    harness.clock.advance(1)
    assert harness.run_to_idle() == 0
    assert harness.effects() == []


def test_a_timer_is_accepted_when_it_is_due_however_late_anybody_looks() -> None:
    harness = harness_of(lambda state, event, ctx: timer(after=60) if event.word == "ask" else None, event=Do)
    began = harness.clock.time()
    harness.emit(Do("a", "ask"))
    harness.run_to_idle()
    harness.clock.advance(100)
    harness.emit(Do("a", "later"))
    harness.run_to_idle()
    assert [entry.at - began for entry in harness.journal(CELL)] == [0, 60, 100]


def test_a_timer_for_a_time_that_is_over_is_accepted_when_it_is_asked_for() -> None:
    harness = harness_of(lambda state, event, ctx: timer(at=ctx.now() - timedelta(days=1)), event=Do)
    harness.clock.advance(10)
    harness.emit(Do("a"))
    harness.run_to_idle()
    event, receipt = harness.journal(CELL)
    assert receipt.at == event.at == harness.clock.time()


def test_a_while_begins_when_the_transition_is_taken() -> None:
    harness = harness_of(lambda state, event, ctx: timer(after=60), event=Do)
    harness.emit(Do("a"))
    harness.clock.advance(100)
    harness.emit(Do("b"))
    harness.run_to_idle()
    assert [intent.recorded_at for intent in harness.effects()] == [harness.clock.now()] * 2
    harness.clock.advance(59)
    harness.run_to_idle()
    assert len(harness.effects()) == 2
