"""`ctx.transact`: an author's own writes in the transaction that stores the record of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from copy import copy
from functools import partial
from typing import Any

from workflow_sdk.core.compensation import Compensation
from workflow_sdk.core.entries import Entry
from workflow_sdk.core.hints import return_hint
from workflow_sdk.core.status import Kind
from workflow_sdk.definitions import StepOptions
from workflow_sdk.errors import CodecError
from workflow_sdk.operations.cancelling import is_failure
from workflow_sdk.operations.outcome import about
from workflow_sdk.operations.place import COMMIT_BYTES_SOFT_MAX, Place, register
from workflow_sdk.operations.rollback import check_handler, compensation_of
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.step import failed, is_async, replay, settle, wait_for_retry, warily, watched

__all__ = ["start_transact"]


def start_transact(
    scope: Scope, name: str, fn: Callable[..., Any], args: tuple[Any, ...], options: StepOptions
) -> Coroutine[Any, Any, Any]:
    """Register a transaction; its coroutine runs it."""
    place = register(scope, Kind.TRANSACT, name)
    place.check_function(fn)
    if is_async(fn):
        raise place.slip(
            f"{place.what} is given a coroutine function; a transaction is used in a worker thread, by a plain function"
        )
    nothing_is_called = scope.engine.walking or (scope.engine.watched is not None and scope.engine.watched.dry)
    if not nothing_is_called and not scope.engine.transacts:
        raise place.slip(
            f"{place.what}: this store has no transactions to write in; sqlite:// and fdb:// have. Elsewhere, make the "
            "writes in a step that can be repeated"
        )
    if options.rollback is not None:
        check_handler(place, options.rollback)
    return scope.start(_transact(place, fn, args, options))


async def _transact(place: Place, fn: Callable[..., Any], args: tuple[Any, ...], options: StepOptions) -> Any:
    engine = place.scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        hint = return_hint(fn)
        if entry is not None:
            if entry.is_final:
                return replay(place, entry, hint, options)
            if engine.walking:
                await engine.never()
            await wait_for_retry(place, entry, options)
        else:
            entry = place.new_entry()
        while True:
            if engine.journal.weight > COMMIT_BYTES_SOFT_MAX:
                await place.make_room()
            if engine.journal.riding != engine.journal.settled:
                await settle(place)
            await watched(engine, place.path)
            outcome = _Outcome(place, entry, options, hint)
            try:
                run = engine.transact(partial(_call, place, fn, args), outcome.rows, lambda: not place.scope.fate.lost)
                await (warily(engine, place.location, place.path, run) if engine.wary else run)
            except CodecError as error:
                failure: BaseException = about(f"the value of {place.what}", error)
            except BaseException as error:
                # Whatever the author's function raises is the failure.
                if not is_failure(error):
                    raise
                failure = error
            else:
                outcome.stored()
                await place.flush()
                place.close(outcome.entry)
                return outcome.value
            await failed(place, entry, failure, options)
    finally:
        place.release()


def _call(place: Place, fn: Callable[..., Any], args: tuple[Any, ...], transaction: object) -> Any:
    token = current_scope.set(place)
    try:
        return fn(transaction, *args)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error  # which no future can hand on
    finally:
        current_scope.reset(token)


class _Outcome:
    """What becomes of a value, once for every try of the store: the last one counts."""

    def __init__(self, place: Place, entry: Entry, options: StepOptions, hint: object) -> None:
        self.entry = entry
        self.value: Any = None
        self._begun = entry
        self._compensation: Compensation | None = None
        self._place = place
        self._options = options
        self._hint = hint

    def rows(self, value: object) -> list[tuple[bytes, bytes]]:
        """The rows that record the value."""
        place, handler = self._place, self._options.rollback
        engine = place.scope.engine
        raw, self.value = engine.codec.roundtrip(value, self._hint)
        self.entry = copy(self._begun)
        self.entry.complete(raw, engine.now())
        if handler is not None:
            # Another try keeps the number of the first: steps that completed since then have later ones.
            before = self._compensation
            sequence = None if before is None else before.sequence
            self._compensation = compensation_of(place, handler, self.value, self._hint, sequence)
        return engine.journal.rows_of(place.location, self.entry, self._compensation)

    def stored(self) -> None:
        """The rows are in the store."""
        if self._compensation is not None:
            self._place.scope.engine.journal.registered()
