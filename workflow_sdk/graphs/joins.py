"""Joins: when a step that needs others fires, and when it can't any more.

A join fires once for each fork instance. Where neither it nor what it needs is led to by an arc, the ends of steps tell
all there is to know, and are counted. Elsewhere a step can happen again, by another way, as long as a token can come to
it: then what is under way says what is still possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workflow_sdk.graphs.marking import DagJoin, Firing, JoinKey, JoinState, Marking, Stack, StepState, is_in
from workflow_sdk.graphs.model import Node, Quorum
from workflow_sdk.graphs.moves import Moves
from workflow_sdk.graphs.plan import Plan, required


class Joins:
    """The joins of one run."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._is_due = False
        """Whether something was lost since it was asked what is still possible."""

    def arrive(self, firing: Firing, output: bytes) -> None:
        """A step is done: the joins that need it go on."""
        plan = self._moves.plan
        for name in plan.dependents.get(firing.step, ()):
            if plan.is_dag(name):
                self._count(name, done=1)
            else:
                self._wait_with(name, firing, output)

    def died(self, name: str) -> None:
        """A step has come to nothing."""
        plan, steps = self._moves.plan, self._moves.marking.steps
        self._is_due = True
        state = steps.get(name)
        if state is None or not plan.is_dag(name):
            return
        for join in plan.dependents.get(name, ()):
            if plan.is_dag(join):
                self._count(join, dead=1)

    def are_over(self, joins: frozenset[str], stack: Stack) -> bool:
        """Whether one of these joins has fired in the fork instance that a stack is in."""
        marking, plan = self._moves.marking, self._moves.plan
        for join in joins:
            if plan.is_dag(join):
                counts = marking.dag.get(join)
                if counts is not None and counts.is_over:
                    return True
                continue
            state = marking.joins.get((join, _number(self._key(join, stack))))
            if state is not None and state.is_over:
                return True
        return False

    def restore(self) -> None:
        """Count anew what the steps have come to: the marking was read from the store."""
        moves = self._moves
        plan, marking = moves.plan, moves.marking
        begun = {token.step for token in marking.tokens.values()} | {one.step for one in marking.firings.values()}
        for name, state in marking.steps.items():
            for join in plan.dependents.get(name, ()) if state.status and plan.is_dag(name) else ():
                counts = marking.dag.setdefault(join, DagJoin()) if plan.is_dag(join) else DagJoin()
                counts.done += state.status == "completed"
                counts.dead += state.status != "completed"
                counts.is_over = join in begun or (join in marking.steps and bool(marking.steps[join].status))

    # Joins whose needs happen once at most.

    def _count(self, name: str, *, done: int = 0, dead: int = 0) -> None:
        dag = self._moves.marking.dag
        counts = dag.get(name)
        if counts is None:
            counts = dag[name] = DagJoin()
        counts.done += done
        counts.dead += dead
        self._judge(name, counts)

    def _judge(self, name: str, counts: DagJoin) -> None:
        """Fire a join that has enough, and skip one that can't have enough any more."""
        moves, node = self._moves, self._moves.plan.nodes[name]
        if counts.is_over:
            return
        enough, left = required(node), len(node.needs) - counts.done - counts.dead
        if node.join == "alive":
            fires = left == 0 and counts.done > 0
        else:
            fires = counts.done >= enough
        if fires:
            counts.is_over = True
            self._fire(name, {need: output for need in node.needs if (output := self._output(need)) is not None}, ())
        elif counts.done + left < enough:
            counts.is_over = True
            moves.note(name, "skipped", self._why(node, lambda need: self._is_dead(need)))

    def _output(self, need: str) -> bytes | None:
        state = self._moves.marking.steps.get(need)
        return state.output if state is not None and state.status == "completed" else None

    def _is_dead(self, need: str) -> bool:
        state = self._moves.marking.steps.get(need)
        return state is not None and state.status not in ("", "completed")

    # Joins that may have several fork instances.

    def _key(self, name: str, stack: Stack) -> Stack:
        """The stack of the fork instance that a join fires in, for a step with this stack."""
        fork = self._moves.plan.join_fork(name)
        inside = [at for at, (step, _) in enumerate(stack) if step == fork]
        return stack[: inside[-1] + 1] if inside else ()

    def _wait_with(self, name: str, firing: Firing, output: bytes) -> None:
        marking, node = self._moves.marking, self._moves.plan.nodes[name]
        stack = self._key(name, firing.stack)
        key = (name, _number(stack))
        state = marking.joins.get(key)
        if state is None:
            state = JoinState(stack, firing.depth)
            marking.put_join(key, state)
            self._is_due = True
        if state.is_over or firing.step in state.arrived:
            return
        marking.put_arrival(key, firing.step, output)
        if len(state.arrived) == len(node.needs) or (node.join != "alive" and len(state.arrived) >= required(node)):
            self._fire_waiting(key, state)

    def _fire_waiting(self, key: JoinKey, state: JoinState) -> None:
        node = self._moves.plan.nodes[key[0]]
        outputs = {need: state.arrived[need] for need in node.needs if need in state.arrived}
        state.is_over = True
        self._moves.marking.put_join(key, state)
        self._fire(key[0], outputs, state.stack, state.depth)

    def look(self) -> bool:
        """Fire joins that can have no more, and skip those that can't have enough; whether there were any."""
        marking = self._moves.marking
        if not self._is_due:
            return False
        self._is_due = False
        found = False
        waiting = [(key, state) for key, state in marking.joins.items() if not state.is_over]
        possible: dict[int, set[str]] = {}
        for key, state in waiting:
            if state.is_over:
                continue
            if key[1] not in possible:
                possible[key[1]] = self._possible(key[1])
            if self._decide(key, state, possible[key[1]]):
                found, possible = True, {}
        return found

    def _decide(self, key: JoinKey, state: JoinState, possible: set[str]) -> bool:
        node = self._moves.plan.nodes[key[0]]
        left = sum(need in possible for need in node.needs if need not in state.arrived)
        if node.join == "alive" and left == 0:
            self._fire_waiting(key, state)
            return True
        if len(state.arrived) + left >= required(node):
            return False
        reason = self._why(node, lambda need: need not in state.arrived and need not in possible)
        state.is_over = True
        self._moves.marking.put_join(key, state)
        self._moves.marking.close_forks(state.stack)
        self._moves.note(key[0], "skipped", reason)
        return True

    def _possible(self, fork: int) -> set[str]:
        """The steps that can still be done in a fork instance: what is under way there may lead to them."""
        marking = self._moves.marking
        live = [token.step for token in marking.tokens.values() if is_in(token.stack, fork)]
        live += [firing.step for firing in marking.firings.values() if is_in(firing.stack, fork)]
        if fork == 0:
            live += [name for name, counts in marking.dag.items() if not counts.is_over]
        return _reached(self._moves.plan, marking, live, fork)

    def close(self, stack: Stack) -> None:
        """Something in these fork instances has ended: forget the instances that nothing is left of."""
        for key in self._moves.marking.close_forks(stack):
            self._is_due = True
            assert key in self._moves.marking.joins, "what waits is kept"

    def at_rest(self) -> bool:
        """Nothing is under way: joins that wait are over; whether there were any that fire."""
        marking = self._moves.marking
        self._is_due = any(not state.is_over for state in marking.joins.values())
        return self.look()

    # Firing.

    def _fire(self, name: str, outputs: dict[str, bytes], stack: Stack, depth: int = 0) -> None:
        moves, node = self._moves, self._moves.plan.nodes[name]
        codec = moves.codec
        args = codec.encode({need: codec.decode(output, plain=True) for need, output in outputs.items()})
        moves.put_token(name, args, stack, max(depth, moves.plan.depths.get(name, 0)))
        if isinstance(node.join, Quorum):
            self._cancel_rest(name, _number(stack))

    def _cancel_rest(self, name: str, fork: int) -> None:
        """A quorum is there: what serves nothing but this join is of no use any more."""
        moves = self._moves
        reason = f"the quorum of step {name!r} was reached without it"
        for number, token in list(moves.marking.tokens.items()):
            if is_in(token.stack, fork) and name in moves.plan.quorums_served(token.step):
                moves.drop_token(number, "cancelled", reason)
        for number, firing in list(moves.marking.firings.items()):
            if is_in(firing.stack, fork) and name in moves.plan.quorums_served(firing.step):
                moves.cancel(number, reason)

    def added(self, nodes: Sequence[Node]) -> None:
        """Steps were submitted: those whose needs are done already, or never will be, are judged at once."""
        moves = self._moves
        for node in nodes:
            if not node.needs:
                continue
            if moves.plan.is_dag(node.name):
                done = sum(self._output(need) is not None for need in node.needs)
                dead = sum(self._is_dead(need) for need in node.needs)
                if done or dead:
                    self._count(node.name, done=done, dead=dead)
                continue
            self._begin_with(node)

    def _begin_with(self, node: Node) -> None:
        for need in node.needs:
            state: StepState | None = self._moves.marking.steps.get(need)
            if state is not None and state.status == "completed" and state.output is not None:
                done = Firing(need, 0, b"", (), 0, 0, 0.0)
                self._wait_with(node.name, done, state.output)

    # Words.

    def look_again(self) -> None:
        """Something may have become impossible."""
        self._is_due = True

    def why_not(self, node: Node) -> str:
        """Why a join has not fired, where nothing was noted of it."""
        return self._why(node, lambda need: self._output(need) is None)

    def _why(self, node: Node, is_lost: Callable[[str], bool]) -> str:
        """Why a join can't fire."""
        lost = [need for need in node.needs if is_lost(need)]
        words = [f"{need!r}, which {self._what_became(need)}" for need in lost[:3]]
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        return f"it needs {', '.join(words)}{more}"

    def _what_became(self, need: str) -> str:
        state = self._moves.marking.steps.get(need)
        words = {"failed": "has failed", "denied": "was denied", "skipped": "was skipped", "cancelled": "was cancelled"}
        return words.get(state.status if state is not None else "", "was not taken")


