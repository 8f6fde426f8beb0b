"""Running many instances. Any number of runtimes share a store: each claims due instances that nobody has."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import anyio

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.claim import Claim, new_lease
from workflow_sdk.changes.deliver import inbox_max as inbox_max_of_store
from workflow_sdk.changes.inboxes import limit_inboxes
from workflow_sdk.changes.workers import Heartbeat, beat, leave
from workflow_sdk.client.access import Access
from workflow_sdk.client.watching import Watch
from workflow_sdk.definitions import Workflow, check_retention
from workflow_sdk.doors.client import Client
from workflow_sdk.doors.machines import cells_of
from workflow_sdk.doors.settings import Definitions, by_name, number_of, seconds_of
from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError
from workflow_sdk.features.retention import Answers, Purging
from workflow_sdk.features.schedules.ticking import Ticking
from workflow_sdk.instance.clock import TimeSource, pause
from workflow_sdk.instance.threads import THREADS_MAX
from workflow_sdk.operations.calling import come_what_may
from workflow_sdk.operations.handlers import Handler, KnownHandlers
from workflow_sdk.rows.instance import InstanceRows, Lease
from workflow_sdk.rows.keys import SHARDS, InstanceKeys, WorkerKeys
from workflow_sdk.rows.retry import Duration
from workflow_sdk.values import VALUE_BYTES_MAX, Wrappers
from workflow_sdk.worker.claiming import Claiming
from workflow_sdk.worker.claims import RETRY_SECONDS, Claims
from workflow_sdk.worker.hosting import Hosting, new_hosting
from workflow_sdk.worker.lease import living
from workflow_sdk.worker.nearby import Nearby
from workflow_sdk.worker.residents import Residents
from workflow_sdk.worker.signals import Signals
from workflow_sdk.worker.stalls import STALL_SECONDS, watch_for_stalls

if TYPE_CHECKING:  # who runs no machine is not to load them
    from workflow_sdk.machines.executor import Executor
    from workflow_sdk.machines.manifest import Manifest

_log = logging.getLogger("workflow_sdk.runtime")

LEASE_SECONDS = 10.0
LEASE_SECONDS_MIN = 0.3
GRACE_SECONDS = 10.0
IDLE_SECONDS = 300.0


class Runtime(Client):
    """A client that also executes.

    Of the instances that are ready, at most `concurrency` run at once, in turns. Steps that are plain functions run in
    `threads` threads; one that has timed out has its thread until it returns. Those that wait stay in memory, where
    waking them costs nothing, for `max_idle`, and as long as there are no more than `max_resident`; then they are put
    away, and cost no memory at all. While its event loop is blocked, it keeps what it has for `stall_max`, and says so
    in the log. With `retention`, instances are forgotten that long after their end, unless their
    workflow says something else.

    What the store names is only called if it is known here: a function decorated with `@step`, one of a module in which
    one of the workflows is defined, or one of `handlers`.

    `transports` are what the calls of graphs are made with, by name.

    `machines` is a manifest: its cells are run here, too. `executors` do what they ask for.
    With `journal`, every message that a cell takes is also written down, for good: `client.journal(machine)`.

    `inbox_max` is how many messages an instance may have that it has not taken. It is kept in the store, for all who
    send; without it, the store's own holds, or 10,000.
    """

    def __init__(
        self,
        store: str | Driver,
        *,
        workflows: Iterable[Workflow[Any, Any]] = (),
        max_resident: int = 4096,
        max_idle: Duration = IDLE_SECONDS,
        concurrency: int = 512,
        threads: int = THREADS_MAX,
        clock: TimeSource | None = None,
        lease_ttl: Duration = LEASE_SECONDS,
        stall_max: Duration = STALL_SECONDS,
        grace: Duration = GRACE_SECONDS,
        retention: Duration | None = None,
        codec: Wrappers | None = None,
        max_value_bytes: int = VALUE_BYTES_MAX,
        handlers: Iterable[Handler] = (),
        transports: Mapping[str, Handler] | None = None,
        inbox_max: int | None = None,
        machines: Manifest | None = None,
        executors: Iterable[Executor] = (),
        journal: bool = False,
    ) -> None:
        super().__init__(store, clock=clock, codec=codec, max_value_bytes=max_value_bytes, machines=machines)
        self._cells = cells_of(machines, executors, journal)
        self._workflows = by_name(workflows, self._cells.flows)
        self._registry = workflows if isinstance(workflows, Definitions) else None
        self._handlers = tuple(handlers)
        self._known_handlers = KnownHandlers(self._workflows.values(), self._handlers, transports)
        for flow in self._workflows.values():
            flow.check_calls(self._known_handlers.transports)
        self._retention = check_retention(retention)
        self._ttl = seconds_of(lease_ttl, "lease_ttl", least=LEASE_SECONDS_MIN)
        self._stall_max = seconds_of(stall_max, "stall_max")
        self._grace = seconds_of(grace, "grace")
        self._inbox_max = None if inbox_max is None else number_of(inbox_max, "inbox_max", 1, of="messages")
        self._new_residents = partial(
            Residents,
            self._clock,
            max_resident=number_of(max_resident, "max_resident", 0),
            concurrency=number_of(concurrency, "concurrency", 1),
            threads=number_of(threads, "threads", 1, of="threads"),
            max_idle=seconds_of(max_idle, "max_idle"),
        )
        self._be_a_new_worker()
        self._is_used = False
        self._handling = ExitStack()
        self._life = ExitStack()
        self._received: AsyncIterator[signal.Signals] | None = None
        """The signals that come to a runtime that serves."""

    def _be_a_new_worker(self) -> None:
        """The keys of the worker. Each time that the runtime is opened, it is a new worker with a new id."""
        self._worker = WorkerKeys(uuid4().hex)
        self._claiming: Claiming | None = None
        self._hosting: Hosting | None = None
        self._residents = self._new_residents()
        self._watch = Watch(self._clock, self._worker.worker, self._ttl)
        self._heartbeat: bytes | None = None
        """The value of the last heartbeat that was written."""
        self._beats = 0
        self._signals = Signals(self._worker, self._residents, self._missed)
        self._alive_until = 0.0, 0.0
        """When others may take this worker for dead if it writes no heartbeat: by the clock, and by `monotonic`."""

    async def __aenter__(self) -> Self:
        if self._is_used and not self._is_open:
            self._be_a_new_worker()
        await super().__aenter__()
        self._is_used = True
        try:
            # The worker counts as alive before its first heartbeat is stored, since others may read that at once.
            self._life.enter_context(self._clock.life(self._worker.worker))
            self._life.enter_context(living(self._worker.worker))
            await self._beat()
            await self._agree_on_limits(self._inbox_max)
            await self._cells.begin()
            self._hosting = new_hosting()
            self._group = await self._hosting.open()
        except BaseException as error:
            await self._shut(type(error), error, error.__traceback__)
            raise
        self._residents.open(self._group)
        self._group.start_soon(self._residents.keep_time)
        self._group.start_soon(self._clock.beat, self._ttl / 3, self._keep_beating)
        self._group.start_soon(
            watch_for_stalls, self.access.driver, self._clock, self._worker, self._ttl, self._stall_max
        )
        for loop in [*self._loops(), *self._cells.loops()]:
            self._group.start_soon(self._forever, loop)
        return self

    def _loops(self) -> list[Callable[[], Awaitable[None]]]:
        claiming = self._claiming
        assert claiming is not None, "made with the access to the store"
        driver, clock, look_for = self.access.driver, self._clock, claiming.look_for
        ticking = Ticking(driver, clock, self._watch, self._residents, self._workflows, look_for, self._retention)
        kept = [flow.retention for flow in self._workflows.values() if flow.retention is not None]
        shortest = min(kept if self._retention is None else [*kept, self._retention], default=None)
        # The loop that looks for what dead workers left never ends: a worker may die at any time.
        return [
            partial(self._signals.listen, driver),
            claiming.claim_what_is_due,
            claiming.claim_what_was_left,
            *(partial(claiming.listen_for_what_is_due, shard) for shard in range(SHARDS)),
            ticking.listen,
            ticking.start_what_is_due,
            Answers(driver, clock).sweep,
            Purging(driver, clock, self._watch, shortest).purge,
        ]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._evict_all()
        finally:
            try:
                with self._handling:
                    await self._close()
            finally:
                await self._shut(kind, error, trace)

    async def _shut(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete the rows of the worker and close the store, even if this is cancelled."""
        with anyio.CancelScope(shield=True):
            try:
                with self._life:
                    cancelled = await come_what_may(self._leave)
            finally:
                await super().__aexit__(kind, error, trace)
            if cancelled is not None:
                raise cancelled

    async def _close(self) -> None:
        assert self._hosting is not None, "it was opened"
        try:
            await self._hosting.close()
        finally:
            self._residents.host.threads.close()

    @property
    def resident(self) -> int:
        """How many instances the runtime has in memory, running or waiting."""
        return len(self._residents.runs)

    @property
    def workflows(self) -> tuple[Workflow[Any, Any], ...]:
        """The workflows that the runtime runs."""
        return tuple(self._workflows.values())

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The functions that the store may name, beside those of its workflows' modules and steps."""
        return self._handlers

    async def serve(self) -> int:
        """Run until SIGTERM or SIGINT; return 0, the exit code of a process that has served.

        Leaving the block then shuts down gracefully; at a second signal it waits for nothing any more.
        """
        if self._access is None:
            raise DefinitionError("a runtime serves while it is open: in `async with`")
        self._received = self._handling.enter_context(anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT))
        await anext(self._received)
        return 0

    async def _evict_all(self) -> None:
        received, self._received = self._received, None
        if received is None:
            await self._residents.evict_all(self._grace)
            return

        async def hurry() -> None:
            await anext(received)
            _log.warning("a second signal has come: what is under way is cancelled")
            self._residents.hurry()
            # From now on, a further SIGTERM or SIGINT ends the process at once, as usual.
            self._handling.close()

        async with anyio.create_task_group() as group:
            group.start_soon(hurry)
            await self._residents.evict_all(self._grace)
            group.cancel_scope.cancel()

    def _make_access(self, driver: Driver) -> Access:
        claims = Claims(
            driver,
            self._codec,
            self._clock,
            self._residents,
            self._workflows,
            self._known_handlers,
            self._worker,
            self._ttl,
            self._watch,
            self._retention,
        )
        self._claiming = Claiming(claims)
        access = Access(driver, self._codec, self._clock, Nearby(self._residents, self._claiming))
        worker, leave_alone = self._worker.worker, claims.leave_alone
        self._cells.attach(access, self._residents, self._watch, worker, self._ttl, self._retention, leave_alone)
        claims.other_runs = self._cells.run
        return access

    def _definition(self, workflow: Workflow[Any, Any] | str) -> Workflow[Any, Any] | None:
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        if name not in self._workflows:
            if self._registry is not None and self._registry.is_unavailable(name):
                raise DefinitionError(self._registry.why_not(name))
            known = ", ".join(sorted(self._workflows))
            raise DefinitionError(f"this runtime was not given the workflow {name!r}; it has: {known}")
        return workflow if isinstance(workflow, Workflow) else None

    def _known(self, name: str) -> Workflow[Any, Any] | None:
        return self._workflows.get(name)

    # An instance that is started here, and can run at once, is claimed in the commit that starts it.

    def _seize(self, keys: InstanceKeys) -> Lease | None:
        residents, id = self._residents, keys.instance_id
        # If the id has a slot already, another call is claiming or starting the instance, and the slot belongs to that.
        if residents.stopping or id in residents.runs or residents.slots.has(id) or not residents.slots.take(id):
            return None
        if self._claiming is not None:
            self._claiming.starts(id)
        residents.busy += 1
        return new_lease(self._worker.worker, self._ttl)

    def _let_go(self, keys: InstanceKeys, *, is_dropped: bool) -> None:
        id = keys.instance_id
        self._residents.slots.leave(id)
        self._residents.one_less()
        if self._claiming is not None:
            self._claiming.starts_not(id)
            if is_dropped:
                self._claiming.failed(id)

    def _go_on(self, flow: Workflow[Any, Any], keys: InstanceKeys, rows: InstanceRows, lease: Lease) -> None:
        assert self._claiming is not None, "a runtime that starts something is open"
        self._claiming.begin_claimed(flow, keys, Claim(rows, lease, created=True))
        self._residents.one_less()

    # The loops. Each goes on after a failure of the store.

    async def _forever(self, loop: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await loop()
            except* Exception:  # noqa: BLE001  # whatever a driver raises
                seconds = min(RETRY_SECONDS, self._ttl / 10)
                _log.exception("the store failed; it is asked again in %.2g s", seconds)
                await pause(self._clock, seconds)

    async def _beat(self) -> None:
        self._beats += 1
        now, began = self._clock.time(), self._clock.monotonic()
        # A clock that knows who is alive needs only the first heartbeat.
        number = None if self._clock.is_alive(self._worker.worker) else self._beats
        heartbeat = Heartbeat(now, self._ttl, number).pack()
        kept, last = self._signals.kept, self._signals.last
        if not await apply(self.access.driver, beat(self._worker, self._heartbeat, heartbeat, last if kept else None)):
            # Others took this worker for dead, and buried it. Each run now looks whether its instance is still ours.
            self._residents.look_again()
        self._heartbeat = heartbeat
        self._signals.kept -= kept
        self._alive_until = now + self._ttl, began + self._ttl

    async def _keep_beating(self) -> None:
        time, monotonic = self._alive_until
        if self._clock.time() >= time or self._clock.monotonic() >= monotonic:
            # The heartbeat comes too late, and others may have begun to take over. Both clocks are asked, since
            # `monotonic` may stand still while a machine sleeps.
            self._residents.look_again()
        try:
            await self._beat()
            await self._agree_on_limits(None)
        except Exception:  # noqa: BLE001  # a driver may raise anything: there is time for another try
            _log.exception("the store failed; the next heartbeat is in %.2g s", self._ttl / 3)

    async def _agree_on_limits(self, inbox_max: int | None) -> None:
        """Store the limit of inboxes that this runtime was given, or read the one that another has stored."""
        driver, here = self.access.driver, self.access.here
        assert here is not None, "a runtime has residents"
        here.inbox_max = await apply(driver, inbox_max_of_store())
        if inbox_max is not None and inbox_max != here.inbox_max:
            await apply(driver, limit_inboxes(inbox_max))
            here.inbox_max = inbox_max

    def _missed(self, id: str, evicts: bool) -> None:
        if self._claiming is not None:
            self._claiming.missed(id, evict=evicts)

    async def _leave(self) -> None:
        """Delete the rows of the worker, unless it still has instances, which others have to take over."""
        with suppress(Exception):
            await apply(self.access.driver, leave(self._worker))
