"""What a run of a graph has come to, from where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from workflow_sdk.graphs.model import GraphResult, Node, Outcome
from workflow_sdk.graphs.moves import Moves
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.rows import StepState


def result_of(moves: Moves, why_not: Callable[[Node], str]) -> GraphResult:
    """What a run has come to, as it stands. `why_not` tells why a join has not fired."""
    decode, steps = moves.codec.decode, moves.marking.steps
    outcomes = {name: outcome_of(node, steps.get(name), why_not) for name, node in moves.plan.nodes.items()}
    outputs = {
        name: decode(output, plain=True)
        for name, outcome in outcomes.items()
        if outcome.status == "completed" and (output := steps[name].output) is not None
    }
    blocked = [name for name, state in steps.items() if state.is_blocked]
    return GraphResult(_status(moves.plan, steps.values(), outcomes), outcomes, outputs, blocked)


def summary_of(final: str | None, found: GraphResult, instance_id: str) -> dict[str, Any]:
    """What the final step is given."""
    counts: dict[str, int] = {}
    for name, outcome in found.outcomes.items():
        if name != final:
            counts[outcome.status] = counts.get(outcome.status, 0) + 1
    failures = {name: outcome.reason for name, outcome in found.outcomes.items() if outcome.status == "failed"}
    return {"instance_id": instance_id, "counts": counts, "outputs": found.outputs, "failures": failures}


def outcome_of(node: Node, state: StepState | None, why_not: Callable[[Node], str] = lambda _: "") -> Outcome:
    """What a step has come to. `why_not` tells why a join has not fired."""
    if state is not None and state.status:
        return Outcome(state.status, state.reason, state.firings)  # type: ignore[arg-type]
    if node.needs:
        return Outcome("skipped", why_not(node))
    return Outcome("never_reached", "no token came to it")


def _status(
    plan: Plan, states: Iterable[StepState], outcomes: Mapping[str, Outcome]
) -> Literal["succeeded", "failed", "partial"]:
    known = list(states)
    has_final_failed = plan.final is not None and outcomes[plan.final].status == "failed"
    if has_final_failed and plan.final_failure == "fail":
        return "failed"
    if any(state.counts for state in known):
        has_any = any(one.status == "completed" for one in outcomes.values())
        return "partial" if plan.status == "lenient" and has_any else "failed"
    return "partial" if has_final_failed or any(state.is_blocked for state in known) else "succeeded"
