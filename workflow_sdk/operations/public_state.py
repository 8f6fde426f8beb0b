"""`ctx.state`, `ctx.reference` and `ctx.progress`, as scopes assign them.

What a scope has assigned is kept with it when it ends, since a replay does not enter it again; and is gone if it has
lost a race.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial

from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.journal.public_state import PublicState, State
from workflow_sdk.operations.engine import Reader
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.types import Unwound
from workflow_sdk.rows.keys import FOLDED


def public_state(scope: Scope) -> PublicState:
    """Return the public state, to be read or assigned by the code of a scope."""
    # Assignments by other scopes were noted when those were left: from here on, they are this scope's.
    return scope.engine.state.public or scope.engine.state.see()


def state_of(scope: Scope) -> State:
    """Return the state of the instance, to be read or assigned by the code of a scope."""
    return State(public_state(scope), partial(assigning, scope))


def _check_assigning(scope: Scope) -> None:
    """Check that the code of a scope assigns the public state. A step may not: a replay does not run it again."""
    caller = current_scope.get()
    if isinstance(caller, Scope) and not caller.ended:
        return
    where = "where no function of the workflow runs" if caller is None else "inside a step"
    if isinstance(caller, Scope):
        where = "after the end of the function around it"
    raise DefinitionError(
        f"ctx.state, ctx.reference or ctx.progress of {scope.path or 'the workflow'!r} was assigned {where}; assign "
        "it in the function that was given the ctx"
    )


@contextmanager
def assigning(scope: Scope) -> Generator[None]:
    """Wrap each assignment: a mistake ends the run, and the change is noted for the scope that is running."""
    try:
        _check_assigning(scope)
        yield
    except (DefinitionError, CodecError) as error:
        raise scope.engine.life.mistake(error) from None
    caller = current_scope.get()
    if isinstance(caller, Scope) and scope.engine.state.public is not None:
        caller.note(scope.engine.state.public)


def fold(scope: Scope, location: bytes) -> None:
    """Store the changes of the public state, and of a graph's context, under a location, whose scope has ended."""
    engine = scope.engine
    if scope.firing is not None:
        scope.firing.keep(location)
    if engine.state.public is None:
        return
    try:
        folded = engine.state.public.fold(location)
    except CodecError as error:
        raise engine.life.mistake(error) from None
    if folded is not None:
        engine.journal.history.keep_changes(location, *folded)


def note_turn(scope: Scope, loop: bytes, turn: bytes) -> None:
    """Store the changes by earlier turns of a loop, so that this turn can begin again."""
    engine = scope.engine
    # Changes that are recorded in this turn come after those.
    if turn in engine.journal.history.loaded:
        return
    if scope.firing is not None:
        scope.firing.keep_turn(loop, turn)
    if engine.state.public is None:
        return
    try:
        changes = engine.state.public.merge(loop)
    except CodecError as error:
        raise engine.life.mistake(error) from None
    if changes is not None:
        engine.journal.unwritten.write(FOLDED + turn, changes)


def undo(scope: Scope, losers: Sequence[bytes], winner: bytes) -> None:
    """Undo the changes under these locations, which lost a race to the branch at `winner`."""
    engine = scope.engine
    if scope.firing is not None:
        scope.firing.drop(losers)
    if engine.state.public is None:
        return
    try:
        engine.state.public.undo(losers, winner)
    except CodecError as error:
        raise engine.life.mistake(error) from None


def pass_by(scope: Scope, locations: Iterable[bytes]) -> None:
    """Change the context of a graph again as scopes at these locations did, which are not entered again."""
    if scope.firing is not None:
        for location in locations:
            scope.firing.pass_by(location)


def unfold(engine: Reader, locations: Iterable[bytes]) -> None:
    """Apply the recorded changes of the public state by scopes under these locations, which are not entered again."""
    changes = engine.journal.history.changes
    if changes and (found := {at: changes[at] for at in locations if at in changes}):
        try:
            engine.state.see().apply(found)
        except CodecError as error:
            # Not a failure of the author's code: it must not be able to catch this.
            engine.life.misread(error, "what is recorded of ctx.state can't be read")
            raise Unwound from None
