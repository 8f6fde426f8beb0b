"""The instances that a runtime has in memory: they are woken, given slots and evicted here."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from math import inf
from typing import Any, Protocol, cast

import anyio
from anyio.abc import TaskGroup

from workflow_sdk.client.access import Resident
from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import CodecError, LeaseLostError
from workflow_sdk.instance.clock import Activity, Clock
from workflow_sdk.instance.host import Guest, Near, Parked, Root, Waiting
from workflow_sdk.instance.threads import THREADS_MAX, Threads
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.worker.hosting import Crew, crew_of
from workflow_sdk.worker.slots import Slots, Timers

_log = logging.getLogger("workflow_sdk.runtime")


class _Ending:
    """The end of one instance, for which at least one client in this process waits."""

    __slots__ = ("about", "event", "waiting")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.about: InstanceRows | None = None
        self.waiting = 0


class RuntimeHost:
    """The host of all executions of one runtime."""

    beats = True

    def __init__(self, clock: Clock, concurrency: int, threads: int, surplus: Callable[[], None]) -> None:
        self.answers: dict[bytes, Callable[[bytes], None]] = {}
        """The callbacks of those in this process who wait for an answer, by the key of the answer."""
        self.here: Near | None = None
        """The runtime, as its executions know it."""
        self.machines: Any = None
        """What its machines do for workflows; None if it has none."""
        self.slots: Slots = Slots(concurrency)
        self.threads: Threads = Threads(threads)
        self.timers: Timers = Timers()
        self.idle: OrderedDict[str, float] = OrderedDict()
        """Since when each idle instance has been idle, by `monotonic`, the longest idle first."""
        self.signal: anyio.Event = anyio.Event()
        """Set when the time for which `Residents.keep_time` waits may have changed."""
        self.crew: Crew | None = None
        self._clock = clock
        self._surplus = surplus
        """Evicts idle instances if there are too many in memory."""

    @property
    def is_cancelled(self) -> bool:
        """Whether all runs are being cancelled."""
        return self.crew is not None and self.crew.is_cancelled

    @property
    def crowded(self) -> bool:
        """Whether some instance waits for a slot."""
        return self.slots.crowded

    def run(self, guest: Guest, root: Root) -> Awaitable[None]:
        """Run an execution in the calling task, which serves only this instance."""
        return guest.life.run(root)

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a function in a task of its own."""
        assert self.crew is not None, "a runtime that runs instances is open"
        self.crew.spawn(fn)

    def waits_changed(self, guest: Waiting) -> None:
        """Set a timer for the time at which the execution is due next."""
        time = guest.next_time
        if time is not None and self.timers.set(guest.instance_id, time):
            self.signal.set()

    def keep(self, guest: Waiting) -> None:
        """Set a timer for the time at which the execution is due next. If that is over, it waits for a slot already."""
        time = guest.next_time
        if time is not None and time > self._clock.time():
            self.waits_changed(guest)

    def rests(self, guest: Waiting, idle: bool) -> None:
        """Note that an execution is idle, or goes on. If too many are in memory, the longest idle are evicted."""
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
        """Whether an execution has a slot. If not, it is queued for one, and fired again when it has it."""
        id = guest.instance_id
        if self.slots.take(id):
            return True

        def go_on() -> None:
            guest.fire()
            # Nobody was woken, so it is still idle and does not need the slot: a message was gone, say.
            if id in self.idle:
                self.slots.leave(id)
            self.keep(guest)

        self.slots.queue_up(id, go_on)
        return False

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """Do nothing: a runtime runs only the workflows that it was given."""

    def evict(self, guest: Parked) -> None:
        """Do nothing: the request to evict also comes as a signal to the worker, and `Signals` evicts it."""

    def queue(self, guest: Waiting, go_on: Callable[[], None]) -> None:
        """Give up the slot of an execution, and queue it for the next one."""
        self.slots.queue_up(guest.instance_id, go_on)

    def leaves(self, id: str) -> None:
        """Forget an instance that is not in memory any more."""
        self.idle.pop(id, None)
        self.timers.discard(id)
        self.slots.leave(id)


class Running(Protocol):
    """One instance that a worker has in memory, whatever runs it."""

    @property
    def waiting(self) -> Waiting:
        """What has the timers of the instance."""
        ...

    @property
    def messages(self) -> Resident | None:
        """What messages are handed over to in memory; None if they have to be read from the store."""
        ...

    @property
    def ended(self) -> InstanceRows | None:
        """The rows of the instance, if it has ended or is stuck."""
        ...

    async def go(self) -> None:
        """Run the instance, and release it whatever happens."""
        ...

    def look(self, *, lease: bool = True) -> None:
        """Have it read its messages and, with `lease`, find out whether the instance is still ours."""
        ...

    def evict(self) -> None:
        """Begin nothing new, and release the instance once what is under way has ended."""
        ...

    def abandon(self) -> None:
        """End it: nothing of it is woken any more."""
        ...

    def activity(self) -> Activity:
        """What is under way: code, a thread or nothing."""
        ...


