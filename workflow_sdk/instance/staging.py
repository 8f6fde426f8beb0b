"""What goes with the next commit of an instance beside its own rows."""

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
    """A change that goes with the next commit of an instance: what it does to others, and the record of that."""

    change: Change[T]
    is_wanted: Callable[[], bool]
    """Whether somebody waits for it still."""
    stored: Callable[[T], None]
    """Called with what came of it once it is in the store, cancelled or not."""
    weight: int = 0
    """About how many bytes it has."""
    outcome: Outcome[T] | None = None
    """What came of it; None if nobody wanted it any more."""
    is_stored: bool = False
    has_moved_on: bool = False
    """What it reads was changed by others before the commit: it is to be staged again. So the records of the instance
    do not wait until somebody else stands still."""
    retries: int = 0
    """How often that was so before."""

    @property
    def is_over(self) -> bool:
        """Whether this flush has nothing more to do for it."""
        return self.is_stored or self.has_moved_on

    def try_again(self) -> None:
        """It is to be staged once more."""
        self.outcome = None
        self.has_moved_on = False
        self.retries += 1


_as_set = cast(
    "Callable[[tuple[bytes, bytes | None]], Set]",
    partial(tuple.__new__, Set),  # pyright: ignore[reportUnknownMemberType]  # of a tuple of anything
)
"""A row as a write, without a call of Python's for each."""


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
    """Those that are tried once more with this flush: of what still holds, half as many, so that it takes less time."""
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
