"""Who runs an execution: a runtime, which has many; or one run that stands alone.

A host keeps the time, brings the mail, and has what must be done beside an instance done. An execution has no task of
its own for that: it tells its host what changed, and is told what has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from workflow_sdk.changes.workers import Heartbeat
from workflow_sdk.core.keys import WorkerKeys
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.execution.clock import Activity, Clock, pause
from workflow_sdk.execution.family import Family
from workflow_sdk.execution.stalls import Watched, stalls_watched
from workflow_sdk.execution.threads import Threads, threads_of_the_loop
from workflow_sdk.operations.cancelling import asyncio_task

__all__ = ["Alone", "Guest", "Host", "Waiting"]

Root = Callable[[], Awaitable[None]]

HEAR_AFTER_SECONDS = 0.01
"""From when on a run hears of what others ask for."""
GRACE_SECONDS = 10.0
"""What an evicted instance has under way may take so long to end."""


class Waiting(Protocol):
    """An execution that may wait, as its host knows it."""

    @property
    def instance_id(self) -> str:
        """Which instance it runs."""
        ...

    @property
    def next_time(self) -> float | None:
        """When its first timer is due."""
        ...

    def fire(self) -> None:
        """Wake the branches whose time has come, or for whom there may be a message."""
        ...


class Guest(Waiting, Protocol):
    """An execution, as the host knows it that is to run it."""

    @property
    def listens(self) -> bool:
        """Whether a message is awaited."""
        ...

    @property
    def children(self) -> Iterable[str]:
        """The instances that it waits for."""
        ...

    def activity(self) -> Activity:
        """What is under way."""
        ...

    def abandon(self) -> None:
        """Nobody wakes its branches any more: it is over."""
        ...

    async def run(self, root: Root) -> None:
        """Run `root` to its end, or until the instance is put away or stopped."""
        ...

    async def watch_mail(self) -> None:
        """Return once a message may have come, and was taken in."""
        ...

    def put_away(self) -> None:
        """Begin nothing new, and put the instance away once what is under way has ended."""
        ...

    def give_back(self) -> None:
        """Give the instance back at once. What is under way is cancelled, and runs again later."""
        ...

    async def beat(self, worker: WorkerKeys, heartbeat: bytes) -> None:
        """Say that its worker lives, as long as the lease is held."""
        ...


class Host(Protocol):
    """Who runs executions."""

    answers: dict[bytes, Callable[[bytes], None]]
    """Who in this process waits for which answer, by its key."""
    threads: Threads
    """In which plain functions run."""
    beats: bool
    """It has a heartbeat of its own, for all that it runs, and is told of messages."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the tasks of the runs are being cancelled with whoever has started them, by asyncio itself."""
        ...

    @property
    def crowded(self) -> bool:
        """Whether others wait for their turn."""
        ...

    def run(self, guest: Guest, root: Root) -> Awaitable[None]:
        """Run an execution to its end."""
        ...

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something done beside what is running."""
        ...

    def waits_changed(self, guest: Waiting) -> None:
        """It waits for something else: a timer that may be its first, or a message."""
        ...

    def rests(self, guest: Waiting, idle: bool) -> None:
        """It waits in memory now, or goes on."""
        ...

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """The code has named this workflow as that of a child."""
        ...

    def may_go_on(self, guest: Waiting) -> bool:
        """Whether one that waits in memory may go on now. If not, it is fired again when it may."""
        ...

    def evict(self, guest: Guest) -> None:
        """Somebody has asked for it to be put away, and the mail says so."""
        ...

    def queue(self, guest: Waiting, go_on: Callable[[], None]) -> None:
        """It lets others go first; `go_on` is called when it is its turn again."""
        ...

    def is_here(self, worker: str) -> bool:
        """Whether that worker is told by `message_came`, and needs no letter."""
        ...

    def message_came(self, id: str) -> None:
        """A message was stored for an instance that the worker here has."""
        ...

    def is_due(self, id: str) -> None:
        """An instance is to be run by whoever is free."""
        ...


class Alone:
    """One run without a runtime around it."""

    beats = False
    crowded = False

    def __init__(self, driver: Driver, clock: Clock, worker: WorkerKeys, lease_ttl: float, family: Family) -> None:
        self.answers: dict[bytes, Callable[[bytes], None]] = {}
        self._driver = driver
        self.threads: Threads = threads_of_the_loop()
        self._clock = clock
        self._worker = worker
        self._ttl = lease_ttl
        self._family = family
        self._signal = anyio.Event()
        self._watching = False
        self._hears = False
        """It hears of everything, and not only of the messages that are awaited."""
        self._evicted = False
        self._group: TaskGroup | None = None
        self._starter: asyncio.Task[Any] | None = None
        self._cancelled_before = 0

    @property
    def is_cancelled(self) -> bool:
        """Whether the task that has started the run was cancelled since."""
        return self._starter is not None and self._starter.cancelling() > self._cancelled_before

    async def run(self, guest: Guest, root: Root) -> None:
        """Run an execution, and what it takes beside it."""
        self._starter = asyncio_task()
        self._cancelled_before = 0 if self._starter is None else self._starter.cancelling()
        async with (
            stalls_watched(self._driver, self._clock, self._worker, self._ttl) as watched,
            anyio.create_task_group() as self._group,
        ):
            self._group.start_soon(self._keep_time, guest)
            self._group.start_soon(self._beat, guest)
            self._group.start_soon(self._hear, watched)
            # A task of its own: then whoever cancels this run cancels a scope around the author's code.
            self._group.start_soon(self._run, guest, root)

    async def _run(self, guest: Guest, root: Root) -> None:
        await guest.run(root)
        assert self._group is not None, "it runs in the group"
        self._group.cancel_scope.cancel()

    async def _keep_time(self, guest: Guest) -> None:
        try:
            while True:
                self._signal = signal = anyio.Event()
                guest.fire()
                self._family.see(guest.children)
                if (guest.listens or self._hears) and not self._watching:
                    self._watching = True
                    self.spawn(lambda: self._watch(guest))
                await self._clock.wait(signal, guest.next_time, guest.activity)
        finally:
            # Also if the run was cancelled from outside.
            guest.abandon()

    async def _watch(self, guest: Guest) -> None:
        await guest.watch_mail()
        self._watching = False
        self._signal.set()

    async def _hear(self, watched: Watched) -> None:
        """The instance may be cancelled, evicted, woken or taken over at any time: each changes its nudge."""
        # A run that is soon over is not worth it.
        await anyio.sleep(HEAR_AFTER_SECONDS)
        self._hears = True
        self._signal.set()
        await watched.go_round()

    def evict(self, guest: Guest) -> None:
        """Put it away, as it was asked for."""
        if not self._evicted:
            self._evicted = True
            guest.put_away()
            self.spawn(lambda: self._insist(guest))

    async def _insist(self, guest: Guest) -> None:
        """What is under way when the instance is evicted may end within the time of grace."""
        await pause(self._clock, GRACE_SECONDS)
        guest.give_back()

    async def _beat(self, guest: Guest) -> None:
        """Say that this run is alive, as long as it is."""

        numbers = count(1)

        async def beat() -> None:
            heartbeat = Heartbeat(self._clock.time(), self._ttl, next(numbers)).pack()
            # A beat that fails is no failure of the run: its commits will tell.
            with suppress(Exception):
                await guest.beat(self._worker, heartbeat)

        await self._clock.beat(self._ttl / 3, beat)

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something done in the group of the run."""
        assert self._group is not None, "it runs in the group"
        self._group.start_soon(fn)

    def waits_changed(self, guest: Waiting) -> None:
        """Look at it again."""
        self._signal.set()

    def rests(self, guest: Waiting, idle: bool) -> None:
        """Look at it again."""
        self._signal.set()

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """Then its instances can be run here."""
        self._family.meet(workflow)

    def may_go_on(self, guest: Waiting) -> bool:
        """There is nobody else."""
        return True

    def queue(self, guest: Waiting, go_on: Callable[[], None]) -> None:
        """There is nobody else."""
        go_on()

    def is_here(self, worker: str) -> bool:
        """There is nobody else."""
        return False

    def message_came(self, id: str) -> None:
        """There is nobody else."""

    def is_due(self, id: str) -> None:
        """There is nobody else."""
