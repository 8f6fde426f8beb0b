"""A recorded loop that is to begin again with one of its turns: which turns are possible, and with which states.

A loop can begin again with a turn if the history of the turn is kept, and the state with which it began is known. It is
enough to know the state of an earlier turn, if the history is kept from there on: then those turns are replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from workflow_sdk.driver import Clear, ClearRange, Set, Write
from workflow_sdk.journal.loop_states import Base, pack_bases, unpack_bases
from workflow_sdk.rows.entries import Entry, LoopData
from workflow_sdk.rows.keys import BASES, CHANGES, FOLDED, HISTORY, METADATA, PATCHED, InstanceKeys
from workflow_sdk.rows.location import pack_pair, segments, split_last, subtree
from workflow_sdk.rows.status import EntryStatus

Row: TypeAlias = tuple[int, list[Base]]
"""A row of states: the last turn for which it holds, and the states."""


def turn_of(loop: bytes, location: bytes) -> int:
    """The turn of a loop that a location is in."""
    turn = next(iter(segments(location[len(loop) :])))
    assert isinstance(turn, tuple), "under a loop there are turns"
    return turn[1]


class LoopTape:
    """One loop, and the history of its turns."""

    def __init__(
        self, location: bytes, entry: Entry, inside: Mapping[bytes, Entry], rows: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """`inside`: the entries in the loop. `rows`: its rows of states, in order."""
        assert isinstance(entry.data, LoopData), "a loop knows its turn"
        self.location = location
        self.data: LoopData = entry.data
        self._entry = entry
        self._turns: dict[int, list[Entry]] = {}
        """The operations of each turn, without what is inside them."""
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
        """The location of a turn."""
        _, own = split_last(self.location)
        (index,) = segments(own)
        assert isinstance(index, int), "a loop has a name"
        return self.location + pack_pair(index, turn)

    def startable(self) -> list[int]:
        """The turns with which the loop can begin again."""
        return [turn for turn in range(self.data.first, self._last + 1) if self.start(turn) is not None]

    def first_start(self, turn: int) -> LoopStart | None:
        """Begin again with the first possible turn from this one on; None if there is none."""
        starts = map(self.start, range(max(turn, self.data.first), self._last + 1))
        return next((start for start in starts if start is not None), None)

    def start(self, turn: int) -> LoopStart | None:
        """Begin again with this turn; None if that is not possible."""
        data = self.data
        if not data.first <= turn <= self._last:
            return None
        if turn >= data.turn and self._entry.status is not EntryStatus.COMPLETED:
            # The entry of the loop already has the state of this turn, or of one before it.
            return LoopStart(self, turn, data)
        exact = next((base for base, last in self._bases() if base.first <= turn <= last), None)
        if exact is None:
            return self._repeated(turn)
        at = exact.at if exact.turn == turn else self._began(turn)
        return LoopStart(self, turn, self._begun_with(exact, turn, at))

    def _repeated(self, turn: int) -> LoopStart | None:
        """Begin with the nearest earlier turn whose state is known. The turns up to this one are replayed."""
        before = [base for base, _ in self._bases() if self.data.first <= base.turn <= turn]
        if not before:
            return None
        nearest = max(before, key=lambda base: base.turn)
        return LoopStart(self, turn, self._begun_with(nearest, nearest.turn, nearest.at))

    def _begun_with(self, base: Base, turn: int, at: float) -> LoopData:
        coarse = min(self.data.coarse, turn)
        return replace(self.data, turn=turn, state=base.state, at=at, since=base.first, coarse=coarse)

    def _bases(self) -> list[tuple[Base, int]]:
        """All known states, each with the last turn that began with it."""
        found: list[tuple[Base, int]] = []
        for last, bases in self._rows:
            ends = [*(following.first - 1 for following in bases[1:]), last]
            found += zip(bases, ends, strict=True)
        data = self.data
        found.append((Base(data.since, data.turn, data.at, data.state), min(data.turn, self._last)))
        return found

    def _began(self, turn: int) -> float:
        """When a turn began: at the end of all that is known of the turns before it."""
        known = [base.at for base, _ in self._bases() if base.turn <= turn]
        before = [entry.finished_at or 0.0 for number, found in self._turns.items() if number < turn for entry in found]
        if turn and turn - 1 not in self._turns:
            # Nothing is known of the turn before. So take the time of the first operation in this one, which began
            # soon.
            before += [min((entry.created_at for entry in self._turns.get(turn, [])), default=0.0)]
        return max([self._entry.created_at, *known, *before])

    def ended(self, turn: int) -> float:
        """When a turn ended; if it has not, when it began."""
        found = self._turns.get(turn, [])
        is_over = turn < self._last or self._entry.is_final
        ends = [entry.finished_at for entry in found if entry.finished_at is not None]
        if is_over and ends:
            return max(ends)
        return min((entry.created_at for entry in found), default=self._began(turn))

    def rewind(self, turn: int, data: LoopData, keys: InstanceKeys) -> list[Write]:
        """The writes that delete the turns after this one, and the states that `data` replaces."""
        begin, end = self.turn_location(turn + 1), subtree(self.location)[1]
        spaces = [keys.space + part for part in (HISTORY, METADATA, BASES, CHANGES, FOLDED, PATCHED)]
        writes: list[Write] = [ClearRange(space + begin, space + end) for space in spaces]
        for last, bases in self._rows:
            if last < data.since:
                continue
            writes.append(Clear(keys.space + BASES + self.turn_location(last)))
            last = min(last, data.since - 1)
            kept = [base for base in bases if base.first <= last]
            if kept and last >= data.first:
                writes.append(Set(keys.space + BASES + self.turn_location(last), pack_bases(kept)))
        return writes


class LoopStart(NamedTuple):
    """A loop that begins again with one of its turns."""

    loop: LoopTape
    turn: int
    """The turn that happens again: from its beginning, or from the part of it that is deleted."""
    data: LoopData
    """The data to be stored of the loop. If its turn is an earlier one, the turns between the two are replayed."""

    def rewind(self, keys: InstanceKeys) -> list[Write]:
        """The writes that delete what the loop has recorded of later turns."""
        return self.loop.rewind(self.turn, self.data, keys)
