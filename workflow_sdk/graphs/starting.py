"""Which tokens start their step: limits, admission, and steps that run nothing and end as they begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from workflow_sdk.graphs.controllers import Controllers, is_controller
from workflow_sdk.graphs.evaluating import Chooser
from workflow_sdk.graphs.expressions import ExpressionError, Template
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.model import Node
from workflow_sdk.graphs.moves import Ended, Moves, failed_to_evaluate
from workflow_sdk.graphs.rows import Firing, Token

INLINE_MAX = 100
"""So many steps that run nothing are fired in one event; the next ones are begun like steps that do."""


class Starting:
    """Starts the steps whose turn has come."""

    def __init__(self, moves: Moves, finish: Callable[[Firing, Ended], None], controllers: Controllers | None) -> None:
        self._moves = moves
        self._controllers = controllers
        self._finish = finish
        self._inline = 0

    def open(self) -> None:
        """An event happens."""
        self._inline = 0

    def advance(self) -> None:
        """Start what can start, in order. What has no room waits, and so does all that came after it."""
        marking, plan = self._moves.marking, self._moves.plan
        while marking.ready:
            number = marking.ready[0]
            token = marking.tokens[number]
            node = plan.nodes[token.step]
            refused = self._refused(node)
            if refused is None and not self._has_room(node):
                return
            marking.ready.popleft()
            if refused is None:
                self._admit(number, token, node)
            else:
                marking.drop_token(number)
                self._moves.note(token.step, "denied", refused, counts=True)

    def take(self, firing: Firing) -> Firing:
        """Give a token to the firing that has had it, by the record; returns it as it was.

        LookupError, if there is none.
        """
        marking, number = self._moves.marking, self._token_of(firing)
        token = marking.tokens[number]
        if number in marking.blocked:
            del marking.blocked[number]
        else:
            marking.ready.remove(number)
        marking.drop_token(number)
        marking.fired[token.step] = max(marking.fired.get(token.step, 0), firing.count + 1)
        return replace(firing, args=token.args, stack=token.stack, depth=token.depth)

    def _token_of(self, firing: Firing) -> int:
        """The token that a firing has taken: one with its arguments, if there are several."""
        tokens = [(number, token) for number, token in self._moves.marking.tokens.items() if token.step == firing.step]
        same = [number for number, token in tokens if token.args == firing.args]
        if not tokens:
            raise LookupError(firing.step)
        return same[0] if same else tokens[0][0]

    def begin_controllers(self, live: Callable[[], Chooser]) -> bool:
        """While a run is made again: begin the controllers that have a token; whether there were any."""
        marking, nodes = self._moves.marking, self._moves.plan.nodes
        found = [number for number in marking.ready if is_controller(nodes[marking.tokens[number].step])]
        for number in found:
            token = marking.tokens[number]
            if self._refused(nodes[token.step]) is None:
                marking.ready.remove(number)
                with self._moves.choosing(live()):
                    self._admit(number, token, nodes[token.step])
        return any(number not in marking.ready for number in found)

    def _refused(self, node: Node) -> str | None:
        """Why a step may never start."""
        plan, head = self._moves.plan, self._moves.marking.head
        limits = plan.limits
        if node.trust == "quarantined" and node.access == "write":
            return "quarantine: a quarantined step may not write"
        if node.name == plan.final:
            return None
        if limits.running == 0 and self._holds_slot(node):
            return "limit: no step may run (running=0)"
        if limits.starts is not None and head.starts >= limits.starts:
            return f"limit: {limits.starts} firings were started (starts={limits.starts})"
        if limits.nodes is not None and plan.places[node.name] >= limits.nodes:
            return f"limit: the graph has more than {limits.nodes} steps (nodes={limits.nodes})"
        return None

    @staticmethod
    def _holds_slot(node: Node) -> bool:
        return not node.is_inline and not is_controller(node)

    def _has_room(self, node: Node) -> bool:
        most = self._moves.plan.limits.running
        return most is None or not self._holds_slot(node) or self._moves.marking.running < max(most, 1)

    def _admit(self, number: int, token: Token, node: Node) -> None:
        """Start a step, if its rules allow that; else its token stays and waits."""
        marking = self._moves.marking
        try:
            is_allowed = self._allows(node, token)
        except ExpressionError as error:
            marking.drop_token(number)
            firing, count = self._fire(token)
            self._pass(firing, failed_to_evaluate(count, error))
            return
        if is_allowed:
            marking.drop_token(number)
            self._start(token, node)
        elif node.on_deny == "discard":
            marking.drop_token(number)
            self._moves.note(node.name, "denied", "admission: its rules do not allow it, and it is not kept")
        else:
            marking.put_token(number, replace(token, denied="its rules do not allow it"))
            marking.blocked[number] = None

    def _allows(self, node: Node, token: Token) -> bool:
        if not node.admit:
            return True
        sees = self._moves.seen_by(token)
        for rule in node.admit:
            if rule.when is None or self._moves.choose.test(rule.when, sees):
                return rule.allow
        # Rules that allow say who may start; rules that only deny say who may not.
        return not any(rule.allow for rule in node.admit)

    def _fire(self, token: Token) -> tuple[Firing, int]:
        """A step takes its token. Returns the firing, and its number."""
        marking = self._moves.marking
        firing = Firing(
            token.step,
            _next_count(marking, token.step),
            token.args,
            token.stack,
            token.depth,
            marking.head.events,
            self._moves.now(),
            marking.head.vars,
        )
        return firing, marking.head.count("starts")

    def _start(self, token: Token, node: Node) -> None:
        moves = self._moves
        firing, number = self._fire(token)
        given = moves.given.pop(token.step, None)
        try:
            firing = self._with_details(firing, node) if given is None else firing
        except ExpressionError as error:
            self._pass(firing, failed_to_evaluate(number, error))
            return
        if given is not None:
            self._pass(firing, Ended(number, is_done=True, output=given))
        elif is_controller(node) and self._controllers is not None:
            self._begin_controller(self._controllers, number, firing, node)
        elif node.is_inline and self._inline < INLINE_MAX:
            self._inline += 1
            self._pass(firing, inline_end(moves, number, firing, node))
        else:
            moves.marking.put_firing(number, firing)
            moves.effects.started.append((number, firing))

    def _begin_controller(self, controllers: Controllers, number: int, firing: Firing, node: Node) -> None:
        moves = self._moves
        ended = controllers.begin(number, firing, node)
        if ended is None:
            return
        if ended.output is not None and self._inline >= INLINE_MAX:
            raw = moves.codec.encode({"output": moves.codec.decode(ended.output, plain=True)})
            moves.marking.put_firing(number, replace(firing, details=raw))
            moves.effects.started.append((number, replace(firing, details=raw)))
            return
        self._inline += 1
        self._pass(firing, ended)

    def _with_details(self, firing: Firing, node: Node) -> Firing:
        """The firing with what the details of its step come to now."""
        templates = {key: value for key, value in node.details.items() if isinstance(value, Template)}
        if not templates:
            return firing
        moves, sees = self._moves, self._moves.seen_by(firing)
        values = {key: moves.choose.value(template, sees) for key, template in templates.items()}
        return replace(firing, details=moves.codec.encode(values))

    def _pass(self, firing: Firing, ended: Ended) -> None:
        self._moves.effects.passed.append((firing, ended))
        self._finish(firing, ended)


def _next_count(marking: Marking, step: str) -> int:
    """The number that the next firing of a step has among those of the step."""
    for one in marking.head.free:
        if one[0] == step:
            left = tuple(other for other in marking.head.free if other != one)
            marking.head.tell(free=left)
            return one[1]
    count = marking.fired.get(step, 0)
    marking.fired[step] = count + 1
    return count


def inline_end(moves: Moves, number: int, firing: Firing, node: Node) -> Ended:
    """What a step comes to that runs nothing."""
    if node.kind != "assign" or firing.details is None:
        return Ended(number, is_done=True, output=moves.codec.encode(None))
    values: dict[str, Any] = moves.codec.decode(firing.details, plain=True)["values"]
    return Ended(number, is_done=True, output=moves.codec.encode(values), patches=values)
