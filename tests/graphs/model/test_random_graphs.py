"""Whatever the graph and whatever happens in it: the interpreter does what the plain model says, after every event."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from tests.graphs.model.graphs import batches, graphs
from tests.graphs.model.shape import ROOT, Shape
from tests.graphs.model.trial import Trial
from tests.graphs.model.world import End, Given, Patch, Submit
from tests.laws.examples import examples
from workflow_sdk.graphs.plan import Plan

EVENTS_MAX = 25


@settings(examples(1_500), phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False)
@given(st.data())
def test_the_interpreter_does_what_the_model_says_after_every_event(data: st.DataObject) -> None:
    trial = Trial(data.draw(graphs()))
    try:
        while len(trial.events) < EVENTS_MAX * 2 and _something_happens(trial, data.draw):
            if data.draw(st.integers(0, 3)) == 0:
                trial.machine.read_again()
    except AssertionError:
        note(trial.story())
        raise


def _something_happens(trial: Trial, draw: Any) -> bool:
    """Draw the next event; False if there is none."""
    running = [one.number for one in trial.world.firings if one.status == "running"]
    is_late = len(trial.events) > EVENTS_MAX
    if not running and not trial.machine.marking.blocked:
        return False
    kinds = ["end"] * 8 * bool(running) + ["patch"] + ["submit"] * (not is_late)
    match draw(st.sampled_from(kinds)):
        case "end":
            ok = draw(st.integers(0, 4)) > 0 or is_late
            follows = frozenset() if is_late else draw(st.frozensets(st.integers(0, 2)))
            level = draw(st.sampled_from([None, None, None, 0, 1, 2, 3]))
            unanswered = draw(st.integers(0, 19)) == 0
            trial.happens(End(draw(st.sampled_from(running)), ok, follows, level, unanswered))
        case "patch":
            trial.happens(Patch(3 if is_late else draw(st.integers(0, 3))))
        case _:
            limits = trial.given.limits
            is_ordered = limits.running is not None or limits.starts is not None
            nodes = draw(batches(list(trial.world.nodes.values()), len(trial.world.nodes), is_ordered=is_ordered))
            trial.happens(Submit(nodes, draw(st.sampled_from([None, *running]))))
    return True


@settings(examples(500))
@given(graphs())
def test_the_forks_around_a_step_are_those_that_the_model_finds(given: Given) -> None:
    plan = Plan(given.nodes, entry=given.entry, final=given.final)
    first = [*plan.roots, *([plan.final] if plan.final is not None else [])]
    shape = Shape(given.nodes, first)
    for name, around in shape.around.items():
        assert set(plan.forks_around(name)) == around
        assert (plan.join_fork(name) or ROOT) == shape.fork_of(name)
