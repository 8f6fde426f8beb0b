"""Joins of which it is certain that they never have as many of their needs as they wait for.

An exclusive step takes one of its arcs, so that of what lies behind different arcs only one can happen. That is certain
only where the step fires once at most in a fork instance: neither in a circle, nor with tokens from several ways. All
else is taken to be possible.

Every step has the steps that lie on all ways to it, its dominators; they form a tree. A join is looked at from its
needs upwards in that tree: at an exclusive step counts the arc behind which most of the needs are, elsewhere all count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from heapq import heappop, heappush

from workflow_sdk.graphs.dominators import NOWHERE, Shape
from workflow_sdk.graphs.model import Node, Problem, Quorum
from workflow_sdk.graphs.plan import Plan, required


def impossible_joins(plan: Plan) -> Iterator[Problem]:
    """A problem for each join that can never fire."""
    joins = [node for node in plan.nodes.values() if len(set(node.needs)) > 1 and required(node) > 1]
    if not joins or not any(_is_choice(node) for node in plan.nodes.values()):
        return
    choices = _Choices(plan)
    for node in joins:
        yield from choices.problem_of(node)


def _is_choice(node: Node) -> bool:
    return node.mode == "exclusive" and len({arc.step for arc in node.next}) > 1


class _Choices:
    """The exclusive steps of one graph that fire once at most, and what lies behind each of their arcs."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shape = Shape(
            [*plan.roots, *([plan.final] if plan.final is not None else [])],
            {name: list(plan.after(name)) for name in plan.nodes},
        )
        self._above: dict[str, tuple[str, str] | None] = {}
        self._sides: dict[str, dict[str, frozenset[int]]] = {}

    @cached_property
    def _once(self) -> frozenset[str]:
        """The exclusive steps with several arcs that fire once at most in a fork instance."""
        found = _tokens(self._plan, self._shape)
        return frozenset(
            name for name, node in self._plan.nodes.items() if _is_choice(node) and found.get(name) is not None
        )

    def problem_of(self, join: Node) -> Iterator[Problem]:
        """A problem, if the join can't have enough."""
        counts: dict[str, dict[str, int]] = {}
        """For each choice that is to be looked at: how many needs can happen under each of its children in the tree."""
        own: dict[str, int] = {}
        total, todo = 0, list[tuple[int, str]]()
        blamed: str | None = None

        def add(name: str, count: int) -> int:
            above = self._choice_above(name)
            if above is None:
                return count
            choice, child = above
            if choice not in counts:
                counts[choice] = {}
                heappush(todo, (-self._shape.depths[choice], choice))
            counts[choice][child] = counts[choice].get(child, 0) + count
            return 0

        for need in dict.fromkeys(join.needs):
            if need in self._once:
                own[need] = 1
                if need not in counts:
                    counts[need] = {}
                    heappush(todo, (-self._shape.depths[need], need))
            else:
                total += add(need, 1)
        while todo:
            _, choice = heappop(todo)
            under = counts.pop(choice)
            most = self._most(choice, under)
            if most < sum(under.values()):
                blamed = blamed or choice
            most += own.get(choice, 0)
            # What is left comes together here: all of it is behind one arc of each choice above.
            total += add(choice, most) if todo else most
        if total < required(join) and blamed is not None:
            yield Problem(join.name, self._text(join, blamed, total))

    def _choice_above(self, name: str) -> tuple[str, str] | None:
        """The nearest choice that dominates a step, and its child in the tree on the way to the step."""
        passed: list[str] = []
        at, found = name, None
        while at not in self._above:
            passed.append(at)
            above = self._shape.dominators.get(at, NOWHERE)
            if above == NOWHERE:
                break
            if above in self._once:
                found = (above, at)
                break
            at = above
        else:
            found = self._above[at]
        for one in passed:
            self._above[one] = found
        return found

    def _most(self, choice: str, under: Mapping[str, int]) -> int:
        """How many can happen behind one arc of a choice."""
        if len(under) < 2:
            return sum(under.values())
        sides = self._sides_of(choice)
        by_arc: dict[int, int] = {}
        for child, count in under.items():
            for arc in sides.get(child, ()):
                by_arc[arc] = by_arc.get(arc, 0) + count
        return max(by_arc.values(), default=0)

    def _sides_of(self, choice: str) -> Mapping[str, frozenset[int]]:
        """For each child of a choice in the tree, the arcs behind which it is."""
        found = self._sides.get(choice)
        if found is None:
            found = self._sides[choice] = self._find_sides(choice)
        return found

    def _find_sides(self, choice: str) -> dict[str, frozenset[int]]:
        found: dict[str, set[int]] = {}
        for number, arc in enumerate(self._plan.nodes[choice].next):
            for child in self._shape.behind(choice, arc.step):
                found.setdefault(child, set()).add(number)
        for join in self._plan.dependents.get(choice, ()):
            # What needs the choice itself happens whichever arc is taken.
            for child in self._shape.behind(choice, join):
                found.setdefault(child, set()).update(range(len(self._plan.nodes[choice].next)))
        return {child: frozenset(numbers) for child, numbers in found.items()}

    def _text(self, join: Node, choice: str, most: int) -> str:
        needs = [need for need in dict.fromkeys(join.needs) if self._shape.dominates(choice, need) and need != choice]
        told = " and ".join(map(repr, needs[:3])) + (f" and {len(needs) - 3} more" if len(needs) > 3 else "")
        quorum = (
            f"its quorum is {join.join.count}, of which {most} can happen at most: "
            if isinstance(join.join, Quorum)
            else ""
        )
        return (
            f"it can never fire: {quorum}it needs {told}, and step {choice!r} takes one of its ways; "
            'let it fire with what is there (join="alive"), or make that step inclusive'
        )


def _tokens(plan: Plan, shape: Shape) -> dict[str, object | None]:
    """For every step, where its one token comes from; None if there may be several of them in a fork instance."""
    roots = set(plan.roots)
    found: dict[str, object | None] = {}
    for name in shape.order:
        node, sources = plan.nodes[name], plan.sources.get(name, ())
        origins: set[object] = {("root", name)} if name in roots else set()
        if node.needs:
            origins.add(("join", name))
        for source in dict.fromkeys(sources):
            origins |= _given(plan.nodes[source], name, found.get(source))
        found[name] = origins.pop() if len(origins) == 1 and not shape.is_in_circle(name) else None
    return found


def _given(source: Node, name: str, token: object | None) -> set[object]:
    """The tokens that a step gives another."""
    if source.is_fork:
        return {("arc", source.name, at) for at, arc in enumerate(source.next) if arc.step == name}
    # Of one that may have several, each is another.
    return {token if token is not None else ("many", source.name, at) for at in ((0,) if token is not None else (0, 1))}
