"""One run of a graph by the interpreter, beside the model: they are compared after every event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.graphs.model import rules
from tests.graphs.model.futures import done_in
from tests.graphs.model.world import End, Event, Firing, Patch, Stack, Submit, World
from tests.graphs.model.world import Given as Given
from workflow_sdk.graphs.evaluating import Chooser, Evaluated, Remembered
from workflow_sdk.graphs.interpreter import Interpreter
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.model import Node
from workflow_sdk.graphs.moves import Effects, Ended
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.rows import packed
from workflow_sdk.values import Codec

CODEC = Codec()
WORKLOAD = CODEC.encode(None)


class Machine:
    """An interpreter with its rows, as the store would have them."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._added: list[tuple[tuple[Node, ...], int]] = []
        self.rows: dict[bytes, bytes] = {}
        self.interpreter = self._interpreter(Marking())

    @property
    def marking(self) -> Marking:
        """The marking as it stands."""
        return self.interpreter.marking

    def _interpreter(self, marking: Marking) -> Interpreter:
        given = self._given
        plan = Plan(
            given.nodes,
            entry=given.entry,
            final=given.final,
            limits=given.limits,
            status=given.status,
            when_blocked=given.when_blocked,
            final_failure=given.final_failure,
        )
        for nodes, depth in self._added:
            plan.add(nodes, depth)
        return Interpreter(plan, marking, CODEC, WORKLOAD, now=lambda: 0.0)

    def happens(self, event: Event | None, chooser: Chooser, number: int = 0, depth: int = 0) -> Effects:
        """Something happens; None is the beginning. `number`: of the firing, as the interpreter counts."""
        effects = self._happens(event, chooser, number, depth)
        for key, raw in packed(self.marking.take_changes()):
            if raw is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = raw
        return effects

    def _happens(self, event: Event | None, chooser: Chooser, number: int, depth: int) -> Effects:
        interpreter = self.interpreter
        match event:
            case None:
                return interpreter.begin(chooser, {"level": self._given.level})
            case End():
                return interpreter.end(chooser, ended(event, number))
            case Patch(level):
                return interpreter.patch(chooser, {"level": level})
            case Submit(nodes):
                self._added.append((nodes, depth))
                led_to = {arc.step for node in nodes for arc in node.next}
                roots = [(one.name, WORKLOAD) for one in nodes if not one.needs and one.name not in led_to]
                return interpreter.submit(chooser, nodes, roots, depth)

    def read_again(self) -> None:
        """Go on with what is stored, and with nothing else."""
        before = standing(self.marking)
        marking = Marking()
        marking.load(sorted(self.rows.items()))
        self.interpreter = self._interpreter(marking)
        self.interpreter.restore()
        after = standing(marking)
        for what in before:
            same(what, after[what], before[what])


def same(what: str, found: object, expected: object) -> None:
    """What the interpreter has is what it should have."""
    assert found == expected, f"{what}: {found}, not {expected}"


def ended(event: End, number: int) -> Ended:
    """The end of a firing, as the interpreter is told of it."""
    says = "".join(f"<{follow}>" for follow in sorted(event.follows))
    patches = None if event.level is None else {"level": event.level}
    if event.ok:
        output = CODEC.encode(5 if event.unanswered else says)
        return Ended(number, is_done=True, output=output, patches=patches)
    error = {"type": "ValueError", "message": "", "kind": "failure", "attributes": {"follows": says}}
    return Ended(number, is_done=False, error=error, patches=patches, raw_error=b"failed")


def standing(marking: Marking) -> Mapping[str, Any]:
    """All that a marking knows and goes on with."""
    return {
        "head": marking.head,
        "tokens": marking.tokens,
        "ready": list(marking.ready),
        "blocked": list(marking.blocked),
        "firings": marking.firings,
        "fired": {step: count for step, count in marking.fired.items() if count},
        "running": marking.running,
        "steps": marking.steps,
        "joins": {key: (one.stack, one.arrived, one.is_over) for key, one in marking.joins.items()},
        "counted": {step: (one.done, one.dead, one.is_over) for step, one in marking.dag.items()},
        "vars": marking.vars,
        "vars_used": {version: count for version, count in marking.vars_used.items() if count},
        "fork_live": marking.fork_live,
        "forks_open": {fork: keys for fork, keys in marking.forks_open.items() if keys},
    }


