"""`ctx.version` and `ctx.removed`: changing the code of instances that have not ended."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.public_state import unfold
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import open_place, perform
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.status import Kind
from workflow_sdk.rows.wire import shown


def start_version(scope: Scope, name: str, latest: int) -> Coroutine[Any, Any, int]:
    """Register a version; its coroutine decides it, once."""
    place = register(scope, Kind.VERSION, name)
    if isinstance(latest, bool) or not isinstance(latest, int) or latest < 1:
        raise place.mistake(f"{place.what}: versions are whole numbers from 1 on, not {shown(latest)}")
    return scope.start(perform(place, _Version(place, latest)))


class _Version:
    """Decides which version of a part of the code an instance goes through."""

    __slots__ = ("_latest", "_place")

    def __init__(self, place: Place, latest: int) -> None:
        self._place = place
        self._latest = latest

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        place = self._place
        # Recorded operations that the code has not reached were written by code without this version: version 1.
        chosen = 1 if place.scope.unvisited else self._latest
        entry = place.new_entry()
        entry.complete(engine.codec.encode(chosen), engine.clock.time())
        return place.store(engine, entry)

    def resume(self, engine: Engine, entry: Entry) -> Awaitable[Entry]:
        raise AssertionError("a version is decided when it is recorded")

    def outcome(self, entry: Entry) -> int:
        assert entry.value is not None, "a version is recorded with its value"
        return int(self._place.decode(entry.value, int))


def start_removed(scope: Scope, name: str, kind: str) -> Coroutine[Any, Any, None]:
    """Register an operation that was here before; its coroutine passes over what is recorded of it."""
    kinds = [known.value for known in Kind if known is not Kind.BRANCH]
    place = register(scope, Kind.STEP, name)
    if kind == "continue_with":
        kind = Kind.CONTINUE.value  # as its call is named
    if kind not in kinds:
        raise place.mistake(f"removed {place.path!r}: the kind is one of {', '.join(kinds)}, not {kind!r}")
    place.kind = Kind(kind)
    return scope.start(_removed(place))


async def _removed(place: Place) -> None:
    """Pass over what is recorded of an operation that the code has no more. Nothing is done, so it is no verb."""
    engine = place.engine
    try:
        # If it is not recorded, there is nothing to pass over.
        if engine.life.halted or (place.entry is not None and not open_place(place, covered=True)):
            await engine.life.never()
        if place.entry is not None:
            # Before anything is stored: the public state would be shown without what was assigned in there.
            unfold(engine, [place.location])
            engine.journal.history.forget_loaded(place.location)
            await engine.passed_over(place.location)
            place.close(place.entry)
    finally:
        place.release()
