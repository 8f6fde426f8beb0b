"""`ctx.join` and `ctx.map`: branches side by side, all of which finish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from workflow_sdk.core.entries import BranchesData, Entry
from workflow_sdk.core.hints import return_hint
from workflow_sdk.core.location import escape, pack_pair, pack_segment, segments, split_last
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import EntryStatus, Kind
from workflow_sdk.definitions import is_function
from workflow_sdk.errors import HistoryDivergedError, JoinError, RollbackError
from workflow_sdk.operations.branches import Branch, Branches, outcomes_of, small_outcomes, unfit
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope

__all__ = ["BranchFn", "check_limit", "named_branches", "start_join", "start_map"]

BranchFn = Callable[..., Awaitable[Any]]
"""A function of the author, which is given a ctx."""
Bind = Callable[[BranchFn], Callable[[Scope], Awaitable[Any]]]
"""Makes it a function of the scope."""


def start_join(
    scope: Scope, name: str, branches: Mapping[str, BranchFn], bind: Bind, limit: int | None
) -> Coroutine[Any, Any, dict[str, Any]]:
    """Register a join; its coroutine runs the branches and gives their values by name."""
    place = register(scope, Kind.JOIN, name)
    check_limit(place, limit)
    check_branches(place, branches)
    return scope.start(_join(place, dict(branches), bind, limit))


def start_map(
    scope: Scope, name: str, fn: BranchFn, items: Iterable[Any], bind: Callable[[Any], Any], limit: int | None
) -> Coroutine[Any, Any, list[Any]]:
    """Register a map; its coroutine runs a branch for each item and gives their values in order."""
    place = register(scope, Kind.MAP, name)
    check_limit(place, limit)
    place.check_function(fn)
    if not isinstance(items, Iterable):
        raise place.slip(f"{place.what}: items are something to iterate over, not {type(items).__name__}")
    try:
        found = list(items)
    except BaseException:
        # The author's iterator failed, which is no operation.
        place.release()
        raise
    return scope.start(_map(place, fn, found, bind, limit))


def check_limit(place: Place, limit: int | None) -> None:
    """A limit is a number of branches."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise place.slip(f"{place.what}: limit is a number of branches from 1 on, not {shown(limit)}")


def check_branches(place: Place, branches: Mapping[str, BranchFn]) -> None:
    """Branches have names that can be recorded."""
    if not isinstance(branches, Mapping):
        raise place.slip(f"{place.what}: branches are a dict of name: function, not {type(branches).__name__}")
    for label, fn in branches.items():
        if (problem := name_problem(label)) is not None:
            raise place.slip(f"{place.what}: a branch can't be called {shown(label)}: {problem}")
        if not is_function(fn):
            raise place.slip(f"{place.what}: branch {label!r} is not a function but {type(fn).__name__}")


def named_branches(place: Place, branches: Mapping[str, BranchFn], bind: Bind) -> list[Branch]:
    """The branches of a join or race."""
    intern = place.scope.names.intern
    return [
        Branch(number, label, pack_segment(intern(label)), bind(fn), return_hint(fn))
        for number, (label, fn) in enumerate(branches.items())
    ]


async def _join(place: Place, fns: Mapping[str, BranchFn], bind: Bind, limit: int | None) -> dict[str, Any]:
    try:
        await _open(place, BranchesData(names=tuple(fns)))
        branches = named_branches(place, fns, bind)
        values = await _run_all(place, branches, limit)
        return dict(zip(fns, values, strict=True))
    finally:
        place.release()


async def _map(
    place: Place, fn: BranchFn, items: Sequence[Any], bind: Callable[[Any], Any], limit: int | None
) -> list[Any]:
    try:
        place.arguments = items
        await _open(place, BranchesData(count=len(items)))
        _, own = split_last(place.location)
        (index,) = segments(own)
        assert isinstance(index, int), "a map has a name"
        hint = return_hint(fn)
        branches = [
            Branch(number, str(number), pack_pair(index, number), bind(item), hint) for number, item in enumerate(items)
        ]
        return await _run_all(place, branches, limit)
    finally:
        place.release()


async def _open(place: Place, asked: BranchesData) -> None:
    """Take the place of a join or map, with the branches it is recorded with."""
    engine = place.scope.engine
    if not place.open():
        await engine.never()
    if place.entry is None:
        place.entry = place.new_entry()
        place.entry.data = asked
        place.put(place.entry)
    elif (problem := unfit(place, asked)) is not None:
        engine.diverged(problem)
        await engine.never()
    elif place.has_other_arguments():
        engine.diverged(
            HistoryDivergedError(
                f"{place.what} is recorded with other items than the code gives it now, or in another order, so that "
                "each value would go to another item; give it the items in the same order every time (that of a set is "
                "another one in every process: sort it). If the items were changed on purpose, give the map a new name "
                "and cover the old one with `ctx.removed`"
            )
        )
        await engine.never()


async def _run_all(place: Place, branches: Sequence[Branch], limit: int | None) -> list[Any]:
    entry = place.entry
    assert entry is not None, "the place was opened"
    if place.scope.engine.walking:
        await _walk(place, entry, branches)
    elif entry.is_final:
        await outcomes_of(place, entry, branches)
    else:
        group = Branches(place, branches)
        await group.run(limit)
        await _record(place, entry, branches)
    place.close(entry)
    return _values(place, branches)


async def _walk(place: Place, entry: Entry, branches: Sequence[Branch]) -> None:
    """Go through the branches for what they would have to undo, even if the join is finished."""
    await Branches(place, branches).walk()
    if not entry.is_final:
        await place.scope.engine.never()
    await outcomes_of(place, entry, branches)


async def _record(place: Place, entry: Entry, branches: Sequence[Branch]) -> None:
    """Record the outcome, in one commit with the outcomes of the branches."""
    data = entry.data
    assert isinstance(data, BranchesData), "recorded branches have names"
    in_order = branches
    if _reordered(data, branches):
        by_name = {branch.label: branch for branch in branches}
        in_order = [by_name[name] for name in data.names]
    entry.data = BranchesData(data.names, data.count, small_outcomes(in_order))
    at = place.scope.engine.now()
    if any(branch.raw_outcome()[1] is not None for branch in branches):
        entry.status = EntryStatus.FAILED
        entry.finished_at = at
    else:
        entry.complete(None, at)
    place.put(entry)
    place.fold()
    await place.flush()


def _reordered(data: BranchesData, branches: Sequence[Branch]) -> bool:
    return bool(data.names) and data.names != tuple(branch.label for branch in branches)


def _values(place: Place, branches: Sequence[Branch]) -> list[Any]:
    values: list[Any] = []
    errors: dict[str, Exception] = {}
    for branch in branches:
        value, error = branch.outcome(place)
        if error is not None:
            errors[branch.label] = error
        values.append(value)
    for error in errors.values():
        if isinstance(error, RollbackError):
            raise error
    if errors:
        names = ", ".join(escape(label) for label in list(errors)[:10]) + (", ..." if len(errors) > 10 else "")
        raise JoinError(f"{place.what}: {len(errors)} of {len(branches)} branches failed: {names}", errors)
    return values
