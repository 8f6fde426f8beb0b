"""Effects and requests, transitions, and what a transition is told."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.machines.shop import Charge, Charged, Order, OrderPaid, charge, ping
from workflow_sdk import DefinitionError
from workflow_sdk.machines import MachineContext, Request, Transition, effect, timer
from workflow_sdk.machines.effects import TimerParams

# Effects.


def test_a_request_is_made_of_the_fields_or_of_an_object() -> None:
    assert charge(order_id="o-1", cents=5) == charge(Charge("o-1", 5)) == charge("o-1", 5)
    assert charge("o-1", 5).params == Charge("o-1", 5)
    assert charge("o-1", 5).effect is charge


def test_requests_compare_by_value() -> None:
    assert charge("o-1", 5) != charge("o-1", 6)
    assert charge("o-1", 5) != charge("o-1", 5).tagged("a")
    assert charge("o-1", 5).tagged("a") == charge("o-1", 5).tagged("a")
    assert ping(1) != effect("ping", params=int, receipt=int)(1), "another effect of the same name"


def test_tagging_gives_another_request() -> None:
    request = charge("o-1", 5)
    assert request.tagged("payments").issuer == "payments"
    assert request.issuer is None


@pytest.mark.parametrize("issuer", [None, 5, b"x"])
def test_a_tag_is_a_text(issuer: Any) -> None:
    with pytest.raises(DefinitionError, match="tagged with a text"):
        charge("o-1", 5).tagged(issuer)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: charge(),
        lambda: charge("o-1"),
        lambda: charge(order_id="o-1", cents="5"),
        lambda: charge("o-1", 5, 6),
        lambda: charge(other=1),
        lambda: charge(Charged("c")),
        lambda: ping("x"),
        lambda: effect("nothing")("x"),
        lambda: effect("nothing")("x", "y"),
        lambda: effect("nothing")(a=1),
        lambda: effect("any", params=list[int])([1, "x"]),
    ],
)
def test_parameters_that_do_not_fit_are_refused_where_they_are_given(ask: Any) -> None:
    with pytest.raises(DefinitionError, match="effect"):
        ask()


def test_an_effect_may_have_no_parameters() -> None:
    assert effect("nothing")().params is None
    assert effect("nothing")(None).params is None


def test_parameters_may_be_of_any_type() -> None:
    assert effect("any", params=Any)({"a": 1}).params == {"a": 1}
    assert effect("list", params=list[int])([1, 2]).params == [1, 2]
    assert effect("number", params=int)(5).params == 5


@pytest.mark.parametrize("name", ["", None, 5, "timer"])
def test_names_of_effects_that_are_refused(name: Any) -> None:
    with pytest.raises(DefinitionError):
        effect(name, params=int)


# The timer.


def test_a_timer_is_due_at_a_time_or_after_a_while() -> None:
    assert timer(after=5) == timer(after=5.0) == timer(after=timedelta(seconds=5))
    assert timer(after=5).params.due(100.0) == 105.0
    when = datetime(2030, 1, 1, tzinfo=UTC)
    assert timer(at=when).params == TimerParams(at=when)
    assert timer(at=when).params.due(0) == when.timestamp()
    assert timer(at=when.astimezone(timezone(timedelta(hours=5)))) == timer(at=when)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"at": datetime(2030, 1, 1, tzinfo=UTC), "after": 5},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001  # a naive one is what is refused
        {"at": "tomorrow"},
        {"after": "5"},
        {"after": -1},
        {"after": float("nan")},
        {"after": True},
    ],
)
def test_timers_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        timer(**options)


def test_a_timer_has_no_arguments_by_place() -> None:
    with pytest.raises(DefinitionError, match="asked for as"):
        timer(5)


# Transitions.


def test_transitions_compare_by_value() -> None:
    def made(**changed: Any) -> Transition[Order]:
        given: dict[str, Any] = {"events": [OrderPaid("o-1")], "effects": [charge("o-1", 5)], "annotations": {"a": 1}}
        return Transition(Order("o-1", "new"), **{**given, **changed})

    assert made() == made()
    assert made(events=(OrderPaid("o-1"),)) == made(), "a list is as good as a tuple"
    assert made() not in (made(events=[]), made(effects=[]), made(done=True), made(annotations=None))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"events": OrderPaid("o-1")}, "takes a list"),
        ({"events": "abc"}, "takes a list"),
        ({"effects": charge("o-1", 5)}, "takes a list"),
        ({"effects": [charge]}, "when they are called"),
        ({"effects": [None]}, "when they are called"),
        ({"done": 1}, "True or False"),
    ],
)
def test_transitions_that_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        Transition(Order("o-1", "new"), **options)


def test_a_cell_that_is_done_keeps_a_state() -> None:
    with pytest.raises(DefinitionError, match="keeps a state"):
        Transition(None, done=True)


def test_a_request_can_be_told_from_others() -> None:
    assert isinstance(charge("o-1", 5), Request)
    assert "payment/charge@1" in repr(charge)


# What a transition is told.


def test_a_context_is_the_same_whenever_it_is_made() -> None:
    def drawn(**facts: Any) -> list[Any]:
        given: dict[str, Any] = {"key": "o-1", "machine": "m", "sequence": 3}
        ctx = MachineContext(**{**given, **facts})
        return [ctx.uuid(), ctx.uuid(), ctx.random.random(), ctx.random.randint(0, 10**9)]

    assert drawn() == drawn()
    assert len(set(drawn())) == 4
    for facts in ({"key": "o-2"}, {"machine": "n"}, {"sequence": 4}, {"key": None}):
        assert not set(drawn(**facts)) & set(drawn())


def test_random_numbers_and_uuids_do_not_disturb_each_other() -> None:
    one, other = MachineContext("a"), MachineContext("a")
    one.random.random()
    assert one.uuid() == other.uuid()
    assert one.uuid().version == 4


def test_a_context_tells_what_it_was_made_with() -> None:
    now = datetime(2031, 1, 1, tzinfo=UTC)
    ctx = MachineContext("o-1", now=now, machine="m", version=2, sequence=3, manifest_hash="h")
    assert (ctx.key, ctx.now(), ctx.machine, ctx.version, ctx.sequence, ctx.manifest_hash) == (
        "o-1", now, "m", 2, 3, "h",
    )  # fmt: skip
    assert MachineContext().now() == MachineContext().now()
    assert "o-1" in repr(ctx)


def test_a_context_logs_with_what_it_knows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "workflow_sdk.machines"):
        MachineContext("o-1", machine="m").log.info("hello")
    assert [record.message for record in caplog.records] == ["hello"]
