"""What may still happen in a run, found by walking on from everything that is there as far as anything could go."""

from __future__ import annotations

from tests.graphs.model.shape import ROOT
from tests.graphs.model.world import NEW, Stack, World
from workflow_sdk.graphs.model import Quorum

Place = tuple[str, Stack]
"""A step, and the fork instances in which it happens."""


def opened(stack: Stack, fork: str, number: int) -> Stack:
    """The stack of the tokens that a fork gives: what an earlier pass through the same fork has opened is left."""
    names = [name for name, _ in stack]
    kept = stack[: names.index(fork)] if fork in names else stack
    return (*kept, (fork, number))


def instance_of(world: World, join: str, stack: Stack) -> Stack:
    """The fork instance in which a join waits for a step with this stack; () is the whole run."""
    # A step that was submitted exists once in the run, whoever has submitted it.
    fork = ROOT if join in world.depth else world.shape.fork_of(join)
    names = [name for name, _ in stack]
    return stack[: names.index(fork) + 1] if fork in names else ()


def done_in(world: World, join: str, need: str, instance: Stack) -> bool:
    """Whether a need has succeeded in the fork instance of a join."""
    return any(
        one.step == need and one.status == "done" and instance_of(world, join, one.stack) == instance
        for one in world.firings
    )


def least(world: World, join: str) -> int:
    """How many of its needs a join waits for at least."""
    node = world.nodes[join]
    return node.join.count if isinstance(node.join, Quorum) else len(node.needs) if node.join == "all" else 1


def awaited(world: World, place: Place, future: set[Place]) -> list[str]:
    """The needs of a join that are not done in its fork instance, and may be done yet."""
    join, instance = place
    return [
        need
        for need in world.nodes[join].needs
        if not done_in(world, join, need, instance)
        and any(step == need and instance_of(world, join, stack) == instance for step, stack in future)
    ]


def may_happen(world: World) -> set[Place]:
    """Every step that may still fire or is about to end, with its fork instances."""
    found = {(one.step, one.stack) for one in world.tokens if one.status in ("ready", "pending")}
    found |= {(one.step, one.stack) for one in world.firings if one.status == "running"}
    while True:
        more = {after for step, stack in found for after in _arcs_from(world, step, stack)}
        for step, stack in found:
            for name, node in world.nodes.items():
                if step in node.needs:
                    place = (name, instance_of(world, name, stack))
                    if _could_fire(world, place, found):
                        more.add(place)
        if more <= found:
            return found
        found |= more


def _arcs_from(world: World, step: str, stack: Stack) -> set[Place]:
    node = world.nodes[step]
    inner = opened(stack, step, NEW) if node.is_fork else stack
    return {(arc.step, inner) for arc in node.next}


def _could_fire(world: World, place: Place, found: set[Place]) -> bool:
    join, instance = place
    waits_for = awaited(world, place, found)
    done = [need for need in world.nodes[join].needs if done_in(world, join, need, instance)]
    # One that waits for nothing that may happen is no reason to wait: it goes, or never does.
    return place not in world.joins and bool(waits_for) and len(done) + len(waits_for) >= least(world, join)
