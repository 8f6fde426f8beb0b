"""Graphs of a few steps in which something is easily got wrong: what happens is told, and the model says the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs.model.graphs import guard
from tests.graphs.model.trial import Trial
from tests.graphs.model.world import End, Given, Patch, Submit
from workflow_sdk.graphs import arc, node, quorum
from workflow_sdk.graphs.model import Limits, Node


def fork(name: str, *arcs: Any, **options: Any) -> Node:
    """A step that gives a token to every arc that matches."""
    return node(name, next=arcs, mode="inclusive", **options)


def asking(name: str, level: int, **options: Any) -> Node:
    """A step that is admitted if the context says so."""
    return node(name, admit=f"ctx.level >= {level}", details={"level": level}, **options)


def trial(*nodes: Node, **settings: Any) -> Trial:
    """A run of these steps, which has begun."""
    return Trial(Given(nodes, **settings))


def done(run: Trial, step: str, *follows: int, **more: Any) -> None:
    """The first firing of a step that is under way is done."""
    _end(run, step, follows, ok=True, **more)


def failed(run: Trial, step: str, *follows: int) -> None:
    """The first firing of a step that is under way has failed."""
    _end(run, step, follows, ok=False)


def _end(run: Trial, step: str, follows: tuple[int, ...], **more: Any) -> None:
    number = next(one.number for one in run.world.firings if one.step == step and one.status == "running")
    run.happens(End(number, follows=frozenset(follows), **more))
    run.machine.read_again()


def under_way(run: Trial) -> list[str]:
    """The steps that run, by name."""
    return sorted(one.step for one in run.machine.marking.firings.values())


def status(run: Trial, step: str) -> str:
    """What a step has come to."""
    return run.machine.interpreter.result().outcomes[step].status


# Joins.


def test_a_join_waits_for_a_join_inside_another_fork() -> None:
    run = trial(
        fork("f", "g", "z"),
        fork("g", "x", "y"),
        node("x"),
        node("y"),
        node("z"),
        node("inner", needs=["x", "y"]),
        node("outer", needs=["inner", "z"]),
    )
    for step in ("f", "g", "x", "z", "y", "inner"):
        done(run, step)
    assert under_way(run) == ["outer"]


def test_a_join_over_a_second_pass_takes_nothing_of_the_first() -> None:
    run = trial(fork("f", arc("a"), arc("b", when=guard(1))), node("a"), node("b"), node("j", needs=["a", "b"]))
    done(run, "f")
    done(run, "a")
    assert status(run, "j") == "skipped"

    run = trial(
        fork("f", arc("a", when=guard(0)), arc("b", when=guard(1))),
        node("a", next="f"),
        node("b"),
        node("j", needs=["a", "b"]),
    )
    done(run, "f", 0)
    done(run, "a")
    done(run, "f", 1)
    done(run, "b")
    assert (status(run, "a"), status(run, "b"), status(run, "j")) == ("completed", "completed", "skipped")


def test_a_join_fires_again_in_the_next_pass_of_its_fork() -> None:
    run = trial(fork("f", "a", "b"), node("a"), node("b"), node("j", needs=["a", "b"], next=[arc("f")]))
    for step in ("f", "a", "b", "j", "f", "b", "a"):
        done(run, step)
    assert under_way(run) == ["j"]
    assert run.machine.interpreter.result().outcomes["a"].firings == 2


def test_what_goes_back_to_a_fork_is_not_awaited_in_the_pass_before() -> None:
    run = trial(
        fork("f", "a", "b"),
        node("a", next=[arc("f", when=guard(0))]),
        node("b"),
        node("j", needs=["a", "b"], join="alive"),
    )
    done(run, "f")
    failed(run, "b")
    done(run, "a", 0)
    # The token at f opens another instance: b can't be done in the first one any more.
    assert under_way(run) == ["f", "j"]


def test_a_join_of_what_is_alive_is_skipped_if_none_is_done() -> None:
    run = trial(fork("f", "a", "b"), node("a"), node("b"), node("j", needs=["a", "b"], join="alive"))
    done(run, "f")
    failed(run, "a")
    failed(run, "b")
    assert status(run, "j") == "skipped"


def test_what_is_under_way_and_leads_to_no_need_is_not_awaited() -> None:
    run = trial(fork("f", "a", "a", "b"), node("a"), node("b"), node("j", needs=["a", "b"], join="alive", next="a"))
    done(run, "f")
    failed(run, "b")
    done(run, "a")
    assert under_way(run) == ["a", "j"]


def test_joins_that_wait_for_each_other_and_nothing_else_go_on() -> None:
    run = trial(
        fork("f", arc("a"), arc("b")),
        node("a"),
        node("b"),
        node("first", needs=["a", "y"], join="alive", next="x"),
        node("second", needs=["b", "x"], join="alive", next="y"),
        node("x"),
        node("y"),
    )
    done(run, "f")
    done(run, "a")
    done(run, "b")
    for step in ("first", "x", "second", "y"):
        done(run, step)
    assert run.machine.interpreter.result().status == "succeeded"


def test_a_join_still_waits_for_a_step_that_is_not_yet_admitted() -> None:
    run = trial(fork("f", "a", "b"), node("a"), asking("b", 1), node("j", needs=["a", "b"]))
    done(run, "f")
    done(run, "a")
    assert run.machine.marking.blocked
    run.happens(Patch(1))
    done(run, "b")
    assert under_way(run) == ["j"]


def test_a_join_is_skipped_when_what_it_needs_is_discarded() -> None:
    run = trial(fork("f", "a", "b"), node("a"), asking("b", 1, on_deny="discard"), node("j", needs=["a", "b"]))
    done(run, "f")
    assert status(run, "b") == "denied"
    done(run, "a")
    assert (status(run, "j"), run.machine.interpreter.result().status) == ("skipped", "succeeded")


def test_a_step_that_needs_the_same_as_a_need_of_a_join_is_counted_by_it() -> None:
    # Whichever step is asked first, it is known of c that it fires once at most.
    run = trial(node("a"), node("b", needs=["a"]), node("c", needs=["a", "b"]), node("d", needs=["c"]))
    failed(run, "a")
    assert [status(run, name) for name in "bcd"] == ["skipped"] * 3
    assert run.machine.interpreter.plan.is_dag("c")


def test_a_quorum_in_a_cycle_cancels_only_what_is_of_its_own_pass() -> None:
    run = trial(
        fork("f", "a", "b"),
        node("a"),
        node("b"),
        node("j", needs=["a", "b"], join=quorum(1), next=[arc("f", when=guard(0))]),
    )
    done(run, "f")
    done(run, "a")
    assert (under_way(run), status(run, "b")) == (["j"], "cancelled")
    done(run, "j", 0)
    done(run, "f")
    assert under_way(run) == ["a", "b"]
    done(run, "b")
    assert (under_way(run), status(run, "a")) == (["j"], "cancelled")


def test_a_quorum_leaves_alone_what_serves_something_else_as_well() -> None:
    run = trial(
        fork("f", "a", "b", "c"),
        node("a"),
        node("b", next="tell"),
        node("c"),
        node("tell"),
        node("j", needs=["a", "b", "c"], join=quorum(1)),
    )
    done(run, "f")
    done(run, "a")
    assert (under_way(run), status(run, "c")) == (["b", "j"], "cancelled")


@pytest.mark.law(21)
def test_nothing_is_kept_of_a_fork_whose_last_token_was_cancelled() -> None:
    run = trial(
        fork("f", "g", "z"),
        fork("g", "x", "y"),
        node("x"),
        node("y"),
        node("z"),
        node("inner", needs=["x", "y"], join="alive"),
        node("outer", needs=["inner", "z"], join=quorum(1)),
    )
    for step in ("f", "g", "x", "z"):
        done(run, step)
    assert under_way(run) == ["outer"]
    forks = {fork for _, fork in run.machine.marking.joins}
    assert forks == {number for _, number in run.world.firings[-1].stack}


# Failures and denials.


def test_a_failure_that_no_arc_has_handled_counts_whatever_comes_later() -> None:
    run = trial(fork("f", "a", "a"), node("a"))
    done(run, "f")
    failed(run, "a")
    done(run, "a")
    assert (status(run, "a"), run.machine.interpreter.result().status) == ("completed", "failed")


def test_the_last_firing_counts_and_not_a_token_that_was_dropped_since() -> None:
    run = trial(fork("f", "a", "b"), asking("a", 1, on_deny="discard"), node("b", next="a"), level=1)
    done(run, "f")
    done(run, "a", level=0)
    done(run, "b")
    assert run.machine.interpreter.result().outputs["a"] == ""
    assert status(run, "a") == "completed"


@pytest.mark.law(7)
def test_no_join_fires_because_the_graph_has_failed_at_once() -> None:
    for arcs in ([], [arc("b")]):
        run = trial(
            node("a", next=arcs),
            node("b"),
            node("c"),
            node("j", needs=["b", "c"], join="alive"),
            node("final"),
            status="fail_fast",
            final="final",
        )
        done(run, "a")
        if arcs:
            failed(run, "b")
        else:
            done(run, "b")
            failed(run, "c")
        assert under_way(run) == ["final"]
        done(run, "final")
        assert (status(run, "j"), run.machine.interpreter.result().status) == ("skipped", "failed")


@pytest.mark.law(15)
def test_with_no_slot_at_all_every_step_is_denied() -> None:
    run = trial(node("a"), node("b", needs=["a"]), limits=Limits(running=0))
    assert (status(run, "a"), status(run, "b")) == ("denied", "skipped")
    assert run.machine.interpreter.result().status == "failed"


def test_a_limit_of_starts_ends_a_cycle() -> None:
    run = trial(node("a", next="a"), limits=Limits(starts=3))
    for _ in range(3):
        done(run, "a")
    assert (under_way(run), status(run, "a")) == ([], "denied")


def test_a_join_that_fires_when_a_denied_step_is_given_up_goes_on() -> None:
    run = trial(node("a"), asking("b", 1), node("j", needs=["a", "b"], join="alive"), when_blocked="complete")
    done(run, "a")
    assert under_way(run) == ["j"]
    done(run, "j")
    assert run.machine.interpreter.result().status == "partial"


def test_what_was_denied_has_its_turn_after_what_is_ready_also_when_it_is_read_again() -> None:
    run = trial(
        fork("f", "a", "b", "c", "d"),
        asking("a", 1),
        node("b"),
        node("c"),
        node("d"),
        limits=Limits(running=1),
    )
    done(run, "f")
    assert under_way(run) == ["b"]
    run.happens(Patch(1))
    run.machine.read_again()
    for step in ("b", "c", "d", "a"):
        assert under_way(run) == [step]
        done(run, step)


# Going on with what is stored.


@pytest.mark.law(13)
def test_no_two_firings_of_a_step_have_the_same_number_though_a_later_one_ended_first() -> None:
    run = trial(fork("f", "a", "a"), node("a", next=[arc("a", when=guard(0))]))
    done(run, "f")
    second = max(one.number for one in run.world.firings)
    run.happens(End(second))
    run.machine.read_again()
    done(run, "a", 0)
    assert [one.count for one in run.machine.marking.firings.values()] == [2]


# Growing.


def test_steps_that_need_what_is_done_failed_running_and_pending() -> None:
    run = trial(node("over"), node("wrong"), node("busy"), asking("later", 1))
    done(run, "over")
    failed(run, "wrong")
    names = {"over": "a", "wrong": "b", "busy": "c", "later": "d"}
    run.happens(Submit(tuple(node(name, needs=[need]) for need, name in names.items())))
    assert under_way(run) == ["a", "busy"]
    assert status(run, "b") == "skipped"
    done(run, "busy")
    run.happens(Patch(1))
    done(run, "later")
    assert under_way(run) == ["a", "c", "d"]


def test_a_step_that_is_skipped_as_it_is_submitted_is_counted_once() -> None:
    run = trial(node("wrong"), node("busy"))
    failed(run, "wrong")
    run.happens(Submit((node("b", needs=["wrong"]), node("c", needs=["b", "busy"], join=quorum(1)))))
    done(run, "busy")
    assert under_way(run) == ["c"]


def test_a_step_that_was_submitted_waits_in_the_whole_run() -> None:
    run = trial(fork("f", "a", "b"), node("a"), node("b"))
    done(run, "f")
    done(run, "a")
    run.happens(Submit((node("j", needs=["a", "b"]),)))
    done(run, "b")
    assert under_way(run) == ["j"]


def test_a_submitted_arc_makes_what_was_certain_possible_again() -> None:
    run = trial(node("a"), node("b"), node("j", needs=["a", "b"]))
    done(run, "a")
    run.happens(Submit((node("again", next="a"),)))
    done(run, "again")
    done(run, "b")
    assert under_way(run) == ["a", "j"]
    done(run, "a")
    done(run, "j")
    assert run.machine.interpreter.result().status == "succeeded"


def test_joins_are_given_up_in_the_same_order_and_words_when_the_marking_was_read_again() -> None:
    run = trial(node("a"), node("b"), node("e"), node("d", needs=["a", "b"]), status="fail_fast")
    done(run, "e")
    # Counted before d is: the order in which they began to wait is not stored.
    run.happens(Submit((node("s", needs=["d", "e"]),)))
    done(run, "a")
    failed(run, "b")
    assert [status(run, name) for name in "ds"] == ["skipped"] * 2
