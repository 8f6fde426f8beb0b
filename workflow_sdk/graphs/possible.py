"""What may still happen in a run: which needs of its joins what is under way may lead to."""

from __future__ import annotations

from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.plan import Plan, required
from workflow_sdk.graphs.rows import Stack

Place = tuple[str, Stack]
"""A step, and the fork instances in which it happens."""
Possible = dict[Place, set[str]]
"""The needs of joins that may be done yet, by the join and its fork instance."""

_UNKNOWN = -1
"""The number of a fork instance that no join knows: one that may be opened some time, for instance."""


def instance_of(plan: Plan, join: str, stack: Stack) -> Stack:
    """The stack of the fork instance that a join fires in, for a step with this stack."""
    fork = plan.join_fork(join)
    inside = [at for at, (step, _) in enumerate(stack) if step == fork]
    return stack[: inside[-1] + 1] if inside else ()


def number_of(stack: Stack) -> int:
    """The number of the innermost fork instance; 0 for the whole run."""
    return stack[-1][1] if stack else 0


def thinned(marking: Marking, stack: Stack) -> Stack:
    """A stack in which all fork instances are alike that no join waits in or is over in."""
    return tuple((fork, number if number in marking.forks_open else _UNKNOWN) for fork, number in stack)


def possible_needs(plan: Plan, marking: Marking) -> Possible:
    """For each join in each fork instance, the needs that may be done yet."""
    todo = _under_way(marking)
    seen: set[Place] = set()
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
        joins = [(join, instance_of(plan, join, stack)) for join in plan.dependents.get(name, ())]
        todo += [at for at in joins if _may_fire(plan, marking, at, name, possible)]
    return possible


def _under_way(marking: Marking) -> list[Place]:
    live = {(token.step, token.stack) for token in marking.tokens.values()}
    live |= {(firing.step, firing.stack) for firing in marking.firings.values()}
    return [(step, thinned(marking, stack)) for step, stack in live]


def _may_fire(plan: Plan, marking: Marking, at: Place, need: str, possible: Possible) -> bool:
    """Note that a need may be done; whether the join may fire then."""
    join, state = at[0], marking.joins.get((at[0], number_of(at[1])))
    if state is not None and need in state.arrived:
        return False
    needs = possible.setdefault(at, set())
    needs.add(need)
    done, is_over = 0, False
    if state is not None:
        done, is_over = len(state.arrived), state.is_over
    elif (counts := marking.dag.get(join)) is not None:
        done, is_over = counts.done, counts.is_over
    return not is_over and done + len(needs) >= required(plan.nodes[join])


def is_in(stack: Stack, fork: int) -> bool:
    """Whether something with this stack is in a fork instance; 0 is the whole run."""
    return fork == 0 or any(number == fork for _, number in stack)


def opened(stack: Stack, fork: str, number: int) -> Stack:
    """The stack of the tokens that a fork gives, in an instance of their own."""
    # A fork that is come to again is another instance, and not one inside the last.
    outside = next((at for at, (step, _) in enumerate(stack) if step == fork), len(stack))
    return (*stack[:outside], (fork, number))
