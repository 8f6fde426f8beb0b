"""The graphs, on LangGraph: each with plain functions, for `invoke`, and with async ones, for `ainvoke`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

__all__ = ["COUNT", "SCENARIOS", "Shape"]

COUNT, WIDTH = 1000, 10


class Left(TypedDict):
    """What a cycle goes by."""

    left: int


class Value(TypedDict):
    """What each step gives in place of what was there."""

    value: int


class Values(TypedDict):
    """What steps side by side give: a list of it."""

    count: int
    values: Annotated[list[int], operator.add]


class Total(TypedDict):
    """What steps side by side give: how many they were."""

    total: Annotated[int, operator.add]


Function = Callable[[Any], Any]


def _turn(state: Left) -> dict[str, int]:
    return {"left": state["left"] - 1}


def _value(state: Value) -> dict[str, int]:
    return {"value": 1}


def _one_of(state: Values) -> dict[str, list[int]]:
    return {"values": [1]}


def _counted(state: Total) -> dict[str, int]:
    return {"total": 1}


def _joined(state: Values) -> dict[str, int]:
    return {"count": len(state["values"])}


def _as_async(plain: Function) -> Function:
    async def run(state: Any) -> Any:
        return plain(state)

    return run


As = Callable[[Function], Function]
"""What makes a node of a plain function."""


def _cycle(as_node: As) -> StateGraph:
    graph = StateGraph(Left)
    graph.add_node("turn", as_node(_turn))
    graph.add_edge(START, "turn")
    graph.add_conditional_edges("turn", lambda state: "turn" if state["left"] > 0 else END, ["turn", END])
    return graph


def _fan(as_node: As) -> StateGraph:
    graph = StateGraph(Values)
    names = [f"step-{number}" for number in range(COUNT)]
    graph.add_node("joined", as_node(_joined))
    for name in names:
        graph.add_node(name, as_node(_one_of))
        graph.add_edge(START, name)
    graph.add_edge(names, "joined")
    graph.add_edge("joined", END)
    return graph


def _fan_out(as_node: As) -> StateGraph:
    graph = StateGraph(Values)
    graph.add_node("step", as_node(_one_of))
    graph.add_node("joined", as_node(_joined))
    graph.add_conditional_edges(START, lambda state: [Send("step", {"count": n}) for n in range(COUNT)], ["step"])
    graph.add_edge("step", "joined")
    graph.add_edge("joined", END)
    return graph


def _chain(as_node: As) -> StateGraph:
    graph = StateGraph(Value)
    for number in range(COUNT):
        graph.add_node(f"step-{number}", as_node(_value))
        graph.add_edge(f"step-{number - 1}" if number else START, f"step-{number}")
    graph.add_edge(f"step-{COUNT - 1}", END)
    return graph


def _dag(as_node: As) -> StateGraph:
    graph = StateGraph(Total)
    for number in range(COUNT):
        graph.add_node(f"step-{number}", as_node(_counted))
        graph.add_edge(f"step-{number - WIDTH}" if number >= WIDTH else START, f"step-{number}")
    for number in range(COUNT - WIDTH, COUNT):
        graph.add_edge(f"step-{number}", END)
    return graph


@dataclass(frozen=True)
class Shape:
    """A graph, what it is given, and what must come of it."""

    build: Callable[[As], StateGraph]
    given: Mapping[str, object]
    expected: Mapping[str, object]

    def plain(self) -> StateGraph:
        """For `invoke`."""
        return self.build(lambda node: node)

    def asynchronous(self) -> StateGraph:
        """For `ainvoke`."""
        return self.build(_as_async)


SCENARIOS = {
    "graph_firings_1000": Shape(_cycle, {"left": COUNT}, {"left": 0}),
    "graph_fan_1000": Shape(_fan, {"values": []}, {"count": COUNT}),
    "graph_fan_out_1000": Shape(_fan_out, {"values": []}, {"count": COUNT}),
    "graph_chain_1000": Shape(_chain, {"value": 0}, {"value": 1}),
    "graph_dag_1000": Shape(_dag, {"total": 0}, {"total": COUNT}),
}
