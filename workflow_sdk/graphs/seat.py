"""What the code of a firing can do to its graph: read and change the context, submit steps, read the limits."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.graphs.begun import keep_begun
from workflow_sdk.graphs.evaluating import Sees
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.model import Limits, Used
from workflow_sdk.graphs.patches import Changes, Patches, Scopes, store_changes, stored_changes
from workflow_sdk.graphs.recording import Recording
from workflow_sdk.graphs.rows import Firing
from workflow_sdk.graphs.surroundings import Surroundings
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, about
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.rows.keys import PATCHED


class GraphRuns(Protocol):
    """The run that a firing is a part of."""

    engine: Engine
    place: Place
    most: Limits
    around: Surroundings
    marking: Marking
    recording: Recording

    def scope_of(self, number: int, firing: Firing, label: str, location: bytes) -> Scope:
        """A scope for the code of a firing."""
        ...

    def context_at(self, version: int) -> dict[str, Any]:
        """The graph's context, as a firing sees it that began with this version."""
        ...

    def args_of(self, number: int, firing: Firing) -> bytes:
        """The arguments of a firing, as they are stored by now."""
        ...

    def change_firing(self, number: int, firing: Firing) -> None:
        """Record that a firing is tried again."""
        ...

    def submit(self, scope: Scope, seat: FiringSeat, nodes: Any) -> Coroutine[Any, Any, Any]:
        """Add steps to the run."""
        ...


class FiringSeat:
    """What the code of a firing can do to its graph."""

    __slots__ = ("_before", "_kept", "_patches", "_run", "firing", "location", "number", "used")

    def __init__(
        self,
        run: GraphRuns,
        number: int,
        firing: Firing,
        location: bytes,
        kept: Scopes | None = None,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        self._run = run
        self._before: Mapping[str, Any] = before or {}
        """Of a part: what the firing had changed in the context when the part began."""
        self.number: int = number
        self.firing: Firing = firing
        self.location: bytes = location
        """The location of the scope whose code has the seat."""
        self._kept: Scopes | None = kept
        self._patches: Patches | None = None
        """None, as long as nothing was changed: so it is in most firings."""
        self.used: tuple[int, int, int, int] = firing.used

    def _changing(self) -> Patches:
        """What notes its changes."""
        if self._patches is None:
            self._patches = Patches(self.location, self._keeping(), self._store)
        return self._patches

    def _keeping(self) -> Scopes:
        """What keeps the changes of scopes that are over."""
        if self._kept is None:
            self._kept = stored_changes(self._run.marking, self.number, self._run.engine.codec)
        return self._kept

    @property
    def _merged(self) -> Mapping[str, Any]:
        return {} if self._patches is None else self._patches.merged

    @property
    def engine(self) -> Engine:
        """What runs it."""
        return self._run.engine

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The functions that expressions may call."""
        return self._run.around.functions

    @property
    def changed(self) -> dict[str, Any]:
        """What it has changed in the graph's context."""
        return dict(self._merged)

    def branch(self, location: bytes) -> FiringSeat:
        """A seat for a part, which keeps its changes to itself until it is done."""
        before = {**self._before, **self._merged}
        return FiringSeat(self._run, self.number, self.firing, location, self._keeping(), before)

    def begin(self) -> None:
        """The code is called from its beginning."""
        if self._patches is not None:
            self._patches.clear()

    def sees(self, args: bytes, **ended: Any) -> Sees:
        """What expressions see."""
        return self._run.around.sees(args, **ended)

    @property
    def values(self) -> Mapping[str, Any]:
        """The context of the graph, as the firing sees it."""
        return MappingProxyType({**self._run.context_at(self.firing.vars), **self._before, **self._merged})

    @property
    def limits(self) -> Used:
        """What was used of the limits when the firing began, or has submitted last."""
        return Used(Limits(*self.used), self._run.most)

    def patch(self, values: Mapping[str, Any]) -> None:
        """Change the context: for the firing at once, for others when it ends."""
        engine, caller = self._run.engine, current_scope.get()
        if not isinstance(caller, Scope) or caller.ended:
            where = "after the end of the function around it" if isinstance(caller, Scope) else "inside a step"
            problem = f"ctx.patch was called {where}; call it in the function that was given the ctx"
            raise engine.life.mistake(DefinitionError(problem))
        try:
            raw = engine.codec.encode(dict(values))
        except CodecError as error:
            raise engine.life.mistake(about("a change of the graph's context", error)) from None
        self._changing().add(caller.prefix, engine.codec.decode(raw, plain=True))

    def pass_by(self, location: bytes) -> None:
        """A replay does not enter a scope, or not from its beginning: what it has changed is changed again."""
        if self._patches is not None or self._kept is not None or self.number in self._run.marking.patches:
            self._changing().pass_by(location)

    def keep(self, location: bytes) -> None:
        """A scope of the code is over: what it has changed is stored with its end."""
        if self._patches is not None:
            self._patches.keep(location)

    def keep_turn(self, loop: bytes, turn: bytes) -> None:
        """A turn of a loop begins: what earlier turns have changed is stored, so that it can begin again."""
        if self._patches is not None and (changes := self._patches.inside(loop)):
            self._keep_for_rewind(turn, self._run.engine.codec.encode(changes))

    def _keep_for_rewind(self, location: bytes, raw: bytes) -> None:
        """Store it beside the marking, too, which a rewind makes anew."""
        self._run.engine.journal.unwritten.write(PATCHED + location, raw)

    def drop(self, locations: Sequence[bytes]) -> None:
        """Scopes of the code have lost a race: what they have changed is as it was."""
        if self._patches is not None:
            self._patches.drop(locations)

    def keep_begun(self) -> None:
        """Keep what the code was called with, whatever becomes of the firing: it has handlers without a name."""
        run = self._run
        firing = run.marking.firings.get(self.number, self.firing)
        keep_begun(run.engine, run.marking, run.recording.location_of(firing), self.number, firing)
        around = run.place.scope.firing
        if around is not None:
            around.keep_begun()

    def _store(self, location: bytes, changes: Changes | None) -> None:
        run = self._run
        if self.number in run.marking.firings:
            raw = None if changes is None else run.engine.codec.encode(changes)
            row = store_changes(run.marking, self.number, location, raw)
            if raw is not None:
                self._keep_for_rewind(location, raw)
            run.recording.write(row)

    def submit(self, scope: Scope, nodes: Any) -> Coroutine[Any, Any, Any]:
        """Add steps to the graph."""
        return self._run.submit(scope, self, nodes)
