"""What a scope has changed of the public state, and the row of that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from workflow_sdk.rows.wire import Row


class ChangesRow(Row, frozen=True):
    """What was changed in a scope."""

    WHAT: ClassVar[str] = "a change of the state"

    changes: tuple[tuple[str, bytes | None, int], ...]
    """By name: the value, or None if it was removed; and the number of its last change."""


def pack_changes(changes: Iterable[tuple[str, bytes | None, int]]) -> bytes:
    return ChangesRow(tuple(changes)).pack()


class Change(NamedTuple):
    """What a scope has made of one value."""

    first: int
    """When it first changed it: a number that grows with every change."""
    last: int
    before: bytes | None
    raw: bytes | None

    def merged(self, other: Change | None) -> Change:
        """This and another one of the same value, as one."""
        if other is None:
            return self
        older, newer = (self, other) if self.first < other.first else (other, self)
        end = max(self, other, key=lambda change: change.last)
        return Change(older.first, max(self.last, newer.last), older.before, end.raw)
