"""`ctx.race`: the first branch to return wins.

The winner is decided in `Branches`, the moment a branch has a value; its losers are cancelled at once. What the race
writes is written here, in one commit: the winner and its value, nothing of the losers' history, the messages they had
taken back in the inbox. What they have to undo if the workflow fails stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from workflow_sdk.errors import RaceError, RollbackError
from workflow_sdk.operations.branches import Branch, Branches, outcomes_of, small_outcomes, walk_branches
from workflow_sdk.operations.engine import Engine, Reader, Walker
from workflow_sdk.operations.join import Bind, BranchFn, check_branches, named_branches
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.public_state import fold, undo
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import enter
from workflow_sdk.rows.entries import BranchesData, Entry
from workflow_sdk.rows.location import escape
from workflow_sdk.rows.status import EntryStatus, Kind

T = TypeVar("T")


class RaceResult(NamedTuple, Generic[T]):
    """The name of the branch that won a race, and its value: `winner, value = await ctx.race(...)`."""

    winner: str
    value: T


def start_race(
    scope: Scope, name: str, branches: Mapping[str, BranchFn], bind: Bind
) -> Coroutine[Any, Any, RaceResult[Any]]:
    """Register a race; its coroutine runs it."""
    place = register(scope, Kind.RACE, name)
    check_branches(place, branches)
    if not branches:
        raise place.mistake(f"{place.what} has no branches, so nobody can win it")
    fns = dict(branches)
    place.branches = BranchesData(names=tuple(fns))
    return scope.start(enter(place, _Race(place, fns, bind)))


class _Race:
    """Branches side by side, of which the first to return wins."""

    __slots__ = ("_bind", "_branches", "_fns", "_place")

    def __init__(self, place: Place, fns: Mapping[str, BranchFn], bind: Bind) -> None:
        self._place = place
        self._fns = fns
        self._bind = bind
        self._branches: list[Branch] | None = None

    @property
    def branches(self) -> list[Branch]:
        """The branches. Their names get numbers when they are asked for: after the operation has its own."""
        if self._branches is None:
            self._branches = named_branches(self._place, self._fns, self._bind)
        return self._branches

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        entry = self._place.new_entry()
        entry.data = self._place.branches
        self._place.put(entry)
        return self.resume(engine, entry)

    async def resume(self, engine: Engine, entry: Entry) -> Entry:
        place, journal = self._place, engine.journal
        group = Branches(place, engine, self.branches, is_race=True)
        await group.run()
        cleanups: list[bytes] = []
        if group.winner is None:
            _all_failed(engine, entry, group.branches)
        else:
            cleanups = await self._won(engine, entry, group.winner)
        if not place.scope.in_race:
            # There is no open race around this one, so messages that the winner took stay taken.
            journal.takings.settle(place.location, give_back=False)
        fold(place.scope, place.location)
        await place.store(engine, entry)
        if cleanups:
            await engine.outside.clean_up(cleanups)
        return entry

    async def _won(self, engine: Engine, entry: Entry, winner: Branch) -> list[bytes]:
        """Record the winner, and clear what the losers leave behind; return the cleanups."""
        place, journal, data = self._place, engine.journal, entry.data
        assert isinstance(data, BranchesData), "recorded branches have names"
        assert winner.entry is not None, "the winner has an outcome"
        losers = [place.location + branch.segment for branch in self.branches if branch is not winner]
        if journal.compensations.count and not place.scope.in_loop:
            # Some handlers of the losers are found only by walking over their history, so that is kept in the archive.
            for loser in losers:
                await engine.stored.archive(loser)
        # From here to the flush there is no `await`, so one commit clears all that the losers leave behind.
        cleanups = _lose(engine, place, losers, place.location + winner.segment)
        entry.data = BranchesData(data.names, 0, None, data.names.index(winner.label))
        if winner.entry.error is None:
            entry.complete(winner.entry.value, engine.clock.time())
        else:
            entry.fail(winner.entry.error, engine.clock.time())
        journal.history.put(place.location + winner.segment, winner.entry)
        return cleanups

    async def recall(self, reader: Reader, entry: Entry) -> None:
        data = entry.data
        assert isinstance(data, BranchesData), "recorded branches have names"
        if data.winner is None:
            await outcomes_of(reader, self._place.location, entry, self.branches)

    async def walk(self, walker: Walker, entry: Entry) -> None:
        data = entry.data
        assert isinstance(data, BranchesData), "recorded branches have names"
        await walk_branches(self._place, walker, self.branches)
        if data.winner is not None:
            winner = data.names[data.winner]
            at = {branch.label: self._place.location + branch.segment for branch in self.branches}
            undo(self._place.scope, [place for label, place in at.items() if label != winner], at[winner])

    def outcome(self, entry: Entry) -> RaceResult[Any]:
        place, data = self._place, entry.data
        assert isinstance(data, BranchesData), "recorded branches have names"
        if entry.error is not None:
            failure = place.failure(entry.error)
            assert isinstance(failure, RollbackError), "no other failure ends a race by itself"
            raise failure
        if data.winner is not None:
            name = data.names[data.winner]
            hint = next(branch.hint for branch in self.branches if branch.label == name)
            assert entry.value is not None, "a race that was won has a value"
            return RaceResult(name, place.decode(entry.value, hint))
        errors = {branch.label: error for branch in self.branches if (error := branch.outcome(place)[1]) is not None}
        raise RaceError(f"{place.what}: all branches failed: {', '.join(map(escape, errors))}", errors)


def _all_failed(engine: Engine, entry: Entry, branches: Sequence[Branch]) -> None:
    """Record that all branches have failed."""
    data = entry.data
    assert isinstance(data, BranchesData), "recorded branches have names"
    by_name = {branch.label: branch for branch in branches}
    entry.data = BranchesData(data.names, 0, small_outcomes([by_name[name] for name in data.names]))
    entry.status = EntryStatus.FAILED
    entry.finished_at = engine.clock.time()


def _lose(engine: Engine, place: Place, losers: Sequence[bytes], winner: bytes) -> list[bytes]:
    """Have the next commit clear all that the losers leave behind; return the cleanups to run after it."""
    journal, cleanups = engine.journal, list[bytes]()
    undo(place.scope, losers, winner)
    for loser in losers:
        cleanups += engine.outside.abandon(loser)
        journal.takings.settle(loser, give_back=True)
    journal.history.clear_losers(place.location, winner)
    # The messages that they had taken are in the inbox again, and other branches may wait for these.
    engine.parking.fire()
    return cleanups
