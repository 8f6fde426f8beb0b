"""The ways that a run of a graph can take: states, and the events that lead from one to the next. Nothing is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import CodeType
from typing import Any

from msgspec.structs import replace

from workflow_sdk.graphs.evaluating import Sees
from workflow_sdk.graphs.expressions import Expression, Template
from workflow_sdk.graphs.interpreter import Interpreter
from workflow_sdk.graphs.marking import DagJoin, JoinState, Marking
from workflow_sdk.graphs.model import Condition, Node
from workflow_sdk.graphs.moves import Effects, Ended
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.rows import Stack
from workflow_sdk.values import Codec

__all__ = ["Event", "State", "Ways"]

CODEC = Codec()
NOTHING = CODEC.encode(None)
_ERROR: Mapping[str, Any] = {"type": "Exception", "message": "", "kind": "failure", "attributes": {}}

Event = tuple[int, bool]
"""A firing that ends, and whether it is done."""
Amounts = Counter[tuple[Any, ...]]
"""How much of a kind there is in a state, such as tokens at a step."""


class Guess:
    """Says what expressions come to: as they are if they can be evaluated, else as a list of guesses has it."""

    def __init__(self, guesses: list[bool], *, knows_context: bool, from_outside: frozenset[str]) -> None:
        self.guesses = guesses
        self.made: list[Any] = []
        self._used = 0
        self._knows_context = knows_context
        self._from_outside = from_outside

    def test(self, condition: Condition, sees: Sees) -> bool:
        """Whether a guard is true: the next guess, if it reads what nobody knows yet. What was not guessed is true."""
        if self._is_known(condition, sees):
            return bool(condition.test(sees.of(condition), {}))  # pyright: ignore[reportArgumentType]  # as in `Evaluated`
        self._used += 1
        if self._used > len(self.guesses):
            self.guesses.append(True)
        return self.guesses[self._used - 1]

    def _is_known(self, condition: Condition, sees: Sees) -> bool:
        # No function of an author's is called: nothing is run.
        if condition.is_native or condition.functions or reads_key(condition, self._from_outside):
            return False
        return {path[0] for path in condition.reads} <= self._known(sees)

    def _known(self, sees: Sees) -> set[str]:
        # A guard may read what bodies come to, and the context, which any of them may change. When a step asks to be
        # admitted, there is no event; then the context is what it was in the beginning, if nothing changes it.
        known = {"event"}
        if sees.event.endswith(".done"):
            known.add("error")
        elif sees.event.endswith(".failed"):
            known.add("output")
        elif self._knows_context:
            known.add("ctx")
        return known

    def value(self, template: Template, sees: Sees) -> Any:
        """Arguments: nobody knows them."""
        return None


def reads_key(condition: Condition, keys: Collection[str]) -> bool:
    """Whether a condition reads one of these keys of the context."""
    return not _keys(condition).isdisjoint(keys)


class State:
    """A marking, and how it was come to."""

    def __init__(
        self, marking: Marking, effects: Effects, before: State | None, event: Event | None, forks: frozenset[str]
    ) -> None:
        self.marking = marking
        self.effects = effects
        self.before = before
        self.event = event
        self._forks = forks
        self.amounts = self._amounts()
        self._amount = self.amounts.total()

    def up_to(self) -> Iterator[State]:
        """The states before this one, the last first."""
        at = self.before
        while at is not None:
            yield at
            at = at.before

    @property
    def way(self) -> tuple[str, ...]:
        """The events that have led here, in words."""
        states = [self, *self.up_to()]
        return tuple(state.told() for state in reversed(states[:-1]))

    @property
    def ended(self) -> str:
        """The step whose firing has ended."""
        assert self.before is not None and self.event is not None, "the beginning is no end of a firing"
        return self.before.marking.firings[self.event[0]].step

    def told(self) -> str:
        """The last event in words."""
        assert self.event is not None, "the beginning is no event"
        begun = [firing.step for _, firing in self.effects.started]
        begun += [f"{name} (which is over at once)" for name in (firing.step for firing, _ in self.effects.passed)]
        after = f": {_listed(begun)} begin{'s' * (len(begun) == 1)}" if begun else ""
        return f"{self.ended} {'is done' if self.event[1] else 'has failed'}{after}"

    def fixed(self) -> tuple[Any, ...]:
        """What a run never has twice: joins that are over in the whole run, and the final step."""
        marking = self.marking
        over = frozenset(key[0] for key, one in marking.joins.items() if key[1] == 0 and one.is_over)
        counted = frozenset((name, one.done, one.dead, one.is_over) for name, one in marking.dag.items())
        return over, counted, marking.head.is_final_due, marking.head.is_stopped

    def key(self, *, is_ordered: bool) -> object:
        """The same for states from which the same can happen."""
        marking = self.marking
        numbers = {number: at for at, number in enumerate(sorted(n for n, keys in marking.forks_open.items() if keys))}
        tokens = [(one.step, self._same(one.stack, numbers), one.denied is None) for one in marking.tokens.values()]
        firings = [(one.step, self._same(one.stack, numbers)) for one in marking.firings.values()]
        joins = [
            (name, self._same(one.stack, numbers), frozenset(one.arrived), one.is_over)
            for (name, _), one in marking.joins.items()
        ]
        # How much was started is of interest where that is limited.
        order = (tuple(marking.tokens[number].step for number in marking.ready), marking.head.starts)
        return _counted(tokens), _counted(firings), _counted(joins), self.fixed(), order if is_ordered else None

    def is_more_than(self, other: State) -> bool:
        """Whether all that is in another state is in this one, and more: then it can go on so for ever."""
        return self._amount > other._amount and self.amounts >= other.amounts and self.fixed() == other.fixed()

    def _same(self, stack: Stack, numbers: Mapping[int, int]) -> Stack:
        """A stack with numbers that are the same in states that differ in nothing else."""
        return tuple((fork, numbers.get(number, -1)) for fork, number in stack if fork in self._forks)

    def _amounts(self) -> Amounts:
        found: Amounts = Counter()
        places = [(one.step, one.stack) for one in self.marking.tokens.values()]
        places += [(one.step, one.stack) for one in self.marking.firings.values()]
        for step, stack in places:
            found["token", step, *(fork for fork, _ in stack if fork in self._forks)] += 1
        for (name, number), join in self.marking.joins.items():
            for need in join.arrived:
                found["arrival", name, number == 0, need] += 1
        return found


def _counted(several: Sequence[object]) -> frozenset[tuple[object, int]]:
    return frozenset(Counter(several).items())


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


class Ways:
    """Leads from the beginning to every state that a run can come to."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        settings: Mapping[str, Any],
        context: Mapping[str, Any],
        outside: Collection[str] = (),
    ) -> None:
        self.plan = Plan(nodes.values(), **settings)
        self._context = context
        self._from_outside = frozenset(outside) | _left_open(nodes.values(), context)
        self._knows_context = not any(_may_patch(node) for node in nodes.values())
        forks = {self.plan.join_fork(name) for name, node in nodes.items() if node.needs}
        self._forks = frozenset(fork for fork in forks if fork is not None)
        """Those whose instances make a difference: some join waits in them."""

    @property
    def is_ordered(self) -> bool:
        """Whether the order in which firings begin may change what is started at all."""
        return self.plan.limits.starts is not None

    @property
    def is_free(self) -> bool:
        """Whether it is the same in the end which of the firings under way ends first."""
        return not (self.plan.cancels or self.is_ordered)

    def waits_for_ever(self, name: str) -> bool:
        """Whether a token that was denied can't be admitted, whatever else happens in the graph."""
        conditions = [rule.when for rule in self.plan.nodes[name].admit if rule.when is not None]
        changes = any(one.is_native or any(path[0] == "ctx" for path in one.reads) for one in conditions)
        is_asked_of_others = any(reads_key(one, self._from_outside) for one in conditions)
        return not is_asked_of_others and (self._knows_context or not changes)

    def first(self) -> Iterator[State]:
        """The states in which a run begins."""
        yield from self._after(None, None)

    def after(self, state: State, numbers: list[int]) -> Iterator[State]:
        """The states after one of these firings has ended, in every way in which it can."""
        for number in numbers:
            for is_done in (True, False):
                yield from self._after(state, (number, is_done))

    def _after(self, state: State | None, event: Event | None) -> Iterator[State]:
        todo: list[list[bool]] = [[]]
        while todo:
            guesses = todo.pop(0)
            known = len(guesses)
            guess = Guess(guesses, knows_context=self._knows_context, from_outside=self._from_outside)
            marking = Marking() if state is None else _copied(state.marking)
            interpreter = Interpreter(self.plan, marking, CODEC, NOTHING, now=lambda: 0.0, expands=False)
            if event is None:
                effects = interpreter.begin(guess, self._context)
            else:
                number, is_done = event
                output, error = (NOTHING, None) if is_done else (None, _ERROR)
                effects = interpreter.end(guess, Ended(number, is_done, output=output, error=error))
            marking.take_changes()
            yield State(marking, effects, state, event, self._forks)
            # Each guess that was made now goes the other way as well.
            todo += [[*guesses[:at], False] for at in range(known, len(guesses))]


