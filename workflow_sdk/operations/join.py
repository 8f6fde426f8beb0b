"""`ctx.join` and `ctx.map`: branches side by side, all of which finish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from workflow_sdk.definitions import is_function
from workflow_sdk.errors import JoinError, RollbackError
from workflow_sdk.journal.names import name_problem
from workflow_sdk.operations.branches import Branch, Branches, outcomes_of, small_outcomes, walk_branches
from workflow_sdk.operations.engine import Engine, Reader, Walker
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.public_state import fold
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import enter
from workflow_sdk.rows.entries import BranchesData, Entry
from workflow_sdk.rows.location import escape, pack_pair, pack_segment, segments, split_last
from workflow_sdk.rows.status import EntryStatus, Kind
from workflow_sdk.rows.wire import shown
from workflow_sdk.values.hints import return_hint

BranchFn = Callable[..., Awaitable[Any]]
"""A function of the author, which is given a ctx."""
Bind = Callable[[BranchFn], Callable[[Scope], Awaitable[Any]]]
"""Turns such a function into one that takes a scope."""


def start_join(
    scope: Scope, name: str, branches: Mapping[str, BranchFn], bind: Bind, limit: int | None
) -> Coroutine[Any, Any, dict[str, Any]]:
    """Register a join; its coroutine runs the branches and gives their values by name."""
    place = register(scope, Kind.JOIN, name)
    check_limit(place, limit)
    check_branches(place, branches)
    fns = dict(branches)
    place.branches = BranchesData(names=tuple(fns))

    def by_name(values: list[Any]) -> dict[str, Any]:
        return dict(zip(fns, values, strict=True))

    return scope.start(enter(place, _All(place, lambda: named_branches(place, fns, bind), by_name, limit)))


def start_map(
    scope: Scope, name: str, fn: BranchFn, items: Iterable[Any], bind: Callable[[Any], Any], limit: int | None
) -> Coroutine[Any, Any, list[Any]]:
    """Register a map; its coroutine runs a branch for each item and gives their values in order."""
    place = register(scope, Kind.MAP, name)
    check_limit(place, limit)
    place.check_function(fn)
    if not isinstance(items, Iterable):
        raise place.mistake(f"{place.what}: items are something to iterate over, not {type(items).__name__}")
    try:
        found = list(items)
    except BaseException:
        # The author's iterator has failed, before any operation began.
        place.release()
        raise
    place.branches, place.arguments = BranchesData(count=len(found)), found
    return scope.start(enter(place, _All(place, lambda: _numbered_branches(place, fn, found, bind), list, limit)))


def check_limit(place: Place, limit: int | None) -> None:
    """Check that a limit is a number of branches."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise place.mistake(f"{place.what}: limit is a number of branches from 1 on, not {shown(limit)}")


def check_branches(place: Place, branches: Mapping[str, BranchFn]) -> None:
    """Check that the names of branches can be recorded."""
    if not isinstance(branches, Mapping):
        raise place.mistake(f"{place.what}: branches are a dict of name: function, not {type(branches).__name__}")
    for label, fn in branches.items():
        if (problem := name_problem(label)) is not None:
            raise place.mistake(f"{place.what}: a branch can't be called {shown(label)}: {problem}")
        if not is_function(fn):
            raise place.mistake(f"{place.what}: branch {label!r} is not a function but {type(fn).__name__}")


def named_branches(place: Place, branches: Mapping[str, BranchFn], bind: Bind) -> list[Branch]:
    """The branches of a join or race, which has its place by now."""
    intern = place.scope.names.intern
    return [
        Branch(number, label, pack_segment(intern(label)), bind(fn), return_hint(fn))
        for number, (label, fn) in enumerate(branches.items())
    ]


def _numbered_branches(place: Place, fn: BranchFn, items: Sequence[Any], bind: Callable[[Any], Any]) -> list[Branch]:
    """The branches of a map, which has its place by now: one for each item."""
    _, own = split_last(place.location)
    (index,) = segments(own)
    assert isinstance(index, int), "a map has a name"
    hint = return_hint(fn)
    return [
        Branch(number, str(number), pack_pair(index, number), bind(item), hint) for number, item in enumerate(items)
    ]


class _All:
    """A join or map: branches side by side, all of which finish."""

    __slots__ = ("_branches", "_gives", "_limit", "_make", "_place")

    def __init__(
        self, place: Place, make: Callable[[], list[Branch]], gives: Callable[[list[Any]], Any], limit: int | None
    ) -> None:
        self._place = place
        self._make = make
        self._gives = gives
        self._limit = limit
        self._branches: list[Branch] | None = None

    @property
    def branches(self) -> list[Branch]:
        """The branches. Their names get numbers when they are asked for: after the operation has its own."""
        if self._branches is None:
            self._branches = self._make()
        return self._branches

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        entry = self._place.new_entry()
        entry.data = self._place.branches
        self._place.put(entry)
        return self.resume(engine, entry)

    async def resume(self, engine: Engine, entry: Entry) -> Entry:
        place, branches = self._place, self.branches
        await Branches(place, engine, branches).run(self._limit)
        # The outcome goes in one commit with the last outcomes of the branches.
        data = entry.data
        assert isinstance(data, BranchesData), "recorded branches have names"
        in_order = branches
        if data.names:
            # The code may give them in another order than the first time.
            by_name = {branch.label: branch for branch in branches}
            in_order = [by_name[name] for name in data.names]
        entry.data = BranchesData(data.names, data.count, small_outcomes(in_order))
        if any(branch.raw_outcome()[1] is not None for branch in branches):
            entry.status = EntryStatus.FAILED
            entry.finished_at = engine.clock.time()
        else:
            entry.complete(None, engine.clock.time())
        fold(place.scope, place.location)
        return await place.store(engine, entry)

    async def recall(self, reader: Reader, entry: Entry) -> None:
        await outcomes_of(reader, self._place.location, entry, self.branches)

    async def walk(self, walker: Walker, entry: Entry) -> None:
        await walk_branches(self._place, walker, self.branches)

    def outcome(self, entry: Entry) -> Any:
        place = self._place
        outcomes = {branch.label: branch.outcome(place) for branch in self.branches}
        errors = {label: error for label, (_, error) in outcomes.items() if error is not None}
        for error in errors.values():
            if isinstance(error, RollbackError):
                raise error
        if errors:
            names = ", ".join(escape(label) for label in list(errors)[:10]) + (", ..." if len(errors) > 10 else "")
            raise JoinError(f"{place.what}: {len(errors)} of {len(outcomes)} branches failed: {names}", errors)
        return self._gives([value for value, _ in outcomes.values()])
