"""How every operation goes: it takes its place, is done or replayed, and gives its outcome.

A verb says what is done; whether it is done is up to the run. One that goes on with the instance does what is new, and
gives the recorded outcome of what is not. One that only walks over a history ends where there is no outcome.
"""

from __future__ import annotations

from typing import Any

import anyio.lowlevel

from workflow_sdk.operations.divergence import open_place
from workflow_sdk.operations.engine import Composite, Verb
from workflow_sdk.operations.place import BREATH, Place


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
            # It may be one of thousands, none of which waits for anything.
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
            entry = await engine.reenter(verb, place.location, entry)
        place.close(entry)
        return verb.outcome(entry)
    finally:
        if place.scope.busy is place:
            place.release()
