"""Staging: changes of other instances that go with the next commit of this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from msgspec import Struct

from workflow_sdk.changes.change import Change
from workflow_sdk.changes.trial import Outcome
from workflow_sdk.driver import (
    Batch,
    Clear,
    ClearRange,
    Set,
)
from workflow_sdk.journal.unwritten import WriteSet

T = TypeVar("T")


class Staged(Struct, Generic[T], eq=False):
    """A change that goes with the next commit of an instance: its effect on others, and the record of that."""

    change: Change[T]
    is_wanted: Callable[[], bool]
    """Whether somebody still waits for the change to be made."""
    stored: Callable[[T], None]
    """Called with the value of the change once it is stored, even if the caller was cancelled meanwhile."""
    weight: int = 0
    """About how many bytes the change writes."""
    outcome: Outcome[T] | None = None
    """The outcome of the change; None if it was not made, since nobody wanted it any more."""
    is_stored: bool = False
    has_moved_on: bool = False
    """Whether others changed what it had read before the commit: then it has to be staged again. So the other rows of
    the instance are written without waiting for it."""
    retries: int = 0
    """How often it was staged again."""

    @property
    def is_over(self) -> bool:
        """Whether this flush has nothing more to do for it."""
        return self.is_stored or self.has_moved_on

    def try_again(self) -> None:
        """Prepare the change to be staged once more."""
        self.outcome = None
        self.has_moved_on = False
        self.retries += 1


_as_set = cast(
    "Callable[[tuple[bytes, bytes | None]], Set]",
    partial(tuple.__new__, Set),  # pyright: ignore[reportUnknownMemberType]  # of a tuple of anything
)
"""Makes a write of a row, without a Python call for each: there are many."""


def fill(batch: Batch, writes: WriteSet) -> None:
    """Put a write set into a batch."""
    if writes.checks:
        batch.checks.extend(writes.checks.items())
    for begin, end in writes.clears:
        batch.writes.append(ClearRange(begin, end))
    if None in writes.rows.values():
        batch.writes += [Clear(key) if value is None else Set(key, value) for key, value in writes.rows.items()]
    else:
        batch.writes.extend(map(_as_set, writes.rows.items()))


def without_moved_on(staged: list[Staged[Any]], moved: set[bytes]) -> list[Staged[Any]]:
    """The changes to try again in this flush: those whose reads still hold, at most half of all, to be faster."""
    left = [one for one in staged if one.outcome is None or moved.isdisjoint(one.outcome.checks)]
    left = left[: len(staged) // 2]
    for one in staged:
        if one not in left:
            one.has_moved_on = True
    return left


def are_stored(staged: Iterable[Staged[Any]]) -> None:
    """Tell whoever waits for them that they are in the store."""
    for one in staged:
        one.is_stored = True
        assert one.outcome is not None, "it was made"
        one.stored(one.outcome.get())
