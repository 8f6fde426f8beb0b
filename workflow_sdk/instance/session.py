"""What the parts of one run have in common: what it reads and writes with, its head, and its public state."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from workflow_sdk.changes.change import Signal, Writing
from workflow_sdk.changes.workers import forget_worker
from workflow_sdk.driver import Clear, Driver, Set
from workflow_sdk.errors import CodecError
from workflow_sdk.instance.clock import Clock
from workflow_sdk.instance.flushing import Flusher
from workflow_sdk.instance.host import Host
from workflow_sdk.instance.life import RunLife
from workflow_sdk.journal.journal import Journal
from workflow_sdk.journal.public_state import PublicState
from workflow_sdk.operations.types import Facts
from workflow_sdk.rows.keys import Field, WorkerKeys, listed_by_reference, listed_by_status, purge_key
from workflow_sdk.rows.status import Status, move
from workflow_sdk.rows.wire import Row
from workflow_sdk.values import Codec


class Session(Struct, eq=False):
    """One run of one instance: what it reads, what it writes with, and who runs it."""

    driver: Driver
    journal: Journal
    codec: Codec
    clock: Clock
    facts: Facts
    worker: str
    """Who runs it."""
    lease: bytes
    """Under which it writes."""
    host: Host
    life: RunLife
    flusher: Flusher


class HeadWriter:
    """Of one instance. Everything here is written with the next commit."""

    __slots__ = ("_beats", "_session", "_worker")

    def __init__(self, session: Session, worker: WorkerKeys, *, beats: bool) -> None:
        self._session = session
        self._worker = worker
        self._beats = beats
        """Whether the worker's heartbeat ends with this run."""

    def become(self, status: Status) -> None:
        """Record what the instance is doing, from the next commit on."""
        journal, head = self._session.journal, self._session.journal.about.head
        if head.status is status:
            return
        facts = self._session.facts
        journal.write_outside(listed_by_status(head.status.value, facts.created_at, facts.instance_id), None)
        journal.write_outside(listed_by_status(status.value, facts.created_at, facts.instance_id), b"")
        now = float(self._session.clock.time())
        after = replace(head, status=move(head.status, status), changes=head.changes + 1, changed_at=now)
        journal.set_row(Field.HEAD, after)

    @property
    def worker(self) -> str:
        """Who runs it."""
        return self._worker.worker

    def refer(self, before: str | None, after: str | None) -> None:
        """Have it found by its business reference, from the next commit on."""
        facts = self._session.facts
        if before is not None:
            self._session.journal.write_outside(listed_by_reference(before, facts.created_at, facts.instance_id), None)
        if after is not None:
            self._session.journal.write_outside(listed_by_reference(after, facts.created_at, facts.instance_id), b"")

    @property
    def status(self) -> Status:
        """What is recorded as the status, or will be with the next commit."""
        return self._session.journal.about.status

    def let_go(self) -> list[Writing]:
        """Have nobody have the instance any more. If it has an alarm, it is due then."""
        keys, alarm = self._session.journal.keys, self._session.journal.about.head.alarm
        writes: list[Writing] = [Clear(keys.lease), Clear(self._worker.claimed(self._session.facts.instance_id))]
        if self._beats:
            writes += forget_worker(self._worker)
        if alarm is not None:
            # Others wait for the first alarm they know of; this one may come before it.
            writes += Set(keys.alarm(alarm), b""), Signal(keys.shard_signal)
        return writes

    def due(self, alarm: float | None) -> None:
        """When it is due, once nobody has it."""
        journal = self._session.journal
        journal.set_row(Field.HEAD, replace(journal.about.head, alarm=alarm))

    def purge(self, when: float) -> None:
        """When it is to be forgotten, now that it ends."""
        journal = self._session.journal
        journal.unwritten.touch()
        journal.set_row(Field.HEAD, replace(journal.about.head, purge_at=when))
        journal.write_outside(purge_key(when, self._session.facts.instance_id), b"")


class RunState:
    """Of one run."""

    __slots__ = ("_head", "_session", "public")

    def __init__(self, session: Session, head: HeadWriter) -> None:
        self._session = session
        self._head = head
        self.public: PublicState | None = None
        """The public state, if it was ever looked at or assigned."""

    def see(self) -> PublicState:
        """The public state, as it was when the instance began, or as this run has made it."""
        if self.public is None:
            try:
                self.public = PublicState.since_the_start(self._session.codec, self._session.journal.about)
            except CodecError as error:
                # No failure of the author's, who must not see it.
                what = "the ctx.state with which the instance started over can't be read"
                raise self._session.life.misread(error, what) from None
        return self.public

    def show(self) -> None:
        """Have everybody see what was assigned, with the next commit."""
        journal = self._session.journal
        if self.public is None or journal.history.loaded:
            # While history is walked over again, not everything is assigned yet.
            return
        before = journal.about.shown.reference
        try:
            state, shown = self.public.shown()
        except CodecError as error:
            self._session.life.mistake(error)
            return
        rows: tuple[tuple[Field, Row | None], ...] = (Field.STATE, state), (Field.SHOWN, shown)
        for field, row in rows:
            if row is not None or field in journal.about.raw:
                journal.set_row(field, row)
        after = journal.about.shown.reference
        if after != before:
            self._head.refer(before, after)
