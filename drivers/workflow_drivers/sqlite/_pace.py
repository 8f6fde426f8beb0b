"""How long commits and reads take: whether the way to a thread and back would be the longer part of one.

That way costs two wake-ups of a thread, 50 to 80 us on the machines that we know. A commit takes 20 to 200 us where the
disk is fast, and then it is better made in the thread of the event loop. Where the disk is slow, it takes milliseconds,
in which everything else would stand still: there, the thread is worth its way. Nobody can tell but by trying.
"""

from __future__ import annotations

import sqlite3
from math import inf

SHORT_ENOUGH = 8
"""So many in a row have to be short."""

IS_POSSIBLE = sqlite3.threadsafety == 3
"""Whether this SQLite lets several threads use one connection, if only one after the other."""


class Pace:
    """Of what one connection has done of late."""

    __slots__ = ("_here", "_most", "_possible", "_seconds", "_short")

    def __init__(self, seconds: float, *, possible: bool, most: float = inf) -> None:
        self._seconds = seconds
        """What takes no longer is short."""
        self._most = most
        """After so many in the event loop, one goes to the thread."""
        self._possible = possible and IS_POSSIBLE
        self._short = 0
        """How many were short, since the last that was not."""
        self._here = 0
        """How many were made in the event loop, since the last that was not."""

    @property
    def is_short(self) -> bool:
        """Whether the next one may be made in the event loop."""
        return self._possible and self._short >= SHORT_ENOUGH and self._here < self._most

    def note(self, seconds: float, *, here: bool) -> None:
        """Something was done, and took so long."""
        self._here = self._here + 1 if here else 0
        self._short = self._short + 1 if seconds <= self._seconds else 0
