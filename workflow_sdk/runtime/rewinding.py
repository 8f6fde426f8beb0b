"""Rewriting a history so that part of it happens again: `recover` of a failed instance, and `restart_from`.

Pure but for the reading: what is read is turned into the writes of one commit, which also takes the instance away from
whoever has it.
"""

from __future__ import annotations

from collections.abc import Iterable

from workflow_sdk.core.compensation import Compensation
from workflow_sdk.core.entries import BranchesData, Entry, ListenData
from workflow_sdk.core.inbox import InboxMessage
from workflow_sdk.core.keys import (
    ATTIC,
    COMPENSATIONS,
    HISTORY,
    INBOX,
    METADATA,
    NAMES,
    TAKINGS,
    InstanceKeys,
    sequence_key,
)
from workflow_sdk.core.location import escape, join_path, segments, split_last
from workflow_sdk.core.status import EntryStatus, Kind
from workflow_sdk.core.wire import unpack_record
from workflow_sdk.driver import Batch, Driver
from workflow_sdk.errors import DefinitionError

__all__ = ["Tape"]


class Tape:
    """The history of one instance, to be rewound."""

    def __init__(self, keys: InstanceKeys) -> None:
        self._keys = keys
        self._entries: dict[bytes, Entry] = {}
        self._paths: dict[str, bytes] = {}
        self._compensations: list[Compensation] = []
        self._takings: list[tuple[bytes, bytes]] = []

    @classmethod
    async def read(cls, driver: Driver, keys: InstanceKeys) -> Tape:
        """Everything that is recorded of an instance."""
        tape = cls(keys)
        texts: dict[int, str] = {}
        for key, raw in await driver.scan(*keys.range(NAMES)):
            texts[_number(key[len(keys.space) + len(NAMES) :])] = unpack_record(raw)[0]
        start = len(keys.space) + len(HISTORY)
        for key, raw in await driver.scan(*keys.range(HISTORY)):
            tape._entries[key[start:]] = Entry.unpack(raw)
        for location in tape._entries:
            tape._paths[tape._path(location, texts)] = location
        for key, raw in await driver.scan(*keys.range(COMPENSATIONS)):
            number = _number(key[len(keys.space) + len(COMPENSATIONS) :])
            tape._compensations.append(Compensation.unpack(number, raw))
        tape._takings = await driver.scan(*keys.range(TAKINGS))
        return tape

    def _path(self, location: bytes, texts: dict[int, str]) -> str:
        path, at = "", b""
        while at != location:
            rest = location[len(at) :]
            segment = _first(rest)
            (found,) = segments(segment)
            if isinstance(found, tuple):
                loop = self._entries.get(at)
                label = f"~{found[1]}" if loop is not None and loop.kind is Kind.LOOP else str(found[1])
            else:
                label = escape(texts.get(found, f"?{found}"))
            path, at = join_path(path, label), at + segment
        return path

    def retry(self, batch: Batch, culprits: Iterable[str]) -> None:
        """Forget the failures at these paths, and that what is around them has failed by them."""
        for path in culprits:
            location = self._paths.get(path)
            if location is not None:
                self._drop(batch, location)
                self._reopen_around(batch, location)

    def restart(self, batch: Batch) -> None:
        """Forget everything, and give back the messages that were taken."""
        for location in self._entries:
            self._give_back(batch, location)
        for key, _ in self._takings:
            batch.clear(key)
        for part in (NAMES, HISTORY, METADATA, COMPENSATIONS, ATTIC):
            batch.clear_range(*self._keys.range(part))

    def restart_from(self, batch: Batch, path: str) -> None:
        """Forget the entry at a path, and all that finished after it."""
        location = self._paths.get(path)
        if location is None:
            raise DefinitionError(f"there is no entry {path!r} to restart from; `history()` shows those that there are")
        self._refuse_loops(path, location)
        target = self._entries[location]
        end = target.finished_at if target.finished_at is not None else target.created_at
        dropped = [at for at, entry in self._entries.items() if self._is_later(at, entry, location, target, end)]
        for at in dropped:
            self._give_back(batch, at)
            self._drop(batch, at)
        for at in dropped:
            self._reopen_around(batch, at)
        gone = set(dropped)
        for compensation in self._compensations:
            if compensation.location in gone:
                batch.clear(self._keys.space + sequence_key(compensation.sequence))

    def _is_later(self, at: bytes, entry: Entry, location: bytes, target: Entry, end: float) -> bool:
        if at.startswith(location):
            return True
        if location.startswith(at):
            return False
        scope, _ = split_last(location)
        if split_last(at)[0] == scope:
            return entry.ordinal > target.ordinal
        if entry.kind.is_composite:
            return entry.created_at > end
        return entry.created_at > end or (entry.finished_at is not None and entry.finished_at > end)

    def _refuse_loops(self, path: str, location: bytes) -> None:
        around = location
        while around:
            around, _ = split_last(around)
            entry = self._entries.get(around)
            if entry is not None and entry.kind is Kind.LOOP:
                raise DefinitionError(
                    f"{path!r} is inside a loop, whose turns keep no state of their own; restart from the loop itself"
                )

    def _drop(self, batch: Batch, location: bytes) -> None:
        batch.clear(self._keys.space + HISTORY + location)
        batch.clear(self._keys.space + METADATA + location)

    def _reopen_around(self, batch: Batch, location: bytes) -> None:
        """What is around something that happens again is not over."""
        around = location
        while around:
            around, _ = split_last(around)
            entry = self._entries.get(around)
            if entry is None or not entry.is_final:
                continue
            if entry.kind is Kind.BRANCH:
                self._drop(batch, around)
                continue
            again = Entry(entry.kind, entry.ordinal, entry.created_at, status=EntryStatus.RUNNING, data=entry.data)
            if isinstance(entry.data, BranchesData):
                again.data = BranchesData(entry.data.names, entry.data.count)
            batch.set(self._keys.space + HISTORY + around, again.pack())

    def _give_back(self, batch: Batch, location: bytes) -> None:
        data = self._entries[location].data
        if isinstance(data, ListenData):
            for taken, payload in data.taken:
                message = InboxMessage(taken.id, taken.name, payload, taken.sent_at, taken.reply_to)
                batch.set(self._keys.space + INBOX + taken.id, message.pack())


def _first(packed: bytes) -> bytes:
    """The first segment of a packed location."""
    rest = packed
    while True:
        parent, _ = split_last(rest)
        if not parent:
            return rest
        rest = parent


def _number(packed: bytes) -> int:
    (number,) = segments(packed)
    assert isinstance(number, int), "names and compensations are numbered"
    return number
