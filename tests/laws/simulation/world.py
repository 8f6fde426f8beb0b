"""A world of several workers in virtual time, in which everything happens by one seed.

It runs on trio, whose clock jumps when every task waits, and whose scheduler takes the tasks that are ready in an order
by chance. Each worker has a clock of its own that is wrong, is set, and stands still at times, and a driver that takes
its time, loses itself, wakes up late, and stands still while the worker is paused. The store under all of them is one,
and sees to it that the laws hold at every commit.
"""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The order of tasks can only be chosen from inside of trio.

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn
from uuid import UUID

import anyio
import pytest
import trio
import trio.testing

from workflow_drivers import memory
from workflow_drivers.memory import MemoryDriver
from workflow_sdk.doors import runtime
from workflow_sdk.driver import Batch, Set
from workflow_sdk.errors import StorageError
from workflow_sdk.instance import waits as turns
from workflow_sdk.instance.clock import Activity, Timeout
from workflow_sdk.journal.names import NameRow
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.instance import Head
from workflow_sdk.rows.keys import (
    COMPENSATIONS,
    HISTORY,
    MARKINGS,
    METADATA,
    NAMES,
    TAKINGS,
    WAITS,
    Field,
    InstanceKeys,
)
from workflow_sdk.rows.location import segments
from workflow_sdk.rows.status import Kind, Status
from workflow_sdk.testing import SimulatedCrash
from workflow_sdk.worker import lease, stalls
from workflow_sdk.worker import run_workflow as calling

__all__ = ["Laws", "Simulated", "Worker", "current", "in_virtual_time"]

START = 2_000_000_000.0


class Laws:
    """The store, and what every commit to it has to keep. A commit that breaks a law fails the simulation."""

    def __init__(self, ids: list[str]) -> None:
        self.inner = MemoryDriver()
        self.broken: list[str] = []
        self.trace: list[tuple[float, str]] = []
        self._keys = {id: InstanceKeys(id) for id in ids}
        self._status: dict[str, Status] = {}
        self._names: dict[str, dict[int, str]] = {id: {} for id in ids}
        self._owner: dict[str, str] = {}
        self._done: set[tuple[str, str]] = set()
        self.deadly: frozenset[str] = frozenset()
        """Instances that kill their workers. No other one is ever stuck."""

    @property
    def owners(self) -> set[str]:
        """Who has an instance."""
        return set(self._owner.values())

    def begins(self, id: str, step: str, who: str) -> None:
        """The code of a step is called. Who has the lease knows what is done; who was fenced may not know that yet."""
        if (id, step) in self._done and self._owner.get(id) == who:
            self.broken.append(f"{who} runs {step} of {id} again, whose outcome is committed")

    def commit(self, batch: Batch, who: str) -> None:
        """Apply it, and look at it."""
        # At once, and looked at at once: nobody comes in between.
        self.inner._store.apply(batch)
        self.trace.append((trio.current_time(), f"{who}: {len(batch.checks)} {len(batch.writes)}"))
        for id, keys in self._keys.items():
            if any(write[0].startswith(keys.space) for write in batch.writes):
                self._look(id, keys, batch, who)

    def _look(self, id: str, keys: InstanceKeys, batch: Batch, who: str) -> None:
        self._note(id, keys, batch, who)
        records = any(write[0].startswith(tuple(keys.space + part for part in _ENGINES)) for write in batch.writes)
        if records and not any(key == keys.lease for key, _ in batch.checks):
            self.broken.append(f"{who} wrote to {id} without being held to its lease")
        rows = self.inner._store.rows
        raw = rows.get(keys.field(Field.HEAD))
        assert raw is not None, "an instance has a status"
        head = Head.unpack(raw)
        status, before = head.status, self._status.get(id)
        if before is not None and before.is_terminal and status is not before:
            self.broken.append(f"{id} was {before.value}, and {who} made it {status.value}")
        self._status[id] = status
        if status is Status.STUCK and id not in self.deadly:
            self.broken.append(f"{id} is stuck, and nothing is wrong with it, after {who}")
        owned = keys.lease in rows
        has_alarm = head.alarm is not None
        if has_alarm and (owned or status.is_terminal):
            self.broken.append(f"{id} is {status.value}, and has an alarm that nobody needs, after {who}")
        if not owned and not has_alarm and status in _DUE:
            self.broken.append(f"{id} is {status.value}, and nobody will ever run it, after {who}")

    def _note(self, id: str, keys: InstanceKeys, batch: Batch, who: str) -> None:
        """Whose it is now, and what is done."""
        names, entries = keys.space + NAMES, keys.space + HISTORY
        for write in batch.writes:
            if write[0] == keys.lease:
                self._owner[id] = who if isinstance(write, Set) else ""
            elif isinstance(write, Set) and write.key.startswith(names):
                (index,) = segments(write.key[len(names) :])
                assert isinstance(index, int)
                self._names[id][index] = NameRow.unpack(write.value).text
        for write in batch.writes:
            if isinstance(write, Set) and write.key.startswith(entries):
                entry = Entry.unpack(write.value)
                if entry.kind is Kind.STEP and entry.is_final:
                    self._done.add((id, self._name(id, list(segments(write.key[len(entries) :])))))

    def _name(self, id: str, location: Sequence[int | tuple[int, int]]) -> str:
        turns = [f" {segment[1]}" for segment in location if isinstance(segment, tuple)]
        last = location[-1]
        assert isinstance(last, int)
        return self._names[id][last] + "".join(turns)


