"""The graphs, on pydantic-graph: steps of its builder, and for the cycle its classes of nodes, which are faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic_graph import BaseNode, End, Graph, GraphBuilder, GraphRunContext, StepContext, reduce_list_append

__all__ = ["COUNT", "SCENARIOS"]

COUNT, WIDTH = 1000, 10


@dataclass
class Turn(BaseNode[None, None, int]):
    """Leads to itself, until nothing is left."""

    left: int

    async def run(self, ctx: GraphRunContext[None, None]) -> Turn | End[int]:
        """One firing."""
        return Turn(self.left - 1) if self.left > 1 else End(COUNT)


async def _begin(ctx: StepContext[None, None, None]) -> Turn:
    return Turn(COUNT)


async def _one(ctx: StepContext[None, None, Any]) -> int:
    return 1


async def _items(ctx: StepContext[None, None, None]) -> list[int]:
    return list(range(COUNT))


async def _counted(ctx: StepContext[None, None, list[int]]) -> int:
    return len(ctx.inputs)


def _steps(graph: Any) -> Sequence[Any]:
    return [graph.step(_one, node_id=f"step-{number}") for number in range(COUNT)]


def _ended(graph: Any, *steps: Any) -> None:
    """A join over the last steps, and a step that is given their list."""
    joined = graph.join(reduce_list_append, initial_factory=list[int])
    last = graph.step(_counted, node_id="joined")
    graph.add(
        graph.edge_from(*steps).to(joined), graph.edge_from(joined).to(last), graph.edge_from(last).to(graph.end_node)
    )


def _cycle() -> Graph:
    graph = GraphBuilder(output_type=int)
    begin = graph.step(_begin, node_id="begin")
    graph.add(graph.edge_from(graph.start_node).to(begin), graph.node(Turn))
    return graph.build()


def _fan() -> Graph:
    graph = GraphBuilder(output_type=int)
    steps = _steps(graph)
    graph.add(graph.edge_from(graph.start_node).to(*steps))
    _ended(graph, *steps)
    return graph.build()


def _fan_out() -> Graph:
    graph = GraphBuilder(output_type=int)
    items, step = graph.step(_items, node_id="items"), graph.step(_one, node_id="step")
    graph.add(graph.edge_from(graph.start_node).to(items), graph.edge_from(items).map().to(step))
    _ended(graph, step)
    return graph.build()


def _chain() -> Graph:
    graph = GraphBuilder(output_type=int)
    steps = [graph.start_node, *_steps(graph), graph.end_node]
    graph.add(*[graph.edge_from(before).to(after) for before, after in pairwise(steps)])
    return graph.build()


def _dag() -> Graph:
    graph = GraphBuilder(output_type=int)
    steps = _steps(graph)
    graph.add(graph.edge_from(graph.start_node).to(*steps[:WIDTH]))
    graph.add(*[graph.edge_from(above).to(below) for above, below in zip(steps, steps[WIDTH:], strict=False)])
    _ended(graph, *steps[-WIDTH:])
    return graph.build()


SCENARIOS: dict[str, tuple[Callable[[], Graph], int]] = {
    "graph_firings_1000": (_cycle, COUNT),
    "graph_fan_1000": (_fan, COUNT),
    "graph_fan_out_1000": (_fan_out, COUNT),
    "graph_chain_1000": (_chain, 1),
    "graph_dag_1000": (_dag, WIDTH),
}
"""What builds the graph, and what must come of it."""
