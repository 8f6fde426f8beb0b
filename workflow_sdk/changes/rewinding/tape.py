"""Rewriting a history so that part of it happens again: `recover` of a failed instance, and `restart_from`.

Pure but for the reading: what is read is turned into the writes of one commit, which also takes the instance away from
whoever has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from sortedcontainers import SortedDict

from workflow_sdk.changes.change import Steps, scan
from workflow_sdk.changes.decide import INBOX_PAGE
from workflow_sdk.changes.rewinding.left_children import Left, find_left
from workflow_sdk.changes.rewinding.loop_tape import LoopTape, turn_of
from workflow_sdk.changes.rewinding.regaining import regain_names
from workflow_sdk.changes.rewinding.rewound_state import Assigned, rewind_changes
from workflow_sdk.core.compensation import Compensation, Progress
from workflow_sdk.core.entries import BranchesData, ChildData, Entry, ListenData, LoopData, read_token
from workflow_sdk.core.inbox import InboxMessage, TakingRow
from workflow_sdk.core.keys import (
    ATTIC,
    BASES,
    CHANGES,
    COMPENSATIONS,
    FOLDED,
    HISTORY,
    INBOX,
    METADATA,
    NAMES,
    OUTSIDE,
    TAKINGS,
    InstanceKeys,
    sequence_key,
)
from workflow_sdk.core.location import escape, join_path, pack_segment, segments, split_last, subtree
from workflow_sdk.core.names import NameRow
from workflow_sdk.core.outside import Errand, Hanging
from workflow_sdk.core.status import Kind
from workflow_sdk.core.wire import damaged
from workflow_sdk.driver import Batch
from workflow_sdk.errors import DefinitionError

__all__ = ["Tape"]

DIGITS_MAX = 18
_SIDE_BY_SIDE = (Kind.JOIN, Kind.RACE, Kind.MAP)


class Tape:
    """The history of one instance, to be rewound."""

    def __init__(self, keys: InstanceKeys) -> None:
        self._keys = keys
        self._texts: dict[int, str] = {}
        self._entries: SortedDict[bytes, Entry] = SortedDict()
        self._paths: dict[str, bytes] = {}
        self._bases: dict[bytes, list[tuple[bytes, bytes]]] = {}
        """By the location of their loop."""
        self._compensations: list[Compensation] = []
        self._takings: list[bytes] = []
        """What their keys end with: the location of a listen, and a number."""
        self._outside: dict[bytes, Hanging] = {}
        """Children and tasks, by the location of the wait for them."""
        self._changed: list[bytes] = []
        """Locations of finished scopes that have changed what the world may see."""
        self._folded: dict[bytes, bytes] = {}
        """The same, of scopes inside finished ones and of turns of loops, with the rows."""
        self._attic: list[bytes] = []
        """Locations of what losers of races have left for their compensations."""
        self._left: dict[bytes, Left] = {}
        """Children that a cancel has left to themselves, by the location of the wait for them."""
        self.errands: list[Errand] = []
        """What is to be done once it is written: children and tasks to be ended that nobody waits for any more."""
        self.given_back: int = 0
        """How many messages are in the inbox again."""
        self._elsewhere: list[bytes] = []
        """Locations that stand neither in the history nor with it."""

    @classmethod
    def read(cls, keys: InstanceKeys) -> Steps[Tape]:
        """Everything that is recorded of an instance."""
        tape = cls(keys)

        def part(which: bytes) -> Steps[list[tuple[bytes, bytes]]]:
            start = len(keys.space) + len(which)
            return [(key[start:], raw) for key, raw in (yield from scan(*keys.range(which)))]

        tape._texts = {_number(key): NameRow.unpack(raw).text for key, raw in (yield from part(NAMES))}
        tape._entries.update((at, Entry.unpack(raw)) for at, raw in (yield from part(HISTORY)))
        for location in tape._entries:
            for at in (*_around(location)[1:], location):
                # A branch that is under way has no entry.
                if at not in tape._entries and not tape._is_loop(split_last(at)[0]):
                    tape._paths[tape._path(at)] = at
            tape._paths[tape._path(location)] = location
        for turn, raw in (yield from part(BASES)):
            tape._bases.setdefault(split_last(turn)[0], []).append((turn, raw))
        tape._compensations = [Compensation.unpack(_number(key), raw) for key, raw in (yield from part(COMPENSATIONS))]
        tape._takings = [key for key, _ in (yield from part(TAKINGS))]
        tape._outside = {at: Hanging.unpack(raw) for at, raw in (yield from part(OUTSIDE))}
        tape._changed = [at for at, _ in (yield from part(CHANGES))]
        tape._folded = dict((yield from part(FOLDED)))
        tape._attic = [at for at, _ in (yield from part(ATTIC))]
        begin, end = keys.range(INBOX)
        while rows := (yield from scan(begin, end, limit=INBOX_PAGE)):  # nobody needs all of a long inbox at once
            for _, raw in rows:
                if (only_for := InboxMessage.unpack(b"", raw).only_for) is not None:
                    tape._elsewhere.append(read_token(only_for)[1])
            begin = rows[-1][0] + b"\x00"
        for at, entry in tape._entries.items():
            if isinstance(entry.data, ChildData) and not entry.is_final and at not in tape._outside:
                left = yield from find_left(keys, at, entry, entry.data)
                if left is not None:
                    tape._left[at] = left
        return tape

    def _path(self, location: bytes) -> str:
        path, at = "", b""
        for around in [*_around(location), location][1:]:
            (found,) = segments(around[len(at) :])
            if isinstance(found, tuple):
                loop = self._entries.get(at)
                label = f"~{found[1]}" if loop is not None and loop.kind is Kind.LOOP else str(found[1])
            else:
                label = escape(self._texts.get(found, f"?{found}"))
            path, at = join_path(path, label), around
        return path

    def retry(self, batch: Batch, culprits: Iterable[str]) -> None:
        """Forget the failures at these paths, and that what is around them has failed by them."""
        dropped = {self._paths[path] for path in culprits if path in self._paths}
        self._write(batch, dropped, dropped, {})

    def restart(self, batch: Batch) -> None:
        """Forget everything, and give back the messages that were taken."""
        for location in self._entries:
            self._give_back(batch, location)
        self._abandon(batch, set(self._outside))
        for part in (NAMES, HISTORY, METADATA, COMPENSATIONS, TAKINGS, ATTIC, BASES, CHANGES, FOLDED):
            batch.clear_range(*self._keys.range(part))

    def restart_from(self, batch: Batch, path: str) -> None:
        """Forget the entry at a path, or the turn of a loop, and all that finished after it."""
        location = self._locate(path)
        loops: dict[bytes, tuple[LoopTape, int, LoopData]] = {}
        self._rewind_around(location, path, loops)
        dropped = self._after(location) | self._orphans()
        self._drop_undone(loops, dropped)
        self._rewind_beside(loops, dropped)
        for at in dropped:
            self._give_back(batch, at)
        for tape, turn, data in loops.values():
            tape.rewind(batch, self._keys, turn, data)
        self._write(batch, dropped, {*dropped, location}, {at: data for at, (_, _, data) in loops.items()})

    @property
    def undoes_again(self) -> bool:
        """Whether something was undone already: what happens again is not what happened before."""
        return any(compensation.progress is Progress.DONE for compensation in self._compensations)

    def _rewind_around(self, location: bytes, path: str, loops: dict[bytes, tuple[LoopTape, int, LoopData]]) -> None:
        """The loops around a location begin again with its turns, or with earlier ones."""
        for around in _around(location):
            if self._is_loop(around):
                tape, turn = self._loop(around), turn_of(around, location)
                if around not in loops or turn < loops[around][1]:
                    loops[around] = (tape, turn, self._begin(tape, turn, path))

    def _orphans(self) -> set[bytes]:
        """Waits for children and tasks that a cancel has ended: they begin anew."""
        return {
            at
            for at, entry in self._entries.items()
            if entry.kind in (Kind.CHILD, Kind.TASK)
            and not entry.is_final
            and at not in self._outside
            and at not in self._left
        }

    def _drop_undone(self, loops: dict[bytes, tuple[LoopTape, int, LoopData]], dropped: set[bytes]) -> None:
        """What was undone is to happen again, and what finished after it."""
        for compensation in self._compensations:
            at, path = compensation.location, compensation.path
            if compensation.progress is not Progress.DONE or not dropped.isdisjoint([at, *_around(at)]):
                continue
            try:
                self._rewind_around(at, path, loops)
            except DefinitionError as error:
                outermost = next(around for around in _around(at) if self._is_loop(around))
                raise DefinitionError(
                    f"{path!r} was undone, and so it has to happen again. But {error}. Restart from "
                    f"{self._path(outermost)!r}, or from the beginning"
                ) from None
            if at in self._entries:
                dropped |= self._after(at)

    def _abandon(self, batch: Batch, locations: Iterable[bytes]) -> None:
        """Nobody waits any more for the children and tasks at these locations."""
        for at in locations:
            what = self._outside[at]
            batch.clear(self._keys.space + OUTSIDE + at)
            if what.ends:
                token = pack_segment(what.since) + at
                self.errands.append(Errand(what.kind, what.id, self._keys.instance_id, token, rollback=False))

    def _is_loop(self, location: bytes) -> bool:
        entry = self._entries.get(location)
        return entry is not None and entry.kind is Kind.LOOP

    def _loop(self, location: bytes) -> LoopTape:
        inside = {at: self._entries[at] for at in self._inside(location)}
        return LoopTape(location, self._entries[location], inside, self._bases.get(location, []))

    def _inside(self, location: bytes) -> Iterator[bytes]:
        return self._entries.irange(*subtree(location))

    def _locate(self, path: str) -> bytes:
        """The location of an entry, or of a turn."""
        if path in self._paths:
            return self._paths[path]
        # A turn has no entry of its own; and if it is forgotten, nothing under it has one.
        parts = path.split("/")
        for size in range(len(parts) - 1, 0, -1):
            around, number = self._paths.get("/".join(parts[:size])), parts[size][1:]
            if around is None or not self._is_loop(around) or parts[size][:1] != "~" or not number.isdecimal():
                continue
            # No turn has a number of more digits; nor would Python read it.
            tape, turn = self._loop(around), int(number[:DIGITS_MAX])
            self._begin(tape, turn, path)
            if size == len(parts) - 1:
                return tape.turn_location(turn)
            break
        raise DefinitionError(f"there is no entry {path!r} to restart from; `history()` shows those that there are")

    def _begin(self, tape: LoopTape, turn: int, path: str) -> LoopData:
        data = tape.from_turn(turn)
        if data is None:
            there = tape.startable()
            known = f"there are the turns ~{there[0]} to ~{there[-1]}" if there else "it keeps none"
            raise DefinitionError(
                f"can't restart from {path!r}: the history of turn ~{turn} of loop {self._path(tape.location)!r} "
                f"is not there; {known}"
            )
        return data

    def _after(self, location: bytes) -> set[bytes]:
        """What is at or under a location, and what came after it."""
        target = self._entries.get(location)
        around, _ = split_last(location)
        if target is None and self._is_loop(around):
            end = self._loop(around).ended(turn_of(around, location))
        elif target is None:
            end = inf  # a branch that is under way: nothing came after it
        else:
            end = target.created_at if target.finished_at is None else target.finished_at
        line = [*_around(location), location]
        dropped: set[bytes] = set()
        for at, entry in self._entries.items():
            # Sorted by location: what is around an entry comes before it.
            if not dropped.isdisjoint(_around(at)) or self._is_after(at, entry, line, end):
                dropped.add(at)
        return dropped

    def _is_after(self, at: bytes, entry: Entry, line: list[bytes], end: float) -> bool:
        if at.startswith(line[-1]):
            return True
        depth = max(number for number, around in enumerate(line) if at.startswith(around))
        fork, own = line[depth], line[depth + 1]
        if at == fork:
            return False
        around = self._entries.get(fork)
        kind = None if around is None else around.kind
        if kind is Kind.LOOP:
            return turn_of(fork, at) > turn_of(fork, own)
        if kind not in _SIDE_BY_SIDE:
            return self._entries[fork + _first(at[len(fork) :])].ordinal > self._entries[own].ordinal
        if entry.kind.is_composite:
            return entry.created_at > end
        return entry.created_at > end or (entry.finished_at is not None and entry.finished_at > end)

    def _rewind_beside(self, loops: dict[bytes, tuple[LoopTape, int, LoopData]], dropped: set[bytes]) -> None:
        """Loops beside the target, too, begin again with the first turn in which something is forgotten."""
        beside = {around for at in dropped for around in _around(at) if self._is_loop(around)} - loops.keys()
        for location in sorted(beside, key=len):
            inside = set(self._inside(location))
            if location in dropped or inside.isdisjoint(dropped):
                continue
            tape = self._loop(location)
            first = min(turn_of(location, at) for at in inside & dropped)
            start = next((turn for turn in tape.startable() if turn >= first), None)
            for at in inside:
                turn = turn_of(location, at)
                if start is None or turn < start:
                    dropped.discard(at)
                elif turn > start:
                    dropped.add(at)
            data = None if start is None else tape.from_turn(start)
            if start is not None and data is not None:
                loops[location] = (tape, start, data)

    def _write(self, batch: Batch, dropped: set[bytes], again: set[bytes], loops: dict[bytes, LoopData]) -> None:
        """Drop entries, and open again what is around those that happen again."""
        space = self._keys.space
        entries = {at: entry for at, entry in self._entries.items() if at not in dropped}
        reopened: set[bytes] = set()
        for around in {around for at in again for around in _around(at)} & entries.keys():
            entry = entries[around]
            if entry.kind is Kind.BRANCH:
                del entries[around]
            elif entry.is_final:
                reopened.add(around)
                data = entry.data if not isinstance(entry.data, BranchesData) else _undecided(entry.data)
                entries[around] = Entry(entry.kind, entry.ordinal, entry.created_at, data=data)
        for at in self._entries.keys() - entries.keys():
            batch.clear(space + HISTORY + at)
            batch.clear(space + METADATA + at)
            if self._is_loop(at):
                batch.clear_range(*subtree(space + BASES + at))
        self._abandon(batch, self._outside.keys() - entries.keys())
        for at in self._left.keys() & entries.keys():
            self._left[at].wait_again(batch, self._keys, at)
        rewind_changes(batch, self._keys, Assigned(self._changed, self._folded), entries, reopened, loops)
        for at in reopened | loops.keys():
            entry = entries[at]
            if at in loops:
                entry.data = loops[at]
            batch.set(space + HISTORY + at, entry.pack())
        stand = [*entries, *self._elsewhere, *self._write_takings(batch, entries, reopened)]
        # A branch that lost has left no history that could be dropped, but the race that it was in.
        for at in self._attic:
            if dropped.isdisjoint([at, *_around(at)]):
                stand.append(at)
            else:
                batch.clear(space + ATTIC + at)
        for compensation in self._compensations:
            if dropped.isdisjoint([compensation.location, *_around(compensation.location)]):
                stand.append(compensation.location)
                if compensation.progress in (Progress.RETRYING, Progress.EXHAUSTED):
                    fresh = replace(compensation, progress=Progress.OPEN, attempts=0, retry_at=None)
                    batch.set(space + sequence_key(fresh.sequence), fresh.pack())
            else:
                batch.clear(space + sequence_key(compensation.sequence))
        regain_names(batch, self._keys, self._texts, entries, stand, reopened)

    def _write_takings(self, batch: Batch, entries: dict[bytes, Entry], reopened: set[bytes]) -> list[bytes]:
        """What was taken in a race that is open again is given back if its branch loses. The locations of all such."""
        kept = {split_last(key)[0] for key in self._takings} & entries.keys()
        for key in self._takings:
            if split_last(key)[0] not in kept:
                batch.clear(self._keys.space + TAKINGS + key)
        races = {at for at in reopened if entries[at].kind is Kind.RACE}
        for at in entries:
            if races and any(around in races for around in _around(at)):
                for number, message in enumerate(_taken(entries[at])):
                    key = self._keys.space + TAKINGS + at + pack_segment(number)
                    batch.set(key, TakingRow(message.id, message.pack()).pack())
        return list(kept)

    def _give_back(self, batch: Batch, location: bytes) -> None:
        for message in _taken(self._entries[location]):
            self.given_back += 1
            batch.set(self._keys.space + INBOX + message.id, message.pack())


def _undecided(data: BranchesData) -> BranchesData:
    return BranchesData(data.names, data.count)


def _taken(entry: Entry) -> Iterator[InboxMessage]:
    """The messages that a listen took."""
    if isinstance(entry.data, ListenData):
        for taken in entry.data.taken:
            yield InboxMessage(taken.id, taken.name, taken.payload, taken.sent_at, taken.reply_to)


def _around(location: bytes) -> list[bytes]:
    """The locations that a location is under, outermost first: the root's is empty."""
    found: list[bytes] = []
    while location:
        location, _ = split_last(location)
        found.append(location)
    return found[::-1]


def _first(packed: bytes) -> bytes:
    """The first segment of a packed location."""
    return [*_around(packed), packed][1]


def _number(packed: bytes) -> int:
    number = next(segments(packed), None)
    if not isinstance(number, int):
        raise damaged("a number")
    return number