_ENGINES = (NAMES, HISTORY, METADATA, COMPENSATIONS, TAKINGS, WAITS, MARKINGS)
"""What is written by whoever runs the instance, and nobody else."""
_DUE = frozenset({Status.PENDING, Status.RUNNING, Status.SLEEPING, Status.ROLLING_BACK})


NOTICED_SECONDS = 0.5
"""How long it takes at most until those who wait for a time notice that the clock was set."""


@dataclass
class Worker:
    """One process: how wrong its clock is, and what happens to it."""

    name: str
    rng: random.Random
    laws: Laws
    skew: float = 0.0
    slow: float = 0.0
    """Seconds that a call of the store takes on the average."""
    fails: float = 0.0
    """The share of commits that fail."""
    paused_until: float = 0.0
    dead: bool = False
    stands_at: float | None = None
    """What its clock shows if it stands still."""
    naps: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])
    """Of those who wait for a time."""

    def set_clock(self, skew: float, *, stands: bool = False) -> None:
        """Set the clock, or have it stand still from now on."""
        self.skew, self.stands_at = skew, None
        self.stands_at = self.time() if stands else None
        for nap in self.naps:
            nap.deadline = min(nap.deadline, trio.current_time() + self.rng.uniform(0, NOTICED_SECONDS))

    def pause(self, seconds: float) -> None:
        """Stand still."""
        self.paused_until = max(self.paused_until, trio.current_time() + seconds)

    async def gate(self) -> None:
        """Everything that the process does comes through here: it stands still while it is paused."""
        if self.dead:
            raise SimulatedCrash(self.name)
        while (left := self.paused_until - trio.current_time()) > 0:  # noqa: ASYNC110  # it may be made longer
            await trio.sleep(left)
        if self.dead:
            raise SimulatedCrash(self.name)

    # As its clock.

    def time(self) -> float:
        return START + trio.current_time() + self.skew if self.stands_at is None else self.stands_at

    def monotonic(self) -> float:
        return trio.current_time()

    async def wait(
        self,
        event: anyio.Event,
        until: float | None,
        activity: Callable[[], Activity],
        *,
        by: float | None = None,
        lazily: float | None = None,
    ) -> None:
        spans = [time for time in (by, lazily) if time is not None]
        while not event.is_set():
            lefts = [time - trio.current_time() for time in spans]
            if until is not None:
                left = until - self.time()
                # On a clock that stands still it never is that time.
                lefts.append(left if left <= 0 or self.stands_at is None else math.inf)
            if min(lefts, default=math.inf) <= 0:
                await trio.lowlevel.checkpoint()
                break
            with anyio.move_on_after(min(lefts, default=math.inf)) as nap:
                self.naps.add(nap)
                try:
                    await event.wait()
                finally:
                    self.naps.discard(nap)
        await self.gate()

    async def beat(self, seconds: float, fn: Callable[[], Awaitable[None]]) -> NoReturn:
        while True:
            await anyio.sleep(seconds)
            await self.gate()
            await fn()

    def life(self, worker: str) -> AbstractContextManager[None]:
        return nullcontext()

    def is_alive(self, worker: str) -> bool:
        return False

    def timeout(self, seconds: float) -> AbstractContextManager[Timeout]:
        return anyio.move_on_after(seconds)


