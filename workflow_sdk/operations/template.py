"""The template of every operation: it takes its place, is done or replayed, and gives its outcome.

A verb says what is done; whether it is done is up to the run. One that goes on with the instance does what is new, and
gives the recorded outcome of what is not. One that only walks over a history ends where there is no outcome.
"""

from __future__ import annotations

import dis
from inspect import CO_COROUTINE, currentframe
from types import CodeType, FrameType
from typing import Any

import anyio.lowlevel

from workflow_sdk.errors import HistoryDivergedError
from workflow_sdk.operations.engine import Composite, Verb
from workflow_sdk.operations.place import BREATH, Place
from workflow_sdk.rows.entries import BranchesData, Entry
from workflow_sdk.rows.location import pack_segment
from workflow_sdk.rows.status import Kind
from workflow_sdk.values import differ, digest

# Where in an author's code an operation is called.


_ENGINE = __name__.partition(".")[0]
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_ALWAYS_ELSEWHERE = frozenset(
    {
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"),
    }
)
"""The instructions after which the next one is never reached directly."""


def is_called_in_a_loop() -> bool:
    """Whether the code that awaits this operation can come back to the same `await`, without leaving its function.

    So it is for the function of the scope, and for those that it awaits and that await the operation. It looks at the
    code, not at what it does: that takes a while, and is for the rare case.
    """
    frame = currentframe()
    while frame is not None and _is_engine(frame):
        frame = frame.f_back
    while frame is not None and frame.f_code.co_flags & CO_COROUTINE and not _is_engine(frame):
        if _comes_back(frame.f_code, frame.f_lasti):
            return True
        frame = frame.f_back
    return False