def _copied(marking: Marking) -> Marking:
    """A marking that can be changed, while this one stays as it is."""
    copy = Marking()
    copy.head = replace(marking.head)
    copy.tokens, copy.firings, copy.steps = dict(marking.tokens), dict(marking.firings), dict(marking.steps)
    copy.ready, copy.blocked = marking.ready.copy(), dict(marking.blocked)
    copy.fired, copy.running = dict(marking.fired), marking.running
    copy.vars, copy.vars_used = dict(marking.vars), dict(marking.vars_used)
    copy.fork_live = dict(marking.fork_live)
    copy.forks_open = {fork: set(keys) for fork, keys in marking.forks_open.items()}
    copy.dag = {name: DagJoin(one.done, one.dead, one.is_over) for name, one in marking.dag.items()}
    copy.joins = {
        key: JoinState(one.stack, one.depth, dict(one.arrived), one.is_over) for key, one in marking.joins.items()
    }
    return copy


def _left_open(nodes: Iterable[Node], context: Mapping[str, Any]) -> frozenset[str]:
    """The keys of the context that admissions read and the graph leaves open: somebody else says what they are.

    These are None in the beginning, or they are not there and are read by `get` or `coalesce`.
    """
    found: set[str] = set()
    for rule in chain.from_iterable(node.admit for node in nodes):
        text = rule.when.text if isinstance(rule.when, Expression) else ""
        may_miss = "get(" in text or "coalesce(" in text
        found |= {key for key in _keys(rule.when) if (context[key] is None if key in context else may_miss)}
    return frozenset(found)


def _keys(condition: Condition | None) -> set[str]:
    """The keys of the context that a condition reads."""
    reads = condition.reads if condition is not None else ()
    return {path[1] for path in reads if path[0] == "ctx" and len(path) > 1}


def _may_patch(node: Node) -> bool:
    """Whether a step may change the context: one that assigns, and one whose code speaks of `patch`."""
    if node.kind == "assign":
        return True
    code = getattr(getattr(node.fn, "fn", node.fn), "__code__", None)
    if node.kind in ("step", "each"):
        return not isinstance(code, CodeType) or _speaks_of_patch(code)
    return not node.is_inline and node.kind not in ("task", "wait", "call", "child")


def _speaks_of_patch(code: CodeType) -> bool:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return "patch" in code.co_names or any(map(_speaks_of_patch, inner))
