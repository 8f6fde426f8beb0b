"""A part of a store that is one run's own, and notes what becomes of cells and effects in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Driver, Set, Write
from workflow_sdk.machines.effects import timer
from workflow_sdk.machines.rows import IntentRow
from workflow_sdk.rows.cells import CellState, SequenceRow
from workflow_sdk.rows.instance import CellRow, Head
from workflow_sdk.rows.keys import ROOT, Field
from workflow_sdk.rows.location import unpack
from workflow_sdk.rows.status import Status

Key = tuple[Any, ...]

_SPACES: Final = 1
_INBOX, _FIELDS, _CELL = 3, 4, 28
_STAMPS: Final = 21
_EFFECTS, _MACHINES = 17, 18
_OF_WORKERS: Final = ((6,), (7,), (8,), (9,), (_EFFECTS, 4))
"""What the keys begin with behind which the name of a worker stands."""
_END: Final = b"\xff"
ALL: Final = ROOT, ROOT + _END
"""The range of all that the engine stores."""


@dataclass
class Ledger:
    """What was committed of cells and effects, and which executors were called."""

    recorded: dict[str, str] = field(default_factory=dict[str, str])
    """The effects that were asked for, by the id of the intent."""
    settled: Counter[str] = field(default_factory=Counter[str])
    """How often an intent was settled."""
    called: list[str] = field(default_factory=list[str])
    """The intents for which an executor was called."""
    problems: list[str] = field(default_factory=list[str])
    stored: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict[int, list[str]](list))
    """What each commit has stored, in words, by its number."""

    def calls(self, intent_id: str, effect: str) -> None:
        """Note that an executor is called."""
        if intent_id not in self.recorded:
            self.problems.append(f"{effect} was begun before it was recorded (intent {intent_id})")
        if self.settled[intent_id]:
            self.problems.append(f"{effect} ran again, although its receipt was committed (intent {intent_id})")
        self.called.append(intent_id)

    def wrote(self, number: int, write: Write) -> None:
        """Note a write that was committed."""
        if isinstance(write, (Append, ClearRange)) or not write.key.startswith(ROOT):
            return
        key = parts(write.key)
        match key:
            case (17, 1, id):
                self._intent(number, id, write)
            case (1, id, 4, Field.CELL) if isinstance(write, Set):
                self.stored[number].append(f"{id} after {CellRow.unpack(write.value).sequence}")
            case (18, 3, *_) if isinstance(write, Set):
                self.stored[number].append("an event")
            case _:
                return

    def _intent(self, number: int, id: str, write: Set | Clear) -> None:
        if isinstance(write, Set):
            effect = IntentRow.unpack(write.value).effect
            if self.recorded.setdefault(id, effect) and self.settled[id]:
                self.problems.append(f"{effect} was recorded again after it was settled (intent {id})")
            self.stored[number].append(effect)
            return
        self.settled[id] += 1
        self.stored[number].append(f"receipt of {self.recorded.get(id, id)}")
        if self.settled[id] > 1:
            self.problems.append(f"intent {id} was settled {self.settled[id]} times")


class Space:
    """A driver of all keys of another one that begin with a prefix."""

    def __init__(self, driver: Driver, prefix: bytes, ledger: Ledger) -> None:
        self._driver = driver
        self._prefix = prefix
        self._ledger = ledger
        self.number: Callable[[], int] = lambda: 0
        """Tells the number of the commit that is under way."""

    async def get(self, key: bytes, /) -> bytes | None:
        return await self._driver.get(self._prefix + key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        prefix = self._prefix
        rows = await self._driver.scan(prefix + begin, prefix + end, limit=limit, reverse=reverse)
        return [(key[len(prefix) :], value) for key, value in rows]

    async def commit(self, batch: Batch, /) -> None:
        inside, number = Batch(), self.number()
        inside.checks = [(self._prefix + key, expected) for key, expected in batch.checks]
        inside.writes = [self._inside(write) for write in batch.writes]
        # What is on its way to the store gets there, whatever happens to the process; and it is noted.
        with anyio.CancelScope(shield=True):
            await self._driver.commit(inside)
            for write in batch.writes:
                self._ledger.wrote(number, write)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        await self._driver.changed(self._prefix + key, since)

    async def aclose(self) -> None:
        """The store is not its own."""

    async def forget(self) -> None:
        """Delete all that is in it."""
        batch = Batch()
        batch.clear_range(self._prefix, self._prefix + _END)
        await self._driver.commit(batch)

    def _inside(self, write: Write) -> Write:
        prefix = self._prefix
        match write:
            case Set(key, value):
                return Set(prefix + key, value)
            case Append(before, value):
                return Append(prefix + before, value)
            case Clear(key):
                return Clear(prefix + key)
            case ClearRange(begin, end):
                return ClearRange(prefix + begin, prefix + end)


def parts(key: bytes) -> Key:
    """A key, without what all keys begin with."""
    return unpack(key[len(ROOT) :])


@dataclass
class Found:
    """The rows of a store, by what they are of."""

    heads: dict[str, Head] = field(default_factory=dict[str, Head])
    cells: dict[str, CellRow] = field(default_factory=dict[str, CellRow])
    states: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """As the codec stores them."""
    pending: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict[str, "set[str]"](set))
    """The intents that each cell waits for."""
    queued: Counter[str] = field(default_factory=Counter[str])
    """How many messages each cell has."""
    intents: dict[str, IntentRow] = field(default_factory=dict[str, IntentRow])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """How far the counts of deleted cells were."""
    shapes: Counter[Key] = field(default_factory=Counter[Key])
    """The keys, without what is by chance."""

    @classmethod
    def among(cls, rows: Iterable[tuple[bytes, bytes]]) -> Found:
        """What there is among these rows."""
        found = cls()
        for place, raw in rows:
            key = parts(place)
            found._add(key, raw)
            if (shape := _shape(key)) is not None:
                found.shapes[shape] += 1
        return found

    def _add(self, key: Key, raw: bytes) -> None:
        match key:
            case (1, str(id), 4, Field.HEAD):
                self.heads[id] = Head.unpack(raw)
            case (1, str(id), 3, _):
                self.queued[id] += 1
            case (1, str(id), 4, Field.CELL):
                self.cells[id] = CellRow.unpack(raw)
            case (1, str(id), 28):
                self.states[id] = CellState.unpack(raw).state
            case (1, str(id), 28, intent):
                self.pending[id].add(str(intent))
            case (17, 1, str(id)):
                self.intents[id] = IntentRow.unpack(raw)
            case (18, 2, str(id)):
                self.counts[id] = SequenceRow.unpack(raw).sequence
            case _:
                return

    def is_still(self, effects: Iterable[str], now: float) -> bool:
        """Whether nothing is to be done now. `effects`: those that have an executor."""
        done = frozenset(effects)
        is_open = any(row.effect in done or (row.due is not None and row.due <= now) for row in self.intents.values())
        return not is_open and not any(self._is_busy(id, head.status) for id, head in self.heads.items())

    def _is_busy(self, id: str, status: Status) -> bool:
        return status in (Status.PENDING, Status.RUNNING) or (status is Status.WAITING and self.queued[id] > 0)

    @property
    def timers(self) -> Iterator[float]:
        """When timers are due."""
        return (row.due for row in self.intents.values() if row.effect == timer.name and row.due is not None)


def _shape(key: Key) -> Key | None:
    """A key without what is by chance; None, if it is by chance whether there is such a row."""
    match key:
        case (1, _, 4, 21, _) | (10, _) | (17, 3, _):
            return None  # messages are counted in whichever row is free; signals are kept once they were given
        case _:
            pass
    masked: list[Any] = [part if isinstance(part, (str, int)) else type(part).__name__ for part in key]
    for begin in _OF_WORKERS:
        if key[: len(begin)] == begin and len(key) > len(begin):
            masked[len(begin)] = "worker"
    return tuple(masked)
