"""Exploring a graph: every way that a run can take is walked, without running anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs import Graph
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.plan import required
from workflow_sdk.testing._ways import State, Ways
from workflow_sdk.testing.exploration import Exploration, Finding, FindingKind

__all__ = ["explore"]

STATES_MAX = 5_000
"""So many different states are looked at."""


def explore(
    graph: Graph, depth: int = 200, *, outside: Collection[str] = (), states_max: int = STATES_MAX
) -> Exploration:
    """Walk every way that a run of the graph can take; what is wrong with it, each with the shortest way there.

    Each firing ends as done and as failed, and guards go both ways where what they read is not known before. What is
    found: runs that wait for ever, steps that are never run, joins that never fire, and tokens without bound. Ways are
    walked up to `depth` ends of firings, and up to so many different states. Nothing is run.

    `outside` names keys of the context that are patched from outside, by `handle.patch`: an admission that reads one of
    them may be granted at any time. So may one that reads a key which is None in the beginning, or which `get` reads
    and the graph does not have: those the graph leaves open.
    """
    if not isinstance(graph, Graph):
        raise DefinitionError(f"explore takes a graph, not {type(graph).__name__}")
    _check_names(graph)
    walk = _Walk(Ways(graph.nodes, graph.settings, graph.context, outside), depth, states_max)
    walk.go()
    if not walk.is_complete and walk.ways.is_free:
        # Of all orders in which firings that are side by side can end, one is enough to see what can be reached.
        short = _Walk(walk.ways, depth, states_max, found=walk.found, first_only=True)
        short.reached |= walk.reached
        short.go()
        walk = short
    return Exploration(graph.name, walk.findings(), walk.states, walk.is_complete)


def _check_names(graph: Graph) -> None:
    nodes = graph.nodes
    named = [name for node in nodes.values() for name in (*node.needs, *(arc.step for arc in node.next))]
    named += [name for name in (graph.settings["entry"], graph.settings["final"]) if name is not None]
    if not nodes or any(name not in nodes for name in named):
        raise DefinitionError(f"graph {graph.name!r} can't be explored: {'; '.join(map(str, graph.validate()))}")


class _Walk:
    """A walk over the states, those that are near first."""

    def __init__(
        self,
        ways: Ways,
        depth: int,
        states_max: int,
        *,
        found: dict[tuple[FindingKind, str], Finding] | None = None,
        first_only: bool = False,
    ) -> None:
        self.ways = ways
        self.found = dict(found or {})
        self.reached: set[str] = set()
        """Steps that were run."""
        self.states = 0
        self.is_complete = True
        self._depth = depth
        self._states_max = states_max
        self._first_only = first_only
        self._arrived: dict[str, State] = {}
        """Where a join has begun to wait first, or could not fire any more."""
        self._joins = [name for name, node in ways.plan.nodes.items() if node.needs]

    def go(self) -> None:
        """Walk from the beginning."""
        seen: set[object] = set()
        todo: deque[tuple[State, int]] = deque((state, 0) for state in self.ways.first())
        while todo:
            state, depth = todo.popleft()
            self._pass(state)
            key = state.key(is_ordered=self.ways.is_ordered)
            if key in seen:
                continue
            seen.add(key)
            self.states += 1
            if not self._look(state):
                continue
            if depth >= self._depth or self.states + len(todo) > self._states_max:
                self.is_complete = self.is_complete and not state.marking.firings
                continue
            numbers = sorted(state.marking.firings)
            more = self.ways.after(state, numbers[:1] if self._first_only else numbers)
            todo.extend((after, depth + 1) for after in more)

    def _pass(self, state: State) -> None:
        """Note the steps that run nothing: they may be passed on the way to a state that was seen before."""
        self.reached |= {firing.step for firing, _ in state.effects.passed}

    def _look(self, state: State) -> bool:
        """See what is wrong in a state; whether to go on from there."""
        marking = state.marking
        self.reached |= {firing.step for _, firing in state.effects.started}
        for name in self._joins:
            if name not in self._arrived and _has_begun(name, marking):
                self._arrived[name] = state
        if not marking.firings:
            for token in marking.tokens.values():
                if self.ways.waits_for_ever(token.step):
                    self._finds("stall", token.step, state)
        return self._is_bounded(state)

    def _is_bounded(self, state: State) -> bool:
        if self.ways.plan.limits.starts is not None:
            return True
        for before in state.up_to():
            if state.is_more_than(before):
                self._finds("unbounded", _grown(before, state), state)
                return False
        return True

    def _finds(self, kind: FindingKind, node: str, state: State) -> None:
        self.found.setdefault((kind, node), Finding(kind, node, state.way))

    def findings(self) -> list[Finding]:
        """All that was found, the shortest ways first."""
        plan = self.ways.plan
        possible = set(plan.nodes) if self.is_complete else _not_refuted(self.ways)
        for name, node in plan.nodes.items():
            if name in self.reached or (not self.is_complete and name in possible) or ("stall", name) in self.found:
                continue
            if name in self._arrived:
                self._finds("waiting_join", name, self._arrived[name])
            else:
                kind: FindingKind = "waiting_join" if _is_waited_for(node.needs, self.reached) else "unreachable"
                self.found.setdefault((kind, name), Finding(kind, name))
        return sorted(self.found.values(), key=lambda finding: len(finding.way))


def _has_begun(join: str, marking: Marking) -> bool:
    """Whether a join has begun to wait, or was skipped since."""
    step, counts = marking.steps.get(join), marking.dag.get(join)
    is_skipped = step is not None and step.status == "skipped"
    return is_skipped or (counts is not None and counts.done > 0) or any(name == join for name, _ in marking.joins)


def _is_waited_for(needs: tuple[str, ...], reached: set[str]) -> bool:
    return any(need in reached for need in needs)


def _grown(before: State, state: State) -> str:
    """The step that gives more tokens than it takes, on the way from one state to another."""
    at = state
    last = state.ended
    while at is not before:
        assert at.before is not None, "one state is on the way to the other"
        if sum(at.amounts.values()) > sum(at.before.amounts.values()):
            last = at.ended
        at = at.before
    return last


def _not_refuted(ways: Ways) -> set[str]:
    """The steps that the arcs and needs alone don't exclude."""
    plan = ways.plan
    found: set[str] = set()
    enough: dict[str, int] = {}
    todo = [*plan.roots, *([plan.final] if plan.final is not None else [])]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        todo += [arc.step for arc in plan.nodes[name].next]
        for join in plan.dependents.get(name, ()):
            enough[join] = enough.get(join, 0) + 1
            if enough[join] >= required(plan.nodes[join]):
                todo.append(join)
    return found
