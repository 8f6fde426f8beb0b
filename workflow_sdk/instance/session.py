"""What the parts of one run share: the session, the writer of the head, and the public state."""

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
    """What every part of one run needs: the store, the journal, the codec, the clock, the lease and the host."""

    driver: Driver
    journal: Journal
    codec: Codec
    clock: Clock
    facts: Facts
    worker: str
    """The id of the worker that runs the instance."""
    lease: bytes
    """The packed lease under which the run writes."""
    host: Host
    life: RunLife
    flusher: Flusher


class HeadWriter:
    """Changes the head of one instance, and the rows that go with it. The next commit writes these changes."""

    __slots__ = ("_beats", "_session", "_worker")

    def __init__(self, session: Session, worker: WorkerKeys, *, beats: bool) -> None:
        self._session = session
        self._worker = worker
        self._beats = beats
        """Whether the worker exists for this run only: then its heartbeat ends with the run."""

    def become(self, status: Status) -> None:
        """Set the status of the instance."""
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
        """The id of the worker that runs the instance."""
        return self._worker.worker

    def refer(self, before: str | None, after: str | None) -> None:
        """Have the instance listed by another business reference."""
        facts = self._session.facts
        if before is not None:
            self._session.journal.write_outside(listed_by_reference(before, facts.created_at, facts.instance_id), None)
        if after is not None:
            self._session.journal.write_outside(listed_by_reference(after, facts.created_at, facts.instance_id), b"")

    @property
    def status(self) -> Status:
        """The status of the instance, as it will be after the next commit."""
        return self._session.journal.about.status

    def let_go(self) -> list[Writing]:
        """The writes that release the instance. If its head has an alarm, any worker may run it then."""
        keys, alarm = self._session.journal.keys, self._session.journal.about.head.alarm
        writes: list[Writing] = [Clear(keys.lease), Clear(self._worker.claimed(self._session.facts.instance_id))]
        if self._beats:
            writes += forget_worker(self._worker)
        if alarm is not None:
            # Workers wait until the first alarm that they know. This one may be earlier.
            writes += Set(keys.alarm(alarm), b""), Signal(keys.shard_signal)
        return writes

    def due(self, alarm: float | None) -> None:
        """Set when the instance is due once it is released."""
        journal = self._session.journal
        journal.set_row(Field.HEAD, replace(journal.about.head, alarm=alarm))

    def purge(self, when: float) -> None:
        """Set when the instance, which ends now, is to be deleted."""
        journal = self._session.journal
        journal.unwritten.touch()
        journal.set_row(Field.HEAD, replace(journal.about.head, purge_at=when))
        journal.write_outside(purge_key(when, self._session.facts.instance_id), b"")


class RunState:
    """The public state of one run's instance, which is read and stored only if the code uses it."""

    __slots__ = ("_head", "_session", "public")

    def __init__(self, session: Session, head: HeadWriter) -> None:
        self._session = session
        self._head = head
        self.public: PublicState | None = None
        """The public state; None if this run has neither read nor assigned it."""

    def see(self) -> PublicState:
        """The public state, as it was when the instance began, or as this run has made it."""
        if self.public is None:
            try:
                self.public = PublicState.since_the_start(self._session.codec, self._session.journal.about)
            except CodecError as error:
                # Not a failure of the author's code: it must not be able to catch this.
                what = "the ctx.state with which the instance started over can't be read"
                raise self._session.life.misread(error, what) from None
        return self.public

    def show(self) -> None:
        """Have the next commit store what was assigned, so that everybody sees it."""
        journal = self._session.journal
        if self.public is None or journal.history.loaded:
            # While recorded history is still replayed, not everything has been assigned again.
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