def _is_engine(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _ENGINE


def _comes_back(code: CodeType, offset: int) -> bool:
    """Whether the `await` that the function is at can follow on itself. Ways through `except` don't count."""
    instructions = list(dis.get_instructions(code))
    at = {instruction.offset: number for number, instruction in enumerate(instructions)}
    awaits = [n for n, i in enumerate(instructions) if i.opname == "GET_AWAITABLE" and i.offset <= offset]
    if not awaits:
        return False
    start = awaits[-1]
    seen: set[int] = set()
    todo = [start + 1]
    while todo:
        number = todo.pop()
        if number == start:
            return True
        if number in seen or number >= len(instructions):
            continue
        seen.add(number)
        instruction = instructions[number]
        if instruction.opcode in _JUMPS:
            todo.append(at[instruction.argval])
        if instruction.opname not in _ALWAYS_ELSEWHERE:
            todo.append(number + 1)
    return False


# Whether an operation is the one that was recorded at its place, and what to say if it is not.


def open_place(place: Place, *, covered: bool = False) -> bool:
    """Take the place. False if the run is over, or ends here because the code does not fit its history.

    Afterwards `entry` is what was recorded, or None if the operation is new. `covered`: it was removed from the code,
    and is only passed over.
    """
    scope = place.scope
    life = scope.engine.life
    if life.halted or life.draining or scope.race.lost:
        return False
    entry = place.entry
    if scope.unvisited or entry is not None or scope.doubtful:
        problem = None if _is_plain(place, entry) else _divergence(place, covered=covered)
        if problem is not None:
            life.diverged(HistoryDivergedError(problem))
            return False
        if entry is not None:
            scope.visited(place.location)
    return True


def _is_plain(place: Place, entry: Entry | None) -> bool:
    """Whether the recorded operation is finished, and only name and kind have to match. In a replay most are so."""
    if entry is None or entry.kind is not place.kind or not entry.is_final:
        return False
    return not place.arguments and place.branches is None and not place.scope.doubtful


def _divergence(place: Place, *, covered: bool) -> str | None:
    """Why an operation does not fit what was recorded in its scope; None if it does."""
    scope, entry = place.scope, place.entry
    if scope.doubtful and place.repeats in scope.doubtful:
        return scope.doubtful[place.repeats]
    if entry is None:
        return _of_a_new_one(place)
    if entry.kind is not place.kind:
        return (
            f"{place.path!r} is recorded as {entry.kind.value}, and the code asks for {place.kind.value}; "
            f'give the new operation another name, and put `ctx.removed({place.name!r}, "{entry.kind.value}")` '
            "where the old one was"
        )
    if not covered and (problem := _other_call(place, entry)) is not None:
        return problem
    if entry.is_final or covered or scope.unvisited == 1 or scope.engine.facts.lenient:
        return None
    return (
        f"the code goes on with {place.what}, while {scope.missing()} recorded in this scope "
        "and not reached; put renamed or removed operations back, or cover them with `ctx.removed`"
    )


def _of_a_new_one(place: Place) -> str | None:
    """A new operation comes after all that is recorded in its scope; but for a version, which may be put anywhere."""
    scope = place.scope
    if not scope.unvisited or scope.engine.facts.lenient or place.kind is Kind.VERSION:
        return None
    return (
        f"the code asks for {place.what}, which is not recorded, while {scope.missing()} recorded in this scope "
        "and not reached yet; put renamed or removed operations back, cover them with `ctx.removed`, or guard "
        "the new one with `ctx.version`"
    )


def _other_call(place: Place, entry: Entry) -> str | None:
    """Why the recorded operation, which has the same name and kind, is another call."""
    if isinstance(entry.data, BranchesData) and place.branches is not None:
        recorded, asked = entry.data, place.branches
        if set(recorded.names) != set(asked.names) or recorded.count != asked.count:
            return (
                f"{place.what} is recorded with {_shown(recorded)}, and the code asks for {_shown(asked)}; "
                "restore the branches, or give the changed operation a new name and cover the old one with "
                "`ctx.removed`"
            )
    if not place.arguments or not _has_other_arguments(place, entry):
        return None
    if place.kind is Kind.MAP:
        return (
            f"{place.what} is recorded with other items than the code gives it now, or in another order, so that "
            "each value would go to another item; give it the items in the same order every time (that of a set is "
            "another one in every process: sort it). If the items were changed on purpose, give the map a new name "
            "and cover the old one with `ctx.removed`"
        )
    problem = (
        f"{place.what} is recorded with other arguments than the code gives it now, and its name does not tell its "
        "calls apart; make the calls in the same order every time (that of a set is another one in every process: "
        "sort it), or give each a name of its own that says what it is for. If the arguments were changed on "
        f"purpose, write the name: `ctx.step({place.name!r}, ...)`"
    )
    if place.repeats is not None or _comes_again(place):
        return problem
    # It is the only call of this name so far, and its argument may have been changed on purpose.
    place.scope.doubtful = {**place.scope.doubtful, place.name: problem}
    return None


def _has_other_arguments(place: Place, entry: Entry) -> bool:
    if entry.digest is None:
        return False
    recorded = place.decode(entry.digest, bytes)
    return not isinstance(recorded, bytes) or differ(recorded, digest(place.arguments))


def _comes_again(place: Place) -> bool:
    """Whether the derived name stands for more than one call, as far as can be known before the next one."""
    scope = place.scope
    index = scope.names.find(f"{place.name}:1")
    return (index is not None and pack_segment(index) in scope.recorded) or is_called_in_a_loop()


def _shown(data: BranchesData) -> str:
    if not data.names:
        return f"{data.count} branches"
    names = sorted(data.names)
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return "the branches " + ", ".join(map(repr, names[:10])) + more


async def perform(place: Place, verb: Verb) -> Any:
    """Do an operation, or replay it; the value that it has, or had the first time."""
    engine = place.scope.engine
    try:
        if not open_place(place):
            await engine.life.never()
        entry = place.entry
        if entry is None:
            entry = await engine.begin(verb)
        elif not entry.is_final:
            entry = await engine.resume(verb, entry)
        elif place.ordinal % BREATH == BREATH - 1:
            # A replay may come to thousands of recorded operations without waiting: let other tasks run in between.
            await anyio.lowlevel.checkpoint()
        place.close(entry)
        return verb.outcome(entry)
    finally:
        if place.scope.busy is place:
            place.release()


async def enter(place: Place, verb: Composite) -> Any:
    """The same for an operation with scopes inside, whose code a run may have to see again."""
    engine = place.scope.engine
    try:
        if not open_place(place):
            await engine.life.never()
        entry = place.entry
        if entry is None:
            entry = await engine.begin(verb)
        else:
            if place.scope.firing is not None:
                place.scope.firing.pass_by(place.location)
            entry = await engine.reenter(verb, place.location, entry)
        place.close(entry)
        return verb.outcome(entry)
    finally:
        if place.scope.busy is place:
            place.release()
