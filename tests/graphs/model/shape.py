"""What can be said of a graph by looking at its arcs and needs alone, in the simplest way there is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from workflow_sdk.graphs.model import Node

ROOT = ""
"""Stands for the start of the run, from which the first tokens come."""


class Shape:
    """Which step leads to which, over arcs and needs."""

    def __init__(self, nodes: Sequence[Node], first: Collection[str]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.ways: dict[str, set[str]] = {name: set() for name in (ROOT, *self.nodes)}
        for name in first:
            self.ways[ROOT].add(name)
        for node in nodes:
            for arc in node.next:
                self.ways[node.name].add(arc.step)
            for need in node.needs:
                self.ways[need].add(node.name)
        self.around = self._all_around()
        """The forks that have opened an instance on every way to a step, and that no join has left."""

    def reached(self, start: str) -> set[str]:
        """Every step that can be reached from `start`, `start` among them."""
        found: set[str] = set()
        left = [start]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left.extend(self.ways[name])
        return found

    def _all_around(self) -> dict[str, set[str]]:
        reached = self.reached(ROOT)
        found = {name: set(self.nodes) if name in reached else set[str]() for name in self.nodes}
        while True:
            after = {name: self._met(name, found, reached) for name in self.nodes}
            if after == found:
                return found
            found = after

    def _met(self, name: str, found: dict[str, set[str]], reached: set[str]) -> set[str]:
        ways = [found[need] for need in self.nodes[name].needs if need in reached]
        ways += [set[str]()] * (name in self.ways[ROOT])
        for before in self.nodes.values():
            if before.name in reached and any(arc.step == name for arc in before.next):
                ways.append(found[before.name] | ({before.name} if before.is_fork else set()))
        return set.intersection(*ways) if ways else set()

    def fork_of(self, join: str) -> str:
        """The innermost fork around all needs of a join."""
        common = self.around[join]
        # They lie inside each other.
        return next((fork for fork in common if common - {fork} <= self.around[fork]), ROOT)

    def serving_only(self, join: str, bounds: Collection[str]) -> set[str]:
        """The steps from which every way leads to the join, and to nothing beside it.

        A fork around the join (`bounds`) serves the join in another instance, and not in the one that it is in.
        """
        found = {name for name in self.nodes if name != join and name not in bounds and join in self.reached(name)}
        while True:
            kept = {name for name in found if self.ways[name] <= found | {join}}
            if kept == found:
                return found
            found = kept

    def following(self, join: str, bounds: Collection[str]) -> set[str]:
        """The steps that a join leads to in the fork instance that it fires in."""
        found: set[str] = set()
        left = list(self.ways[join])
        while left:
            name = left.pop()
            if name not in found and name not in bounds:
                found.add(name)
                left.extend(self.ways[name])
        return found
