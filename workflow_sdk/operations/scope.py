"""Where operations happen: the root of a workflow, a branch, a turn of a loop, an attempt.

A scope knows what was recorded in it before this run, and sees to it that the code still asks for the same: an
operation is registered when it is called, takes its place, and gives it back when it is done.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from hashlib import blake2b
from inspect import CORO_CREATED, getcoroutinestate, isawaitable
from random import Random
from typing import Any, Protocol, TypeVar
from uuid import UUID

from workflow_sdk.errors import (
    CodecError,
    ConcurrentOperationError,
    DefinitionError,
    DuplicateNameError,
    HistoryDivergedError,
)
from workflow_sdk.journal.names import NameTable, name_problem
from workflow_sdk.journal.public_state import PublicState
from workflow_sdk.operations.engine import Reader
from workflow_sdk.operations.types import Seat
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.location import escape, join_path, segments
from workflow_sdk.rows.status import Kind

T = TypeVar("T")

_NOTHING: dict[bytes, Entry] = {}
"""The recorded entries of a new scope: none. Shared by all of them, as there may be thousands; never written to."""


_NO_DOUBT: dict[str, str] = {}
"""The doubtful names of a new scope: none. Shared, and never written to."""
_OVER = "~"
"""The name of an operation of a run that is over. It is never looked up."""


class Operation(Protocol):
    """An operation that is under way, as its scope knows it."""

    @property
    def kind(self) -> Kind:
        """Its kind."""
        ...

    @property
    def what(self) -> str:
        """The operation, as errors name it."""
        ...

    @property
    def engine(self) -> Reader:
        """The engine that runs the operation."""
        ...


class RaceStatus:
    """Whether a branch of a race has lost, with all races inside it. A scope outside of races never loses."""

    __slots__ = ("lost", "within")

    def __init__(self) -> None:
        self.lost: bool = False
        self.within: set[RaceStatus] | None = None

    def branch(self) -> RaceStatus:
        """Make the status of a branch of a race in this scope: if this scope loses, the branch loses, too."""
        inner = RaceStatus()
        inner.lost = self.lost
        self.within = self.within or set()
        self.within.add(inner)
        return inner

    def lose(self) -> None:
        """Note that the branch has lost: from now on no operation in it does anything."""
        self.lost = True
        for inner in self.within or ():
            inner.lose()


class Scope:
    """One scope of one run: it admits operations, and finds what was recorded for them."""

    __slots__ = (
        "_path",
        "busy",
        "count",
        "derived",
        "doubtful",
        "draws",
        "ended",
        "engine",
        "firing",
        "in_loop",
        "in_race",
        "interrupted",
        "label",
        "names",
        "now",
        "parent",
        "pending",
        "prefix",
        "race",
        "recorded",
        "rng",
        "unvisited",
        "used",
    )

    def __init__(
        self,
        engine: Reader,
        prefix: bytes,
        now: float,
        *,
        parent: Scope | None = None,
        label: str = "",
        names: NameTable | None = None,
    ) -> None:
        self.engine: Reader = engine
        self.prefix: bytes = prefix
        """The packed location that every entry of this scope starts with."""
        self.now: float = now
        """The time that the code may know: when the last operation here ended."""
        self.parent: Scope | None = parent
        self.label: str = label
        """The last part of the path of this scope, escaped."""
        self.ended: bool = False
        self.busy: Operation | None = None
        """The operation that is under way, or was called and not awaited."""
        self.pending: Coroutine[Any, Any, Any] | None = None
        self.interrupted: str | None = None
        """An operation that was cancelled by code of the author's, and so has no outcome to record."""
        self.recorded: dict[bytes, Entry] = engine.journal.history.loaded.pop(prefix, _NOTHING)
        """Recorded operations that the code has not come to yet."""
        self.unvisited: int = len(self.recorded)
        self.used: set[str] = set()
        self.derived: dict[str, int] | None = None
        self.doubtful: dict[str, str] = _NO_DOUBT
        """Derived names that were recorded with other arguments, and what to say if one of them comes again."""
        self.count: int = 0
        self.draws: int = 0
        """How many UUIDs were drawn. The number makes each of them another one, and the same in a replay."""
        self.rng: Random | None = None
        self._path: str | None = None
        around = parent.names if parent is not None else engine.journal.names.root
        self.names: NameTable = names or around
        self.race: RaceStatus = parent.race if parent is not None else RaceStatus()
        self.in_race: bool = parent is not None and parent.in_race
        self.in_loop: bool = parent is not None and parent.in_loop
        self.firing: Seat | None = None if parent is None else parent.firing
        """The firing of a graph that this scope is a part of."""

    @property
    def path(self) -> str:
        """The path of the scope, as people read it."""
        if self._path is None:
            self._path = join_path(self.parent.path, self.label) if self.parent is not None else self.label
        return self._path

    def path_of(self, name: str) -> str:
        """The path of an operation in this scope."""
        return join_path(self.path, escape(name))

    def admit(self, kind: Kind, name: str, *, derived: bool = False) -> str:
        """The name of an operation that may begin here. Mistakes of the author are raised here, where they are made."""
        caller = current_scope.get()
        life = self.engine.life
        if life.halted and (caller is None or caller.engine is self.engine):
            # The run is over, and the operation will not begin. Its coroutine, when awaited, unwinds the code.
            return _OVER
        if caller is not self or self.busy is not None or self.ended or self.interrupted is not None:
            problem = self._misuse(kind, name, caller)
            if problem is not None:
                raise problem
        if type(name) is not str and (fault := name_problem(name)) is not None:
            raise life.mistake(DefinitionError(f"{kind.value} {name!r}: {fault}"))
        if derived:
            name = self._derive(name)
        elif name in self.used:
            raise life.mistake(
                DuplicateNameError(
                    f"{kind.value} {self.path_of(name)!r}: the name was used before in this scope; "
                    "give every operation of a scope a name of its own"
                )
            )
        if self.engine.state.public is not None:
            self.note(self.engine.state.public)
        self.used.add(name)
        return name

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

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Keep the coroutine of the operation just registered, so that a forgotten one is noticed."""
        self.pending = coroutine
        return coroutine

    def forgotten(self) -> bool:
        """Whether an operation was called and not awaited. Its coroutine is closed: it will not run."""
        pending = self.pending
        if self.busy is None or pending is None or getcoroutinestate(pending) != CORO_CREATED:
            return False
        pending.close()
        return True

    def note(self, public: PublicState) -> None:
        """What the code has assigned to the public state since the last operation was assigned in this scope."""
        try:
            public.note(self.prefix)
        except CodecError as error:
            raise self.engine.life.mistake(error) from None

    def visited(self, location: bytes) -> None:
        """The code has come to a recorded operation. What was recorded is its own from now on, and goes with it."""
        self.unvisited -= 1
        self.recorded.pop(location[len(self.prefix) :], None)

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
        """Note that the function of the scope has ended.

        False if that ended the run: the author made a mistake, or recorded history was not reached.
        """
        if self.race.lost:
            return True
        if self.engine.state.public is not None:
            with suppress(CodecError):  # then that is what ends the run
                self.note(self.engine.state.public)
        if self.interrupted is not None and (failure is None or isinstance(failure, Exception)):
            self._interrupted()
        if self.busy is not None:
            self._left_over(self.busy)
        elif self.unvisited:
            self.engine.life.diverged(self._not_reached(failure))
        self.ended = True
        return not self.engine.life.halted

    def _not_reached(self, failure: BaseException | None) -> HistoryDivergedError:
        """The error for a scope that has ended before the code came to everything that is recorded in it."""
        where = f"in {self.path!r}" if self.path else "of the workflow"
        ended = "ended" if failure is None else f"raised {type(failure).__name__} ({failure})"
        error = HistoryDivergedError(
            f"the code {where} {ended}, while {self.missing()} recorded there and not reached; put what was "
            "removed or renamed back, or cover it with `ctx.removed`"
        )
        error.__cause__ = failure
        return error

    # The errors for mistakes in how an author uses a ctx. They are raised where the call is made.

    def _misuse(self, kind: Kind, name: str, caller: Scope | Operation | None) -> BaseException | None:
        """The error for calling an operation here now; None if nothing is wrong.

        `caller` is the scope or the step whose code calls it.
        """
        # A step of another instance may call this ctx: then the mistake is that of the other instance.
        is_own = caller is None or caller.engine is self.engine
        if self.interrupted is not None and not self.race.lost and is_own:
            return self._interrupted()
        if caller is not self or self.ended:
            if isinstance(caller, Scope) and is_own and self.busy is not None:
                return self._two_at_once(kind, name, self.busy)
            return self._foreign(kind, name, self.engine if caller is None else caller.engine)
        return None if self.busy is None else self._two_at_once(kind, name, self.busy)

    def _interrupted(self) -> BaseException:
        return self.engine.life.mistake(
            DefinitionError(
                f"{self.interrupted} was cancelled by a timeout or scope of the code's own, which leaves it without an "
                "outcome to record; give the operation a `timeout`, or let it race against `ctx.sleep` in a `ctx.race`"
            )
        )

    def _two_at_once(self, kind: Kind, name: str, busy: Operation) -> BaseException:
        if self.forgotten():
            reason = f"{busy.what} was called and not awaited; write `await` before it, or run both in a `ctx.join`"
        elif not busy.kind.is_composite:
            reason = (
                f"{busy.what} is still under way; `ctx.join` runs operations side by side, each on a ctx of its own"
            )
        else:
            reason = f"{busy.what} is still under way; use the ctx that its function is given, not the one around it"
        what = f"{kind.value} {self.path_of(name)!r}"
        problem = f"two operations at once on one ctx: {what}, while {reason}"
        return self.engine.life.mistake(ConcurrentOperationError(problem))

    def _foreign(self, kind: Kind, name: str, engine: Reader) -> BaseException:
        what = f"{kind.value} {self.path_of(name)!r}"
        if self.ended:
            problem = f"{what}: this ctx is finished; operations belong before the end of its function"
        else:
            problem = (
                f"{what}: called inside a step, or on the ctx of another branch or instance; "
                "call operations in the function that was given this ctx"
            )
        return engine.life.mistake(DefinitionError(problem))

    def _left_over(self, busy: Operation) -> None:
        """End the run with a mistake, since the function has ended while an operation was under way in its scope."""
        what = busy.what
        if self.forgotten():
            problem = f"{what} was called and never awaited; write `await` before it"
        else:
            problem = f"{what} was still under way when the function around it ended; await it there"
        self.engine.life.mistake(ConcurrentOperationError(problem))


_logger = logging.getLogger("workflow_sdk.workflow")

current_scope: ContextVar[Scope | Operation | None] = ContextVar("current_scope", default=None)
"""The scope whose function is running; inside a step, the step."""


def draw_uuid(scope: Scope) -> UUID:
    """The next uuid of a scope."""
    scope.draws += 1
    key = scope.engine.facts.seed
    return UUID(bytes=blake2b(f"{scope.path}/{scope.draws}".encode(), key=key, digest_size=16).digest(), version=4)


def random_of(scope: Scope) -> Random:
    """The random numbers of a scope."""
    if scope.rng is None:
        scope.rng = Random(blake2b(scope.path.encode(), key=scope.engine.facts.seed).digest())
    return scope.rng


def seat_of(scope: Scope, what: str) -> Seat:
    """The firing of a graph that a scope is a part of."""
    if scope.firing is None:
        problem = f"ctx.{what} is for the steps of a graph, and {scope.path or 'this workflow'!r} is no part of one"
        raise scope.engine.life.mistake(DefinitionError(problem))
    return scope.firing


def awaited(scope: Scope, called: Awaitable[T]) -> Awaitable[T]:
    """What a function of an author returned, which has to be an awaitable."""
    if not isawaitable(called):
        problem = (
            f"the function at {scope.path!r} returned {called!r:.100} and is not `async def`; a plain one is for steps"
        )
        raise scope.engine.life.mistake(DefinitionError(problem))
    return called


class ScopeLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that is silent while a scope replays."""

    def __init__(self, scope: Scope) -> None:
        facts = scope.engine.facts
        about = {"instance_id": facts.instance_id, "workflow": facts.workflow_name, "path": scope.path}
        super().__init__(_logger, about)
        self._scope = scope

    def isEnabledFor(self, level: int) -> bool:
        return not self._scope.unvisited and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
