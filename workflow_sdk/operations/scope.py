"""Where operations happen: the root of a workflow, a branch, a turn of a loop, an attempt.

A scope knows what was recorded in it before this run, and sees to it that the code still asks for the same: an
operation is registered when it is called, takes its place, and gives it back when it is done.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from hashlib import blake2b
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, Protocol, TypeVar
from uuid import UUID

from workflow_sdk.core.entries import Entry
from workflow_sdk.core.location import escape, join_path, segments
from workflow_sdk.core.names import NameTable, name_problem
from workflow_sdk.core.status import Kind
from workflow_sdk.core.world import World
from workflow_sdk.errors import (
    CodecError,
    ConcurrentOperationError,
    DefinitionError,
    DuplicateNameError,
    HistoryDivergedError,
)
from workflow_sdk.operations.engine import Engine, Unwound

__all__ = ["Fate", "Operation", "Scope", "current_scope"]

T = TypeVar("T")

_NOTHING: dict[bytes, Entry] = {}
"""What was recorded in a new scope. Shared, since there may be ten thousand of them; it is never written to."""


_NO_DOUBT: dict[str, str] = {}
"""The same, of the derived names of a scope."""


class Operation(Protocol):
    """What a scope knows of the operation that is under way in it."""

    @property
    def kind(self) -> Kind:
        """Its kind."""
        ...

    @property
    def what(self) -> str:
        """The operation, as errors name it."""
        ...

    @property
    def engine(self) -> Engine:
        """Which runs it."""
        ...


class Fate:
    """Whether a branch of a race has lost, and with it everything in it."""

    __slots__ = ("lost", "within")

    def __init__(self) -> None:
        self.lost: bool = False
        self.within: set[Fate] | None = None

    def branch(self) -> Fate:
        """The fate of a branch of a race in here."""
        fate = Fate()
        fate.lost = self.lost
        self.within = self.within or set()
        self.within.add(fate)
        return fate

    def lose(self) -> None:
        """From now on nothing in here does anything any more."""
        self.lost = True
        for fate in self.within or ():
            fate.lose()


class Scope:
    """One scope of one run."""

    __slots__ = (
        "_path",
        "busy",
        "count",
        "derived",
        "doubtful",
        "draws",
        "ended",
        "engine",
        "fate",
        "in_loop",
        "in_race",
        "interrupted",
        "label",
        "names",
        "now",
        "parent",
        "pending",
        "prefix",
        "recorded",
        "rng",
        "unvisited",
        "used",
    )

    def __init__(
        self,
        engine: Engine,
        prefix: bytes,
        now: float,
        *,
        parent: Scope | None = None,
        label: str = "",
        names: NameTable | None = None,
    ) -> None:
        self.engine: Engine = engine
        self.prefix: bytes = prefix
        """The packed location that every entry of this scope starts with."""
        self.now: float = now
        """The time that the code may know: when the last operation here ended."""
        self.parent: Scope | None = parent
        self.label: str = label
        """How the path of this scope ends, escaped."""
        self.ended: bool = False
        self.busy: Operation | None = None
        """The operation that is under way, or was called and not awaited."""
        self.pending: Coroutine[Any, Any, Any] | None = None
        self.interrupted: str | None = None
        """An operation that was cancelled, though neither the run nor its branch was."""
        self.recorded: dict[bytes, Entry] = engine.journal.loaded.pop(prefix, _NOTHING)
        """Recorded operations that the code has not come to yet."""
        self.unvisited: int = len(self.recorded)
        self.used: set[str] = set()
        self.derived: dict[str, int] | None = None
        self.doubtful: dict[str, str] = _NO_DOUBT
        """Derived names that were recorded with other arguments, and what to say if one of them comes again."""
        self.count: int = 0
        self.draws: int = 0
        self.rng: random.Random | None = None
        self._path: str | None = None
        around = parent.names if parent is not None else engine.journal.names.root
        self.names: NameTable = names or around
        self.fate: Fate = parent.fate if parent is not None else Fate()
        self.in_race: bool = parent is not None and parent.in_race
        self.in_loop: bool = parent is not None and parent.in_loop

    @property
    def path(self) -> str:
        """The path of the scope, as people read it."""
        if self._path is None:
            self._path = join_path(self.parent.path, self.label) if self.parent is not None else self.label
        return self._path

    def admit(self, kind: Kind, name: str, *, derived: bool = False) -> str:
        """The name of an operation that may begin here. Mistakes of the author are raised here, where they are made."""
        caller = current_scope.get()
        # Not if it is the mistake of another instance.
        if self.interrupted is not None and not self.fate.lost and (caller is None or caller.engine is self.engine):
            raise self._interrupted()
        if self.engine.world is not None:
            self.note(self.engine.world)
        if caller is not self or self.ended:
            raise self._foreign(kind, name, caller)
        if self.busy is not None:
            raise self._two_at_once(kind, name)
        if type(name) is not str and (problem := name_problem(name)) is not None:
            raise self.engine.slip(DefinitionError(f"{kind.value} {name!r}: {problem}"))
        if derived:
            name = self._derive(name)
        elif name in self.used:
            raise self.engine.slip(
                DuplicateNameError(
                    f"{kind.value} {self.path_of(name)!r}: the name was used before in this scope; "
                    "give every operation of a scope a name of its own"
                )
            )
        self.used.add(name)
        return name

    def see_world(self) -> World:
        """What the world may see, to be read or assigned here."""
        engine = self.engine
        if engine.world is not None:
            # What was assigned elsewhere meanwhile has been noted there.
            return engine.world
        return engine.see_world()

    def check_assigning(self) -> None:
        """What the world may see is assigned where a replay assigns it again: not in a step, which it does not run."""
        caller = current_scope.get()
        if isinstance(caller, Scope) and not caller.ended:
            return
        where = "where no function of the workflow runs" if caller is None else "inside a step"
        if isinstance(caller, Scope):
            where = "after the end of the function around it"
        raise DefinitionError(
            f"ctx.state, ctx.reference or ctx.progress of {self.path or 'the workflow'!r} was assigned {where}; assign "
            "it in the function that was given the ctx"
        )

    def assigned(self) -> None:
        """It was assigned by whoever runs now."""
        caller = current_scope.get()
        if isinstance(caller, Scope) and self.engine.world is not None:
            caller.note(self.engine.world)

    def note(self, world: World) -> None:
        """What the code has assigned since the last operation, was assigned here."""
        try:
            world.note(self.prefix)
        except CodecError as error:
            raise self.engine.slip(error) from None

    def fold(self, location: bytes) -> None:
        """What was assigned in what is under a location is kept there: it is over."""
        engine = self.engine
        if engine.world is None:
            return
        try:
            folded = engine.world.fold(location)
        except CodecError as error:
            raise engine.slip(error) from None
        if folded is not None:
            engine.journal.keep_changes(location, *folded)

    def note_turn(self, loop: bytes, turn: bytes) -> None:
        """A turn of a loop begins: what was assigned in those before is kept, so that it can begin again."""
        engine = self.engine
        # What is recorded in the turn came after this.
        if engine.world is None or turn in engine.journal.loaded:
            return
        try:
            changes = engine.world.merge(loop)
        except CodecError as error:
            raise engine.slip(error) from None
        if changes is not None:
            engine.journal.keep_beginning(turn, changes)

    def undo(self, losers: Sequence[bytes], winner: bytes) -> None:
        """What was assigned under these locations never was: they have lost a race."""
        engine = self.engine
        if engine.world is None:
            return
        try:
            engine.world.undo(losers, winner)
        except CodecError as error:
            raise engine.slip(error) from None

    def visited(self, location: bytes) -> None:
        """The code has come to a recorded operation. What was recorded is its own from now on, and goes with it."""
        self.unvisited -= 1
        self.recorded.pop(location[len(self.prefix) :], None)
        if self.engine.journal.changes and not self.engine.walking:
            self.unfold([location])

    def unfold(self, locations: Iterable[bytes]) -> None:
        """What was assigned under these locations the last time, by what is over, is taken over."""
        changes = self.engine.journal.changes
        if changes and (found := {at: changes[at] for at in locations if at in changes}):
            try:
                self.engine.see_world().apply(found)
            except CodecError as error:
                # No failure of the author's, who must not see it.
                self.engine.diverged(
                    HistoryDivergedError(
                        f"what {self.path or 'the workflow'!r} has recorded of ctx.state can't be read: {error}"
                    )
                )
                raise Unwound from None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Keep the coroutine of the operation just registered, so that a forgotten one is noticed."""
        self.pending = coroutine
        return coroutine

    def path_of(self, name: str) -> str:
        """The path of an operation in this scope."""
        return join_path(self.path, escape(name))

    def _derive(self, name: str) -> str:
        if name not in self.used:
            return name
        if self.derived is None:
            self.derived = {}
        number = self.derived.get(name, 0)
        while True:
            number += 1
            candidate = f"{name}:{number}"
            if candidate not in self.used:
                self.derived[name] = number
                return candidate

    def _two_at_once(self, kind: Kind, name: str) -> Exception:
        busy = self.busy
        assert busy is not None, "there is no first operation"
        if self.forgotten():
            reason = f"{busy.what} was called and not awaited; write `await` before it, or run both in a `ctx.join`"
        elif not busy.kind.is_composite:
            reason = (
                f"{busy.what} is still under way; `ctx.join` runs operations side by side, each on a ctx of its own"
            )
        else:
            reason = f"{busy.what} is still under way; use the ctx that its function is given, not the one around it"
        what = f"{kind.value} {self.path_of(name)!r}"
        return self.engine.slip(ConcurrentOperationError(f"two operations at once on one ctx: {what}, while {reason}"))

    def _interrupted(self) -> Exception:
        return self.engine.slip(
            DefinitionError(
                f"{self.interrupted} was cancelled by a timeout or scope of the code's own, which leaves it without an "
                "outcome to record; give the operation a `timeout`, or let it race against `ctx.sleep` in a `ctx.race`"
            )
        )

    def forgotten(self) -> bool:
        """Whether an operation was called and not awaited. Its coroutine is closed: it will not run."""
        pending = self.pending
        if self.busy is None or pending is None or getcoroutinestate(pending) != CORO_CREATED:
            return False
        pending.close()
        return True

    def _foreign(self, kind: Kind, name: str, caller: Scope | Operation | None) -> Exception:
        what = f"{kind.value} {self.path_of(name)!r}"
        # The mistake is the caller's, in whichever instance that is.
        engine = self.engine if caller is None else caller.engine
        if isinstance(caller, Scope) and engine is self.engine and self.busy is not None:
            return self._two_at_once(kind, name)
        if self.ended:
            return engine.slip(
                DefinitionError(f"{what}: this ctx is finished; operations belong before the end of its function")
            )
        return engine.slip(
            DefinitionError(
                f"{what}: called inside a step, or on the ctx of another branch or instance; "
                "call operations in the function that was given this ctx"
            )
        )

    def missing(self) -> str:
        """The recorded operations that the code has not come to, as text."""
        left = [
            (entry, text)
            for segment, entry in sorted(self.recorded.items(), key=lambda item: item[1].ordinal)
            if (text := self.text_of(segment)) not in self.used
        ]
        shown = ", ".join(f"{entry.kind.value} {self.path_of(text)!r}" for entry, text in left[:5])
        shown += f" and {len(left) - 5} more" if len(left) > 5 else ""
        return f"{shown} {'is' if len(left) == 1 else 'are'}"

    def text_of(self, segment: bytes) -> str:
        """The name that a segment stands for."""
        index = next(segments(segment), None)
        return self.engine.journal.names.texts.get(index, "?") if isinstance(index, int) else "?"

    def end(self, failure: BaseException | None = None) -> bool:
        """The function of the scope is over. False if that ended the run: a slip, or history that was not reached."""
        if self.fate.lost:
            return True
        if self.engine.world is not None:
            with suppress(CodecError):  # then that is what ends the run
                self.note(self.engine.world)
        if self.interrupted is not None and (failure is None or isinstance(failure, Exception)):
            self._interrupted()
        if self.busy is not None:
            what = self.busy.what
            if self.forgotten():
                self.engine.slip(
                    ConcurrentOperationError(f"{what} was called and never awaited; write `await` before it")
                )
            else:
                self.engine.slip(
                    ConcurrentOperationError(
                        f"{what} was still under way when the function around it ended; await it there"
                    )
                )
        elif self.unvisited and not self.engine.walking:
            where = f"in {self.path!r}" if self.path else "of the workflow"
            ended = "ended" if failure is None else f"raised {type(failure).__name__} ({failure})"
            error = HistoryDivergedError(
                f"the code {where} {ended}, while {self.missing()} recorded there and not reached; put what was "
                "removed or renamed back, or cover it with `ctx.removed`"
            )
            error.__cause__ = failure
            self.engine.diverged(error)
        self.ended = True
        return not self.engine.halted

    def draw_uuid(self) -> UUID:
        """The next uuid of this scope: the same in every replay."""
        self.draws += 1
        digest = blake2b(f"{self.path}/{self.draws}".encode(), key=self.engine.facts.seed, digest_size=16).digest()
        return UUID(bytes=digest, version=4)

    def random(self) -> random.Random:
        """The random numbers of this scope: the same in every replay."""
        if self.rng is None:
            self.rng = random.Random(blake2b(self.path.encode(), key=self.engine.facts.seed).digest())
        return self.rng


current_scope: ContextVar[Scope | Operation | None] = ContextVar("current_scope", default=None)
"""The scope whose function is running; inside a step, the step."""
