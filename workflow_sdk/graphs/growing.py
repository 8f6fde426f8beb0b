"""Adding steps to a run: `ctx.submit` inside a firing, and `client.submit` from outside.

A batch is added as a whole or not at all. What is wrong with it is found before anything changes, and told as a
`Verdict`; the run goes on either way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol

import anyio
from msgspec import Struct

from workflow_sdk.definitions import StepOverrides, as_step_options
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.graphs.bodies import check_body
from workflow_sdk.graphs.controllers import read_added
from workflow_sdk.graphs.data import node_from_data, node_to_data
from workflow_sdk.graphs.evaluating import Evaluated
from workflow_sdk.graphs.expressions import template_of
from workflow_sdk.graphs.interpreter import Interpreter
from workflow_sdk.graphs.model import Limits, Node, as_arcs, as_rules, check_node, listed
from workflow_sdk.graphs.moves import Effects
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.recording import Recording
from workflow_sdk.graphs.rows import Firing
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import perform
from workflow_sdk.operations.types import Coro
from workflow_sdk.rows.entries import Entry, SubmitData
from workflow_sdk.rows.status import Kind
from workflow_sdk.rows.wire import shown
from workflow_sdk.verdicts import Verdict


def node(name: str, fn: Callable[..., Any] | None = None, **given: Any) -> Node:
    """A step to be submitted: a function, with the options of a step and `args`, `needs`, `join`, `admit` and so on."""
    return make_node(name, fn, given)


_PLACING = frozenset({"next", "mode", "needs", "join", "admit", "on_deny", "trust", "access"})
OPTIONS = _PLACING | StepOverrides.__optional_keys__
"""What every step with code of the author's takes."""


