"""One run of one instance: the engine that operations talk to, made of parts that each do one thing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.workers import beat_with_lease
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.instance.calls import RunCalls
from workflow_sdk.instance.clock import Activity, Clock
from workflow_sdk.instance.flushing import Flusher
from workflow_sdk.instance.host import Host
from workflow_sdk.instance.inbox_reader import InboxReader
from workflow_sdk.instance.life import RunLife
from workflow_sdk.instance.messages import RunMessages
from workflow_sdk.instance.outside import Finish, RunOutside
from workflow_sdk.instance.parking import Mode, RunParking
from workflow_sdk.instance.session import HeadWriter, RunState, Session
from workflow_sdk.instance.stored import StoredHistory
from workflow_sdk.instance.waits import Waits
from workflow_sdk.journal.journal import Journal
from workflow_sdk.operations.engine import Composite, Verb
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.operations.public_state import unfold
from workflow_sdk.operations.types import Facts
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.instance import Lease
from workflow_sdk.rows.keys import WorkerKeys, worker_keys
from workflow_sdk.rows.status import Status
from workflow_sdk.values import Codec

__all__ = ["Execution", "Mode"]


_NO_HANDLERS: dict[bytes, tuple[Callable[..., Any], object]] = {}
"""Shared by all executions, and never written to."""


class Execution:
    """Runs one instance, once. What is new is done, and what is recorded is replayed."""

    __slots__ = (
        "calls",
        "clock",
        "codec",
        "handlers",
        "head",
        "journal",
        "known",
        "life",
        "messages",
        "outside",
        "parking",
        "reader",
        "session",
        "state",
    )

    def __init__(
        self,
        *,
        driver: Driver,
        journal: Journal,
        codec: Codec,
        known: KnownHandlers,
        clock: Clock,
        facts: Facts,
        lease: Lease,
        mode: Mode,
        host: Host,
    ) -> None:
        self.journal: Journal = journal
        self.codec: Codec = codec
        self.known: KnownHandlers = known
        self.clock: Clock = clock
        self.handlers: dict[bytes, tuple[Callable[..., Any], object]] = _NO_HANDLERS
        fence = lease.pack()
        self.life: RunLife = RunLife(facts, host)
        flusher = Flusher(driver, journal, fence, self.life.storage_failed)
        self.life.flusher = flusher
        session = Session(driver, journal, codec, clock, facts, lease.worker, fence, host, self.life, flusher)
        self.session: Session = session
        waits = Waits(journal)
        self.reader: InboxReader = InboxReader(driver, journal)
        self.reader.waits = waits
        self.head: HeadWriter = HeadWriter(session, worker_keys(lease.worker), beats=not host.beats)
        self.state: RunState = RunState(session, self.head)
        self.messages: RunMessages = RunMessages(session, self.reader, waits)
        self.parking: RunParking = RunParking(session, self.messages, self.head, self.state, mode)
        self.calls: RunCalls = RunCalls(session, self.parking)
        self.outside: RunOutside = RunOutside(session, self.parking, self.state)

    @property
    def facts(self) -> Facts:
        """What does not change while the instance runs, until it starts over."""
        return self.session.facts

    # What operations ask for.

    @property
    def transacts(self) -> bool:
        """Whether `ctx.transact` works: the store has transactions, or this is a dry run, which calls nothing."""
        return self.calls.transacts

    def begin(self, verb: Verb) -> Awaitable[Entry]:
        """Do an operation that has no entry yet."""
        return verb.begin(self)

    def resume(self, verb: Verb, entry: Entry) -> Awaitable[Entry]:
        """Go on with an operation that has no outcome yet."""
        return verb.resume(self, entry)

    async def reenter(self, verb: Composite, location: bytes, entry: Entry) -> Entry:
        """Go on with an operation that has scopes inside; one that is finished is not entered again."""
        unfold(self, [location])
        if not entry.is_final:
            return await verb.resume(self, entry)
        await verb.recall(self, entry)
        return entry

    @property
    def stored(self) -> StoredHistory:
        """What of the history is in the store and not in memory."""
        return StoredHistory(self.session, self.parking)

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """The code names this workflow as that of a child."""
        self.session.host.meet(workflow)

    async def passed_over(self, location: bytes) -> None:
        """End the children and tasks at and under a location, for which nobody waits any more."""
        if cleanups := self.outside.abandon(location):
            await self.parking.flush()
            await self.outside.clean_up(cleanups)

    async def answer(self, key: bytes, raw: bytes, is_asked: bool | None = None) -> None:
        """Store an answer for the sender that waits for it under this key."""
        await self.outside.answer(key, raw, is_asked)

    def remember_handler(self, location: bytes, handler: Callable[..., Any], hint: object) -> None:
        """Keep the function that undoes the step at a location, as long as this run lasts."""
        if self.handlers is _NO_HANDLERS:
            self.handlers = {}
        self.handlers[location] = (handler, hint)

    # What the host asks for.

    def activity(self) -> Activity:
        """What is under way: code, a thread or nothing."""
        if self.calls.in_threads:
            return Activity.THREAD
        # A run that is over may still be unwinding the author's code.
        is_busy = self.parking.waits.active or self.parking.busy or self.life.halted
        return Activity.CODE if is_busy else Activity.NONE

    async def beat(self, worker: WorkerKeys, heartbeat: bytes) -> None:
        """Write the heartbeat of the worker, if the worker still has the lease of the instance."""
        await apply(self.session.driver, beat_with_lease(self.journal.keys, self.session.lease, worker, heartbeat))

    def begin_again(self, facts: Facts) -> None:
        """Start over with a fresh history: of the old one, only the public state is kept."""
        self.session.facts = facts
        self.handlers = _NO_HANDLERS
        self.state.public = None
        self.life.get_past_deaths()

    async def finish(self, status: Status) -> None:
        """Store the status, which is an end or `STUCK`, and release the instance."""
        await Finish(self.session, self.reader, self.head, self.state, self.outside).finish(status)
