"""What an operation does to another instance, together with its own record: one commit, or none."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from workflow_sdk.core.entries import Entry
from workflow_sdk.core.outside import Hanging
from workflow_sdk.operations.place import Place

__all__ = ["Recorded"]


class Recorded:
    """The record of an effect. Each try of the store makes it anew, and the last one counts."""

    __slots__ = ("_begun", "_hanging", "_place", "_record", "entry", "is_done", "location", "outcome")

    def __init__(
        self, place: Place, entry: Entry, record: Callable[[Entry, str], None], hanging: Hanging | None = None
    ) -> None:
        self._place = place
        self._begun = entry
        self._record = record
        self._hanging = hanging
        """What hangs on the operation from now on. Its id is what comes of the effect."""
        self.entry: Entry = entry
        self.location: bytes = place.location
        self.is_done: bool = False
        self.outcome: str = ""

    def rows(self, version: int, outcome: str) -> list[tuple[bytes, bytes]]:
        """The record, if the effect comes to this outcome in the state of this number."""
        journal = self._place.scope.engine.journal
        self.outcome = outcome
        self.entry = copy(self._begun)
        self._record(self.entry, outcome)
        if self._hanging is None:
            return journal.rows_of(self.location, self.entry, None)
        self.entry.since = version
        self._hanging = Hanging(self._hanging.kind, outcome, self._hanging.ends, version)
        return [
            *journal.rows_of(self.location, self.entry, None),
            journal.outside_row(self.location, self._hanging),
        ]

    def stored(self) -> None:
        """Both are in the store."""
        self.is_done = True
        if self._hanging is not None:
            self._place.scope.engine.journal.hangs(self.location, self._hanging)

    def is_wanted(self) -> bool:
        """Whether the branch that asked for it goes on."""
        scope = self._place.scope
        return not (scope.fate.lost or scope.engine.halted)