def make_node(
    name: str,
    fn: Callable[..., Any] | None,
    given: Mapping[str, Any],
    kind: Any = "step",
    known: AbstractSet[str] = OPTIONS | {"args"},
) -> Node:
    """A step, from what an author has written. `known`: the options that an error tells of."""
    left = dict(given)
    needs = _names(name, left.pop("needs", ()))
    plain = {key: left.pop(key) for key in ("mode", "on_deny", "trust", "access", "join") if key in left}
    details = left.pop("details", {})
    made = Node(
        name,
        kind,
        fn,
        next=as_arcs(left.pop("next", ())),
        needs=needs,
        admit=as_rules(left.pop("admit", None)),
        args=template_of(left.pop("args")) if left.get("args") is not None else None,
        details=details,
        **plain,
    )
    left.pop("args", None)
    if unknown := sorted(left.keys() - StepOverrides.__optional_keys__):
        raise DefinitionError(f"step {name!r} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    made = made.but(options=as_step_options(fn, StepOverrides(**left)))  # type: ignore[typeddict-item]
    check_node(made)
    if fn is not None:
        check_body(f"the function of step {name!r}", fn)
    return made


def _names(step: str, given: object) -> tuple[str, ...]:
    """The names that an author has given as `needs=`: one or several."""
    names = (given,) if isinstance(given, str) else listed(given or ())
    if names is None or not all(isinstance(one, str) for one in names):
        raise DefinitionError(f"step {step!r}: `needs` takes names of steps, not {shown(given)}")
    return tuple(names)


class Batch(Struct, frozen=True):
    """Steps to be added, and those of them that begin at once, with their arguments."""

    nodes: tuple[Node, ...]
    roots: tuple[tuple[str, bytes], ...]
    depth: int


class GraphGrows(Protocol):
    """The run that grows."""

    engine: Engine
    plan: Plan
    interpreter: Interpreter
    place: Place
    recording: Recording
    deciding: anyio.Lock
    """Held while an event is decided."""

    def chooser(self) -> Evaluated:
        """What evaluates the expressions of one event."""
        ...

    async def cancel(self, effects: Effects) -> list[bytes]:
        """End the firings that an event has made useless. Returns what is to be cleaned up once that is stored."""
        ...

    async def follow(self, effects: Effects, cleanups: list[bytes], store: Callable[[], Awaitable[None]]) -> None:
        """Store an event that is no end of a firing, and begin what it starts."""
        ...

    async def hear(self) -> None:
        """Take what was said from outside before now."""
        ...

    def find(self, name: str) -> object:
        """The function that a name stands for."""
        ...

    def name_of(self, fn: object) -> str:
        """The name that leads back to a function."""
        ...


class SubmittingSeat(Protocol):
    """The firing that submits."""

    number: int
    firing: Firing
    used: tuple[int, int, int, int]


class Growing:
    """How one run grows."""

    def __init__(self, run: GraphGrows) -> None:
        self._run = run

    # Inside a firing.

    def start(self, scope: Scope, seat: SubmittingSeat, given: Any) -> Coro[Verdict]:
        """Register a submission; its coroutine makes it."""
        place = register(scope, Kind.SUBMIT, "submit", derived=True)
        try:
            nodes, roots = taken_apart(given)
        except DefinitionError as error:
            nodes, roots = [error], None  # a graph that is not sound: the batch is refused for it
        place.arguments = [one.name if isinstance(one, Node) else shown(one) for one in nodes]
        return scope.start(perform(place, _Submit(place, partial(self.submit, place, seat, nodes, roots))))

    async def submit(
        self, place: Place, seat: SubmittingSeat, nodes: Sequence[Any], roots: Sequence[str] | None, engine: Engine
    ) -> Entry:
        """Make a submission, in one commit with its record."""
        run = self._run
        # Whoever has sent steps while nobody ran the graph was told that they are in it.
        await run.hear()
        async with run.deciding:
            entry, effects = self._decide(place, seat, nodes, roots, engine)
            cleanups = await run.cancel(effects) if effects.cancelled else []
            run.recording.record(effects)
            if seat.number in run.interpreter.marking.firings:
                # Else it is of no use itself now that the steps are there, and its history is cleared.
                place.put(entry)
        await run.follow(effects, cleanups, engine.parking.flush)
        return entry

    def _decide(
        self, place: Place, seat: SubmittingSeat, nodes: Sequence[Any], roots: Sequence[str] | None, engine: Engine
    ) -> tuple[Entry, Effects]:
        run, entry = self._run, place.new_entry()
        chooser = run.chooser()
        depth = seat.firing.depth + 1
        parent = run.plan.nodes[seat.firing.step]
        if parent.trust == "quarantined":
            nodes = [one.but(trust="quarantined") if isinstance(one, Node) else one for one in nodes]
        effects = Effects()
        made = self._checked(nodes, roots, depth)
        data = b""
        if isinstance(made, Batch):
            effects, data = self._add(chooser, made)
        seat.used = run.interpreter.moves.used(seat.firing.depth)
        verdict = Verdict.allow if isinstance(made, Batch) else made
        entry.complete(engine.codec.encode(verdict), engine.clock.time())
        entry.data = SubmitData(run.interpreter.marking.head.events, data)
        return entry, effects

    # From outside.

    def receive(self, chooser: Evaluated, given: Sequence[Mapping[str, Any]]) -> tuple[Effects, Verdict]:
        """Add steps that somebody else has sent, as data."""
        try:
            nodes = [node_from_data(one, self._run.find) for one in given]
        except (DefinitionError, TypeError, KeyError) as error:
            return Effects(), Verdict.deny(str(error), "definition")
        made = self._checked(nodes, None, 1)
        if not isinstance(made, Batch):
            return Effects(), made
        return self._add(chooser, made)[0], Verdict.allow

    def answer(self, verdict: Verdict) -> bytes:
        """A verdict, as an answer to whoever has sent the steps."""
        return self._run.engine.codec.encode(verdict)

    # Adding.

    def _add(self, chooser: Evaluated, batch: Batch) -> tuple[Effects, bytes]:
        run = self._run
        if not batch.nodes:
            return Effects(), b""
        effects = run.interpreter.submit(chooser, batch.nodes, batch.roots, batch.depth)
        data = pack_batch(batch, run.name_of, run.engine)
        # By the number of steps there are then: they are added again in this order.
        run.interpreter.marking.add_steps(len(run.plan.nodes), data)
        return effects, data

    def _checked(self, nodes: Sequence[Any], roots: Sequence[str] | None, depth: int) -> Batch | Verdict:
        """The batch to be added; or what is wrong with it."""
        plan = self._run.plan
        refused = refusal(plan.nodes.keys(), plan.limits, nodes, depth, plan.final)
        if refused is not None:
            return refused
        try:
            for one in nodes:
                node_to_data(one, self._run.name_of)
            made = self._roots(nodes, roots)
        except (DefinitionError, CodecError) as error:
            return Verdict.deny(str(error), "definition")
        return Batch(tuple(nodes), made, depth)

    def _roots(self, nodes: Sequence[Node], roots: Sequence[str] | None) -> tuple[tuple[str, bytes], ...]:
        led_to = {arc.step for one in nodes for arc in one.next}
        first = roots if roots is not None else [one.name for one in nodes if not one.needs and one.name not in led_to]
        by_name = {one.name: one for one in nodes}
        codec = self._run.engine.codec
        found: list[tuple[str, bytes]] = []
        for name in first:
            args = by_name[name].args
            value: Any = {} if args is None else args.evaluate(self._run.interpreter.moves.sees(dict).of(args), {})
            found.append((name, codec.encode(value)))
        return tuple(found)


def pack_batch(batch: Batch, name_of: Callable[[object], str], engine: Engine) -> bytes:
    """A batch as it is stored."""
    nodes = [node_to_data(one, name_of) for one in batch.nodes]
    return engine.codec.encode([nodes, [list(root) for root in batch.roots], batch.depth])


def unpack_batch(raw: bytes, find: Callable[[str], object], engine: Engine, plan: Plan | None = None) -> Batch:
    """The batch that was stored. `plan`: of a run, in which controllers may have added steps, too."""
    found = engine.codec.decode(raw, plain=True)
    added = read_added(found)
    if added is not None and plan is not None:
        return Batch(tuple(added.nodes(plan)), (), added.depth)
    nodes, roots, depth = found
    made = tuple(node_from_data(one, find) for one in nodes)
    return Batch(made, tuple((name, args) for name, args in roots), depth)


def added_names(found: Any) -> set[str]:
    """The names of the steps of a batch that was stored, as plain data."""
    added = read_added(found)
    if added is not None:
        return set(added.names)
    return {one["name"] for one in found[0]}


def taken_apart(given: Any) -> tuple[list[Any], Sequence[str] | None]:
    """The steps of a batch, or of a graph that is submitted; and those that begin at once, if a graph says so."""
    plan = getattr(given, "plan", None)
    if isinstance(plan, Plan):
        return list(plan.nodes.values()), plan.roots
    return [given] if _is_one(given) else list(given), None


def _is_one(given: object) -> bool:
    return isinstance(given, str) or not isinstance(given, Iterable)


def refusal(
    known: AbstractSet[str], most: Limits, nodes: Sequence[Any], depth: int, final: str | None
) -> Verdict | None:
    """Why a batch can't be added to a graph with these steps and limits; None if it can."""
    problem = _problem(known, nodes) or _about_final(final, nodes)
    if problem is not None:
        return Verdict.deny(problem, "definition")
    if most.nodes is not None and len(known) + len(nodes) > most.nodes:
        return Verdict.deny(f"the graph would have more than {most.nodes} steps (nodes={most.nodes})", "limit")
    if most.depth is not None and depth > most.depth and nodes:
        return Verdict.deny(f"steps are submitted {most.depth} deep at most (depth={most.depth})", "limit")
    return None


def _problem(known: AbstractSet[str], nodes: Sequence[Any]) -> str | None:
    """What is wrong with the names in a batch."""
    new: set[str] = set()
    for one in nodes:
        if not isinstance(one, Node):
            is_told = isinstance(one, DefinitionError)
            return str(one) if is_told else f"a batch holds steps, made by `node(...)`, not {shown(one)}"
        if one.name in known or one.name in new:
            return f"there is a step {one.name!r} already"
        new.add(one.name)
    return _unknown(known | new, nodes) or _circle(nodes)


def _unknown(known: AbstractSet[str], nodes: Sequence[Node]) -> str | None:
    for one in nodes:
        for what, names in (("needs", one.needs), ("leads to", [arc.step for arc in one.next])):
            if missing := [name for name in names if name not in known]:
                return f"step {one.name!r} {what} {missing[0]!r}, which is no step of the graph"
    return None


def _about_final(final: str | None, nodes: Sequence[Node]) -> str | None:
    for one in nodes:
        if final in one.needs or any(arc.step == final for arc in one.next):
            what = "needs" if final in one.needs else "leads to"
            return f"step {one.name!r} {what} {final!r}, the final step, which is run when all else is over"
    return None


def _circle(nodes: Sequence[Node]) -> str | None:
    try:
        TopologicalSorter({one.name: one.needs for one in nodes}).prepare()
    except CycleError as error:
        return f"steps need each other in a circle: {' -> '.join(map(str, error.args[1]))}"
    return None


def replay_submission(scope: Scope, given: Any) -> Coro[Verdict]:
    """Register a submission that is recorded; its coroutine gives the verdict again."""
    place = register(scope, Kind.SUBMIT, "submit", derived=True)
    place.arguments = [one.name if isinstance(one, Node) else shown(one) for one in taken_apart(given)[0]]
    return scope.start(perform(place, _Submit(place, _is_recorded)))


async def _is_recorded(engine: Engine) -> Entry:
    raise AssertionError("nothing is submitted by code that is walked")


class _Submit:
    """A submission, as an operation of a firing."""

    __slots__ = ("_place", "_submit")

    def __init__(self, place: Place, submit: Callable[[Engine], Awaitable[Entry]]) -> None:
        self._place = place
        self._submit = submit

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        return self._submit(engine)

    def resume(self, engine: Engine, entry: Entry) -> Awaitable[Entry]:
        raise AssertionError("a submission is complete when it is recorded")

    def outcome(self, entry: Entry) -> Verdict:
        assert entry.value is not None, "a submission has a verdict"
        verdict: Verdict = self._place.decode(entry.value, Verdict)
        return verdict
