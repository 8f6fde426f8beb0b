"""How long commits take: whether the way to the thread and back would be the longer part of one.

That way costs two wake-ups of a thread, 50 to 80 us on the machines that we know. A commit takes 20 to 200 us where the
disk is fast, and then it is better made in the thread of the event loop. Where the disk is slow, it takes milliseconds,
in which everything else would stand still: there, the thread is worth its way. Nobody can tell but by trying.
"""

from __future__ import annotations

import sqlite3

SHORT_SECONDS = 0.00025
"""As long as this, a commit may hold up the event loop: no longer than many a callback."""
SHORT_ENOUGH = 8
"""So many commits in a row have to be short."""
HERE_MOST = 64
"""After so many in the event loop, one is made in the thread, where the log may be copied into the database."""

IS_POSSIBLE = sqlite3.threadsafety == 3
"""Whether this SQLite lets several threads use one connection, if only one after the other."""


class Pace:
    """Of the commits of one connection, of late."""

    __slots__ = ("_here", "_possible", "_short")

    def __init__(self, *, possible: bool) -> None:
        self._possible = possible and IS_POSSIBLE
        self._short = 0
        """How many were short, since the last that was not."""
        self._here = 0
        """How many were made in the event loop, since the last that was not."""

    @property
    def is_short(self) -> bool:
        """Whether the next one may be made in the event loop."""
        return self._possible and self._short >= SHORT_ENOUGH and self._here < HERE_MOST

    def note(self, seconds: float, batches: int, *, here: bool) -> None:
        """A transaction was committed. Of several batches, it was worth the way: they come from many at once."""
        self._here = self._here + 1 if here else 0
        self._short = self._short + 1 if batches <= 1 and seconds <= SHORT_SECONDS else 0
