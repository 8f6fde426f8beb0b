"""`ctx.version` and `ctx.removed`: changing code that has instances under way."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Kind
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope

__all__ = ["start_removed", "start_version"]


def start_version(scope: Scope, name: str, latest: int) -> Coroutine[Any, Any, int]:
    """Register a version; its coroutine decides it, once."""
    place = register(scope, Kind.VERSION, name)
    if isinstance(latest, bool) or not isinstance(latest, int) or latest < 1:
        raise place.slip(f"{place.what}: versions are whole numbers from 1 on, not {shown(latest)}")
    return scope.start(_version(place, latest))


async def _version(place: Place, latest: int) -> int:
    scope = place.scope
    engine = scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        if entry is None:
            # History that the code has not reached yet was written without this version: by the first.
            chosen = 1 if scope.unvisited else latest
            entry = place.new_entry()
            entry.complete(engine.codec.encode(chosen), engine.now())
            place.put(entry)
            await place.flush()
        place.close(entry)
        assert entry.value is not None, "a version is recorded with its value"
        return int(place.decode(entry.value, int))
    finally:
        place.release()


def start_removed(scope: Scope, name: str, kind: str) -> Coroutine[Any, Any, None]:
    """Register what was here before; its coroutine passes over it."""
    kinds = [known.value for known in Kind if known is not Kind.BRANCH]
    place = register(scope, Kind.STEP, name)
    if kind == "continue_with":
        kind = Kind.CONTINUE.value  # as its call is named
    if kind not in kinds:
        raise place.slip(f"removed {place.path!r}: the kind is one of {', '.join(kinds)}, not {kind!r}")
    place.kind = Kind(kind)
    return scope.start(_removed(place))


async def _removed(place: Place) -> None:
    engine = place.scope.engine
    try:
        # Where it is not recorded there is nothing to pass over, and nothing new to be refused either.
        if (place.entry is not None and not place.open(covered=True)) or engine.halted:
            await engine.never()
        if place.entry is not None:
            engine.journal.forget_loaded(place.location)
            if errands := engine.abandon_outside(place.location):
                # Nobody waits any more for a child or a task in it.
                await place.flush()
                await engine.run_errands(errands)
            place.close(place.entry)
    finally:
        place.release()
