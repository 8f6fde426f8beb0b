"""The shape of a graph: which steps lead to which, and what can be known of that before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from workflow_sdk.graphs.dominators import NOWHERE, Shape
from workflow_sdk.graphs.model import Limits, Node, Quorum
from workflow_sdk.graphs.serving import Serving

Forks = tuple[str, ...]
"""Steps, outermost first, that have opened a fork instance on every way to a step."""


_NONE: frozenset[str] = frozenset()


class Plan:
    """The steps of one run, by name: those that were declared, and those that were submitted since."""

    SETTINGS = ("entry", "final", "limits", "status", "no_match", "when_blocked", "final_failure")

    def __init__(
        self,
        nodes: Iterable[Node],
        *,
        entry: str | None = None,
        final: str | None = None,
        limits: Limits = Limits(),  # noqa: B008  # it is frozen
        status: str = "strict",
        no_match: str = "end",
        when_blocked: str = "wait",
        final_failure: str = "fail",
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self.entry = entry
        self.final = final
        self.limits = limits
        self.status = status
        self.no_match = no_match
        self.when_blocked = when_blocked
        self.final_failure = final_failure
        self.dependents: dict[str, list[str]] = {}
        """The joins that need a step."""
        self.sources: dict[str, list[str]] = {}
        """The steps that have an arc to a step."""
        self.places: dict[str, int] = {}
        """The number of a step, in the order in which they were declared and submitted."""
        self.depths: dict[str, int] = {}
        """Of the steps that were submitted."""
        self._fork_above: dict[str, str | None] | None = None
        self._is_dag: dict[str, bool] = {}
        self.unshared: set[int] = set()
        """The lists, by `id`, that no other plan has: those of a copy are the original's until they change."""
        self._serving: Serving | None = None
        self._served: dict[str, frozenset[str]] = {}
        self._has_quorums = False
        self._to_forks: dict[str, set[str]] = {}
        self._after_joins: dict[str, set[str]] = {}
        self.add(nodes)
        self.roots: list[str] = self._roots()
        """The steps that have a token at the beginning."""
        self._first = frozenset(self.roots)

    def add(self, nodes: Iterable[Node], depth: int = 0) -> None:
        """Add steps to the run. `depth`: how many submissions lie between them and the declared graph."""
        added = list(nodes)
        for node in added:
            if depth:
                self.depths[node.name] = depth
            self.places[node.name] = len(self.places)
            self.nodes[node.name] = node
            self._has_quorums = self._has_quorums or isinstance(node.join, Quorum)
        for node in added:
            for need in node.needs:
                self._append(self.dependents, need, node.name)
            for arc in node.next:
                self._append(self.sources, arc.step, node.name)
        self._serving, self._served, self._to_forks, self._after_joins = None, {}, {}, {}
        if any(node.next for node in added):
            # New arcs may lead anywhere; without them, nothing is known less of the steps before.
            self._fork_above, self._is_dag = None, {}

    def _append(self, lists: dict[str, list[str]], key: str, name: str) -> None:
        found = lists.get(key)
        if found is None or id(found) not in self.unshared:
            found = lists[key] = [*(found or ())]
            self.unshared.add(id(found))
        found.append(name)

    def prepare(self) -> None:
        """Find out what every run asks for."""
        for name, node in self.nodes.items():
            self.quorums_served(name)
            if not self.is_dag(name) and node.needs:
                self.join_fork(name)

    def copy(self) -> Plan:
        """The same plan for another run, with all that is known of it. What is added to one is not in the other."""
        found = Plan.__new__(Plan)
        for name, value in vars(self).items():
            setattr(found, name, cast("dict[str, Any]", value).copy() if isinstance(value, dict) else value)
        found.unshared = set()
        return found

    # Where a run begins.

    @property
    def has_arcs(self) -> bool:
        """Whether any step leads to another by an arc."""
        return bool(self.sources)

    def _roots(self) -> list[str]:
        if self.entry is not None:
            return [self.entry]
        names = [name for name in self.nodes if name != self.final]
        if self.has_arcs:
            return names[:1]
        return [name for name in names if not self.nodes[name].needs]

    def is_given_workload(self, name: str) -> bool:
        """Whether a step is given the workload if it begins without a token of another step."""
        return name != self.final and not self.nodes[name].needs

    @property
    def cancels(self) -> bool:
        """Whether a run may cancel firings that are under way."""
        return self.status == "fail_fast" or self._has_quorums

    # What is known of a step.

    def forks_around(self, name: str) -> Forks:
        """The steps, outermost first, that have opened a fork instance on every way to this one."""
        found: list[str] = []
        fork = self._innermost_fork(name)
        while fork is not None:
            found.append(fork)
            fork = self._innermost_fork(fork)
        return tuple(reversed(found))

    def _innermost_fork(self, name: str) -> str | None:
        above = self._fork_above
        if above is None:
            above = self._fork_above = _innermost_forks(self)
        if name not in above:
            # Submitted, with nothing but needs.
            chains = [self.forks_around(need) for need in self.nodes[name].needs]
            above[name] = next(reversed(_common(chains)), None)
        return above[name]

    def join_fork(self, name: str) -> str | None:
        """The fork whose instances a join fires for; None: it fires once in the run, as all that was submitted does."""
        return None if name in self.depths else self._innermost_fork(name)

    def is_dag(self, name: str) -> bool:
        """Whether a step fires once at most, as neither it nor what it needs, near or far, is led to by an arc.

        Then it is known by the end of each step whether it can still happen.
        """
        known = self._is_dag
        if (answer := known.get(name)) is not None:
            return answer
        todo, seen = [name], set[str]()
        while todo:
            last = todo[-1]
            if last in known:
                todo.pop()
            elif self.sources.get(last):
                known[last] = False
            elif last not in seen:
                seen.add(last)
                todo += [need for need in self.nodes[last].needs if need not in known]
            else:
                # What it needs is known by now, unless steps need each other in a circle.
                needs = self.nodes[last].needs
                known[last] = all(known.get(need, False) for need in needs) if needs else self._begins(last)
        return known[name]

    def _begins(self, name: str) -> bool:
        """Whether a step that needs nothing, and that nothing leads to, is begun at all."""
        return name in self._first or name in self.depths

    def quorums_served(self, name: str) -> frozenset[str]:
        """The joins by quorum that are all that a step leads to: once they have fired, it is of no use."""
        if not self._has_quorums:
            return _NONE
        if name not in self._served:
            if self._serving is None:
                self._serving = self._find_serving()
            served = self._serving.of(name)
            self._served[name] = frozenset(join for join in served if name not in self._outside(join))
        return self._served[name]

    def _outside(self, join: str) -> set[str]:
        """The steps that may lead out of the fork instance that a join fires in, before they come to it."""
        if join not in self._to_forks:
            self._to_forks[join] = _leading_to(self, self.instance_forks(join), join)
        return self._to_forks[join]

    def _find_serving(self) -> Serving:
        quorums = [name for name, node in self.nodes.items() if isinstance(node.join, Quorum)]
        after = {name: list(self.after(name)) for name in self.nodes}
        return Serving(after, {name: node.needs for name, node in self.nodes.items()}, self.sources, quorums)

    def is_useless(self, name: str, join: str) -> bool:
        """Whether a step has nothing to do once a join has fired that it serves; not if the join itself leads to it."""
        if join not in self._after_joins:
            self._after_joins[join] = _reached(self, join, self.instance_forks(join))
        return name not in self._after_joins[join]

    def instance_forks(self, join: str) -> Forks:
        """The forks around a join: whoever comes to one of them again leaves the fork instance that it fires in."""
        return () if join in self.depths else self.forks_around(join)

    def after(self, name: str) -> Iterator[str]:
        """The steps that a step leads to, by an arc or as a need."""
        for arc in self.nodes[name].next:
            yield arc.step
        yield from self.dependents.get(name, ())


