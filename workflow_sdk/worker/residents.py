"""The instances that a runtime has in memory: it wakes them, gives them their turns, and evicts them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from math import inf
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup

from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import CodecError, LeaseLostError
from workflow_sdk.instance.clock import Activity, Clock
from workflow_sdk.instance.host import Guest, Near, Parked, Root, Waiting
from workflow_sdk.instance.run import Run
from workflow_sdk.instance.threads import THREADS_MAX, Threads
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.worker.hosting import Crew, crew_of
from workflow_sdk.worker.slots import Slots, Timers

_log = logging.getLogger("workflow_sdk.runtime")


class _Ending:
    """Somebody here waits for an instance to end."""

    __slots__ = ("about", "event", "waiting")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.about: InstanceRows | None = None
        self.waiting = 0


class RuntimeHost:
    """What runs the executions of one runtime: the host that each of them sees."""

    beats = True

    def __init__(self, clock: Clock, concurrency: int, threads: int, surplus: Callable[[], None]) -> None:
        self.answers: dict[bytes, Callable[[bytes], None]] = {}
        """Who in this process waits for which answer, by its key."""
        self.here: Near | None = None
        """The runtime."""
        self.slots: Slots = Slots(concurrency)
        self.threads: Threads = Threads(threads)
        self.timers: Timers = Timers()
        self.idle: OrderedDict[str, float] = OrderedDict()
        """Those that wait in memory, the longest idle first, and since when."""
        self.signal: anyio.Event = anyio.Event()
        """Set when another time is the first."""
        self.crew: Crew | None = None
        self._clock = clock
        self._surplus = surplus
        """Evicts those that are too many."""

    @property
    def is_cancelled(self) -> bool:
        """Whether all runs are being cancelled."""
        return self.crew is not None and self.crew.is_cancelled

    @property
    def crowded(self) -> bool:
        """Whether others wait for their turn."""
        return self.slots.crowded

    def run(self, guest: Guest, root: Root) -> Awaitable[None]:
        """Run an execution, in the task that serves it."""
        return guest.life.run(root)

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something done in a task of its own."""
        assert self.crew is not None, "a runtime that runs instances is open"
        self.crew.spawn(fn)

    def waits_changed(self, guest: Waiting) -> None:
        """Keep its first time."""
        time = guest.next_time
        if time is not None and self.timers.set(guest.instance_id, time):
            self.signal.set()

    def keep(self, guest: Waiting) -> None:
        """Keep its next time. One that is over already waits for a slot."""
        time = guest.next_time
        if time is not None and time > self._clock.time():
            self.waits_changed(guest)

    def rests(self, guest: Waiting, idle: bool) -> None:
        """It waits in memory now, or goes on. Those that wait and are too many are evicted, the longest idle first."""
        id = guest.instance_id
        if not idle:
            self.idle.pop(id, None)
            return
        self.idle[id] = self._clock.monotonic()
        self.slots.leave(id)
        self._surplus()
        if len(self.idle) == 1:
            self.signal.set()

    def may_go_on(self, guest: Waiting) -> bool:
        """Whether it has a slot; if not, it waits for one."""
        id = guest.instance_id
        if self.slots.take(id):
            return True

        def go_on() -> None:
            guest.fire()
            if id in self.idle:
                self.slots.leave(id)
            self.keep(guest)

        self.slots.queue_up(id, go_on)
        return False

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """It runs those that it was given."""

    def evict(self, guest: Parked) -> None:
        """A signal says so as well."""

    def queue(self, guest: Waiting, go_on: Callable[[], None]) -> None:
        """It waits for its next slot."""
        self.slots.queue_up(guest.instance_id, go_on)

    def leaves(self, id: str) -> None:
        """It is not in memory any more."""
        self.idle.pop(id, None)
        self.timers.discard(id)
        self.slots.leave(id)


