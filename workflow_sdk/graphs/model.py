"""What a graph is made of: its steps and arcs, as they are declared; and what comes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from workflow_sdk.definitions import StepOptions, is_function
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions import Expression, Native, Template, expression_of, template_of
from workflow_sdk.journal.names import name_problem
from workflow_sdk.rows.wire import shown

On = Literal["done", "failed", "any"]
Mode = Literal["exclusive", "inclusive"]
OnDeny = Literal["wait", "discard"]
Trust = Literal["trusted", "quarantined"]
Access = Literal["read", "write"]
Condition = Expression | Native
"""What a guard is: an expression, or a function of the author's, which can't be exported."""


@dataclass(frozen=True, slots=True)
class Arc:
    """A way from a step to the next: which, under which condition, and with which arguments."""

    step: str
    when: Condition | None = None
    """None: always."""
    args: Template | None = None
    """None: `{}`."""
    on: On = "done"


def arc(step: str, *, when: object = None, args: object = None, on: On = "done") -> Arc:
    """A way to the step called `step`, taken if `when` is true and the step before has ended as `on` says.

    `when` is an expression: of `E`, as a text, or a function. In `args` texts are literals, and what is made of `E` is
    evaluated when the step before ends.
    """
    if not isinstance(step, str) or not step:
        raise DefinitionError(f"an arc leads to the name of a step, not to {shown(step)}")
    if on not in ("done", "failed", "any"):
        raise DefinitionError(f'the arc to {step!r}: `on` is "done", "failed" or "any", not {shown(on)}')
    condition = None if when is None else expression_of(when)
    return Arc(step, condition, None if args is None else template_of(args), on)


def as_arcs(given: object) -> tuple[Arc, ...]:
    """The arcs that an author has given as `next=`: arcs and names of steps, one or several."""
    several: Sequence[object] = (given,) if isinstance(given, (str, Arc)) else given or ()  # type: ignore[assignment]
    if not isinstance(several, Sequence):
        raise DefinitionError(f"`next` takes arcs and names of steps, not {shown(given)}")
    return tuple(one if isinstance(one, Arc) else arc(one) for one in several)  # type: ignore[arg-type]


def listed(given: object) -> list[Any] | None:
    """What an author gave as a list; None, if it is none."""
    return list(cast("Sequence[Any]", given)) if isinstance(given, (list, tuple)) else None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of an admission: whether a step may start, if its condition is true."""

    when: Condition | None
    allow: bool


def rule(*, when: object, allow: bool) -> Rule:
    """If `when` is true, the step may start (`allow=True`), or may not."""
    return _rule(expression_of(when), allow)


def otherwise(*, allow: bool) -> Rule:
    """What holds if no rule before it does."""
    return _rule(None, allow)


def _rule(when: Condition | None, allow: object) -> Rule:
    if not isinstance(allow, bool):
        raise DefinitionError(f"`allow` of a rule is True or False, not {shown(allow)}")
    return Rule(when, allow)


def as_rules(given: object) -> tuple[Rule, ...]:
    """The rules of `admit=`: an expression, or rules in order. None: it may always start."""
    if given is None:
        return ()
    if isinstance(given, Rule):
        return (given,)
    if isinstance(given, Sequence) and not isinstance(given, str):
        listed = cast("Sequence[object]", given)
        rules = tuple(one for one in listed if isinstance(one, Rule))
        if len(rules) != len(listed):
            raise DefinitionError("`admit` takes an expression, or a list of `rule(...)` and `otherwise(...)`")
        return rules
    # One expression: where it is false, the step may not start.
    return (Rule(expression_of(given), True), Rule(None, False))


@dataclass(frozen=True, slots=True)
class Quorum:
    """A join that fires as soon as so many of its steps are done."""

    count: int


Join = Literal["all", "alive"] | Quorum