def required(node: Node) -> int:
    """How many of its needs have to be done before a join can fire."""
    if isinstance(node.join, Quorum):
        return node.join.count
    return 1 if node.join == "alive" else len(node.needs)


def _common(chains: Sequence[Forks]) -> Forks:
    """What several chains of forks have in common, in its order."""
    if not chains:
        return ()
    first, *others = chains
    return tuple(fork for fork in first if all(fork in chain for chain in others))


def _innermost_forks(plan: Plan) -> dict[str, str | None]:
    """For every step, the last of the forks whose arcs are on every way to it."""
    places = {name: str(number) for name, number in plan.places.items()}
    behind = {_behind(places[name]): name for name, node in plan.nodes.items() if node.is_fork}
    first = plan.roots if plan.final is None else [*plan.roots, plan.final]
    shape = Shape([places[name] for name in first], _ways(plan, places))
    found: dict[str, str | None] = {NOWHERE: None}
    for place in shape.order:
        above = shape.dominators[place]
        found[place] = behind.get(above, found[above])
    return {name: found.get(place) for name, place in places.items()}


def _ways(plan: Plan, places: Mapping[str, str]) -> dict[str, list[str]]:
    """Which places lead to which. A fork is two: what needs it does not come by the one behind its arcs."""
    after: dict[str, list[str]] = {}
    for name, node in plan.nodes.items():
        place = places[name]
        arcs = [places[arc.step] for arc in node.next if arc.step in places]
        after[place] = [places[join] for join in plan.dependents.get(name, ())]
        if node.is_fork:
            after[place].append(_behind(place))
            after[_behind(place)] = arcs
        else:
            after[place] += arcs
    return after


def _behind(place: str) -> str:
    return f"{place} behind"


def _leading_to(plan: Plan, ends: Forks, without: str) -> set[str]:
    """These steps, and those that can lead to one of them without coming by another step."""
    found: set[str] = set()
    todo = list(ends)
    while todo:
        name = todo.pop()
        if name in found or name == without or name not in plan.nodes:
            continue
        found.add(name)
        todo += plan.nodes[name].needs
        todo += plan.sources.get(name, ())
    return found


def _reached(plan: Plan, start: str, bounds: Forks) -> set[str]:
    """The steps that a step leads to, without those that are reached only by way of these forks."""
    found: set[str] = set()
    todo = list(plan.after(start))
    while todo:
        name = todo.pop()
        if name not in found and name not in bounds:
            found.add(name)
            todo += plan.after(name)
    return found
