"""The branches of joins, races and maps: they run side by side, each in a scope of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from workflow_sdk.errors import CodecError, RollbackError
from workflow_sdk.operations.calling import as_exception, is_failure_of_scope, take_back_cancellations
from workflow_sdk.operations.engine import Engine, Reader, Walker
from workflow_sdk.operations.place import Place, about, make_room, pack_error, unpack_error
from workflow_sdk.operations.public_state import fold, pass_by, unfold
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.types import Unwound
from workflow_sdk.rows.entries import BranchesData, Entry, Outcome
from workflow_sdk.rows.location import escape, join_path
from workflow_sdk.rows.status import Kind

START_AT_ONCE = 64
"""How many branches are started before the event loop gets a turn to run them."""

INLINE_BYTES_MAX = 100_000
"""How many bytes of outcomes are kept in the entry of the join or map itself, so that a replay reads one row."""


class Branch:
    """One branch: its function, and its outcome once it has one."""

    __slots__ = ("cancel", "entry", "fn", "hint", "label", "number", "scope", "segment")

    def __init__(
        self, number: int, label: str, segment: bytes, fn: Callable[[Scope], Awaitable[Any]], hint: object
    ) -> None:
        self.number: int = number
        self.label: str = label
        self.segment: bytes = segment
        self.fn: Callable[[Scope], Awaitable[Any]] = fn
        self.hint: object = hint
        self.entry: Entry | None = None
        self.scope: Scope | None = None
        self.cancel: anyio.CancelScope | None = None

    def raw_outcome(self) -> Outcome:
        """The outcome as it is recorded."""
        assert self.entry is not None, "the branch has no outcome"
        return self.entry.value, self.entry.error

    def outcome(self, place: Place) -> tuple[Any, Exception | None]:
        """The value or the failure, read back from the record."""
        value, error = self.raw_outcome()
        if error is not None:
            return None, place.failure(error)
        assert value is not None, "a branch that did not fail has a value"
        return place.decode(value, self.hint), None


class Branches:
    """Runs the branches of one join, race or map."""

    def __init__(self, place: Place, engine: Engine, branches: Sequence[Branch], *, is_race: bool = False) -> None:
        self.place = place
        self.engine = engine
        self.branches = branches
        self.is_race = is_race
        self.winner: Branch | None = None
        """The branch that has decided the race, with a value or a RollbackError."""
        self._handed = False
        self._begun = 0
        self._ended = 0
        recorded = engine.journal.history.loaded.pop(place.location, {})
        for branch in branches:
            entry = recorded.get(branch.segment)
            if entry is not None and entry.kind is Kind.BRANCH:
                branch.entry = entry
        unfold(engine, (place.location + branch.segment for branch in branches))
        pass_by(place.scope, (place.location + branch.segment for branch in branches))

    async def run(self, limit: int | None = None) -> None:
        """Run every branch that has no outcome, at most `limit` at once. A race returns once it is decided."""
        parking, place = self.engine.parking, self.place
        open_branches = [branch for branch in self.branches if branch.entry is None]
        if self.is_race:
            self.winner = next((b for b in self.branches if b.entry is not None and self._decides(b.entry)), None)
        if self.winner is not None or not open_branches:
            return
        workers = min(limit or len(open_branches), len(open_branches))
        # The branch that runs this counts as active. Its count passes to the first worker, and the last worker that
        # ends passes it back. (Here, a worker is a task that runs branches one after the other.)
        parking.waits.active += workers - 1
        parking.waits.unbegun += workers
        try:
            async with anyio.create_task_group() as group:
                await self._start(group, iter(open_branches), workers)
        finally:
            if place.scope.race.within:
                place.scope.race.within.difference_update(b.scope.race for b in open_branches if b.scope is not None)
            # Workers that were cancelled before they began have not counted themselves off.
            parking.waits.active -= workers - self._ended - (0 if self._handed else 1)
            parking.waits.unbegun -= workers - self._begun
        if place.scope.race.lost:
            # A race around all of this was decided while the last outcomes were being stored.
            await self.engine.life.never()

    async def _start(self, group: TaskGroup, queue: Iterator[Branch], workers: int) -> None:
        for started in range(workers):
            if started % START_AT_ONCE == START_AT_ONCE - 1:
                # Let branches run that have been started. Quick ones end, so that not all are in memory at once.
                await anyio.lowlevel.checkpoint()
                if self.engine.journal.unwritten.is_dirty:
                    # They may be waiting for their records to be stored, so store these.
                    await self.engine.parking.flush(stay=True)
            if self.winner is not None:
                return
            group.start_soon(self._work, queue, workers)

    async def _work(self, queue: Iterator[Branch], workers: int) -> None:
        self._begun += 1
        self.engine.parking.waits.unbegun -= 1
        try:
            for branch in queue:
                if self.winner is None:
                    await self._one(branch)
        finally:
            self._ended += 1
            if not self._handed and (self._ended == workers or self.winner is not None):
                self._handed = True
            else:
                self.engine.parking.rest()

    async def _one(self, branch: Branch) -> None:
        engine = self.engine
        scope = branch.scope = _scope(self.place, engine, branch)
        if self.is_race:
            scope.in_race = True
            scope.race = scope.race.branch()
        current_scope.set(scope)
        entry = Entry(Kind.BRANCH, branch.number, engine.clock.time())
        if not self.is_race:
            await self._body(branch, scope, entry)
            return
        with anyio.CancelScope() as branch.cancel:
            try:
                await self._body(branch, scope, entry)
            except (Unwound, BaseExceptionGroup) as error:
                # The branch has lost, and `Unwound` has unwound code of it that shields itself. Other errors go on.
                rest = None if isinstance(error, Unwound) else error.split(Unwound)[1]
                if rest is not None or not scope.race.lost or engine.life.halted:
                    raise (rest or error) from None

    async def _body(self, branch: Branch, scope: Scope, entry: Entry) -> None:
        engine = self.engine
        error: Exception | None = None
        value: Any = None
        try:
            value = await branch.fn(scope)
        except BaseException as failure:
            # The failure of a branch is its outcome. Raised from here, it would cancel the other branches.
            if not is_failure_of_scope(failure, engine.life, is_own_task=True):
                scope.forgotten()
                raise
            error = as_exception(failure, f"branch {scope.path!r}")
        await take_back_cancellations(engine.life)
        if scope.race.lost:
            scope.forgotten()
            return
        if not scope.end(error):
            await engine.life.never()
        if not self.is_race:
            # Not in a race: from the end of its code to `_decide` there must be no `await`, or two branches could win.
            await make_room(engine)
        if error is None:
            try:
                raw = engine.codec.encode(value, branch.hint)
            except CodecError as problem:
                engine.life.mistake(about(f"the value of branch {scope.path!r}", problem))
                await engine.life.never()
            entry.complete(raw, engine.clock.time())
        else:
            entry.fail(pack_error(error, engine.codec), engine.clock.time())
        branch.entry = entry
        if self.is_race and self._decides(entry):
            self._decide(branch)
        else:
            # The next commit takes this along: that of another branch, or that of the join itself.
            fold(scope, scope.prefix)
            engine.journal.history.put(scope.prefix, entry)

    def _decides(self, entry: Entry) -> bool:
        """Whether the outcome of a branch decides the race: a value, or a RollbackError."""
        return entry.error is None or isinstance(unpack_error(entry.error, self.engine.codec), RollbackError)

    def _decide(self, winner: Branch) -> None:
        """Decide the race: from now on the operations of the losers do nothing."""
        self.winner = winner
        for branch in self.branches:
            if branch is not winner and branch.scope is not None and branch.entry is None:
                branch.scope.race.lose()
                if branch.cancel is not None:
                    branch.cancel.cancel()


def _scope(place: Place, engine: Reader, branch: Branch) -> Scope:
    label = join_path(escape(place.name), escape(branch.label))
    return Scope(engine, place.location + branch.segment, place.scope.now, parent=place.scope, label=label)


async def walk_branches(place: Place, walker: Walker, branches: Sequence[Branch]) -> None:
    """Walk through branches one after the other, as far as their history goes, to find their handlers."""
    for branch in branches:
        with walker.walk_scope():
            scope = _scope(place, walker, branch)
            token = current_scope.set(scope)
            try:
                await branch.fn(scope)
            finally:
                current_scope.reset(token)


def small_outcomes(branches: Sequence[Branch]) -> tuple[Outcome, ...] | None:
    """The outcomes as they stand in the entry around them, or None if they are too large for that."""
    outcomes = tuple(branch.raw_outcome() for branch in branches)
    size = sum(len(value or b"") + len(error or b"") for value, error in outcomes)
    return outcomes if size <= INLINE_BYTES_MAX else None


async def outcomes_of(reader: Reader, location: bytes, entry: Entry, branches: Sequence[Branch]) -> None:
    """Give the branches of a finished join, race or map the outcomes that are recorded."""
    data = entry.data
    assert isinstance(data, BranchesData), "recorded branches have names"
    if data.outcomes is None:
        stored = await reader.stored.branch_values(location)
        for branch in branches:
            branch.entry = stored[branch.segment]
        return
    order = {name: number for number, name in enumerate(data.names)}
    for branch in branches:
        branch.entry = Entry(Kind.BRANCH, branch.number, entry.created_at)
        branch.entry.value, branch.entry.error = data.outcomes[order.get(branch.label, branch.number)]