class Residents:
    """All instances that one runtime has in memory."""

    def __init__(
        self, clock: Clock, *, max_resident: int, concurrency: int, max_idle: float, threads: int = THREADS_MAX
    ) -> None:
        self._clock = clock
        self._max_resident = max_resident
        self._max_idle = max_idle
        self.host: RuntimeHost = RuntimeHost(clock, concurrency, threads, self._evict_surplus)
        self.slots: Slots = self.host.slots
        self.runs: dict[str, Run] = {}
        self.stopping: bool = False
        """Nothing new is begun."""
        self.busy: int = 0
        """What is done for instances that are not in memory yet."""
        self.looking: int = 0
        """How many are looking whether there is something to be done."""
        self.on_failure: Callable[[str, BaseException], None] = lambda id, error: None
        """Told when a run has ended without giving its instance back, and of what."""
        self.on_end: list[Callable[[str], None]] = []
        """Told when an instance is not in memory any more."""
        self._leaving: set[str] = set()
        """Those that are being evicted."""
        self._endings: dict[str, _Ending] = {}
        self._ended = anyio.Event()
        self._patience: anyio.CancelScope | None = None
        """In which all are evicted."""

    def open(self, group: TaskGroup) -> None:
        """Run everything in this group from now on."""
        self.host.crew = crew_of(group)

    # What runs beside the instances.

    async def keep_time(self) -> None:
        """Wake those whose time has come, and evict those that have been idle for long. It does not return."""
        host = self.host
        while True:
            host.signal = signal = anyio.Event()
            now = self._clock.time()
            for id in host.timers.due(now):
                run = self.runs.get(id)
                if run is not None:
                    run.execution.parking.fire()
                    host.keep(run.execution.parking)
            while host.idle and next(iter(host.idle.values())) + self._max_idle <= self._clock.monotonic():
                self._evict_longest()
            idle = next(iter(host.idle.values())) + self._max_idle if host.idle else None
            await self._clock.wait(signal, host.timers.next, self.activity, lazily=idle)

    def activity(self) -> Activity:
        """What is under way in all of them."""
        found = {run.execution.activity() for run in self.runs.values()}
        if Activity.THREAD in found:
            return Activity.THREAD
        return Activity.CODE if self.busy or self.looking or Activity.CODE in found else Activity.NONE

    @contextmanager
    def looks(self) -> Generator[None]:
        """While somebody looks whether there is something to be done."""
        self.looking += 1
        try:
            yield
        finally:
            self.looking -= 1

    def _evict_surplus(self) -> None:
        while len(self.runs) - len(self._leaving) > self._max_resident and self.host.idle:
            self._evict_longest()

    def _evict_longest(self) -> None:
        id, _ = self.host.idle.popitem(last=False)
        self.evict_one(id)

    # What the runtime asks for.

    def evict_one(self, id: str) -> None:
        """Evict one once what is under way in it has ended."""
        self._leaving.add(id)
        self.host.idle.pop(id, None)
        # A step that is under way may end first; until then it counts.
        self.slots.stop_waiting(id)
        self.runs[id].execution.parking.evict()

    async def serve(self, id: str, run: Run, *, evict: bool = False) -> None:
        """Run an instance until it has ended, or is not ours any more."""
        self.runs[id] = run
        if self.stopping or evict:
            run.execution.parking.evict()
        about: InstanceRows | None = None
        try:
            await run.go()
            if run.is_over:
                about = run.journal.about
        except LeaseLostError:
            _log.info("instance %s was taken over", id)
        except BaseException as error:
            # Whatever ended the run: the others go on, and this one is tried again, though not at once.
            if not self._is_left_over(error):
                raise
            if not isinstance(error, CodecError):
                _log.exception("the run of instance %s has ended; it is tried again", id)
            self.on_failure(id, error)
        finally:
            if self.runs.get(id) is run:
                del self.runs[id]
            self.host.leaves(id)
            self._leaving.discard(id)
            ending = self._endings.pop(id, None)
            if ending is not None:
                ending.about = about
                ending.event.set()
            self._ended.set()
            for tell in self.on_end:
                tell(id)

    def _is_left_over(self, error: BaseException) -> bool:
        """Whether it comes of an author's code, which no failure could be made of; it ends nothing but the run."""
        if isinstance(error, BaseExceptionGroup):
            return all(map(self._is_left_over, cast("BaseExceptionGroup[BaseException]", error).exceptions))
        if isinstance(error, (Exception, GeneratorExit)):
            return True
        if not isinstance(error, anyio.get_cancelled_exc_class()):
            return False
        return not self.host.is_cancelled and anyio.current_effective_deadline() != -inf

    async def until_ended(self, id: str) -> InstanceRows | None:
        """Wait for an instance that is in memory; return its rows if it is over, None if it only went away."""
        if id not in self.runs:
            return None
        ending = self._endings.get(id)
        if ending is None:
            ending = self._endings[id] = _Ending()
        ending.waiting += 1
        try:
            await ending.event.wait()
        finally:
            ending.waiting -= 1
            if not ending.waiting and self._endings.get(id) is ending:
                del self._endings[id]
        return ending.about

    async def evict_all(self, grace: float) -> None:
        """Begin nothing new, and let what is under way end, as far as it does in this time."""
        self.stopping = True
        for id in list(self.runs):
            self.evict_one(id)
        with anyio.move_on_after(grace) as self._patience:
            while self.runs or self.busy:
                self._ended = anyio.Event()
                await self._ended.wait()
        for run in list(self.runs.values()):
            run.execution.life.abandon()
        if self.host.crew is not None:
            # At the same moment: what is cancelled is given back, and what only ends is not.
            self.host.crew.cancel()

    def hurry(self) -> None:
        """Wait no longer for what is under way."""
        if self._patience is not None:
            self._patience.cancel()

    def look_again(self) -> None:
        """Have every one look at whether it is still ours."""
        for run in list(self.runs.values()):
            run.execution.parking.arrivals.signal()

    def one_less(self) -> None:
        """Something that was done for an instance is over."""
        self.busy -= 1
        self._ended.set()
