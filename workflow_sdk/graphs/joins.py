"""Joins: when a step that needs others fires, and when it can't any more.

A join fires once for each fork instance. Where neither it nor what it needs is led to by an arc, the ends of steps tell
all there is to know, and are counted. Elsewhere a step can happen again, by another way, as long as a token can come to
it: then what is under way says what is still possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from workflow_sdk.graphs.arguments import BY_REFERENCE
from workflow_sdk.graphs.marking import DagJoin, JoinKey, JoinState, Marking
from workflow_sdk.graphs.model import Node, Quorum
from workflow_sdk.graphs.moves import Moves
from workflow_sdk.graphs.plan import required
from workflow_sdk.graphs.possible import Possible, instance_of, is_in, number_of, possible_needs, thinned
from workflow_sdk.graphs.rows import Firing, Stack, StepState


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

    def are_over(self, joins: Iterable[str], stack: Stack) -> bool:
        """Whether one of these joins has fired in the fork instance that a stack is in."""
        return any(self._has_fired(join, stack) for join in joins)

    def _has_fired(self, join: str, stack: Stack) -> bool:
        marking = self._moves.marking
        step = marking.steps.get(join)
        if step is not None and step.status == "skipped":
            return False
        if self._moves.plan.is_dag(join):
            counts = marking.dag.get(join)
            return counts is not None and counts.is_over
        state = marking.joins.get((join, number_of(instance_of(self._moves.plan, join, stack))))
        return state is not None and state.is_over

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
            self._fire_counted(node)
        elif counts.done + left < enough:
            counts.is_over = True
            moves.note(
                name, "skipped", _why(self._moves.marking, node, lambda need: _is_dead(self._moves.marking, need))
            )

    # Joins that may have several fork instances.

    def _wait_with(self, name: str, firing: Firing, output: bytes) -> None:
        marking, node = self._moves.marking, self._moves.plan.nodes[name]
        stack = instance_of(self._moves.plan, name, firing.stack)
        key = (name, number_of(stack))
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
        elif node.join == "alive":
            # It may have waited for nothing but this.
            self._is_due = True

    def _fire_waiting(self, key: JoinKey, state: JoinState) -> None:
        moves, node = self._moves, self._moves.plan.nodes[key[0]]
        state.is_over = True
        args = moves.args.of_join(node, state.arrived)
        moves.marking.put_join(key, state, keeps=not args)
        self._put(node, args, state.stack, state.depth)

    def look(self) -> bool:
        """Fire joins that can have no more, and skip those that can't have enough; whether there were any."""
        if not self._is_due:
            return False
        self._is_due = False
        marking = self._moves.marking
        found = False
        possible: Possible | None = None
        for key, state in self._waiting():
            if possible is None:
                possible = possible_needs(self._moves.plan, marking)
            needs = possible.get((key[0], thinned(marking, state.stack)), set())
            if self._moves.plan.nodes[key[0]].join == "alive" and not needs:
                self._fire_waiting(key, state)
                found, possible = True, None
            elif len(state.arrived) + len(needs) < required(self._moves.plan.nodes[key[0]]):
                self._skip(key, state, needs)
                found = True
        return found

    def _waiting(self) -> list[tuple[JoinKey, JoinState]]:
        """The joins that wait, in an order that is the same when the marking was read from the store."""
        places = self._moves.plan.places
        waiting = [(key, state) for key, state in self._moves.marking.joins.items() if not state.is_over]
        return sorted(waiting, key=lambda one: (one[0][1], places[one[0][0]]))

    def _skip(self, key: JoinKey, state: JoinState, possible: AbstractSet[str]) -> None:
        node, arrived = self._moves.plan.nodes[key[0]], set(state.arrived)
        state.is_over = True
        self._moves.marking.put_join(key, state)
        reason = _why(self._moves.marking, node, lambda need: need not in arrived and need not in possible)
        self._moves.note(key[0], "skipped", reason)

    def at_rest(self) -> bool:
        """Nothing is under way: joins that wait are over; whether there were any."""
        self._is_due = bool(self._waiting())
        return self.look()

    def stop(self, reason: str) -> None:
        """None of them fires any more."""
        moves = self._moves
        for key, state in self._waiting():
            state.is_over = True
            moves.marking.put_join(key, state)
            moves.note(key[0], "skipped", reason)
        for name, counts in sorted(moves.marking.dag.items(), key=lambda one: moves.plan.places[one[0]]):
            if not counts.is_over:
                counts.is_over = True
                moves.note(name, "skipped", reason)

    # Firing.

    def _fire_counted(self, node: Node) -> None:
        """Fire a join that happens once at most."""
        if node.join == "all":
            # Each of its needs has happened, once, and happens no more: what they have given need not be stored again.
            self._put(node, BY_REFERENCE, ())
        else:
            found = {need: output for need in node.needs if (output := _output(self._moves.marking, need)) is not None}
            args, marking = self._moves.args.of_join(node, found), self._moves.marking
            if not args:
                marking.put_join((node.name, 0), JoinState((), is_over=True))
                for need, output in found.items():
                    marking.put_arrival((node.name, 0), need, output)
            self._put(node, args, ())

    def _put(self, node: Node, args: bytes, stack: Stack, depth: int = 0) -> None:
        moves, name = self._moves, node.name
        moves.put_token(name, args, stack, max(depth, moves.plan.depths.get(name, 0)))
        if isinstance(node.join, Quorum):
            self._cancel_rest(name, number_of(stack))

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
        for name in [name for name in moves.marking.dag if not moves.plan.is_dag(name)]:
            self._wait_from_now_on(name)
        joins = [node for node in nodes if node.needs]
        self._count_known([node for node in joins if moves.plan.is_dag(node.name)])
        for node in joins:
            if not moves.plan.is_dag(node.name):
                self._begin_with(node)

    def _count_known(self, joins: Sequence[Node]) -> None:
        # First all are looked at: one that is skipped now is told to the others like any step that comes to nothing.
        for name, done, dead in [(node.name, *self._known_of(node)) for node in joins]:
            if done or dead:
                self._count(name, done=done, dead=dead)

    def _known_of(self, node: Node) -> tuple[int, int]:
        """How many needs of a join are done, and how many never will be."""
        outputs = [_output(self._moves.marking, need) is not None for need in node.needs]
        return sum(outputs), sum(_is_dead(self._moves.marking, need) for need in node.needs)

    def _wait_from_now_on(self, name: str) -> None:
        """An arc leads now to what a join needs: it is counted no longer, but waits for what may happen again."""
        marking, key = self._moves.marking, (name, 0)
        self._moves.args.store(name)
        counts, needs = marking.dag.pop(name), self._moves.plan.nodes[name].needs
        marking.put_join(key, JoinState((), is_over=counts.is_over))
        for need in needs if not counts.is_over else ():
            output = _output(self._moves.marking, need)
            if output is not None:
                marking.put_arrival(key, need, output)
        self._is_due = True

    def _begin_with(self, node: Node) -> None:
        for need in node.needs:
            state: StepState | None = self._moves.marking.steps.get(need)
            if state is not None and state.output is not None:
                done = Firing(need, 0, b"", (), 0, 0, 0.0)
                self._wait_with(node.name, done, state.output)

    # Words.

    def look_again(self) -> None:
        """Something may have become impossible."""
        self._is_due = True

    def why_not(self, node: Node) -> str:
        """Why a join has not fired, where nothing was noted of it."""
        return _why(self._moves.marking, node, lambda need: _output(self._moves.marking, need) is None)


def _output(marking: Marking, need: str) -> bytes | None:
    """What a step has given, if it is done."""
    state = marking.steps.get(need)
    return state.output if state is not None and state.status == "completed" else None


def _is_dead(marking: Marking, need: str) -> bool:
    """Whether a step has come to nothing."""
    state = marking.steps.get(need)
    return state is not None and state.status not in ("", "completed")


def _why(marking: Marking, node: Node, is_lost: Callable[[str], bool]) -> str:
    """Why a join can't fire."""
    lost = [need for need in node.needs if is_lost(need)]
    words = [f"{need!r}, which {_what_became(marking, need)}" for need in lost[:3]]
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    return f"it needs {', '.join(words)}{more}"


def _what_became(marking: Marking, need: str) -> str:
    state = marking.steps.get(need)
    words = {"failed": "has failed", "denied": "was denied", "skipped": "was skipped", "cancelled": "was cancelled"}
    return words.get(state.status if state is not None else "", "was not taken")