def quorum(count: int) -> Quorum:
    """Fire when `count` of the needed steps are done; what serves nothing but this join is cancelled then."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise DefinitionError(f"a quorum is a number of steps from 1 on, not {shown(count)}")
    return Quorum(count)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a run of a graph may do. None: as much as it wants; 0: nothing."""

    running: int | None = None
    """Firings that are under way at once: more of them wait for their turn."""
    nodes: int | None = None
    """Steps that are declared and submitted: more of them are denied."""
    starts: int | None = None
    """Firings in all, without retries: more of them are denied."""
    depth: int | None = None
    """Generations of submitting: what a submitted step submits is one deeper."""

    def __post_init__(self) -> None:
        for name in ("running", "nodes", "starts", "depth"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise DefinitionError(f"the limit `{name}` is a number from 0 on, or None, not {shown(value)}")


@dataclass(frozen=True, slots=True)
class Used:
    """How much a run has used of its limits, as `ctx.limits` tells it."""

    used: Limits
    most: Limits

    @property
    def left(self) -> Limits:
        """What is left of each limit; None where there is no limit."""

        def left(name: str) -> int | None:
            most = getattr(self.most, name)
            return None if most is None else max(0, most - (getattr(self.used, name) or 0))

        return Limits(left("running"), left("nodes"), left("starts"), left("depth"))


Kind = Literal[
    "step", "pipeline", "noop", "assign", "choose", "task", "wait", "call", "child", "continue", "repeat", "sequence",
    "each", "fan_out", "best_of", "tournament", "generate_and_filter",
]  # fmt: skip
INLINE: frozenset[str] = frozenset({"noop", "assign", "choose"})
"""Kinds whose firings are over when they begin: they run nothing."""
CONTROLLERS: frozenset[str] = frozenset({"fan_out", "best_of", "tournament", "generate_and_filter"})
"""Kinds that run nothing themselves: they add steps to the run, and end with them."""

_OPTIONS = StepOptions()


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a graph, as it is declared or submitted."""

    name: str
    kind: Kind = "step"
    fn: Callable[..., Any] | None = None
    """What a firing calls. Kinds other than `step` may have none."""
    options: StepOptions = _OPTIONS
    next: tuple[Arc, ...] = ()
    mode: Mode = "exclusive"
    needs: tuple[str, ...] = ()
    join: Join = "all"
    admit: tuple[Rule, ...] = ()
    on_deny: OnDeny = "wait"
    args: Template | None = None
    """Of a submitted step that needs nothing: what its firing is given."""
    trust: Trust = "trusted"
    access: Access = "read"
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What is special to the kind, such as the message of a wait."""

    @property
    def is_inline(self) -> bool:
        """Whether a firing is over when it begins."""
        return self.kind in INLINE

    @property
    def is_fork(self) -> bool:
        """Whether a firing may give several tokens."""
        return self.mode == "inclusive" and len(self.next) > 1

    def but(self, **changes: Any) -> Node:
        """The same step with some things changed."""
        return replace(self, **changes)


def check_node(node: Node) -> None:
    """Raise `DefinitionError` for what can be seen to be wrong with one step alone."""
    if (problem := name_problem(node.name)) is not None:
        raise DefinitionError(f"the name of a step: {problem}")
    what = f"step {node.name!r}"
    if node.fn is not None and not is_function(node.fn):
        raise DefinitionError(f"{what} is given a function to call, not {shown(node.fn)}")
    for name, value, known in (
        ("mode", node.mode, ("exclusive", "inclusive")),
        ("on_deny", node.on_deny, ("wait", "discard")),
        ("trust", node.trust, ("trusted", "quarantined")),
        ("access", node.access, ("read", "write")),
    ):
        if value not in known:
            raise DefinitionError(f"{what}: `{name}` is {' or '.join(map(repr, known))}, not {shown(value)}")
    if not isinstance(node.join, Quorum) and node.join not in ("all", "alive"):
        raise DefinitionError(f'{what}: `join` is "all", "alive" or `quorum(n)`, not {shown(node.join)}')
    if not node.needs and node.join != "all":
        raise DefinitionError(f"{what} has a `join`, and no `needs` to be joined")


NodeStatus = Literal["completed", "failed", "skipped", "denied", "cancelled", "never_reached"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step: how its last firing ended, or why there was none."""

    status: NodeStatus
    reason: str = ""
    firings: int = 0
    """How often it was fired, without retries."""


@dataclass(frozen=True, slots=True)
class GraphResult:
    """What a run of a graph has come to."""

    status: Literal["succeeded", "failed", "partial"]
    outcomes: dict[str, Outcome]
    """Of every step, also of those that no token came to."""
    outputs: dict[str, Any]
    """Of the steps that are completed: the output of the last firing."""
    blocked: list[str] = field(default_factory=list[str])
    """Steps that were denied, and for which the graph has not waited."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the `final` step is given."""

    instance_id: str
    counts: dict[str, int]
    """How many steps ended in which way."""
    outputs: dict[str, Any]
    failures: dict[str, str]
    """Why steps failed, by their names."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a graph, and where."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text
