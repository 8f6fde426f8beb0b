"""How long commits and reads take of late: it decides whether they are made in the event loop or in a thread.

The way to a thread and back costs two wake-ups, 50 to 80 us on the machines that we know. On a fast disk, a commit
takes 20 to 200 us, and is better made in the event loop. On a slow disk, it takes milliseconds, in which everything
else would stand still, so the way to the thread is worth it. Which it is can only be measured.
"""

from __future__ import annotations

import sqlite3
from math import inf

SHORT_ENOUGH = 8
"""How many in a row have to be short before the next one is made in the event loop."""

IS_POSSIBLE = sqlite3.threadsafety == 3
"""Whether this SQLite lets several threads use a connection, one after the other."""


class Pace:
    """How long what one connection did took of late."""

    __slots__ = ("_here", "_most", "_possible", "_seconds", "_short")

    def __init__(self, seconds: float, *, possible: bool, most: float = inf) -> None:
        self._seconds = seconds
        """What takes no longer is short."""
        self._most = most
        """After so many in a row in the event loop, one goes to the thread."""
        self._possible = possible and IS_POSSIBLE
        self._short = 0
        """How many in a row were short."""
        self._here = 0
        """How many in a row were made in the event loop."""

    @property
    def is_short(self) -> bool:
        """Whether the next one may be made in the event loop."""
        return self._possible and self._short >= SHORT_ENOUGH and self._here < self._most

    def note(self, seconds: float, *, here: bool) -> None:
        """Note how long something took, and whether it was done in the event loop."""
        self._here = self._here + 1 if here else 0
        self._short = self._short + 1 if seconds <= self._seconds else 0
