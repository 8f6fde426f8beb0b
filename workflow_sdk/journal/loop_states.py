"""The states with which the turns of a loop began, kept so that a restart can begin at any turn whose history is kept.

A loop stores its state every few turns. At that time it also writes a row with the states that it had since it last
stored, one for each change. Its current state is in its entry, with the first turn that began with it: so a loop whose
state never changes writes no such row. If the states of one row are too large together, only the first is kept: a
restart at a later turn then replays the turns from that one on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from struct import pack, unpack
from typing import ClassVar, NamedTuple, TypeAlias

from workflow_sdk.rows.entries import LoopData
from workflow_sdk.rows.wire import Count, Row, damaged

STATES_BYTES_MAX = 20_000
"""How many bytes the states in one row may have together. A single state may be larger."""


class _BasesRow(Row, frozen=True):
    """The states of a loop, as they are stored."""

    WHAT: ClassVar[str] = "a loop's states"

    firsts: Count | tuple[Count, ...]
    """The first turn that began with each state; only the first of these numbers, if they have no gaps."""
    turn: Count
    times: bytes
    states: tuple[bytes, ...]


class Base(NamedTuple):
    """A state, and the turns that began with it: one, or several in a row."""

    first: int
    turn: int
    """One of these turns, the one that began at the time `at`."""
    at: float
    state: bytes


Known: TypeAlias = tuple[int, int, float, bytes]
"""The fields of a `Base`, as a plain tuple: one is made in every turn."""


def pack_bases(bases: Sequence[Known]) -> bytes:
    """The value of a row with these states, in order: each holds until the next begins, the last until the row's turn.

    Only the first of them may have a `turn` that is not its `first`.
    """
    firsts, turns, times, states = zip(*bases, strict=True)
    # Mostly the state changes in every turn, and then the first of these numbers gives all of them.
    start = firsts[0]
    in_a_row = firsts == tuple(range(start, start + len(firsts)))
    return _BasesRow(start if in_a_row else firsts, turns[0], pack(f">{len(times)}d", *times), states).pack()


def unpack_bases(raw: bytes) -> list[Base]:
    """The states in a row that `pack_bases` made."""
    row = _BasesRow.unpack(raw)
    states = row.states
    firsts = range(row.firsts, row.firsts + len(states)) if isinstance(row.firsts, int) else row.firsts
    if not len(firsts) == len(states) == len(row.times) / 8 > 0:
        raise damaged("a loop's states")
    turns = [row.turn, *firsts[1:]]
    return list(map(Base, firsts, turns, unpack(f">{len(states)}d", row.times), states))


class Bases:
    """Collects the states of a running loop between two times that it stores."""

    def __init__(self, data: LoopData, keep: int) -> None:
        self.since: int = data.since
        """The first turn that began with the state that the loop has now."""
        self._stored = data
        self._coarse = data.coarse
        self._keep = keep
        self._first_end: int = -1
        """The last turn that began with the stored state; -1 if the state has not changed since it was stored."""
        self._now: Known = (data.since, data.turn, data.at, data.state)
        self._ended: deque[Known] = deque(maxlen=keep)
        """The states that the loop had before the current one. Each is of at least one turn, so `keep` of them are
        enough."""
        self._size = 0
        self._collecting = keep > 0

    def change(self, turn: int, state: bytes, at: float) -> None:
        """Note that the loop has another state from this turn on."""
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
                # Too large for a row, so they need not stay in memory, either.
                ended.clear()
                self._collecting = False
            self._now = (turn, turn, at, state)

    def store(self, turn: int, state: bytes, at: float, interval: int) -> tuple[LoopData, int | None, list[Known]]:
        """What a loop stores before `turn`: the data of its entry, and the last turn and the states for a row.

        The turn is None if no row is to be written.
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
