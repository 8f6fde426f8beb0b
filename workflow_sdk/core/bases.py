"""The states that a loop had before the last one stored: what a turn that is kept can be begun with again.

A loop stores its state every few turns, and each time with it, in one row, the states of the turns since the time
before: one for every change. The state that it has now stands in its entry, with the turn since which it has it, so a
loop whose state never changes writes no row. Where those states are too large together, only the one that was stored is
kept; the turns after it are then repeated from their history, to the one that is wanted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from struct import pack, unpack
from typing import ClassVar, NamedTuple, TypeAlias

from workflow_sdk.core.entries import LoopData
from workflow_sdk.core.wire import Count, Row, damaged

__all__ = ["Base", "Bases", "Known", "pack_bases", "unpack_bases"]

STATES_BYTES_MAX = 20_000
"""Of the states that one row holds, if they are more than one."""


class _BasesRow(Row, frozen=True):
    """Bases as they are stored."""

    WHAT: ClassVar[str] = "a loop's states"

    firsts: Count | tuple[Count, ...]
    """Of each, the first turn; if they are in a row, only that of the first one."""
    turn: Count
    times: bytes
    states: tuple[bytes, ...]


class Base(NamedTuple):
    """A state that several turns in a row began with; mostly it is one."""

    first: int
    turn: int
    """One of them, of which it is known when it began."""
    at: float
    state: bytes


Known: TypeAlias = tuple[int, int, float, bytes]
"""A base in the making: there is one more in every turn."""


def pack_bases(bases: Sequence[Known]) -> bytes:
    """As a row's value: in order, each until the next begins, and the last until the turn in the row's key.

    Only of the first one may it be known when another turn than its first began.
    """
    firsts, turns, times, states = zip(*bases, strict=True)
    # Mostly there is one for every turn.
    start = firsts[0]
    in_a_row = firsts == tuple(range(start, start + len(firsts)))
    return _BasesRow(start if in_a_row else firsts, turns[0], pack(f">{len(times)}d", *times), states).pack()


def unpack_bases(raw: bytes) -> list[Base]:
    """What `pack_bases` packed."""
    row = _BasesRow.unpack(raw)
    states = row.states
    firsts = range(row.firsts, row.firsts + len(states)) if isinstance(row.firsts, int) else row.firsts
    if not len(firsts) == len(states) == len(row.times) / 8 > 0:
        raise damaged("a loop's states")
    turns = [row.turn, *firsts[1:]]
    return list(map(Base, firsts, turns, unpack(f">{len(states)}d", row.times), states))


class Bases:
    """Collects the states of a loop that turns, from one time that it is stored to the next."""

    def __init__(self, data: LoopData, keep: int) -> None:
        self.since: int = data.since
        """The first turn that began with the state that the loop has now."""
        self._stored = data
        self._coarse = data.coarse
        self._keep = keep
        self._first_end: int = -1
        """Until which turn the loop had the state that is stored, if it has another now."""
        self._now: Known = (data.since, data.turn, data.at, data.state)
        self._ended: deque[Known] = deque(maxlen=keep)
        """Each stands for at least one turn: so many cover what is kept."""
        self._size = 0
        self._collecting = keep > 0

    def change(self, turn: int, state: bytes, at: float) -> None:
        """The loop has another state from this turn on."""
        if self._first_end < 0:
            self._first_end = turn - 1
        self.since = turn
        if self._collecting:
            ended, now = self._ended, self._now
            if len(ended) == self._keep:
                self._size -= len(ended[0][3])
            ended.append(now)
            self._size += len(now[3])
            if self._size > STATES_BYTES_MAX and len(ended) > 1:
                # Not kept in memory any longer, either.
                ended.clear()
                self._collecting = False
            self._now = (turn, turn, at, state)

    def store(self, turn: int, state: bytes, at: float, interval: int) -> tuple[LoopData, int | None, list[Known]]:
        """What a loop stores that is to go on with `turn`: itself, and a row if its states changed.

        The row is given as the last turn that it is for, and what it holds.
        """
        stored, last = self._stored, self.since - 1
        found = list(self._ended)
        if self._keep and not self._collecting:
            self._coarse, last = turn, self._first_end
            found = [(stored.since, stored.turn, stored.at, stored.state)]
        first = max(turn - self._keep, 0)
        if first < self._coarse:
            first = max(first - first % interval, 0)
        first = max(first, stored.first)
        while len(found) > 1 and found[1][0] <= first:
            del found[0]
        data = LoopData(turn, state, at, self.since, first, self._coarse)
        self._stored = data
        self._now = (self.since, turn, at, state)
        self._first_end = -1
        self._ended.clear()
        self._size, self._collecting = 0, self._keep > 0
        return data, (last if found and last >= first else None), found
