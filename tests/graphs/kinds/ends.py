"""What tests of kinds look at."""

from __future__ import annotations

from typing import Any

from workflow_sdk import Context, RunResult, Status
from workflow_sdk.graphs import GraphResult


def end_of(run: RunResult[GraphResult]) -> GraphResult:
    """What a run of a graph has come to, which has completed."""
    assert run.status is Status.COMPLETED, run.error
    assert run.output is not None
    return run.output


def statuses(result: GraphResult) -> dict[str, str]:
    """How each step ended."""
    return {name: outcome.status for name, outcome in result.outcomes.items()}


async def seen(ctx: Context, args: Any) -> dict[str, Any]:
    """What a step is given."""
    return {"args": args, "context": dict(ctx.vars)}
