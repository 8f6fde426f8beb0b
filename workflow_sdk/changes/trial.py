"""One attempt to make a change: what it reads, and what would be written.

Reads come one after the other, and others may write in between. A commit finds that out. Where there is none, since a
change writes nothing or raises, what it has read is looked at again: its answer, too, is one that held at some moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from secrets import randbelow, token_bytes
from typing import Any, Generic, TypeVar, cast

from sortedcontainers import SortedDict

from workflow_sdk.changes.change import Assume, Change, Draw, Get, Hold, Look, Retries, Scan, Signal, Writing
from workflow_sdk.driver import Batch, Clear, ClearRange, Driver, Set, Write

__all__ = ["Outcome", "Together", "Trial", "as_writes"]

T = TypeVar("T")

SIGNAL_BYTES = 16
LOOKS_MAX = 3
"""How often what a change has read is looked at again that writes nothing: others may write without end."""

_UNKNOWN: Any = object()


class Outcome(Generic[T]):
    """What came of one change: a value, or what it has raised."""

    __slots__ = ("checks", "error", "value")

    def __init__(self, value: T | None = None, error: Exception | None = None) -> None:
        self.value: T | None = value
        self.error: Exception | None = error
        self.checks: dict[bytes, bytes | None] = {}
        """The rows that have to be as they were read."""

    def get(self) -> T:
        """The value. Raises what the change has raised."""
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


class Overlay:
    """Rows as they will be after some writes."""

    __slots__ = ("cleared", "rows")

    def __init__(self) -> None:
        self.rows: SortedDict[bytes, bytes | None] = SortedDict()
        """Those that are written; None for one that is cleared."""
        self.cleared: list[ClearRange] = []

    def add(self, writes: Iterable[Write]) -> None:
        """Take more writes into account. What is appended can't be found: nobody knows its key."""
        for write in writes:
            if type(write) is Set:
                self.rows[write.key] = write.value
            elif type(write) is Clear:
                self.rows[write.key] = None
            elif type(write) is ClearRange:
                for key in list(self.rows.irange(*write, inclusive=(True, False))):
                    del self.rows[key]
                self.cleared.append(write)

    def get(self, key: bytes) -> Any:
        """A row as it will be; `_UNKNOWN` if the writes do not touch it."""
        raw: Any = self.rows.get(key, _UNKNOWN)
        return None if raw is _UNKNOWN and _is_in(key, self.cleared) else raw

    def covers(self, begin: bytes, end: bytes) -> bool:
        """Whether the writes touch a range."""
        if next(self.rows.irange(begin, end, inclusive=(True, False)), None) is not None:
            return True
        return any(first < end and begin < last for first, last in self.cleared)

    def over(self, rows: Iterable[tuple[bytes, bytes]], begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """The rows of a range as they will be, in order."""
        left = {key: raw for key, raw in rows if not _is_in(key, self.cleared)}
        for key in self.rows.irange(begin, end, inclusive=(True, False)):
            raw = self.rows[key]
            if raw is None:
                left.pop(key, None)
            else:
                left[key] = raw
        return sorted(left.items())


class Together:
    """Changes that go with one commit, as if one after the other."""

    __slots__ = ("batch", "checks", "overlay")

    def __init__(self) -> None:
        self.batch: Batch = Batch()
        self.checks: dict[bytes, bytes | None] = {}
        self.overlay: Overlay = Overlay()

    def overlaps(self, trial: Trial) -> bool:
        """Whether a change has read what these write, or something else where both have read."""
        overlay, checks = self.overlay, self.checks
        if any(checks.get(key, value) != value for key, value in trial.checks.items()):
            return True
        if any(overlay.get(key) is not _UNKNOWN for key in (*trial.checks, *trial.known)):
            return True
        return any(overlay.covers(begin, end) for begin, end in trial.scanned)

    def absorb(self, trial: Trial) -> None:
        """Take over what a change has come to."""
        for key, value in trial.checks.items():
            if key not in self.checks:
                self.checks[key] = value
                self.batch.checks.append((key, value))
        self.batch.writes += trial.writes
        self.overlay.add(trial.writes)


class Trial:
    """One attempt to make a change."""

    __slots__ = (
        "_before",
        "_driver",
        "_overlaid",
        "_overlay",
        "_ranges",
        "_reads",
        "_retries",
        "_token",
        "checks",
        "known",
        "scanned",
        "writes",
    )

    def __init__(self, driver: Driver, retries: int = 0, before: Together | None = None) -> None:
        self._driver = driver
        self._retries = retries
        self._before = before
        """What goes with the same commit, and comes before."""
        self._token = b""
        """What signals are set to."""
        self._reads = 0
        """How often the store was asked."""
        self.known: dict[bytes, bytes | None] = {}
        """Rows as they were read."""
        self._ranges: list[tuple[bytes, bytes]] = []
        """What was read whole: a row in there that is not known is not there."""
        self.scanned: list[tuple[bytes, bytes]] = []
        """All ranges that were read, whole or not."""
        self.checks: dict[bytes, bytes | None] = {}
        self.writes: list[Write] = []
        self._overlay: Overlay | None = None
        """Made when something is read after something was written."""
        self._overlaid = 0
        """How many of the writes it has."""

    def batch(self) -> Batch:
        """What is to be committed."""
        batch = Batch()
        batch.checks = list(self.checks.items())
        batch.writes = self.writes
        return batch

    async def make(self, change: Change[T]) -> Outcome[T]:
        """Make a change. What it raises is its outcome, and then it writes nothing.

        What the store raises is raised here: it is no outcome of the change.
        """
        looks = 0
        while True:
            outcome = await self._run(change)
            if outcome.error is not None:
                self.writes = []
            # What goes with others is checked by their commit.
            if self.writes or self._reads < 2 or self._before is not None or looks == LOOKS_MAX:
                break
            looks += 1
            if not await self._has_moved_on():
                break
            # Others have written between two of its reads, or what it has assumed is wrong.
            self.__init__(self._driver, self._retries + 1)  # type: ignore[misc]
        outcome.checks = self.checks
        if outcome.error is not None:
            self.checks = {}
        return outcome

    async def _has_moved_on(self) -> bool:
        for key, value in self.checks.items():
            if await self._driver.get(key) != value:
                return True
        return False

    async def _run(self, change: Change[T]) -> Outcome[T]:
        send = change.begin().send
        answer: Any = None
        while True:
            try:
                effect = send(answer)
            except StopIteration as stop:
                return Outcome(stop.value)
            except Exception as error:  # noqa: BLE001  # whatever it is, its caller gets it
                return Outcome(None, error)
            answer = None
            # By what comes most: a message takes some ten of them.
            if type(effect) is list:
                self._write(effect)
            elif type(effect) is Get:
                answer = await self._get(effect.key)
            elif type(effect) is Scan:
                answer = await self._scan(effect)
            elif type(effect) is Hold:
                for key in effect.keys:
                    await self._get(key)
            elif type(effect) is Look:
                answer = await self._look(effect.key)
            elif type(effect) is Assume:
                answer = await self._assume(effect)
            elif type(effect) is Draw:
                answer = randbelow(effect.below)
            elif type(effect) is Retries:
                answer = self._retries
            else:
                self._write([cast("Writing", effect)])

    def _write(self, writings: Sequence[Writing]) -> None:
        token = self._token = self._token or token_bytes(SIGNAL_BYTES)
        self.writes += as_writes(writings, token)

    async def _get(self, key: bytes) -> bytes | None:
        raw = self._planned(key) if self.writes or self._before is not None else _UNKNOWN
        if raw is _UNKNOWN:
            raw = self._seen(key)
            if raw is _UNKNOWN:
                raw = await self._ask(key)
            self.checks[key] = raw
        found: bytes | None = raw
        return found

    async def _look(self, key: bytes) -> bytes | None:
        raw = self._planned(key)
        if raw is _UNKNOWN:
            raw = self._seen(key)
        found: bytes | None = await self._ask(key) if raw is _UNKNOWN else raw
        return found

    async def _assume(self, assumed: Assume) -> bytes | None:
        key, value = assumed
        if self._retries or self._before is not None:
            return await self._get(key)
        raw = self._planned(key) if self.writes else _UNKNOWN
        found: bytes | None = self.checks.setdefault(key, value) if raw is _UNKNOWN else raw
        return found

    def _planned(self, key: bytes) -> Any:
        """What the commit makes of a row; `_UNKNOWN` if nothing."""
        if self.writes:
            raw = self._plans().get(key)
            if raw is not _UNKNOWN:
                return raw
        return _UNKNOWN if self._before is None else self._before.overlay.get(key)

    def _plans(self) -> Overlay:
        """What this change has written."""
        if self._overlay is None:
            self._overlay = Overlay()
        if self._overlaid < len(self.writes):
            self._overlay.add(self.writes[self._overlaid :])
            self._overlaid = len(self.writes)
        return self._overlay

    def _seen(self, key: bytes) -> Any:
        """A row as it was read; `_UNKNOWN` if it was not."""
        if key in self.checks:
            return self.checks[key]
        if key in self.known:
            return self.known[key]
        if self._before is not None and key in self._before.checks:
            return self._before.checks[key]
        return None if self._ranges and _is_in(key, self._ranges) else _UNKNOWN

    async def _ask(self, key: bytes) -> bytes | None:
        self._reads += 1
        raw = self.known[key] = await self._driver.get(key)
        return raw

    async def _scan(self, effect: Scan) -> list[tuple[bytes, bytes]]:
        begin, end, limit, reverse = effect
        self.scanned.append((begin, end))
        plans = [] if self._before is None else [self._before.overlay]
        if self.writes:
            plans.append(self._plans())
        plans = [plan for plan in plans if plan.covers(begin, end)]
        # What is cleared takes up no room, however much of it there is.
        most = None if plans else limit
        self._reads += 1
        rows = await self._driver.scan(begin, end, limit=most, reverse=reverse)
        if most is None or len(rows) < most:
            # Of what is read in parts, since it may be large, nothing is kept.
            self._ranges.append((begin, end))
            known = self.known
            for key, raw in rows:
                known.setdefault(key, raw)
        for plan in plans:
            rows = plan.over(rows, begin, end)
        if plans and reverse:
            rows.reverse()
        return rows if limit is None else rows[:limit]


def _is_in(key: bytes, ranges: Sequence[tuple[bytes, bytes]]) -> bool:
    # Not with `any`, which takes a call more for each.
    for begin, end in ranges:  # noqa: SIM110
        if begin <= key < end:
            return True
    return False


def as_writes(writings: Sequence[Writing], token: bytes) -> list[Write]:
    """Writes for a batch, in which signals are set to a token that they never had."""
    return [Set(each.key, token) if type(each) is Signal else cast("Write", each) for each in writings]
