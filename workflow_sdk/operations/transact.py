"""`ctx.transact`: an author's own writes in the transaction that stores the record of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from copy import copy
from functools import partial
from typing import Any

from workflow_sdk.definitions import StepOptions, TransactOverrides, as_transact_options
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.journal.compensation import Compensation
from workflow_sdk.operations.calling import is_async, is_failure
from workflow_sdk.operations.engine import Engine, Reader
from workflow_sdk.operations.place import COMMIT_BYTES_SOFT_MAX, Place, about, make_room, register
from workflow_sdk.operations.rollback import check_handler, compensation_of
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.step import FunctionVerb, settle
from workflow_sdk.operations.template import perform
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.status import Kind


def start_transact(
    scope: Scope, name: str, fn: Callable[..., Any], args: tuple[Any, ...], overrides: TransactOverrides
) -> Coroutine[Any, Any, Any]:
    """Register a transaction; its coroutine runs it."""
    try:
        options = as_transact_options(overrides)
    except DefinitionError as error:
        raise scope.engine.life.mistake(error) from None
    place = register(scope, Kind.TRANSACT, name)
    place.check_function(fn)
    if is_async(fn):
        raise place.mistake(
            f"{place.what} is given a coroutine function; a transaction is used in a worker thread, by a plain function"
        )
    if not scope.engine.transacts:
        raise place.mistake(
            f"{place.what}: this store has no transactions to write in; sqlite:// and fdb:// have. Elsewhere, make the "
            "writes in a step that can be repeated"
        )
    if options.rollback is not None:
        check_handler(place, options.rollback)
    return scope.start(perform(place, FunctionVerb(place, fn, args, options, _attempt)))


async def _attempt(work: FunctionVerb, engine: Engine) -> BaseException | None:
    """Call the function once, in a transaction of the store that has the record of it."""
    place, journal, calls = work.place, engine.journal, engine.calls
    if journal.unwritten.weight > COMMIT_BYTES_SOFT_MAX:
        await make_room(engine)
    if journal.riding != journal.settled:
        await settle(place, engine)
    outcome = _Outcome(place, engine, work.record, work.options, work.hint)
    is_told = engine.life.are_told
    try:
        if is_told:
            await calls.tell(place.path, place.location)
        await calls.transact(partial(_call, place, work.fn, work.args), outcome.rows, lambda: not place.scope.race.lost)
    except CodecError as error:
        return about(f"the value of {place.what}", error)
    except BaseException as error:
        # Anything that the author's function raises is a failure of the transaction.
        if not is_failure(error):
            raise
        return error
    finally:
        if is_told:
            calls.survived(place.location)
    outcome.stored()
    work.value, work.record = outcome.value, outcome.entry
    await engine.parking.flush()
    return None


def _call(place: Place, fn: Callable[..., Any], args: tuple[Any, ...], transaction: object) -> Any:
    token = current_scope.set(place)
    try:
        return fn(transaction, *args)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error  # which no future can hand on
    finally:
        current_scope.reset(token)


class _Outcome:
    """The record of a value. Each try of the store makes it anew, and that of the last try counts."""

    def __init__(self, place: Place, engine: Reader, entry: Entry, options: StepOptions, hint: object) -> None:
        self.entry = entry
        self.value: Any = None
        self._begun = entry
        self._compensation: Compensation | None = None
        self._place = place
        self._engine = engine
        self._options = options
        self._hint = hint

    def rows(self, value: object) -> list[tuple[bytes, bytes]]:
        """The rows that record the value."""
        place, engine, handler = self._place, self._engine, self._options.rollback
        raw, self.value = engine.codec.roundtrip(value, self._hint)
        self.entry = copy(self._begun)
        self.entry.complete(raw, engine.clock.time())
        rows = [engine.journal.history.row_of(place.location, self.entry)]
        if handler is not None:
            # Each try uses the sequence number of the first one: steps that completed since then have later ones.
            before = self._compensation
            sequence = None if before is None else before.sequence
            self._compensation = compensation_of(place, engine, handler, self.value, self._hint, sequence)
            rows.append(engine.journal.compensations.row_of(self._compensation))
        return rows

    def stored(self) -> None:
        """Note that the rows are stored."""
        if self._compensation is not None:
            self._engine.journal.compensations.count += 1
