"""What an event does to the marking of a graph: pure decisions, without an event loop, a clock or a store.

A firing ends, the context changes or steps are submitted: the marking is changed, and what comes of it is told, so that
whoever runs the graph can do it: firings that begin, firings that are cancelled, and whether the run is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from workflow_sdk.graphs.controllers import Controllers, is_added
from workflow_sdk.graphs.evaluating import Chooser, Sees
from workflow_sdk.graphs.expressions import ExpressionError
from workflow_sdk.graphs.joins import Joins
from workflow_sdk.graphs.marking import DagJoin, Marking
from workflow_sdk.graphs.model import Arc, GraphResult, Node
from workflow_sdk.graphs.moves import Effects, Ended, Moves, failed_to_evaluate
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.possible import opened
from workflow_sdk.graphs.results import result_of, summary_of
from workflow_sdk.graphs.rows import Firing, StepState
from workflow_sdk.graphs.starting import Starting
from workflow_sdk.values import Codec

LOST_MAX = 100
"""So many failed firings of one step are tried again at once, when a graph is recovered."""


class Interpreter:
    """The decisions of one run."""

    def __init__(
        self,
        plan: Plan,
        marking: Marking,
        codec: Codec,
        workload: bytes,
        *,
        now: Callable[[], float],
        state: Callable[[], Mapping[str, Any]] = dict,
        expands: bool = True,
    ) -> None:
        """`expands`: controllers add their steps. Otherwise they end as any other step, for who only wants the ways."""
        self.plan = plan
        self.marking = marking
        self.moves: Moves = Moves(plan, marking, codec, workload, now, state)
        self.instance_id = ""
        self.is_rebuilt = False
        """What was recorded happens again: steps are started by their record only."""
        self.live: Callable[[], Chooser] | None = None
        """While a run is made again: what evaluates that for which there is no record."""
        self.moves.args.summary = lambda: summary_of(plan.final, self.result(), self.instance_id)
        self._joins = Joins(self.moves)
        self.moves.joins = self._joins
        self._controllers = Controllers(self.moves, self._finish)
        self.moves.ended = self._controllers.ended
        self._starting = Starting(self.moves, self._finish, self._controllers if expands else None)

    def restore(self) -> None:
        """Go on with a marking that was read from the store."""
        fired = self.marking.fired
        for step, _ in self.marking.head.free:
            fired[step] = fired.get(step, 0) + 1
        self._joins.restore()
        self._controllers.restore()

    # Events.

    def begin(self, chooser: Chooser, context: Mapping[str, Any], given: Mapping[str, bytes] | None = None) -> Effects:
        """Put the first tokens. `given`: the outputs of steps that another system has run."""
        moves, plan = self.moves, self.plan
        moves.open(chooser)
        if context:
            moves.set_context(context)
        moves.given.update(given or {})
        done = self._given_to(plan.nodes)
        for name in plan.roots:
            if name not in done:
                moves.put_token(name, moves.args.of_root(name), (), 0)
        self._were_given(done)
        return self._close()

    def end(self, chooser: Chooser, ended: Ended) -> Effects:
        """A firing has ended: follow its arcs, and start what can start."""
        self.moves.open(chooser)
        self._finish(self.marking.drop_firing(ended.number), ended)
        return self._close()

    def again(self, chooser: Chooser, firing: Firing, ended: Ended | None) -> None:
        """What was recorded happens again: a step takes its token, and ends if that was recorded. Nothing begins.

        LookupError, if there is no token for it: what gave it one has not happened again.
        """
        self.moves.open(chooser)
        if ended is not None and self._controllers.has_begun(firing):
            self._controllers.remember(chooser, firing, ended)
        else:
            token = self._starting.take(firing)
            if ended is not None:
                self._finish(token, ended)
        self._rest()

    def patch(self, chooser: Chooser, values: Mapping[str, Any]) -> Effects:
        """The context is changed from outside."""
        self.moves.open(chooser)
        self.moves.patch(values)
        return self._close()

    def tick(self, chooser: Chooser) -> Effects:
        """Start what can start."""
        self.moves.open(chooser)
        return self._close()

    def submit(
        self, chooser: Chooser, nodes: Sequence[Node], roots: Iterable[tuple[str, bytes]], depth: int
    ) -> Effects:
        """Add steps to the run, which were found to be sound. `roots`: those that begin at once, and with what."""
        self.moves.open(chooser)
        self.plan.add(nodes, depth)
        done = self._given_to([one.name for one in nodes])
        for name, args in roots:
            if name not in done:
                self.moves.put_token(name, args, (), depth)
        self._joins.added([one for one in nodes if one.name not in done])
        self._were_given(done)
        return self._close()

    def _given_to(self, names: Iterable[str]) -> list[str]:
        """The steps that another system has run, and that no arc leads to: they are done, whatever they need."""
        given, plan = self.moves.given, self.plan
        return [name for name in names if name in given and name != plan.final and plan.is_dag(name)]

    def _were_given(self, names: list[str]) -> None:
        for name in names:
            # Before any of them is done: none waits for another.
            self.marking.dag.setdefault(name, DagJoin()).is_over = True
        for name in names:
            self._was_given(name, self.moves.given.pop(name))

    def _was_given(self, name: str, output: bytes) -> None:
        firing = Firing(name, 0, self.moves.empty, (), 0, self.marking.head.events, self.moves.now())
        self._finish(firing, Ended(-1, is_done=True, output=output))

    # The end of a firing.

    def _finish(self, firing: Firing, ended: Ended) -> None:
        node, made = self.plan.nodes[firing.step], self.moves.choose.made
        before, asked = len(made), ended
        try:
            arcs = self._route(node, firing, ended)
        except ExpressionError as error:
            # A guard without an answer is no "no": the firing has failed, whatever its body came to.
            arcs = []
            if ended.is_done:
                ended = self._rerouted(ended, error)
                arcs = self._route_failure(node, firing, ended)
        asked.made = ended.made = made[before:]
        if ended.is_done and ended.patches:
            self.moves.patch(ended.patches)
        # What a step comes to that a controller has added is a matter of the controller.
        is_handled = bool(arcs) or is_added(node)
        self._record(firing, node, ended, len(arcs), is_handled=is_handled)
        self._emit(firing, node, arcs)
        if not is_handled and self._fails_at_once(firing, ended):
            reason = f"step {firing.step!r} has failed, and the graph fails at once"
            # First the joins: none may fire for the reason that what it waits for is cancelled.
            self._joins.stop(reason)
            self.moves.stop(reason)
        if ended.is_done and ended.output is not None:
            self._joins.arrive(firing, ended.output)
        else:
            self._joins.died(firing.step)
        self.moves.ended(firing.step)

    def _fails_at_once(self, firing: Firing, ended: Ended) -> bool:
        return not ended.is_done and self.plan.status == "fail_fast" and firing.step != self.plan.final

    def _rerouted(self, ended: Ended, error: ExpressionError) -> Ended:
        passed = self.moves.effects.passed
        after = failed_to_evaluate(ended.number, error)
        if passed and passed[-1][1] is ended:
            passed[-1] = (passed[-1][0], after)
        else:
            self.moves.effects.rerouted = error
        return after

    def _route(self, node: Node, firing: Firing, ended: Ended) -> list[tuple[Arc, bytes]]:
        """The arcs that a firing is followed by, with their arguments, evaluated."""
        if not node.next:
            return []
        moves, on = self.moves, "done" if ended.is_done else "failed"
        patches = ended.patches if ended.is_done else None
        event = f"{ended.event}.{on}"
        sees = moves.seen_by(
            firing, step=firing.step, output=ended.output, error=ended.error, event=event, patches=patches
        )
        found: list[tuple[Arc, bytes]] = []
        for arc in [arc for arc in node.next if arc.on in (on, "any")]:
            if arc.when is None or moves.choose.test(arc.when, sees):
                found.append((arc, self._args_of(arc, sees)))
                if node.mode == "exclusive":
                    break
        if not found and ended.is_done and self.plan.no_match == "error":
            raise ExpressionError(f"no arc of step {node.name!r} matches, and the graph wants one to")
        return found

    def _args_of(self, arc: Arc, sees: Sees) -> bytes:
        moves = self.moves
        return moves.empty if arc.args is None else moves.codec.encode(moves.choose.value(arc.args, sees))

    def _route_failure(self, node: Node, firing: Firing, ended: Ended) -> list[tuple[Arc, bytes]]:
        try:
            return self._route(node, firing, ended)
        except ExpressionError:
            return []

    def _record(self, firing: Firing, node: Node, ended: Ended, arcs: int, *, is_handled: bool) -> None:
        before = self.marking.steps.get(firing.step, StepState())
        count = before.firings + (ended.number >= 0)
        if ended.is_done:
            reason = _failed_earlier(before)
            state = replace(before, status="completed", reason=reason, firings=count, output=ended.output)
        else:
            # A failure that no arc has handled counts, whatever comes of the step in another branch.
            fails = not is_handled and firing.step != self.plan.final
            state = replace(before, status="failed", reason=ended.reason, firings=count, counts=before.counts or fails)
            state = replace(state, error=ended.raw_error if fails else before.error, unwinds=ended.unwinds)
            if fails or firing.step == self.plan.final:
                lost = (*before.lost, (firing.count, ended.operations))
                state = replace(state, lost=lost[:LOST_MAX])
        self.marking.put_step(firing.step, state)
        if arcs < len(node.next) or not ended.is_done:
            # Where all arcs are followed, nothing has become impossible.
            self._joins.look_again()

    def _emit(self, firing: Firing, node: Node, arcs: list[tuple[Arc, bytes]]) -> None:
        stack = firing.stack
        if node.is_fork and arcs:
            stack = opened(stack, node.name, self.moves.marking.head.count("forks") + 1)
        for arc, args in arcs:
            self.moves.put_token(arc.step, args, stack, firing.depth)

    # The end of an event, and of the run.

    def _close(self) -> Effects:
        if self.is_rebuilt:
            self._rest()
        else:
            self._starting.open()
            self._starting.advance()
            while self._joins.look() or self._controllers.look() or self._comes_to_rest():
                self._starting.advance()
        self.marking.close_forks()
        effects = self.moves.effects
        self._tell_limits(effects)
        effects.is_over = not (self.marking.firings or self.marking.tokens)
        return effects

    def _tell_limits(self, effects: Effects) -> None:
        """Have all that began in the event see the same: what is used with all of it."""
        marking = self.marking
        for at, (number, firing) in enumerate(effects.started):
            if number in marking.firings:
                firing = replace(marking.firings[number], used=self.moves.used(firing.depth))
                marking.put_firing(number, firing)
                effects.started[at] = (number, firing)

    def _rest(self) -> None:
        """Do what comes of an event by itself, but for starting steps: their record says that they have started."""
        while self._joins.look() or self._goes_on() or self._comes_to_rest():
            pass

    def _goes_on(self) -> bool:
        """Whether a controller has gone on. They add their steps again before these take their tokens."""
        has_gone_on = self._controllers.look(by_record=True)
        return (self.live is not None and self._starting.begin_controllers(self.live)) or has_gone_on

    def _comes_to_rest(self) -> bool:
        """Whether all has come to rest, and something goes on for that reason: a join, or the final step."""
        marking, plan = self.marking, self.plan
        if marking.firings or marking.ready or (marking.blocked and plan.when_blocked == "wait"):
            return False
        for number in list(marking.blocked):
            step = marking.tokens[number].step
            marking.blocked.pop(number)
            marking.drop_token(number)
            reason = "admission: its rules do not allow it, and the graph does not wait"
            self.moves.note(step, "denied", reason, is_blocked=True)
        # A join may have fired when what it waited for was denied.
        if self._joins.at_rest() or marking.ready:
            return True
        if plan.final is None or not marking.head.is_final_due:
            return False
        self.moves.final_is_due()
        self.moves.put_token(plan.final, self.moves.args.of_final(), (), 0)
        return True

    def result(self) -> GraphResult:
        """What the run has come to, as it stands."""
        return result_of(self.moves, self._joins.why_not)


def _failed_earlier(before: StepState) -> str:
    """What is said of a step that is completed, of a failure that counts all the same; nothing, if there was none."""
    if not before.counts or before.status == "completed":
        return before.reason if before.counts else ""
    return f"an earlier firing {'was denied' if before.status == 'denied' else 'has failed'}: {before.reason}"
