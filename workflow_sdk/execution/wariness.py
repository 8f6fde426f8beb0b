"""Noting what is executed, after a worker has died under an instance: see `core.deaths`.

It lasts until the instance has got past what it was at: all of it has come to an end, or waits.
"""

from __future__ import annotations

from workflow_sdk.core.deaths import Try
from workflow_sdk.core.journal import Journal

__all__ = ["Wariness"]


class Wariness:
    """Of one run. What it notes is stored by the next flush."""

    __slots__ = ("_journal", "_lease", "_tries", "_unknown")

    def __init__(self, journal: Journal, lease: str, tries: dict[bytes, Try]) -> None:
        deaths = journal.about.deaths.deaths
        dead = {death.lease for death in deaths}
        self._journal = journal
        self._lease = lease
        self._unknown = tuple(death.lease for death in deaths if not death.noted)
        """Of whoever died of something that nobody knows: it may be anything that is begun now."""
        self._tries = {
            location: Try(tried.path, tuple(name for name in tried.leases if name in dead))
            for location, tried in tries.items()
        }

    def note(self, location: bytes, path: str) -> None:
        """The code of an operation is about to be called."""
        before = self._tries.get(location)
        leases = dict.fromkeys((*(before.leases if before is not None else ()), *self._unknown, self._lease))
        tried = self._tries[location] = Try(path, tuple(leases))
        self._journal.note_try(location, tried.pack())

    def survived(self, location: bytes) -> None:
        """It was called, and this worker is alive."""
        if self._tries.pop(location, None) is not None:
            self._journal.note_try(location, None)

    def end(self) -> None:
        """The instance has got past what workers died of."""
        self._journal.forget_deaths()