class Trial:
    """The interpreter and the model, side by side."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.events: list[Event] = []
        self.machine = Machine(given)
        self.double = Machine(given)
        """Is told what expressions came to, instead of evaluating them."""
        self.numbers: dict[int, int] = {}
        """The interpreter's numbers of firings, by those of the model."""
        self.world = rules.told(given, [])
        self._step(None, 0)

    def happens(self, event: Event) -> None:
        """Something happens, in both; then they are compared."""
        if isinstance(event, Submit) and rules.refused(self.world, event):
            return
        depth = 0
        if isinstance(event, Submit):
            depth = rules.depth_of(self.world, event)
            event = Submit(rules.inheriting(self.world, event), event.by)
        self.events.append(event)
        self.world = rules.told(self.given, self.events)
        self._step(event, self.numbers[event.number] if isinstance(event, End) else 0, depth)

    def story(self) -> str:
        """The graph and what has happened, in short."""
        return "\n".join(map(repr, [self.given, *self.events]))

    def _step(self, event: Event | None, number: int, depth: int = 0) -> None:
        before = set(self.machine.marking.firings) - {number if isinstance(event, End) else -1}
        chooser = Evaluated({})
        effects = self.machine.happens(event, chooser, number, depth)
        self.double.happens(event, Remembered(chooser.made), number, depth)
        same("rows", self.double.rows, self.machine.rows)
        self._pair()
        self._compare(effects, before)

    def _pair(self) -> None:
        """Find out which firing of the model is which of the interpreter."""
        known = set(self.numbers.values())
        left = sorted((one.step, one.stack, number) for number, one in self._firings().items() if number not in known)
        for one in sorted(self._under_way(), key=lambda one: (one.step, one.stack, one.number)):
            if one.number not in self.numbers:
                assert left, f"step {one.step!r} should have begun"
                step, stack, number = left.pop(0)
                assert (step, stack) == (one.step, one.stack)
                self.numbers[one.number] = number
        assert not left, f"{left} should not have begun"

    def _firings(self) -> dict[int, Any]:
        return self.machine.marking.firings

    def _under_way(self) -> list[Firing]:
        return [one for one in self.world.firings if one.status == "running"]

    def _compare(self, effects: Effects, before: set[int]) -> None:
        world, marking = self.world, self.machine.marking
        result = self.machine.interpreter.result()
        same("under way", set(marking.firings), {self.numbers[one.number] for one in self._under_way()})
        same("cancelled", {number for number, _ in effects.cancelled}, before - set(marking.firings))
        same("started", {number for number, _ in effects.started} & set(marking.firings), set(marking.firings) - before)
        same("ready", self._tokens(marking.ready), _tokens(world, "ready"))
        same("pending", self._tokens(marking.blocked), _tokens(world, "pending"))
        same("outcomes", {name: one.status for name, one in result.outcomes.items()}, rules.outcomes(world))
        waiting = {at: needs for at, needs in _waiting(world).items() if not self._is_counted(at[0])}
        same("joins", self._joins(), waiting)
        same("over", effects.is_over, rules.is_over(world) and not rules.blocked(world))
        if effects.is_over:
            same("status", result.status, rules.status_of(world))
            same("blocked", set(result.blocked), rules.given_up(world))
            self._nothing_is_left()

    def _tokens(self, numbers: Iterable[int]) -> Counter[tuple[str, Stack]]:
        tokens = self.machine.marking.tokens
        return Counter((tokens[number].step, tokens[number].stack) for number in numbers)

    def _joins(self) -> dict[tuple[str, Stack], set[str]]:
        joins = self.machine.marking.joins
        return {(key[0], one.stack): set(one.arrived) for key, one in joins.items() if not one.is_over}

    def _is_counted(self, name: str) -> bool:
        return self.machine.interpreter.plan.is_dag(name)

    def _nothing_is_left(self) -> None:
        marking = self.machine.marking
        assert not marking.fork_live
        # Of the joins only those that have fired once in the run are remembered, so that they don't fire again.
        assert all(fork == 0 and one.is_over for (_, fork), one in marking.joins.items())
        assert not {fork for fork, keys in marking.forks_open.items() if fork and keys}


def _tokens(world: World, status: str) -> Counter[tuple[str, Stack]]:
    return Counter((one.step, one.stack) for one in world.tokens if one.status == status)


def _waiting(world: World) -> dict[tuple[str, Stack], set[str]]:
    """The joins that wait, each with what is done of its needs."""
    return {
        (name, instance): {need for need in world.nodes[name].needs if done_in(world, name, need, instance)}
        for name, instance in rules.waiting(world)
    }
