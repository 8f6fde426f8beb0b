"""Slots: they tell a driver whether a commit that ended without an answer was applied.

Every batch writes its number into a slot, in the transaction that applies it. A slot belongs to one commit at a time
and is used again by the next, so there are only as many slots as there were commits at once. The slots of a process
that crashed are cleared when a store is opened a day later or more.
"""

from __future__ import annotations

import os
from itertools import count
from threading import Lock
from time import time

from workflow_drivers.foundationdb._keys import Space

SLOTS_OLD_SECONDS = 86_400.0
_NUMBER_BYTES = 8
_DRIVER_BYTES = 12


class Token:
    """A slot while it belongs to a batch, and the number of the batch."""

    __slots__ = ("is_in_doubt", "key", "value")

    def __init__(self, key: bytes, value: bytes) -> None:
        self.key = key
        self.value = value
        self.is_in_doubt = False
        """Whether a commit with this value was begun, and it is not known how it ended."""


class Tokens:
    """The slots of one driver."""

    def __init__(self, space: Space) -> None:
        # Random, so that drivers write to different places, and never to the slot of a process that is gone.
        self._prefix = space.tokens + os.urandom(_DRIVER_BYTES)
        self._free: list[bytes] = []
        self._slots = 0
        self._numbers = count(1)
        self._lock = Lock()  # for drivers that several threads use

    def take(self) -> Token:
        """A slot that nobody else has, and a number that was never in it."""
        with self._lock:
            if self._free:
                key = self._free.pop()
            else:
                key = self._prefix + self._slots.to_bytes(4, "big")
                self._slots += 1
        return Token(key, self.next_value())

    def next_value(self) -> bytes:
        """A number that no slot has held."""
        return next(self._numbers).to_bytes(_NUMBER_BYTES, "big") + int(time()).to_bytes(_NUMBER_BYTES, "big")

    def give_back(self, token: Token) -> None:
        """Let others have the slot. If its commit is still in doubt, nobody gets it: it may be written to later."""
        if not token.is_in_doubt:
            with self._lock:
                self._free.append(token.key)

    def take_all(self) -> list[bytes]:
        """The keys of the slots that no commit has. They are not used again."""
        with self._lock:
            free, self._free = self._free, []
        return free


def is_old(value: bytes, now: float) -> bool:
    """Whether a slot was last written to by a process that is gone by now."""
    return now - int.from_bytes(value[_NUMBER_BYTES:], "big") > SLOTS_OLD_SECONDS
