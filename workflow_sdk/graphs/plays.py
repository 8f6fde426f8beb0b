"""What controllers do, round by round: which steps they add next, or what they have come to. Pure decisions.

A play is asked when its controller begins, and whenever all the steps have ended that it has added last. What it has to
know in the next round it tells as a note, which is stored with the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from workflow_sdk.definitions import StepOptions, as_step_options
from workflow_sdk.errors import CriticalError, JoinError
from workflow_sdk.graphs.expressions import ExpressionError
from workflow_sdk.graphs.model import Node, listed

Note = Mapping[str, Any]


class Round(Struct, frozen=True):
    """Steps to be added, each with what it is given, and what the play has to know when they have ended."""

    role: str
    """Which function they call: see `function_of`."""
    given: Sequence[Any]
    note: Note
    first: int = 0
    """The number of the first of them, among those of its role."""


class Done(Struct, frozen=True):
    """The controller has ended, with this output."""

    output: Any


class Lost(Struct, frozen=True):
    """The controller has failed."""

    failure: Exception


Move = Round | Done | Lost


class Results(Protocol):
    """What the steps of a controller have come to."""

    def outputs(self, role: str, first: int, count: int) -> list[Any]:
        """What steps of a role gave, in order; `MISSING` for those that are not done."""
        ...

    def lost(self, role: str, first: int, count: int) -> dict[str, Exception]:
        """Why steps of a role are not done, by their names."""
        ...


MISSING: Final = object()
"""In the place of an output that there is not."""

WORKERS, THEN, JUDGE, GENERATE, MATCHES = "", "then", "judge", "generate", "match"


def names_of(prefix: str, role: str, first: int, count: int) -> tuple[str, ...]:
    """The names of steps that a controller adds."""
    if role in (THEN, JUDGE, GENERATE):
        return (f"{prefix}.{role}",)
    around = f"{prefix}.{role}" if role else prefix
    return tuple(f"{around}.{number}" for number in range(first, first + count))


def function_of(node: Node, role: str, number: int) -> tuple[Callable[..., Any], StepOptions]:
    """What a step calls that a controller adds, and how."""
    details = node.details
    fn: Any
    if role == THEN:
        fn = details["then"]
    elif role in (JUDGE, MATCHES):
        fn = details["judge"]
    elif node.kind == "tournament":
        fn = details["entrants"][number]
        options = as_step_options(fn, {})
        return fn, options if node.options == StepOptions() else node.options
    else:
        fn = details["keep"] if node.kind == "generate_and_filter" and role == WORKERS else node.fn
        return fn, node.options
    return fn, as_step_options(fn, {})


# The plays. Each is given what its details came to, what it has noted (None: it begins), and the results so far.


def _fan_out(node: Node, args: Any, values: Note, note: Note | None, results: Results) -> Move:
    if note is None:
        items = _list(node, values["over"])
        return Round(WORKERS, items, {"count": len(items)}) if items else _then(node, [])
    if note.get("at") == THEN:
        return _only(node, THEN, results)
    count = note["count"]
    if lost := results.lost(WORKERS, 0, count):
        return Lost(_together(node, lost))
    return _then(node, results.outputs(WORKERS, 0, count))


def _then(node: Node, outputs: list[Any]) -> Move:
    return Round(THEN, [outputs], {"at": THEN}) if "then" in node.details else Done(outputs)


def _best_of(node: Node, args: Any, values: Note, note: Note | None, results: Results) -> Move:
    count = node.details["n"]
    if note is None:
        return Round(WORKERS, [args] * count, {})
    if note.get("at") == JUDGE:
        return _only(node, JUDGE, results)
    found = [output for output in results.outputs(WORKERS, 0, count) if output is not MISSING]
    if not found:
        return Lost(_together(node, results.lost(WORKERS, 0, count)))
    return Round(JUDGE, [found], {"at": JUDGE})


def _filter(node: Node, args: Any, values: Note, note: Note | None, results: Results) -> Move:
    if note is None:
        return Round(GENERATE, [args], {})
    if lost := results.lost(GENERATE, 0, 1):
        return Lost(_together(node, lost))
    items = _list(node, results.outputs(GENERATE, 0, 1)[0])
    if "count" not in note and items:
        return Round(WORKERS, items, {"count": len(items)})
    if lost := results.lost(WORKERS, 0, len(items)):
        return Lost(_together(node, lost))
    kept = zip(items, results.outputs(WORKERS, 0, len(items)), strict=True)
    return Done([item for item, is_kept in kept if is_kept])


def _tournament(node: Node, args: Any, values: Note, note: Note | None, results: Results) -> Move:
    if note is None:
        if "entrants" in node.details:
            return Round(WORKERS, [args] * len(node.details["entrants"]), {})
        return _pair(node, _list(node, values["over"]), 0)
    if "entrants" not in note:
        count = len(node.details["entrants"])
        left = [output for output in results.outputs(WORKERS, 0, count) if output is not MISSING]
        return _pair(node, left, 0) if left else Lost(_together(node, results.lost(WORKERS, 0, count)))
    entrants, first = note["entrants"], note["first"]
    count = len(entrants) // 2
    if lost := results.lost(MATCHES, first, count):
        return Lost(_together(node, lost))
    chosen = results.outputs(MATCHES, first, count)
    winners = [_winner(node, entrants[2 * at], entrants[2 * at + 1], choice) for at, choice in enumerate(chosen)]
    return _pair(node, [*winners, *entrants[2 * count :]], first + count)


def _pair(node: Node, entrants: list[Any], first: int) -> Move:
    """Compare two and two of those that are left."""
    if not entrants:
        return Lost(CriticalError(f"step {node.name!r} has no entrants"))
    if len(entrants) == 1:
        return Done(entrants[0])
    pairs = [{"left": entrants[at], "right": entrants[at + 1]} for at in range(0, len(entrants) - 1, 2)]
    return Round(MATCHES, pairs, {"entrants": entrants, "first": first}, first)


def _winner(node: Node, left: Any, right: Any, choice: Any) -> Any:
    if choice in (left, right):
        return left if choice == left else right
    if choice in ("left", "right"):
        return left if choice == "left" else right
    raise ExpressionError(
        f'the judge of step {node.name!r} gives one of the two, or "left" or "right", not {choice!r:.100}'
    )


def _only(node: Node, role: str, results: Results) -> Move:
    """What the last step of a play gave is what all of it has come to."""
    lost = results.lost(role, 0, 1)
    return Lost(_together(node, lost)) if lost else Done(results.outputs(role, 0, 1)[0])


def _list(node: Node, given: Any) -> list[Any]:
    items = listed(given)
    if items is None:
        raise ExpressionError(f"step {node.name!r} is for a list, and was given {type(given).__name__}")
    return items


def _together(node: Node, lost: dict[str, Exception]) -> Exception:
    names = list(lost)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    told = ", ".join(map(repr, names[:3]))
    return JoinError(f"step {node.name!r} failed with {'step' if len(names) == 1 else 'steps'} {told}{more}", lost)


_PLAYS: Mapping[str, Callable[[Node, Any, Note, Note | None, Results], Move]] = {
    "fan_out": _fan_out,
    "best_of": _best_of,
    "tournament": _tournament,
    "generate_and_filter": _filter,
}


def next_move(node: Node, args: Any, values: Note, note: Note | None, results: Results) -> Move:
    """What a controller does next."""
    try:
        return _PLAYS[node.kind](node, args, values, note, results)
    except ExpressionError as error:
        return Lost(error)
