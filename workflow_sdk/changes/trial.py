"""One try of a change: it reads for the change, and collects what the change would write.

Reads come one after the other, and others may write in between. A commit finds that out by its checks. If there is no
commit, since the change writes nothing or raises, the checked rows are read once more and compared: so its value or
error, too, was right at some moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from secrets import randbelow, token_bytes
from typing import Any, Generic, TypeVar, cast

from sortedcontainers import SortedDict

from workflow_sdk.changes.change import Assume, Change, Draw, Effect, Get, Hold, Look, Retries, Scan, Signal, Writing
from workflow_sdk.driver import Batch, Clear, ClearRange, Driver, Set, Write

T = TypeVar("T")

SIGNAL_BYTES = 16
LOOKS_MAX = 3
"""How often a change that writes nothing is made again since others have written: they may do so without end."""

_UNKNOWN: Any = object()


class Outcome(Generic[T]):
    """The outcome of one change: its value, or the error that it raised."""

    __slots__ = ("checks", "error", "value")

    def __init__(self, value: T | None = None, error: Exception | None = None) -> None:
        self.value: T | None = value
        self.error: Exception | None = error
        self.checks: dict[bytes, bytes | None] = {}
        """The rows that the commit has to check, with the values that were read."""

    def get(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


class Overlay:
    """Rows as they will be after some writes that are not committed yet."""

    __slots__ = ("cleared", "rows")

    def __init__(self) -> None:
        self.rows: SortedDict[bytes, bytes | None] = SortedDict()
        """The value of each row that is written; None if it is cleared."""
        self.cleared: list[ClearRange] = []

    def add(self, writes: Iterable[Write]) -> None:
        """Take in more writes. Appended rows can't be read back, since the commit makes their keys."""
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
        """The value that a row will have; `_UNKNOWN` if the writes do not touch it."""
        raw: Any = self.rows.get(key, _UNKNOWN)
        return None if raw is _UNKNOWN and _is_in(key, self.cleared) else raw

    def covers(self, begin: bytes, end: bytes) -> bool:
        """Whether the writes touch any row of a range."""
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
    """Changes that are made in one commit, as if one after the other."""

    __slots__ = ("batch", "checks", "overlay")

    def __init__(self) -> None:
        self.batch: Batch = Batch()
        self.checks: dict[bytes, bytes | None] = {}
        self.overlay: Overlay = Overlay()

    def overlaps(self, trial: Trial) -> bool:
        """Whether a trial has to be made again: it read a row that these changes write, or saw with another value."""
        overlay, checks = self.overlay, self.checks
        if any(checks.get(key, value) != value for key, value in trial.checks.items()):
            return True
        if any(overlay.get(key) is not _UNKNOWN for key in (*trial.checks, *trial.known)):
            return True
        return any(overlay.covers(begin, end) for begin, end in trial.scanned)

    def absorb(self, trial: Trial) -> None:
        """Add the checks and writes of a trial."""
        for key, value in trial.checks.items():
            if key not in self.checks:
                self.checks[key] = value
                self.batch.checks.append((key, value))
        self.batch.writes += trial.writes
        self.overlay.add(trial.writes)


