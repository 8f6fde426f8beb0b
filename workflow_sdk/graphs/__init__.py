"""Graphs: steps that are declared with the arcs between them, and run as tokens move along the arcs.

A graph is a workflow: it is started, listed, cancelled and tested as any other, and each of its steps is given a `ctx`.
"""

from workflow_sdk.errors import GraphFailedError
from workflow_sdk.graphs.definitions.format import json_schema as graph_schema
from workflow_sdk.graphs.definitions.problems import InvalidGraphError
from workflow_sdk.graphs.definitions.registry import Registry, Unavailable
from workflow_sdk.graphs.expressions import E, ExpressionError, fn, function
from workflow_sdk.graphs.graph import Graph
from workflow_sdk.graphs.growing import node
from workflow_sdk.graphs.model import (
    GraphResult,
    Limits,
    Outcome,
    Problem,
    Summary,
    arc,
    otherwise,
    quorum,
    rule,
)
from workflow_sdk.graphs.stored import stored_graph
from workflow_sdk.graphs.tasks import on, task

__all__ = [
    "E",
    "ExpressionError",
    "Graph",
    "GraphFailedError",
    "GraphResult",
    "InvalidGraphError",
    "Limits",
    "Outcome",
    "Problem",
    "Registry",
    "Summary",
    "Unavailable",
    "arc",
    "fn",
    "function",
    "graph_schema",
    "node",
    "on",
    "otherwise",
    "quorum",
    "rule",
    "stored_graph",
    "task",
]
