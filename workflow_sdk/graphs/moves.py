"""The moves of a run on its marking, which all decisions are made of: tokens, notes, counts and the context."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from workflow_sdk.graphs.arguments import Arguments
from workflow_sdk.graphs.evaluating import Chooser, Sees
from workflow_sdk.graphs.expressions import ExpressionError
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.rows import Firing, Stack, StepState, Token
from workflow_sdk.values import Codec


class Ended(Struct):
    """How a firing has ended."""

    number: int
    is_done: bool
    output: bytes | None = None
    error: Mapping[str, Any] | None = None
    """Of one that has failed: type, message, kind and attributes."""
    patches: Mapping[str, Any] | None = None
    """What it has changed in the context."""
    raw_error: bytes | None = None
    """The failure as it is recorded."""
    unwinds: bool = False
    """Whether it ends the graph, and the workflow around it: its code has raised a RollbackError."""
    event: str = "step"
    """`step`, or `loop` for one that ran items or turns."""
    made: list[Any] = field(default_factory=list[Any])
    """What the guards and arguments of its arcs came to."""
    operations: tuple[str, ...] = ()
    """The paths of operations in it that have failed."""
    record: Callable[[], None] | None = None
    """What is recorded with its end and not before, such as how it is undone."""

    @property
    def reason(self) -> str:
        """Why it has failed, in one line."""
        return "" if self.error is None else f"{self.error['type'].rpartition('.')[2]}: {self.error['message']}"


def failed_to_evaluate(number: int, error: ExpressionError) -> Ended:
    """A firing that has failed since a guard, a rule or an argument has no value."""
    told: dict[str, Any] = {"type": "ExpressionError", "message": str(error), "kind": "expression", "attributes": {}}
    return Ended(number, is_done=False, error=told)


class Effects(Struct):
    """What comes of an event."""

    started: list[tuple[int, Firing]] = field(default_factory=list[tuple[int, Firing]])
    """Firings that begin once the event is stored."""
    passed: list[tuple[Firing, Ended]] = field(default_factory=list[tuple[Firing, Ended]])
    """Firings that began and ended in the event, since they run nothing."""
    cancelled: list[tuple[int, Firing]] = field(default_factory=list[tuple[int, Firing]])
    """Firings that were under way and are of no use any more."""
    rerouted: ExpressionError | None = None
    """Why the firing that has ended counts as failed, though its body did not: a guard or an argument has no value."""
    is_over: bool = False
    """Whether nothing is left to be done."""


def _nobody(name: str) -> None:
    """Nobody wants to know."""


class Listeners(Protocol):
    """What waits for steps: the joins."""

    def died(self, name: str) -> None:
        """A step has come to nothing."""
        ...

    def are_over(self, joins: Iterable[str], stack: Stack) -> bool:
        """Whether one of these joins has fired in the fork instance that a stack is in."""
        ...


class Moves:
    """The moves on the marking of one run."""

    def __init__(
        self,
        plan: Plan,
        marking: Marking,
        codec: Codec,
        workload: bytes,
        now: Callable[[], float],
        state: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.plan = plan
        self.marking = marking
        self.codec = codec
        self.workload = workload
        self.now = now
        self.state = state
        self.effects: Effects = Effects()
        self.empty: bytes = codec.encode({})
        self.given: dict[str, bytes] = {}
        """Outputs of steps that another system has run: such a step is done when its turn comes."""
        self.joins: Listeners | None = None
        self.ended: Callable[[str], None] = _nobody
        """What is to know that a step has ended, in whatever way."""
        self.args: Arguments = Arguments(plan, marking, codec, workload)
        self._chooser: Chooser | None = None

    def open(self, chooser: Chooser) -> None:
        """An event happens."""
        self._chooser = chooser
        self.effects = Effects()
        self.marking.head.count("events")

    @property
    def choose(self) -> Chooser:
        """What says what expressions come to, in this event."""
        assert self._chooser is not None, "expressions are evaluated in an event"
        return self._chooser

    def sees(self, args: Callable[[], Any], **ended: Any) -> Sees:
        """What expressions see where these are the arguments."""
        return Sees(self.codec, self.marking, self.workload, self.state, args=args, **ended)

    def seen_by(self, at: Token | Firing, **ended: Any) -> Sees:
        """What the expressions of a token or a firing see."""
        return self.sees(lambda: self.args.of(at), **ended)

    def final_is_due(self) -> None:
        """The final step is given its token, which it has once."""
        self.marking.head.tell(is_final_due=False)

    @contextmanager
    def choosing(self, chooser: Chooser) -> Generator[None]:
        """Have something else say what expressions come to, for a while."""
        before, self._chooser = self._chooser, chooser
        try:
            yield
        finally:
            self._chooser = before

    # Tokens and firings.

    def put_token(self, name: str, args: bytes, stack: Stack, depth: int) -> None:
        """Give a step control, unless it is of no use any more."""
        if self.marking.head.is_stopped and name != self.plan.final:
            self.note(name, "cancelled", "the graph has failed")
            return
        served = [join for join in self.plan.quorums_served(name) if self.plan.is_useless(name, join)]
        if served and self._listeners.are_over(served, stack):
            self.note(name, "cancelled", "what it serves has enough without it")
            return
        number = self.marking.head.count("tokens")
        self.marking.put_token(number, Token(name, args, stack, depth, number))
        self.marking.ready.append(number)

    def drop_token(self, number: int, status: str, reason: str) -> None:
        """Take control away, with a note why."""
        if number not in self.marking.blocked:
            self.marking.ready.remove(number)
        self.note(self.marking.drop_token(number).step, status, reason)

    def cancel(self, number: int, reason: str) -> None:
        """End a firing that is under way."""
        firing = self.marking.drop_firing(number)
        self.effects.cancelled.append((number, firing))
        before = self.marking.steps.get(firing.step, StepState())
        state = replace(before, status="cancelled", reason=reason, firings=before.firings + 1)
        self.marking.put_step(firing.step, state)
        self._listeners.died(firing.step)
        self.ended(firing.step)
        if firing.waits_for:
            self._cancel_steps(frozenset(firing.waits_for), reason)

    def _cancel_steps(self, names: frozenset[str], reason: str) -> None:
        """End what a controller has added, which nothing waits for any more."""
        for number in [number for number, token in self.marking.tokens.items() if token.step in names]:
            self.drop_token(number, "cancelled", reason)
        for number in [number for number, firing in self.marking.firings.items() if firing.step in names]:
            self.cancel(number, reason)

    def stop(self, reason: str) -> None:
        """Take out all tokens, end all firings, and start nothing any more."""
        self.marking.head.tell(is_stopped=True)
        for number in list(self.marking.tokens):
            self.drop_token(number, "cancelled", reason)
        for number in list(self.marking.firings):
            if number in self.marking.firings:
                # It may have gone with its controller.
                self.cancel(number, reason)

    def note(self, name: str, status: str, reason: str, *, counts: bool = False, is_blocked: bool = False) -> None:
        """Note that a step has not taken its token, or will have none."""
        before = self.marking.steps.get(name, StepState())
        # The last firing says what a step has come to, but for a denial that counts.
        if counts or is_blocked or not before.firings:
            counts, is_blocked = before.counts or counts, before.is_blocked or is_blocked
            state = replace(before, status=status, reason=reason, counts=counts, is_blocked=is_blocked)
            self.marking.put_step(name, state)
        self._listeners.died(name)
        self.ended(name)

    @property
    def _listeners(self) -> Listeners:
        assert self.joins is not None, "a run has joins, if only none that wait"
        return self.joins

    # The context, and what is used of the limits.

    def context(self) -> dict[str, Any]:
        """The context of the graph, as plain data."""
        raw = self.marking.context
        return {} if raw is None else self.codec.decode(raw, plain=True)

    def set_context(self, values: Mapping[str, Any]) -> None:
        """Give the context a new version."""
        raw = self.codec.encode(dict(values))
        version = self.marking.head.vars + 1
        self.marking.head.count("vars")
        self.marking.put_vars(version, raw)

    def patch(self, values: Mapping[str, Any]) -> None:
        """Change the context, and have what was denied asked again."""
        self.set_context({**self.context(), **values})
        marking = self.marking
        for number in list(marking.blocked):
            # Its turn comes after those that are ready, also when the rows are read again.
            marking.put_token(number, replace(marking.tokens[number], denied=None, place=marking.head.count("tokens")))
            marking.ready.append(number)
        marking.blocked.clear()

    def used(self, depth: int) -> tuple[int, int, int, int]:
        """How much of the limits is used, in the order of `Limits`."""
        marking = self.marking
        return marking.running, len(self.plan.nodes), marking.head.starts, depth