current: ContextVar[Worker] = ContextVar("current")
"""In which process a step runs."""


class Simulated:
    """The store, as one worker sees it."""

    def __init__(self, laws: Laws, worker: Worker) -> None:
        self._laws = laws
        self._worker = worker

    async def _takes_time(self) -> None:
        await self._worker.gate()
        if self._worker.slow and self._worker.rng.random() < 0.5:
            await trio.sleep(self._worker.rng.expovariate(1 / self._worker.slow))
        else:
            await trio.lowlevel.checkpoint()
        await self._worker.gate()

    async def get(self, key: bytes, /) -> bytes | None:
        await self._takes_time()
        value = self._laws.inner._store.rows.get(key)  # `MemoryDriver.get` would yield once more
        await self._takes_time()
        return value

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        await self._takes_time()
        rows = self._laws.inner._store.scan(begin, end, limit, reverse)
        await self._takes_time()
        return rows

    async def commit(self, batch: Batch, /) -> None:
        await self._takes_time()
        if self._worker.rng.random() < self._worker.fails:
            raise StorageError("no luck")
        # On its way it is with the store: what happens to the process does not matter to it any more.
        with anyio.CancelScope(shield=True):
            if self._worker.slow:
                await trio.sleep(self._worker.rng.expovariate(1 / self._worker.slow))
            try:
                self._laws.commit(batch, self._worker.name)
            finally:
                await self._takes_time()

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        await self._worker.gate()
        await self._laws.inner.changed(key, since)
        if self._worker.rng.random() < 0.2:
            await trio.sleep(self._worker.rng.uniform(0, 2))  # some hear of it late, and others before them
        await self._worker.gate()

    async def aclose(self) -> None:
        """It is the others', too."""


class _Nobody:
    """Watches nothing."""

    def add(self, watched: object) -> None: ...

    def remove(self, watched: object) -> None: ...


async def _go_round(watched: object) -> None: ...


@contextmanager
def _by_seed(seed: int) -> Generator[None]:
    """Nothing is by chance but by this."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        core = trio._core._run
        patch.setattr(core, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr(core, "_r", random.Random(seed))
        # It reads the real time each time, though its rate is zero.
        patch.setattr(trio.testing.MockClock, "current_time", lambda clock: clock._virtual_base)
        patch.setattr(memory, "BUDGET_SECONDS", -1.0)
        for module in (runtime, calling):
            patch.setattr(module, "uuid4", lambda: UUID(int=chance.getrandbits(128)))
        # Nobody knows of another worker that it runs in the same process.
        patch.setattr(lease, "lives_here", lambda worker: None)
        # The event loop is blocked by nobody, and goes round in no time that anybody could measure.
        patch.setattr(stalls, "_watchdog", _Nobody())
        patch.setattr(stalls.Watched, "go_round", _go_round)
        # Turns are by the clock on the wall.
        patch.setattr(turns, "TURN_SECONDS", 1e9)
        state = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)


def in_virtual_time(seed: int, main: Callable[[], Awaitable[Any]]) -> Any:
    """What `main` returns, with all chance by the seed."""
    with _by_seed(seed):
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