class Trial:
    """One try of a change."""

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
        """The changes that come before this one in the same commit."""
        self._begin()

    def _begin(self) -> None:
        """Forget what was read and written, to make the change from its beginning."""
        self._token = b""
        """The value to which signals are set."""
        self._reads = 0
        """How many reads of the store there were."""
        self.known: dict[bytes, bytes | None] = {}
        """Rows as they were read."""
        self._ranges: list[tuple[bytes, bytes]] = []
        """The ranges that were read whole: a row in one of them that is not in `known` is not there."""
        self.scanned: list[tuple[bytes, bytes]] = []
        """All ranges that were read, whole or not."""
        self.checks: dict[bytes, bytes | None] = {}
        self.writes: list[Write] = []
        self._overlay: Overlay | None = None
        """The writes so far, for reads that come after a write. Made with the first of these."""
        self._overlaid = 0
        """How many of the writes are in the overlay."""

    def batch(self) -> Batch:
        """The batch to be committed."""
        batch = Batch()
        batch.checks = list(self.checks.items())
        batch.writes = self.writes
        return batch

    async def make(self, change: Change[T]) -> Outcome[T]:
        """Run a change to its outcome. An error that it raises is its outcome; then it writes nothing.

        An error of the store is not an outcome of the change: it is raised here.
        """
        looks = 0
        while True:
            outcome = await self._run(change)
            if outcome.error is not None:
                self.writes = []
            # With writes, the commit checks what was read, and so does the commit of the changes that come before. One
            # read alone is right at its moment.
            if self.writes or self._reads < 2 or self._before is not None or looks == LOOKS_MAX:
                break
            looks += 1
            if not await has_moved_on(self._driver, self.checks.items()):
                break
            # Others have written between two of its reads, or an assumption was wrong.
            self._retries += 1
            self._begin()
        outcome.checks = self.checks
        if outcome.error is not None:
            self.checks = {}
        return outcome

    async def _run(self, change: Change[T]) -> Outcome[T]:
        send = change.begin().send
        answer: Any = None
        while True:
            try:
                effect = send(answer)
            except StopIteration as stop:
                return Outcome(stop.value)
            except Exception as error:  # noqa: BLE001  # whatever the change raises, its caller gets it
                return Outcome(None, error)
            answer = None
            # The most frequent effects come first: a message takes about ten of them.
            if type(effect) is list:
                self._write(effect)
            elif type(effect) is Get:
                answer = await self._get(effect.key)
            elif type(effect) is Scan:
                answer = await self._scan(effect)
            elif type(effect) is Hold:
                await self._hold(effect.keys)
            elif type(effect) is Look:
                answer = await self._look(effect.key)
            elif type(effect) is Assume:
                answer = await self._assume(effect)
            else:
                answer = self._do(effect)

    def _do(self, effect: Effect) -> int | None:
        """Do an effect that needs no read; return the answer."""
        if type(effect) is Draw:
            return randbelow(effect.below)
        if type(effect) is Retries:
            return self._retries
        self._write([cast("Writing", effect)])
        return None

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

    async def _hold(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            raw = _UNKNOWN if self.writes or self._before is not None else self._seen(key)
            if raw is _UNKNOWN:
                await self._get(key)
            else:
                self.checks[key] = raw  # the same as `_get` does, without the cost of a coroutine

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
        """The value that a row will have after the writes so far; `_UNKNOWN` if they do not touch it."""
        if self.writes:
            raw = self._plans().get(key)
            if raw is not _UNKNOWN:
                return raw
        return _UNKNOWN if self._before is None else self._before.overlay.get(key)

    def _plans(self) -> Overlay:
        """The rows as they will be after the writes of this change so far."""
        if self._overlay is None:
            self._overlay = Overlay()
        if self._overlaid < len(self.writes):
            self._overlay.add(self.writes[self._overlaid :])
            self._overlaid = len(self.writes)
        return self._overlay

    def _seen(self, key: bytes) -> Any:
        """The value of a row when it was read; `_UNKNOWN` if it was not read."""
        raw: Any = self.checks.get(key, _UNKNOWN)
        if raw is _UNKNOWN:
            raw = self.known.get(key, _UNKNOWN)
        if raw is not _UNKNOWN:
            return raw
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
        if not plans:
            return await self._ask_range(begin, end, limit, reverse=reverse)
        # The limit is applied at the end: rows that are cleared must not count, and nobody knows how many there are.
        rows = await self._ask_range(begin, end, None, reverse=reverse)
        for plan in plans:
            rows = plan.over(rows, begin, end)
        if reverse:
            rows.reverse()
        return rows if limit is None else rows[:limit]

    async def _ask_range(
        self, begin: bytes, end: bytes, limit: int | None, *, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        self._reads += 1
        rows = await self._driver.scan(begin, end, limit=limit, reverse=reverse)
        if limit is None or len(rows) < limit:
            # Only ranges that were read whole are kept. Those that are read in parts may be large.
            self._ranges.append((begin, end))
            known = self.known
            for key, raw in rows:
                known.setdefault(key, raw)
        return rows


async def has_moved_on(driver: Driver, checks: Iterable[tuple[bytes, bytes | None]]) -> bool:
    """Whether one of these rows does not hold the expected value any more."""
    for key, expected in checks:
        if await driver.get(key) != expected:
            return True
    return False


def _is_in(key: bytes, ranges: Sequence[tuple[bytes, bytes]]) -> bool:
    # Without `any`, whose generator would cost a call for each range.
    for begin, end in ranges:  # noqa: SIM110
        if begin <= key < end:
            return True
    return False


def as_writes(writings: Sequence[Writing], token: bytes) -> list[Write]:
    """The writes for a batch. Signals are set to this token, which must be new."""
    writes: list[Any] = [Set(each.key, token) if type(each) is Signal else each for each in writings]
    return writes
