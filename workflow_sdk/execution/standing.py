"""What the world knows of an instance that is run: its status, its place in the directory, and when it is due."""

from __future__ import annotations

from secrets import token_bytes

from workflow_sdk.core.journal import Journal
from workflow_sdk.core.keys import Field, WorkerKeys, listed_by_reference, listed_by_status
from workflow_sdk.core.status import Status, move
from workflow_sdk.core.wire import pack_record
from workflow_sdk.driver import Batch
from workflow_sdk.execution.clock import Clock
from workflow_sdk.execution.lease import forget_worker
from workflow_sdk.operations.engine import Facts

__all__ = ["Standing"]


class Standing:
    """Of one instance. Everything here is written with the next commit."""

    __slots__ = ("_beats", "_clock", "_facts", "_journal", "_worker")

    def __init__(self, journal: Journal, facts: Facts, clock: Clock, worker: WorkerKeys, *, beats: bool) -> None:
        self._journal = journal
        self._facts = facts
        self._clock = clock
        self._worker = worker
        self._beats = beats
        """Whether the worker's heartbeat ends with this run."""

    def become(self, status: Status) -> None:
        """Record what the instance is doing, from the next commit on."""
        fields = self._journal.get_field(Field.STATUS)
        now = Status(str(fields[0])) if fields else Status.RUNNING
        if now is status:
            return
        self._journal.set_field(Field.STATUS, [move(now, status).value])
        facts = self._facts
        self._journal.write_outside(listed_by_status(now.value, facts.created_at, facts.instance_id), None)
        self._journal.write_outside(listed_by_status(status.value, facts.created_at, facts.instance_id), b"")
        version = self._journal.get_field(Field.VERSION)
        assert version is not None and isinstance(version[3], int), "an instance knows what code it runs"
        self._journal.set_field(Field.VERSION, [*version[:3], version[3] + 1, self._clock.time()])

    @property
    def worker(self) -> str:
        """Who runs it."""
        return self._worker.worker

    def refer(self, before: str | None, after: str | None) -> None:
        """Have it found by its business reference, from the next commit on."""
        facts = self._facts
        if before is not None:
            self._journal.write_outside(listed_by_reference(before, facts.created_at, facts.instance_id), None)
        if after is not None:
            self._journal.write_outside(listed_by_reference(after, facts.created_at, facts.instance_id), b"")

    @property
    def status(self) -> Status:
        """What is recorded as the status, or will be with the next commit."""
        fields = self._journal.get_field(Field.STATUS)
        assert fields, "an instance has a status"
        return Status(str(fields[0]))

    def let_go(self, batch: Batch, alarm: float | None) -> None:
        """Nobody has the instance any more; it is due at the time of the alarm, if it has one."""
        keys = self._journal.keys
        batch.clear(keys.lease)
        batch.clear(self._worker.claimed(self._facts.instance_id))
        if self._beats:
            forget_worker(batch, self._worker)
        # Written even if it is known already: what is known may be of a commit that failed.
        self._journal.set_field(Field.ALARM, None)
        if alarm is not None:
            self._journal.set_field(Field.ALARM, [alarm])
            batch.set(keys.alarm(alarm), pack_record([]))
            # Others wait for the first alarm they know of; this one may come before it.
            batch.set(keys.due_bell, token_bytes(8))
