"""A recorded loop that is to begin again with one of its turns: which turns there are, and what they began with.

A turn can be begun again if its history is kept, and either the state that it began with is known, or one that a turn
before it began with, from where it is repeated out of its history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from workflow_sdk.core.bases import Base, pack_bases, unpack_bases
from workflow_sdk.core.entries import Entry, LoopData
from workflow_sdk.core.keys import BASES, CHANGES, FOLDED, HISTORY, METADATA, InstanceKeys
from workflow_sdk.core.location import pack_pair, segments, split_last, subtree
from workflow_sdk.core.status import EntryStatus
from workflow_sdk.driver import Batch

__all__ = ["LoopTape", "turn_of"]

Row: TypeAlias = tuple[int, list[Base]]
"""The last turn that it is for, and what it holds."""


def turn_of(loop: bytes, location: bytes) -> int:
    """In which turn of a loop a location is."""
    turn = next(iter(segments(location[len(loop) :])))
    assert isinstance(turn, tuple), "under a loop there are turns"
    return turn[1]


class LoopTape:
    """One loop, with the history of its turns."""

    def __init__(
        self, location: bytes, entry: Entry, inside: Mapping[bytes, Entry], rows: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """With the entries inside, and the rows of its bases, in order."""
        assert isinstance(entry.data, LoopData), "a loop knows its turn"
        self.location = location
        self.data: LoopData = entry.data
        self._entry = entry
        self._turns: dict[int, list[Entry]] = {}
        """The operations of the turns themselves, not what is under those."""
        for at, found in inside.items():
            turn = turn_of(location, at)
            if split_last(at)[0] == self.turn_location(turn):
                self._turns.setdefault(turn, []).append(found)
        self._rows: list[Row] = [(turn_of(location, at), unpack_bases(raw)) for at, raw in rows]
        self._last = max(self._turns, default=0)
        if entry.status is EntryStatus.COMPLETED:
            self._last = self.data.turn - 1
        else:
            self._last = max(self._last, self.data.turn)

    def turn_location(self, turn: int) -> bytes:
        """Where the entries of a turn are."""
        _, own = split_last(self.location)
        (index,) = segments(own)
        assert isinstance(index, int), "a loop has a name"
        return self.location + pack_pair(index, turn)

    def startable(self) -> list[int]:
        """The turns that it can begin again with."""
        return [turn for turn in range(self.data.first, self._last + 1) if self.from_turn(turn) is not None]

    def from_turn(self, turn: int) -> LoopData | None:
        """The loop as it is to be stored to begin again with this turn, or None if that can't be."""
        data = self.data
        if not data.first <= turn <= self._last:
            return None
        if turn >= data.turn and self._entry.status is not EntryStatus.COMPLETED:
            return data
        best: Base | None = None
        for base, last in self._bases():
            if base.first <= turn <= last:
                at = base.at if base.turn == turn else self._began(turn)
                return replace(
                    data, turn=turn, state=base.state, at=at, since=base.first, coarse=min(data.coarse, turn)
                )
            if data.first <= base.turn <= turn and (best is None or best.turn < base.turn):
                best = base
        if best is None:
            return None
        coarse = min(data.coarse, best.turn)
        return replace(data, turn=best.turn, state=best.state, at=best.at, since=best.first, coarse=coarse)

    def _bases(self) -> list[tuple[Base, int]]:
        """Every state that is known, and the last turn that began with it."""
        found: list[tuple[Base, int]] = []
        for last, bases in self._rows:
            ends = [*(following.first - 1 for following in bases[1:]), last]
            found += zip(bases, ends, strict=True)
        data = self.data
        found.append((Base(data.since, data.turn, data.at, data.state), min(data.turn, self._last)))
        return found

    def _began(self, turn: int) -> float:
        """When a turn began: with the end of what was done before it, as far as that is still known."""
        known = [base.at for base, _ in self._bases() if base.turn <= turn]
        before = [entry.finished_at or 0.0 for number, found in self._turns.items() if number < turn for entry in found]
        if turn and turn - 1 not in self._turns:
            # Nothing of the turn before is known. The first operation of this one began at once, or nearly.
            before += [min((entry.created_at for entry in self._turns.get(turn, [])), default=0.0)]
        return max([self._entry.created_at, *known, *before])

    def ended(self, turn: int) -> float:
        """When a turn ended; when it began, if it has not."""
        found = self._turns.get(turn, [])
        is_over = turn < self._last or self._entry.is_final
        ends = [entry.finished_at for entry in found if entry.finished_at is not None]
        if is_over and ends:
            return max(ends)
        return min((entry.created_at for entry in found), default=self._began(turn))

    def rewind(self, batch: Batch, keys: InstanceKeys, turn: int, data: LoopData) -> None:
        """Forget the turns after this one, and the states of those from which on `data` goes on."""
        begin, end = self.turn_location(turn + 1), subtree(self.location)[1]
        for part in (HISTORY, METADATA, BASES, CHANGES, FOLDED):
            batch.clear_range(keys.space + part + begin, keys.space + part + end)
        for last, bases in self._rows:
            if last < data.since:
                continue
            batch.clear(keys.space + BASES + self.turn_location(last))
            last = min(last, data.since - 1)
            kept = [base for base in bases if base.first <= last]
            if kept and last >= data.first:
                batch.set(keys.space + BASES + self.turn_location(last), pack_bases(kept))