class Beside(Protocol):
    """What a worker runs beside instances, and stops with them."""

    @property
    def is_running(self) -> bool:
        """Whether anything of it is under way."""
        ...

    def take_nothing(self) -> None:
        """Begin nothing new."""
        ...

    async def give_back(self) -> None:
        """Cancel what is under way, and leave it to others."""
        ...


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
        self.runs: dict[str, Running] = {}
        self.stopping: bool = False
        """Whether the worker is stopping: nothing new is begun."""
        self.busy: int = 0
        """How many claims and starts are under way, of instances that are not in memory yet."""
        self.looking: int = 0
        """How many loops are reading the store right now, to see whether there is something to do."""
        self.on_failure: Callable[[str, BaseException], None] = lambda id, error: None
        """Called with the id and the error when a run has failed. Its instance may not have been released."""
        self.beside: Beside | None = None
        """What else the worker runs."""
        self.on_end: list[Callable[[str], None]] = []
        """Called with the id of each instance that is not in memory any more."""
        self._leaving: set[str] = set()
        """The instances that are being evicted."""
        self._endings: dict[str, _Ending] = {}
        self._ended = anyio.Event()
        self._patience: anyio.CancelScope | None = None
        """The scope in which `evict_all` waits for what is under way."""

    def open(self, group: TaskGroup) -> None:
        """Run the tasks of all instances in this group from now on."""
        self.host.crew = crew_of(group)

    # What runs beside the instances.

    async def keep_time(self) -> None:
        """Wake the instances whose time has come, and evict those that were idle for too long. Does not return."""
        host = self.host
        while True:
            # A new event before the timers are read: a timer that is set while they are handled sets this one.
            host.signal = signal = anyio.Event()
            now = self._clock.time()
            for id in host.timers.due(now):
                run = self.runs.get(id)
                if run is not None:
                    run.waiting.fire()
                    host.keep(run.waiting)
            while host.idle and next(iter(host.idle.values())) + self._max_idle <= self._clock.monotonic():
                self._evict_longest()
            idle = next(iter(host.idle.values())) + self._max_idle if host.idle else None
            await self._clock.wait(signal, host.timers.next, self.activity, lazily=idle)

    def activity(self) -> Activity:
        """What is under way in all instances together."""
        found = {run.activity() for run in self.runs.values()}
        if Activity.THREAD in found:
            return Activity.THREAD
        return Activity.CODE if self.busy or self.looking or Activity.CODE in found else Activity.NONE

    @contextmanager
    def looks(self) -> Generator[None]:
        """Mark the block as one that reads the store to see whether there is something to do."""
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
        """Evict an instance as soon as what is under way in it has ended."""
        self._leaving.add(id)
        self.host.idle.pop(id, None)
        # It does not get another slot. One that it has it keeps until the steps that are under way have ended.
        self.slots.stop_waiting(id)
        self.runs[id].evict()

    async def serve(self, id: str, run: Running, *, evict: bool = False) -> None:
        """Run an instance until it has ended, is stuck, was evicted or is not ours any more."""
        self.runs[id] = run
        if self.stopping or evict:
            run.evict()
        about: InstanceRows | None = None
        try:
            await run.go()
            about = run.ended
        except LeaseLostError:
            _log.info("instance %s was taken over", id)
        except BaseException as error:
            # Whatever ended this run, the other instances go on. This one is tried again, after a pause.
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
        """Whether an error ends only the run that raised it. If not, it is the worker that is being ended."""
        if isinstance(error, BaseExceptionGroup):
            return all(map(self._is_left_over, cast("BaseExceptionGroup[BaseException]", error).exceptions))
        if isinstance(error, (Exception, GeneratorExit)):
            return True
        if not isinstance(error, anyio.get_cancelled_exc_class()):
            return False
        # A cancellation. If neither the worker nor a cancel scope around this run is cancelled, the author's code did
        # it.
        return not self.host.is_cancelled and anyio.current_effective_deadline() != -inf

    async def until_ended(self, id: str) -> InstanceRows | None:
        """Wait for an instance in memory; return its rows if it ended or is stuck, None if it only left the memory."""
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
        """Begin nothing new, give what is under way `grace` seconds to end, and cancel what is left."""
        self.stopping = True
        if self.beside is not None:
            self.beside.take_nothing()
        for id in list(self.runs):
            self.evict_one(id)
        with anyio.move_on_after(grace) as self._patience:
            while self.runs or self.busy or (self.beside is not None and self.beside.is_running):
                self._ended = anyio.Event()
                await self._ended.wait()
        if self.beside is not None:
            await self.beside.give_back()
        for run in list(self.runs.values()):
            run.abandon()
        if self.host.crew is not None:
            # Without an `await` in between. `abandon` wakes code that shields itself from being cancelled; the
            # cancellation also reaches claims, and runs that are still loading.
            self.host.crew.cancel()

    def hurry(self) -> None:
        """Have `evict_all` wait no longer for what is under way."""
        if self._patience is not None:
            self._patience.cancel()

    def look_again(self) -> None:
        """Have every run read its messages and its lease, and so find out whether its instance is still ours."""
        for run in list(self.runs.values()):
            run.look()

    def one_less(self) -> None:
        """Note that one of the claims or starts that count as `busy` is over."""
        self.busy -= 1
        self.one_ended()

    def one_ended(self) -> None:
        """Note that something has ended that `evict_all` may wait for."""
        self._ended.set()
