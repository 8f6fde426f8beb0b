"""`ctx.race`: the first branch to return wins.

The winner is decided in `Branches`, the moment a branch has a value; its losers are cancelled at once. What the race
writes is written here, in one commit: the winner and its value, nothing of the losers' history, the messages they had
taken back in the inbox. What they have to undo if the workflow fails stays.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from workflow_sdk.core.entries import BranchesData, Entry
from workflow_sdk.core.location import escape
from workflow_sdk.core.status import EntryStatus, Kind
from workflow_sdk.errors import RaceError, RollbackError
from workflow_sdk.operations.branches import Branch, Branches, outcomes_of, small_outcomes, unfit
from workflow_sdk.operations.join import Bind, BranchFn, check_branches, named_branches
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope

__all__ = ["RaceResult", "start_race"]

T = TypeVar("T")


class RaceResult(NamedTuple, Generic[T]):
    """Who won a race, and with which value: `winner, value = await ctx.race(...)`."""

    winner: str
    value: T


def start_race(
    scope: Scope, name: str, branches: Mapping[str, BranchFn], bind: Bind
) -> Coroutine[Any, Any, RaceResult[Any]]:
    """Register a race; its coroutine runs it."""
    place = register(scope, Kind.RACE, name)
    check_branches(place, branches)
    if not branches:
        raise place.slip(f"{place.what} has no branches, so nobody can win it")
    return scope.start(_race(place, dict(branches), bind))


async def _race(place: Place, fns: Mapping[str, BranchFn], bind: Bind) -> RaceResult[Any]:
    engine = place.scope.engine
    try:
        if not place.open():
            await engine.never()
        asked = BranchesData(names=tuple(fns))
        entry = place.entry
        if entry is None:
            entry = place.new_entry()
            entry.data = asked
            place.put(entry)
        elif (problem := unfit(place, asked)) is not None:
            engine.diverged(problem)
            await engine.never()
        branches = named_branches(place, fns, bind)
        if engine.walking:
            await Branches(place, branches).walk()
            if not entry.is_final:
                await engine.never()
            assert isinstance(entry.data, BranchesData), "recorded branches have names"
            if entry.data.winner is not None:
                winner = entry.data.names[entry.data.winner]
                _undo(place, branches, next(branch for branch in branches if branch.label == winner))
        if not entry.is_final:
            group = Branches(place, branches, is_race=True)
            await group.run()
            await _record(place, entry, group)
        place.close(entry)
        return await _result(place, entry, branches)
    finally:
        place.release()


async def _record(place: Place, entry: Entry, group: Branches) -> None:
    engine, journal, winner = group.engine, group.engine.journal, group.winner
    data = entry.data
    assert isinstance(data, BranchesData), "recorded branches have names"
    errands: list[bytes] = []
    if winner is None:
        by_name = {branch.label: branch for branch in group.branches}
        entry.data = BranchesData(data.names, 0, small_outcomes([by_name[name] for name in data.names]))
        entry.status = EntryStatus.FAILED
        entry.finished_at = engine.now()
    else:
        assert winner.entry is not None, "the winner has an outcome"
        losers = [branch for branch in group.branches if branch is not winner]
        if journal.compensations and not place.scope.in_loop:
            for branch in losers:
                await engine.keep_for_rollback(place.location + branch.segment)
        _undo(place, group.branches, winner)
        for branch in losers:
            loser = place.location + branch.segment
            errands += engine.abandon_outside(loser)
            journal.settle_takings(loser, give_back=True)
        journal.clear_losers(place.location, place.location + winner.segment)
        engine.messages_came_back()
        entry.data = BranchesData(data.names, 0, None, data.names.index(winner.label))
        if winner.entry.error is None:
            entry.complete(winner.entry.value, engine.now())
        else:
            entry.fail(winner.entry.error, engine.now())
        journal.put(place.location + winner.segment, winner.entry)
    if not place.scope.in_race:
        journal.settle_takings(place.location, give_back=False)
    place.put(entry)
    place.fold()
    await place.flush()
    if errands:
        await engine.run_errands(errands)


def _undo(place: Place, branches: Sequence[Branch], winner: Branch) -> None:
    """What the losers have assigned never was."""
    losers = [place.location + branch.segment for branch in branches if branch is not winner]
    place.scope.undo(losers, place.location + winner.segment)


async def _result(place: Place, entry: Entry, branches: list[Branch]) -> RaceResult[Any]:
    data = entry.data
    assert isinstance(data, BranchesData), "recorded branches have names"
    if entry.error is not None:
        failure = place.failure(entry.error)
        assert isinstance(failure, RollbackError), "no other failure ends a race by itself"
        raise failure
    if data.winner is not None:
        name = data.names[data.winner]
        hint = next(branch.hint for branch in branches if branch.label == name)
        assert entry.value is not None, "a race that was won has a value"
        return RaceResult(name, place.decode(entry.value, hint))
    await outcomes_of(place, entry, branches)
    errors = {branch.label: error for branch in branches if (error := branch.outcome(place)[1]) is not None}
    raise RaceError(f"{place.what}: all branches failed: {', '.join(map(escape, errors))}", errors)