def _number(stack: Stack) -> int:
    return stack[-1][1] if stack else 0


def _arrived(marking: Marking, join: str, fork: int) -> int:
    """How many needs of a join are done."""
    counts = marking.dag.get(join)
    if counts is not None:
        return counts.done
    state = marking.joins.get((join, fork))
    return 0 if state is None else len(state.arrived)


def _has_arrived(marking: Marking, join: str, fork: int, need: str) -> bool:
    state = marking.joins.get((join, fork))
    return state is not None and need in state.arrived


def _is_over(marking: Marking, join: str, fork: int) -> bool:
    counts = marking.dag.get(join)
    if counts is not None:
        return counts.is_over
    state = marking.joins.get((join, fork))
    return state is not None and state.is_over


def _reached(plan: Plan, marking: Marking, live: list[str], fork: int) -> set[str]:
    """The steps that can come of these, in a fork instance: along arcs, and through joins that can have enough."""
    found: set[str] = set()
    enough: dict[str, int] = {}
    todo = live
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        todo += [arc.step for arc in plan.nodes[name].next]
        for join in plan.dependents.get(name, ()):
            is_more = not _has_arrived(marking, join, fork, name)
            enough[join] = enough.get(join, _arrived(marking, join, fork)) + is_more
            if enough[join] >= required(plan.nodes[join]) and not _is_over(marking, join, fork):
                todo.append(join)
    return found
