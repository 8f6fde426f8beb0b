"""The place of one operation in its scope: what was recorded there, and how its outcome gets there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel

from workflow_sdk.core.codec import SealedError, differ, digest
from workflow_sdk.core.entries import Entry
from workflow_sdk.core.location import pack_segment
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.status import Kind
from workflow_sdk.definitions import is_function
from workflow_sdk.errors import CodecError, DefinitionError, HistoryDivergedError
from workflow_sdk.operations.call_sites import is_called_in_a_loop
from workflow_sdk.operations.engine import Engine, Unwound
from workflow_sdk.operations.outcome import unpack_error
from workflow_sdk.operations.scope import Scope

__all__ = ["BREATH", "COMMIT_BYTES_SOFT_MAX", "Place", "register"]


BREATH = 64
"""So many operations of a scope that wait for nothing come one after the other, and then others have a turn."""

COMMIT_BYTES_SOFT_MAX = 1_000_000
"""Values of more than this do not wait for a later commit to take them along: stores limit the size of one."""


def register(scope: Scope, kind: Kind, name: str, *, derived: bool = False) -> Place:
    """Give an operation its place, when it is called. Mistakes of the author are raised here."""
    place = Place(scope, kind, scope.admit(kind, name, derived=derived))
    if derived and place.name != name:
        place.repeats = name
    scope.busy = place
    return place


class Place:
    """One operation of a scope: its name, its location, and what was recorded there."""

    __slots__ = ("arguments", "entry", "kind", "location", "name", "ordinal", "repeats", "scope")

    def __init__(self, scope: Scope, kind: Kind, name: str) -> None:
        self.scope: Scope = scope
        self.kind: Kind = kind
        self.name: str = name
        self.ordinal: int = scope.count
        scope.count += 1
        self.entry: Entry | None = None
        self.arguments: Sequence[object] = ()
        """What the operation is given, if its name does not tell its calls apart: it has to be the same in a replay."""
        self.repeats: str | None = None
        """The name that was derived, if it is taken and this is the next of its kind."""
        self.location: bytes = b""
        index = scope.names.find(name)
        if index is not None:
            segment = pack_segment(index)
            self.location = scope.prefix + segment
            if scope.unvisited:
                self.entry = scope.recorded.get(segment)

    @property
    def path(self) -> str:
        """The path of the operation."""
        return self.scope.path_of(self.name)

    @property
    def engine(self) -> Engine:
        """Which runs it."""
        return self.scope.engine

    @property
    def what(self) -> str:
        """The operation, as errors name it."""
        return f"{self.kind.value} {self.path!r}"

    def open(self, *, covered: bool = False) -> bool:
        """Take the place. False if the run is over, or ends here because the code does not fit its history.

        Afterwards `entry` is what was recorded, or None if the operation is new. `covered`: it is only passed over.
        """
        scope = self.scope
        engine = scope.engine
        if engine.halted or engine.draining or scope.fate.lost:
            return False
        if scope.unvisited or self.entry is not None or scope.doubtful:
            problem = self._divergence(covered=covered)
            if problem is not None:
                if not engine.walking:
                    engine.diverged(HistoryDivergedError(problem))
                return False
        if self.entry is not None:
            scope.visited(self.location)
            return True
        if engine.walking:
            return False
        if not self.location:
            self.location = scope.prefix + pack_segment(scope.names.intern(self._checked_name()))
        return True

    def _divergence(self, *, covered: bool) -> str | None:
        """Why the operation does not fit what was recorded here, or None."""
        scope, entry = self.scope, self.entry
        if scope.doubtful and self.repeats in scope.doubtful:
            return scope.doubtful[self.repeats]
        if entry is not None:
            if entry.kind is self.kind:
                if self.kind is Kind.STEP and not covered and self.has_other_arguments():
                    problem = self._other_arguments()
                    if self.repeats is not None or self._comes_again():
                        return problem
                    scope.doubtful = {**scope.doubtful, self.name: problem}
                if entry.is_final or covered or scope.unvisited == 1 or scope.engine.facts.lenient:
                    return None
                return (
                    f"the code goes on with {self.what}, while {scope.missing()} recorded in this scope "
                    "and not reached; put renamed or removed operations back, or cover them with `ctx.removed`"
                )
            return (
                f"{self.path!r} is recorded as {entry.kind.value}, and the code asks for {self.kind.value}; "
                f'give the new operation another name, and put `ctx.removed({self.name!r}, "{entry.kind.value}")` '
                "where the old one was"
            )
        if scope.unvisited and not scope.engine.facts.lenient and self.kind is not Kind.VERSION:
            return (
                f"the code asks for {self.what}, which is not recorded, while {scope.missing()} recorded in this scope "
                "and not reached yet; put renamed or removed operations back, cover them with `ctx.removed`, or guard "
                "the new one with `ctx.version`"
            )
        return None

    def has_other_arguments(self) -> bool:
        """Whether the recorded operation was given something else."""
        entry = self.entry
        if entry is None or entry.digest is None or not self.arguments:
            return False
        recorded = self.decode(entry.digest, bytes)
        return not isinstance(recorded, bytes) or differ(recorded, digest(self.arguments))

    def _comes_again(self) -> bool:
        """Whether the derived name stands for more than one call, as far as can be known before the next one."""
        scope = self.scope
        index = scope.names.find(f"{self.name}:1")
        return (index is not None and pack_segment(index) in scope.recorded) or is_called_in_a_loop()

    def _other_arguments(self) -> str:
        return (
            f"{self.what} is recorded with other arguments than the code gives it now, and its name does not tell its "
            "calls apart; make the calls in the same order every time (that of a set is another one in every process: "
            "sort it), or give each a name of its own that says what it is for. If the arguments were changed on "
            f"purpose, write the name: `ctx.step({self.name!r}, ...)`"
        )

    def _checked_name(self) -> str:
        problem = name_problem(self.name)
        if problem is not None:
            raise self.scope.engine.slip(DefinitionError(f"{self.kind.value} {self.name!r}: {problem}"))
        return self.name

    def new_entry(self) -> Entry:
        """An entry for an operation that begins now."""
        engine = self.scope.engine
        entry = Entry(self.kind, self.ordinal, engine.now())
        if self.arguments:
            entry.digest = engine.codec.encode(digest(self.arguments))
        return entry

    def put(self, entry: Entry) -> None:
        """Have the entry written by the next flush."""
        self.scope.engine.journal.put(self.location, entry)

    @property
    def is_forgotten(self) -> bool:
        """Whether the place is gone, with the turn of a loop or with all that was done: nothing may be put there."""
        return self.scope.names.has_forgotten(self.location, self.scope.engine.journal.names)

    def fold(self) -> None:
        """What was assigned in the scopes of the operation is kept with it: they are not entered again."""
        self.scope.fold(self.location)

    async def flush(self) -> None:
        """Return once what was put is stored."""
        await self.scope.engine.flush()

    async def breathe(self) -> None:
        """Let others have a turn of the event loop now and then: of an operation that waits for nothing."""
        if self.ordinal % BREATH == BREATH - 1:
            await anyio.lowlevel.checkpoint()

    async def make_room(self) -> None:
        """Before a value is put: have what others put stored, if the commit would become too large by one more."""
        engine = self.scope.engine
        while engine.journal.weight > COMMIT_BYTES_SOFT_MAX:
            await engine.flush()

    def close(self, entry: Entry) -> None:
        """The operation is over, and its outcome is known."""
        scope = self.scope
        scope.busy = scope.pending = None
        if scope.engine.walking:
            # What the code has assigned in there once more, maybe in another order, is as it is recorded.
            scope.unfold([self.location])
        if entry.finished_at is not None and entry.finished_at > scope.now:
            scope.now = entry.finished_at

    def decode(self, raw: bytes, hint: object, *, checked: bool = False, plain: bool = False) -> Any:
        """A recorded value. One that the code's types can't read any more is divergence, not a failure to be caught."""
        engine = self.scope.engine
        try:
            return engine.codec.decode_checked(raw, hint) if checked else engine.codec.decode(raw, hint, plain=plain)
        except SealedError as error:
            raise self._unreadable(error) from None
        except CodecError as error:
            if engine.walking:
                raise
            engine.diverged(
                HistoryDivergedError(
                    f"what {self.what} has recorded can't be read as the type that the code gives it now: {error}"
                )
            )
            raise Unwound from None

    def failure(self, raw: bytes) -> Exception:
        """A recorded failure, to be raised again. One that can't be read is none of the author's, either."""
        engine = self.scope.engine
        try:
            return unpack_error(raw, engine.codec)
        except SealedError as error:
            raise self._unreadable(error) from None
        except CodecError as error:
            if engine.walking:
                raise
            engine.diverged(HistoryDivergedError(f"the failure that {self.what} has recorded can't be read: {error}"))
            raise Unwound from None

    def _unreadable(self, error: SealedError) -> BaseException:
        """The run ends, and the instance is given back to those who can read it. What to raise here."""
        engine = self.scope.engine
        engine.unreadable(error)
        return error if engine.walking else Unwound()

    def slip(self, message: str) -> Exception:
        """A mistake in the call of the operation: the error to raise. The place is free again."""
        self.release()
        return self.scope.engine.slip(DefinitionError(message))

    def check_function(self, fn: object) -> None:
        """What an operation is to call can be called."""
        if not is_function(fn):
            raise self.slip(f"{self.what} is given a function to call, not {type(fn).__name__}")

    def release(self) -> None:
        """The operation is over without an outcome: it was cancelled, or is an author's mistake."""
        scope = self.scope
        if scope.busy is self:
            scope.busy = scope.pending = None
            if isinstance(sys.exc_info()[1], anyio.get_cancelled_exc_class()):
                scope.interrupted = self.what
