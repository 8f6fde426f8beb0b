"""What may still happen in a run: which needs of which joins what is under way may lead to."""

from __future__ import annotations

from workflow_sdk.graphs.marking import Marking, Stack
from workflow_sdk.graphs.plan import Plan, required

Possible = dict[tuple[str, Stack], set[str]]
"""The needs of joins that may be done yet, by the join and its fork instance."""

_UNKNOWN = -1
"""The number of a fork instance that no join knows: one that may be opened some time, for instance."""


def possible_needs(plan: Plan, marking: Marking) -> Possible:
    """For each join in each fork instance, the needs that may be done yet: what is under way may lead to them."""
    todo = [(token.step, thinned(marking, token.stack)) for token in marking.tokens.values()]
    todo += [(firing.step, thinned(marking, firing.stack)) for firing in marking.firings.values()]
    seen: set[tuple[str, Stack]] = set()
    possible: Possible = {}
    while todo:
        place = todo.pop()
        if place in seen:
            continue
        seen.add(place)
        name, stack = place
        node = plan.nodes[name]
        inside = opened(stack, name, _UNKNOWN) if node.is_fork else stack
        todo += [(arc.step, inside) for arc in node.next]
        for join in plan.dependents.get(name, ()):
            at = (join, key_of(plan, join, stack))
            if _may_fire(plan, marking, at, name, possible):
                todo.append(at)
    return possible


def _may_fire(plan: Plan, marking: Marking, at: tuple[str, Stack], need: str, possible: Possible) -> bool:
    """Note that a need may be done; whether the join may fire then."""
    join = at[0]
    state = marking.joins.get((join, number_of(at[1])))
    if state is not None and need in state.arrived:
        return False
    needs = possible.setdefault(at, set())
    needs.add(need)
    counts = marking.dag.get(join)
    is_over = (state is not None and state.is_over) or (counts is not None and counts.is_over)
    done = len(state.arrived) if state is not None else counts.done if counts is not None else 0
    return not is_over and done + len(needs) >= required(plan.nodes[join])


def thinned(marking: Marking, stack: Stack) -> Stack:
    """A stack in which all fork instances are alike that no join waits in or is over in."""
    is_open = marking.forks_open
    return tuple((fork, number if number in is_open else _UNKNOWN) for fork, number in stack)


def key_of(plan: Plan, name: str, stack: Stack) -> Stack:
    """The stack of the fork instance that a join fires in, for a step with this stack."""
    fork = plan.join_fork(name)
    inside = [at for at, (step, _) in enumerate(stack) if step == fork]
    return stack[: inside[-1] + 1] if inside else ()


def number_of(stack: Stack) -> int:
    """The number of the innermost fork instance; 0 for the whole run."""
    return stack[-1][1] if stack else 0


def is_in(stack: Stack, fork: int) -> bool:
    """Whether something with this stack is in a fork instance; 0 is the whole run."""
    return fork == 0 or any(number == fork for _, number in stack)


def opened(stack: Stack, fork: str, number: int) -> Stack:
    """The stack of the tokens that a fork gives, in an instance of their own."""
    # A fork that is come to again is another instance, and not one inside the last.
    outside = next((at for at, (step, _) in enumerate(stack) if step == fork), len(stack))
    return (*stack[:outside], (fork, number))
