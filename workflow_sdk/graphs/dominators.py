"""Which steps lie on every way to a step: the tree of dominators, and what else is known of a shape with circles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

NOWHERE: Final = ""
"""What comes before all steps: no step is called so."""


class Shape:
    """A directed graph with the steps at which it begins."""

    def __init__(self, roots: Sequence[str], after: Mapping[str, Sequence[str]]) -> None:
        self._after = after
        self.order: list[str] = _order(roots, after)
        """The steps that can be reached, each after those before it, but for circles."""
        self._place = {name: at for at, name in enumerate(self.order)}
        self._before = _before(self.order, after)
        self.dominators: dict[str, str] = self._find_dominators(frozenset(roots))
        """The nearest step that lies on every way to a step; NOWHERE, if there is none."""
        self.depths: dict[str, int] = {NOWHERE: 0}
        """How many steps lie on every way to a step."""
        for name in self.order:
            self.depths[name] = self.depths[self.dominators[name]] + 1
        self._children: dict[str, list[str]] = {}
        for name in self.order:
            self._children.setdefault(self.dominators[name], []).append(name)
        self._leading: dict[str, dict[str, set[str]]] = {}
        self._circles = _circles(self._before, {name: after[name] for name in self.order})

    def is_in_circle(self, name: str) -> bool:
        """Whether a step can be reached from itself, or lies between circles."""
        return name in self._circles

    def dominates(self, name: str, other: str) -> bool:
        """Whether a step lies on every way to another, or is the same."""
        if other not in self.depths:
            return False
        while self.depths[other] > self.depths[name]:
            other = self.dominators[other]
        return other == name

    def behind(self, name: str, start: str) -> set[str]:
        """The children of a step in the tree that can be reached from `start` without going through the step."""
        siblings = self._siblings(name)
        found: set[str] = set()
        todo = [start] if self.dominators.get(start) == name else []
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo += siblings.get(at, ())
        return found

    def _siblings(self, name: str) -> Mapping[str, set[str]]:
        """Which children of a step in the tree others of them lead to, themselves or by what is below them."""
        found = self._leading.get(name)
        if found is None:
            found = self._leading[name] = {}
            for child in self._children.get(name, ()):
                for source in self._before[child]:
                    if source != name:
                        found.setdefault(self._child_above(source, name), set()).add(child)
        return found

    def _child_above(self, name: str, top: str) -> str:
        """The child of `top` that dominates a step."""
        while self.dominators[name] != top:
            name = self.dominators[name]
        return name

    def _find_dominators(self, roots: frozenset[str]) -> dict[str, str]:
        """By Cooper, Harvey and Kennedy: until nothing changes, the nearest common one of all that come before."""
        found: dict[str, str] = {NOWHERE: NOWHERE}
        place = {**{name: at + 1 for name, at in self._place.items()}, NOWHERE: 0}
        changed = True
        while changed:
            changed = False
            for name in self.order:
                new = NOWHERE if name in roots else None
                for source in self._before[name]:
                    if source in found:
                        new = source if new is None else _common(new, source, found, place)
                assert new is not None, "what is in the order is a root, or comes after what is"
                if found.get(name) != new:
                    found[name], changed = new, True
        return found


def _common(one: str, other: str, dominators: Mapping[str, str], place: Mapping[str, int]) -> str:
    while one != other:
        while place[one] > place[other]:
            one = dominators[one]
        while place[other] > place[one]:
            other = dominators[other]
    return one


def _order(roots: Sequence[str], after: Mapping[str, Sequence[str]]) -> list[str]:
    """Reverse postorder."""
    found: list[str] = []
    seen: set[str] = set()
    for root in reversed(roots):
        if root in seen:
            continue
        seen.add(root)
        path = [(root, iter(after[root]))]
        while path:
            name, others = path[-1]
            other = next((one for one in others if one not in seen), None)
            if other is None:
                found.append(name)
                path.pop()
            else:
                seen.add(other)
                path.append((other, iter(after[other])))
    found.reverse()
    return found


def _before(order: Sequence[str], after: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in order}
    for name in order:
        for other in after[name]:
            found[other].append(name)
    return found


def _circles(before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]) -> set[str]:
    """The steps in circles, and those on a way from one circle to another."""
    return _left(before, after) & _left(after, before)


def _left(before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]) -> set[str]:
    """What is left if steps are taken away that nothing comes before, again and again."""
    counts = {name: len(before[name]) for name in before if name in after}
    todo = [name for name, count in counts.items() if not count]
    while todo:
        name = todo.pop()
        del counts[name]
        for other in after[name]:
            if other in counts:
                counts[other] -= 1
                if not counts[other]:
                    todo.append(other)
    return set(counts)
