"""What cells and the harness refuse, and what is just within the limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.machines.shop import (
    Do,
    Order,
    OrderCreated,
    OrderPaid,
    Say,
    State,
    charge,
    does,
    harness_of,
    ping,
    shop,
)
from workflow_sdk import CodecError, Delivery
from workflow_sdk.machines import (
    EffectReceipt,
    EffectRejected,
    Harness,
    MachineContext,
    Manifest,
    Request,
    Transition,
    effect,
    route,
)

CELL = "cell@1"


class Quits(BaseException):
    """No `Exception`."""


def raises(error: BaseException) -> Any:
    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        raise error

    return did


def gives(found: Any) -> Any:
    return lambda state, event, ctx: found


@dataclass(frozen=True)
class Loose:
    """An event whose fields nobody checks before it is sent."""

    key: Any


other_ping = effect("ping", params=int, receipt=int)
BIG = "x" * (1 << 20)

REFUSED: dict[str, tuple[Any, str]] = {
    "an exception": (raises(ValueError("broken")), "broken"),
    "an exit": (raises(SystemExit(3)), "SystemExit"),
    "a base exception": (raises(Quits("gone")), "gone"),
    "nothing": (gives(5), "not a Transition"),
    "a list": (gives([Transition(State())]), "not a Transition"),
    "a state of another type": (gives(Transition(Order("a", "b"))), "the new state"),
    "a state with a wrong field": (gives(Transition(State([1]))), "the new state"),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    "an event with a wrong field": (gives(Transition(State(), [OrderPaid(5)])), "it emits"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "an event that is a text": (gives(Transition(State(), ["paid"])), "it emits"),
    "an event that is nothing": (gives(Transition(State(), [None])), "it emits"),
    "a forged receipt": (gives(Transition(State(), [EffectReceipt()])), "comes from effects only"),
    "a forged rejection": (gives(Transition(State(), [EffectRejected()])), "comes from effects only"),
    "an event without a fitting key": (gives(Transition(State(), [Loose(5)])), "can't be routed"),
    "an effect that is not declared": (gives(Transition(State(), effects=[effect("other")()])), "has it not"),
    "another effect of the same name": (gives(Transition(State(), effects=[other_ping(1)])), "has it not"),
    "params that do not fit": (gives(Transition(State(), effects=[Request(ping, "x")])), "the parameters of 'ping'"),
    "annotations that are nothing plain": (gives(Transition(State(), annotations=object())), "the annotations"),
    "65 effects": (gives(Transition(State(), effects=[ping(1)] * 65)), "at most 64"),
    "257 events": (gives(Transition(State(), [OrderPaid("a")] * 257)), "at most 256"),
    "a large state": (gives(Transition(State([BIG]))), "1,048,576"),
    "large events": (gives(Transition(State(), [OrderPaid(BIG[: 1 << 19])] * 2)), "1,048,576"),
    "large params": (gives(Transition(State(), effects=[charge(BIG, 1)])), "1,048,576"),
}


def refusing(did: Any) -> Harness:
    """A harness whose cell refuses what it is sent, if it has the word "now"."""

    def sometimes(state: State, event: Any, ctx: MachineContext) -> Any:
        return did(state, event, ctx) if event.word == "now" else ping(len(state.words))

    cell = does(sometimes, event=Do | Loose | EffectReceipt)
    return Harness(cell, routes=[route(Do, cell, "key"), route(Loose, cell, "key")])


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_makes_the_cell_stuck_and_changes_nothing(what: str) -> None:
    did, match = REFUSED[what]
    harness = refusing(did)
    harness.emit(Do("a", "before"))
    harness.run_to_idle()
    before, open_before = harness.cell(CELL, "a"), harness.effects()
    assert harness.emit(Do("a", "now")) == [Delivery.ACCEPTED]
    harness.run_to_idle()
    after = harness.cell(CELL, "a")
    assert after == replace(before, status=after.status)
    assert after.status == "stuck"
    assert match in (harness.problem(CELL, "a") or "")
    assert harness.effects() == open_before
    assert [entry.kind for entry in harness.journal(CELL)] == ["event"]


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_first_makes_a_cell_without_a_state(what: str) -> None:
    harness = refusing(REFUSED[what][0])
    harness.emit(Do("a", "now"))
    harness.run_to_idle()
    cell = harness.cell(CELL, "a")
    assert (cell.state, cell.status, cell.last_sequence, cell.revision) == (None, "stuck", 0, 0)
    assert harness.effects() == []


def test_an_interrupt_of_the_process_is_none_of_the_machine() -> None:
    harness = harness_of(raises(KeyboardInterrupt()))
    harness.emit(Do("a"))
    with pytest.raises(KeyboardInterrupt):
        harness.run_to_idle()


def test_mended_code_takes_the_event_that_was_refused_first() -> None:
    broken = [True]

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        if broken[0]:
            raise ValueError

    harness = harness_of(did)
    harness.emit(Do("a", "1"))
    harness.run_to_idle()
    assert harness.emit(Do("a", "2")) == [Delivery.QUEUED]
    assert harness.run_to_idle() == 0
    harness.recover(CELL, "a")
    harness.run_to_idle()
    assert harness.cell(CELL, "a").status == "stuck"
    broken[0] = False
    assert harness.run_to_idle() == 0, "nobody has said that it is mended"
    harness.recover(CELL, "a")
    assert harness.run_to_idle() == 2
    assert harness.cell(CELL, "a").state == State(["1", "2"])
    assert harness.problem(CELL, "a") is None


def test_a_stuck_cell_keeps_no_other_from_its_turn() -> None:
    harness = harness_of(
        lambda state, event, ctx: raises(ValueError())(state, event, ctx) if event.key == "a" else None
    )
    for word in "123":
        for key in "ab":
            harness.emit(Do(key, word))
    harness.run_to_idle()
    assert harness.cell(CELL, "a").state is None
    assert harness.cell(CELL, "b").state == State(["1", "2", "3"])


def test_a_machine_that_does_not_take_an_event_any_more_is_stuck() -> None:
    took, takes = does(event=Do | Say), does(event=Do)
    harness = Harness(took, routes=[route(Say, took, "key")])
    harness.emit(Say("a"))
    harness.reopen(Manifest([takes]))
    harness.run_to_idle()
    assert harness.cell(CELL, "a").status == "stuck"
    assert "no arm" in (harness.problem(CELL, "a") or "")


# Limits: just as much is taken.


@pytest.mark.parametrize(
    "found",
    [
        Transition(State(), effects=[ping(1)] * 64),
        Transition(State(), [OrderPaid("a")] * 256),
        Transition(State([BIG[:-20]])),
        Transition(State(), [OrderPaid(BIG[: 1 << 18])] * 3, effects=[charge(BIG[: 1 << 17], 1)]),
    ],
)
def test_what_is_just_within_the_limits_is_taken(found: Transition[State]) -> None:
    harness = harness_of(gives(found))
    harness.emit(Do("a"))
    harness.run_to_idle()
    assert harness.problem(CELL, "a") is None
    assert len(harness.effects()) == len(found.effects)


def test_the_limit_of_bytes_is_exact() -> None:
    def size_of(length: int) -> str | None:
        harness = harness_of(gives(Transition(State(["x" * length]))))
        harness.emit(Do("a"))
        harness.run_to_idle()
        return harness.problem(CELL, "a")

    overhead = len(b"\xa1\x65words\x81\x7a\x00\x00\x00\x00")
    assert size_of((1 << 20) - overhead) is None
    assert "1,048,577 bytes" in (size_of((1 << 20) - overhead + 1) or "")


# What comes from outside.


WRONG: list[Any] = [
    OrderCreated("o", "5"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    OrderCreated(5, 5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    EffectReceipt(),
    EffectRejected(),
    "x",
    None,
    {},
]


@pytest.mark.parametrize("event", WRONG)
def test_events_that_do_not_fit_are_refused_where_they_are_sent(event: Any) -> None:
    harness = Harness(shop)
    with pytest.raises(CodecError):
        harness.emit(event)
    assert harness.cells("acme/order@1") == []
    assert harness.run_to_idle() == 0


def test_an_event_that_does_not_fit_one_of_its_targets_reaches_none() -> None:
    one, other = does(name="a@1", event=Loose, key=str), does(name="b@1", event=Loose, key=int)
    harness = Harness(one, other, routes=[route(Loose, one, "key"), route(Loose, other, "key")])
    with pytest.raises(CodecError):
        harness.emit(Loose("text"))
    assert harness.run_to_idle() == 0


def test_nobody_hears_an_event_without_a_route() -> None:
    assert Harness(shop).emit(Do("a")) == []


def test_an_event_reaches_every_cell_that_it_is_routed_to() -> None:
    one, other = does(name="a@1"), does(name="b@1", key=None)
    harness = Harness(one, other, routes=[route(Do, one, "key"), route(Do, one, "word"), route(Do, other)])
    assert harness.emit(Do("k", "w")) == [Delivery.ACCEPTED] * 3
    harness.run_to_idle()
    assert [cell.key for cell in harness.cells(one)] == ["k", "w"]
    assert harness.cell(other).state == State(["w"])


def test_an_id_counts_once() -> None:
    harness = harness_of()
    assert harness.emit(Do("a", "1"), id="x") == [Delivery.ACCEPTED]
    assert harness.emit(Do("a", "2"), id="x") == [Delivery.DUPLICATE]
    harness.run_to_idle()
    harness.reopen()
    assert harness.emit(Do("b", "3"), id="x") == [Delivery.DUPLICATE]
    assert harness.emit(Do("a", "4"), id="y") == [Delivery.ACCEPTED]
    harness.run_to_idle()
    assert [cell.state for cell in harness.cells(CELL)] == [State(["1", "4"])]


def test_an_event_that_was_refused_has_not_used_its_id() -> None:
    harness = Harness(shop)
    with pytest.raises(CodecError):
        harness.emit(OrderCreated("o", "5"), id="x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert harness.emit(OrderCreated("o", 5), id="x") == [Delivery.ACCEPTED]
