"""What an event does to the marking of a graph: pure decisions, without an event loop, a clock or a store.

A firing ends, the context changes or steps are submitted: the marking is changed, and what comes of it is told, so that
whoever runs the graph can do it: firings that begin, firings that are cancelled, and whether the run is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from workflow_sdk.graphs.evaluating import Chooser
from workflow_sdk.graphs.expressions import ExpressionError
from workflow_sdk.graphs.joins import Joins
from workflow_sdk.graphs.marking import Firing, Marking, StepState, opened
from workflow_sdk.graphs.model import Arc, GraphResult, Node, Outcome
from workflow_sdk.graphs.moves import Effects, Ended, Moves, failed_to_evaluate
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.starting import Starting
from workflow_sdk.values import Codec


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
    ) -> None:
        self.plan = plan
        self.marking = marking
        self.moves = Moves(plan, marking, codec, workload, now, state)
        self._joins = Joins(self.moves)
        self.moves.joins = self._joins
        self._starting = Starting(self.moves, self._finish)

    def restore(self) -> None:
        """Go on with a marking that was read from the store."""
        self._joins.restore()

    # Events.

    def begin(self, chooser: Chooser, context: Mapping[str, Any], given: Mapping[str, bytes] | None = None) -> Effects:
        """Put the first tokens. `given`: the outputs of steps that another system has run."""
        moves, plan = self.moves, self.plan
        moves.open(chooser)
        if context:
            moves.set_context(context)
        moves.given.update(given or {})
        for name in plan.roots:
            if not (name in moves.given and plan.is_dag(name)):
                moves.put_token(name, moves.workload, (), 0)
        for name in [name for name in moves.given if name in plan.nodes and plan.is_dag(name)]:
            # No arc leads there: it is done, whether or not what it needs is.
            self._was_given(name, moves.given.pop(name))
        return self._close()

    def end(self, chooser: Chooser, ended: Ended) -> Effects:
        """A firing has ended: follow its arcs, and start what can start."""
        self.moves.open(chooser)
        self._finish(self.marking.drop_firing(ended.number), ended)
        return self._close()

    def patch(self, chooser: Chooser, values: Mapping[str, Any]) -> Effects:
        """The context is changed from outside."""
        self.moves.open(chooser)
        self.moves.patch(values)
        return self._close()

    def submit(
        self, chooser: Chooser, nodes: Sequence[Node], roots: Iterable[tuple[str, bytes]], depth: int
    ) -> Effects:
        """Add steps to the run, which were found to be sound. `roots`: those that begin at once, and with what."""
        self.moves.open(chooser)
        self.plan.add(nodes, depth)
        for name, args in roots:
            self.moves.put_token(name, args, (), depth)
        self._joins.added(nodes)
        return self._close()

    def _was_given(self, name: str, output: bytes) -> None:
        if name == self.plan.final:
            return
        firing = Firing(name, 0, self.moves.empty, (), 0, self.marking.head.events, self.moves.now())
        self._finish(firing, Ended(-1, is_done=True, output=output))

    # The end of a firing.

    def _finish(self, firing: Firing, ended: Ended) -> None:
        node = self.plan.nodes[firing.step]
        try:
            arcs = self._route(node, firing, ended)
        except ExpressionError as error:
            # A guard without an answer is no "no": the firing has failed, whatever its body came to.
            ended = self._rerouted(ended, error)
            arcs = self._route_failure(node, firing, ended)
        if ended.is_done and ended.patches:
            self.moves.patch(ended.patches)
        self._record(firing, node, ended, len(arcs))
        self._emit(firing, node, arcs)
        if not ended.is_done and not arcs and self.plan.status == "fail_fast" and firing.step != self.plan.final:
            reason = f"step {firing.step!r} has failed, and the graph fails at once"
            # First the joins: none may fire for the reason that what it waits for is cancelled.
            self._joins.stop(reason)
            self.moves.stop(reason)
        if ended.is_done and ended.output is not None:
            self._joins.arrive(firing, ended.output)
        else:
            self._joins.died(firing.step)

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
        sees = moves.sees(firing.args, output=ended.output, error=ended.error, event=event, patches=patches)
        found: list[tuple[Arc, bytes]] = []
        for arc in node.next:
            if arc.on not in (on, "any") or (arc.when is not None and not moves.choose.test(arc.when, sees)):
                continue
            args = moves.empty if arc.args is None else moves.codec.encode(moves.choose.value(arc.args, sees))
            found.append((arc, args))
            if node.mode == "exclusive":
                break
        if not found and ended.is_done and self.plan.no_match == "error":
            raise ExpressionError(f"no arc of step {node.name!r} matches, and the graph wants one to")
        return found

    def _route_failure(self, node: Node, firing: Firing, ended: Ended) -> list[tuple[Arc, bytes]]:
        try:
            return self._route(node, firing, ended)
        except ExpressionError:
            return []

    def _record(self, firing: Firing, node: Node, ended: Ended, arcs: int) -> None:
        before = self.marking.steps.get(firing.step, StepState())
        count = before.firings + (ended.number >= 0)
        if ended.is_done:
            state = replace(before, status="completed", reason="", firings=count, output=ended.output)
        else:
            # A failure that no arc has handled counts, whatever comes of the step in another branch.
            fails = not arcs and firing.step != self.plan.final
            state = replace(before, status="failed", reason=ended.reason, firings=count, counts=before.counts or fails)
            state = replace(state, error=ended.raw_error if fails else before.error)
        self.marking.put_step(firing.step, state)
        if arcs < len(node.next) or not ended.is_done:
            # Where all arcs are followed, nothing has become impossible.
            self._joins.look_again()

    def _emit(self, firing: Firing, node: Node, arcs: list[tuple[Arc, bytes]]) -> None:
        stack = firing.stack
        if node.is_fork and arcs:
            stack = opened(stack, node.name, self.moves.count("forks") + 1)
        for arc, args in arcs:
            self.moves.put_token(arc.step, args, stack, firing.depth)

    # The end of an event, and of the run.

    def _close(self) -> Effects:
        self._starting.open()
        self._starting.advance()
        while self._joins.look() or self._comes_to_rest():
            self._starting.advance()
        self.marking.close_forks()
        effects = self.moves.effects
        effects.is_over = not (self.marking.firings or self.marking.tokens)
        return effects

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
        self.moves.put_token(plan.final, self.moves.codec.encode(self.summary()), (), 0)
        return True

    def summary(self) -> dict[str, Any]:
        """What the final step is given, but for the instance's id."""
        found = self.result()
        counts: dict[str, int] = {}
        for name, outcome in found.outcomes.items():
            if name != self.plan.final:
                counts[outcome.status] = counts.get(outcome.status, 0) + 1
        failures = {name: outcome.reason for name, outcome in found.outcomes.items() if outcome.status == "failed"}
        return {"instance_id": "", "counts": counts, "outputs": found.outputs, "failures": failures}

    def result(self) -> GraphResult:
        """What the run has come to, as it stands."""
        decode = self.moves.codec.decode
        steps = self.marking.steps
        outcomes = {name: self._outcome(node, steps.get(name)) for name, node in self.plan.nodes.items()}
        outputs = {
            name: decode(output, plain=True)
            for name, outcome in outcomes.items()
            if outcome.status == "completed" and (output := steps[name].output) is not None
        }
        return GraphResult(
            self._status(outcomes), outcomes, outputs, [name for name, state in steps.items() if state.is_blocked]
        )

    def _outcome(self, node: Node, state: StepState | None) -> Outcome:
        if state is not None and state.status:
            return Outcome(state.status, state.reason, state.firings)  # type: ignore[arg-type]
        if node.needs:
            return Outcome("skipped", self._joins.why_not(node))
        return Outcome("never_reached", "no token came to it")

    def _status(self, outcomes: Mapping[str, Outcome]) -> Literal["succeeded", "failed", "partial"]:
        plan, steps = self.plan, self.marking.steps
        final = outcomes.get(plan.final) if plan.final is not None else None
        if final is not None and final.status == "failed" and plan.final_failure == "fail":
            return "failed"
        if any(state.counts for state in steps.values()):
            if plan.status != "lenient":
                return "failed"
            return "partial" if any(one.status == "completed" for one in outcomes.values()) else "failed"
        if any(state.is_blocked for state in steps.values()) or (final is not None and final.status == "failed"):
            return "partial"
        return "succeeded"
