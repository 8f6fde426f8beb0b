"""`ctx.step`: run a function once, durably."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import FunctionType
from typing import Any

import anyio.lowlevel

from workflow_sdk.definitions import StepOptions
from workflow_sdk.errors import (
    CodecError,
)
from workflow_sdk.operations.calling import KEY, arguments_in, call, with_key
from workflow_sdk.operations.cancelling import is_failure
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.functions import FunctionVerb, settle
from workflow_sdk.operations.place import BREATH, COMMIT_BYTES_SOFT_MAX, Place, about, make_room, register
from workflow_sdk.operations.rollback import check_handler, register_handler
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.template import perform
from workflow_sdk.rows.status import Kind
from workflow_sdk.values.hints import has_parameter

RIDING_MAX = 500
"""So many records of repeatable steps wait for a commit to ride with, and no more."""


def start_step(
    scope: Scope, name: str, fn: Callable[..., Any], args: tuple[Any, ...], options: StepOptions, *, derived: bool
) -> Coroutine[Any, Any, Any]:
    """Register a step; its coroutine runs it."""
    place = register(scope, Kind.STEP, name, derived=derived)
    if derived:
        place.arguments = args if type(fn) is FunctionType else (*arguments_in(fn), *args)
    if options.rollback is not None:
        check_handler(place, options.rollback)
    return scope.start(perform(place, FunctionVerb(place, fn, args, options, _attempt)))


async def _attempt(step: FunctionVerb, engine: Engine) -> BaseException | None:
    """Call the function of a step once, and store what it gives."""
    place, options, journal = step.place, step.options, engine.journal
    if not options.repeatable and journal.riding != journal.settled:
        await settle(place, engine)
    calls = engine.calls
    is_told = engine.life.are_told
    token = current_scope.set(place)
    try:
        if is_told:
            await calls.tell(place.path, place.location)
        fn = step.fn
        if has_parameter(fn, KEY, len(step.args)):
            fn = with_key(engine, place.path, fn)
        value = await call(engine, fn, step.args, options.timeout)
        raw, value = engine.codec.roundtrip(value, step.hint)
    except CodecError as error:
        return about(f"the value of {place.what}", error)
    except BaseException as error:
        # Whatever the author's function raises is the step's failure.
        if not is_failure(error):
            raise
        return error
    finally:
        current_scope.reset(token)
        if is_told:
            calls.survived(place.location)
    if journal.unwritten.weight > COMMIT_BYTES_SOFT_MAX:
        await make_room(engine)
    step.record.complete(raw, engine.clock.time())
    if options.rollback is not None:
        register_handler(place, engine, options.rollback, value, step.hint)
    journal.put(place.location, step.record)
    if options.repeatable:
        await _ride(place, engine)
    else:
        await engine.parking.flush()
    step.value = value
    return None


async def _ride(place: Place, engine: Engine) -> None:
    """The record of a repeatable step goes with the next commit. There are not too many of them in one."""
    journal = engine.journal
    journal.riding += 1
    if not journal.riding % BREATH:
        # It may be one of thousands, none of which waits for anything.
        await anyio.lowlevel.checkpoint()
    if journal.riding - journal.settled >= RIDING_MAX:
        await settle(place, engine)
