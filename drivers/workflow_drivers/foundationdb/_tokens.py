"""How a driver knows whether a commit that ended without an answer was applied.

Every batch writes its number into a slot, in the transaction that applies it. A slot is lent to one commit at a time,
so there are as many as there were commits at once, and nothing piles up: the next batch writes its number over it.
What is left of a process that crashed is swept up when a driver is opened, a day later or more.
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
    """A slot, lent to one batch."""

    __slots__ = ("is_in_doubt", "key", "value")

    def __init__(self, key: bytes, value: bytes) -> None:
        self.key = key
        self.value = value
        self.is_in_doubt = False
        """A commit with this value was begun, and its end is not known."""


class Tokens:
    """The slots of one driver."""

    def __init__(self, space: Space) -> None:
        # Random, so that drivers write in different places, and a new process never to one of an old one's.
        self._prefix = space.tokens + os.urandom(_DRIVER_BYTES)
        self._free: list[bytes] = []
        self._slots = 0
        self._numbers = count(1)
        self._lock = Lock()  # for drivers that several threads use

    def take(self) -> Token:
        """A slot of one's own, and a number that was never in it."""
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
        """Let others have the slot, unless the last word on it has not been spoken: then nobody has it any more."""
        if not token.is_in_doubt:
            with self._lock:
                self._free.append(token.key)

    def take_all(self) -> list[bytes]:
        """The keys of the slots that nobody has; they are not lent any more."""
        with self._lock:
            free, self._free = self._free, []
        return free


def is_old(value: bytes, now: float) -> bool:
    """Whether a slot was written to so long ago that its driver has nothing in doubt."""
    return now - int.from_bytes(value[_NUMBER_BYTES:], "big") > SLOTS_OLD_SECONDS
