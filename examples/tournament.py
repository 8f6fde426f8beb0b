"""Names for a teapot: many are thought up, some are dropped, and the rest compete two and two until one is left.

Each idea, each comparison and each text is a step of its own, with retries and a place in the history; the graph adds
them while it runs. The model is a stand-in.

python examples/tournament.py
"""

from __future__ import annotations

import asyncio
from typing import TypedDict

from workflow_sdk import Runtime
from workflow_sdk.graphs import E, Graph, Limits, arc


class Match(TypedDict):
    """What a judge is given."""

    left: str
    right: str


async def think_up(product: str) -> list[str]:
    """Stands for a call to a model."""
    return ["Steamy", "Old Faithful", "Pot", "Whistler", "Earl", "The Spout", "Drip"]


async def is_free(name: str) -> bool:
    """Stands for a search in a register of trade marks."""
    return name not in ("Pot", "Old Faithful")


async def better(match: Match) -> str:
    """Stands for a model that compares two names. It is asked about each pair."""
    print(f"  {match['left']} or {match['right']}?")
    return max(match["left"], match["right"], key=len)


async def advertise(name: str) -> str:
    """Stands for a model that is asked three times, and never gives the same twice."""
    return f"{name}. Tea is ready."


async def choose(texts: list[str]) -> str:
    return min(texts, key=len)


naming = Graph("naming", limits=Limits(running=3, nodes=40))
naming.generate_and_filter("ideas", think_up, is_free, retries=5, next=arc("contest", args=E.output))
naming.tournament("contest", E.args, judge=better, next=arc("advert", args=E.output))
naming.best_of("advert", advertise, n=3, judge=choose)


async def main() -> None:
    async with Runtime("memory://", workflows=[naming]) as runtime:
        result = await runtime.run(naming, "a teapot")
    print(f"ideas: {', '.join(result.outputs['ideas'])}")
    print(f"the winner: {result.outputs['contest']}")
    print(f"the advert: {result.outputs['advert']}")
    print(f"{result.status}, in {sum(outcome.firings for outcome in result.outcomes.values())} firings")


if __name__ == "__main__":
    asyncio.run(main())
