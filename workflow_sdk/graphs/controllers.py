"""Controllers: steps that run nothing, but add steps to the run and end when those have ended.

The firing of a controller stays open while its steps run. All that it has to remember is in the row of that firing, and
the steps that it has added are rows as those of a submission: it goes on after a crash as if there had been none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from workflow_sdk.errors import CriticalError, DefinitionError
from workflow_sdk.graphs.evaluating import Chooser
from workflow_sdk.graphs.failures import told
from workflow_sdk.graphs.model import CONTROLLERS, Node
from workflow_sdk.graphs.moves import Ended, Moves
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.plays import MISSING, Done, Lost, Move, Round, function_of, names_of, next_move
from workflow_sdk.graphs.rows import Firing, StepState
from workflow_sdk.operations.place import pack_error, unpack_error
from workflow_sdk.values import Codec

OF = "of"
"""The detail of a step that says which controller has added it."""


class Added(Struct, frozen=True):
    """Steps that a controller has added, as they are stored."""

    controller: str
    prefix: str
    role: str
    first: int
    count: int
    depth: int

    @property
    def names(self) -> Sequence[str]:
        """The names of the steps."""
        return names_of(self.prefix, self.role, self.first, self.count)

    def nodes(self, plan: Plan) -> list[Node]:
        """The steps."""
        controller = plan.nodes[self.controller]
        names = names_of(self.prefix, self.role, self.first, self.count)
        return [_worker(controller, name, self.role, self.first + at) for at, name in enumerate(names)]

    def pack(self, codec: Codec) -> bytes:
        """The bytes of a row."""
        return codec.encode({OF: [self.controller, self.prefix, self.role, self.first, self.count, self.depth]})


def read_added(found: Any) -> Added | None:
    """What a row says that a controller has added; None, if it is about something else."""
    fields: list[Any] | None = cast("dict[str, Any]", found)[OF] if isinstance(found, dict) else None
    return None if fields is None else Added(*fields)


def _worker(controller: Node, name: str, role: str, number: int) -> Node:
    fn, options = function_of(controller, role, number)
    trust, access = controller.trust, controller.access
    return Node(name, "step", fn, options, trust=trust, access=access, details={OF: controller.name})


_REST = re.compile(r"(?:#\d+)?\.(?:(then|judge|generate)|(match(?=\.))?\.?(\d+))")
"""How the name of a step that a controller has added goes on after that of the controller."""


def find_added(plan: Plan, name: str) -> Node | None:
    """The step of this name, if one of the controllers of a graph has added it."""
    for controller in [one for one in plan.nodes.values() if is_controller(one) and name.startswith(one.name)]:
        found = _REST.fullmatch(name[len(controller.name) :])
        if found is not None:
            return _worker(controller, name, found[1] or found[2] or "", int(found[3] or 0))
    return None


def is_of_failed_controller(node: Node, steps: Mapping[str, StepState]) -> bool:
    """Whether the last firing of a controller has added a step, and was a failure that no arc has handled."""
    owner = steps.get(node.details.get(OF, ""))
    if owner is None or not owner.counts:
        return False
    return node.name.startswith(f"{_prefix(node.details[OF], owner.firings - 1)}.")


def is_added(node: Node) -> bool:
    """Whether a controller has added a step: then a failure of it is a matter of the controller."""
    return OF in node.details


class Controllers:
    """The controllers of one run."""

    def __init__(self, moves: Moves, finish: Callable[[Firing, Ended], None]) -> None:
        self._moves = moves
        self._finish = finish
        self._owners: dict[str, int] = {}
        """The firings that wait for steps, by the names of these."""
        self._left: dict[int, int] = {}
        """How many of its steps have not ended, for each firing."""
        self._due: list[int] = []
        """Firings that nothing is left to wait for, in order."""
        self._recorded: dict[tuple[str, int], tuple[Chooser, Ended]] = {}
        """While a run is made again: how firings have ended, by step and count."""
        self._postponed: list[int] = []
        """While a run is made again: firings that have come to an end of which there is no record."""

    def restore(self) -> None:
        """Wait on for what the firings wait for: the marking was read from the store."""
        steps = self._moves.marking.steps
        for number, firing in self._moves.marking.firings.items():
            if firing.waits_for is not None:
                self._wait(number, [name for name in firing.waits_for if not _state(steps, name).status])

    # What happens.

    def begin(self, number: int, firing: Firing, node: Node) -> Ended | None:
        """A controller has taken its token. Returns its end, if there is nothing to wait for."""
        codec = self._moves.codec
        values: Any = {} if firing.details is None else codec.decode(firing.details, plain=True)
        return self._make(
            number, firing, node, next_move(node, self._args(firing), values, None, _Results(self, firing))
        )

    def ended(self, name: str) -> None:
        """A step has ended, in whatever way."""
        number = self._owners.pop(name, None)
        if number is None:
            return
        self._left[number] -= 1
        if not self._left[number]:
            del self._left[number]
            self._due.append(number)

    def look(self, *, by_record: bool = False) -> bool:
        """Go on with the controllers whose steps have ended; whether there were any.

        `by_record`: those end only if it is recorded that they have.
        """
        due, self._due = self._due, []
        if not by_record:
            due, self._postponed = [*self._postponed, *due], []
        for number in due:
            firing = self._moves.marking.firings.get(number)
            if firing is not None:
                self._go_on(number, firing, by_record=by_record)
        return bool(due)

    def has_begun(self, firing: Firing) -> bool:
        """Whether a firing is one of a controller that has taken its token."""
        node = self._moves.plan.nodes.get(firing.step)
        return node is not None and is_controller(node) and self._moves.marking.fired.get(firing.step, 0) > firing.count

    def remember(self, chooser: Chooser, firing: Firing, ended: Ended) -> None:
        """It is recorded how a controller has ended: that happens again once its steps have."""
        self._recorded[firing.step, firing.count] = chooser, ended
        for number, one in self._moves.marking.firings.items():
            if (one.step, one.count) == (firing.step, firing.count) and number not in self._left:
                self._due.append(number)

    # Going on.

    def _go_on(self, number: int, firing: Firing, *, by_record: bool) -> None:
        moves, node = self._moves, self._moves.plan.nodes[firing.step]
        if by_record and (firing.step, firing.count) in self._recorded:
            chooser, ended = self._recorded.pop((firing.step, firing.count))
            with moves.choosing(chooser):
                self._finish(moves.marking.drop_firing(number), ended)
            return
        note: Any = {} if firing.details is None else moves.codec.decode(firing.details, plain=True)
        move = next_move(node, self._args(firing), {}, note, _Results(self, firing))
        if by_record and not isinstance(move, Round):
            self._postponed.append(number)
            return
        end = self._make(number, firing, node, move)
        if end is not None:
            moves.marking.drop_firing(number)
            moves.effects.passed.append((firing, end))
            self._finish(firing, end)

    def _make(self, number: int, firing: Firing, node: Node, move: Move) -> Ended | None:
        codec = self._moves.codec
        if isinstance(move, Round):
            move = self._add(number, firing, node, move) or move
        match move:
            case Done(output):
                return Ended(number, is_done=True, output=codec.encode(output))
            case Lost(failure):
                raw = pack_error(failure, codec)
                return Ended(number, is_done=False, error=told(failure, codec), raw_error=raw)
            case Round():
                return None

    def _add(self, number: int, firing: Firing, node: Node, more: Round) -> Lost | None:
        """Add steps to the run, each with a token."""
        moves = self._moves
        marking, plan, codec = moves.marking, moves.plan, moves.codec
        added = Added(
            node.name, _prefix(firing.step, firing.count), more.role, more.first, len(more.given), firing.depth
        )
        nodes = added.nodes(plan)
        if taken := [one.name for one in nodes if one.name in plan.nodes]:
            return Lost(DefinitionError(f"step {node.name!r} would add a step {taken[0]!r}, and there is one already"))
        plan.add(nodes, firing.depth)
        marking.add_steps(len(plan.nodes), added.pack(codec))
        names = tuple(one.name for one in nodes)
        marking.put_firing(number, replace(firing, waits_for=names, details=codec.encode(dict(more.note))))
        self._wait(number, names)
        for name, given in zip(names, more.given, strict=True):
            moves.put_token(name, codec.encode(given), firing.stack, firing.depth)
        return None

    def _wait(self, number: int, names: Any) -> None:
        self._owners.update(dict.fromkeys(names, number))
        self._left[number] = len(names)

    def _args(self, firing: Firing) -> Any:
        return self._moves.args.of(firing)

    # What its steps have come to.

    def output(self, name: str) -> Any:
        """What a step gave; `MISSING`, if it is not done."""
        state = _state(self._moves.marking.steps, name)
        if state.status != "completed" or state.output is None:
            return MISSING
        return self._moves.codec.decode(state.output, plain=True)

    def failure(self, name: str) -> Exception | None:
        """Why a step is not done; None, if it is."""
        state = _state(self._moves.marking.steps, name)
        if state.status == "completed":
            return None
        if state.error is not None:
            return unpack_error(state.error, self._moves.codec)
        return CriticalError(f"it {_WORDS.get(state.status, 'has not ended')}: {state.reason}")


_WORDS = {"failed": "has failed", "denied": "was denied", "skipped": "was skipped", "cancelled": "was cancelled"}


class _Results:
    """What the steps of one firing of a controller have come to."""

    def __init__(self, controllers: Controllers, firing: Firing) -> None:
        self._controllers = controllers
        self._prefix = _prefix(firing.step, firing.count)

    def outputs(self, role: str, first: int, count: int) -> list[Any]:
        return [self._controllers.output(name) for name in names_of(self._prefix, role, first, count)]

    def lost(self, role: str, first: int, count: int) -> dict[str, Exception]:
        found = {name: self._controllers.failure(name) for name in names_of(self._prefix, role, first, count)}
        return {name: failure for name, failure in found.items() if failure is not None}


def _state(steps: Mapping[str, StepState], name: str) -> StepState:
    return steps.get(name, _NOTHING)


_NOTHING = StepState()


def _prefix(step: str, count: int) -> str:
    """How the names of steps begin that a firing adds: unique, also if the controller is fired again."""
    return f"{step}#{count}" if count else step


def is_controller(node: Node) -> bool:
    """Whether a step runs nothing itself."""
    return node.kind in CONTROLLERS
