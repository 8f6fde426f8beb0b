"""What the world knows of an instance that is run: its status, its place in the directory, and when it is due."""

from __future__ import annotations

from msgspec.structs import replace

from workflow_sdk.changes.change import Signal, Writing
from workflow_sdk.changes.workers import forget_worker
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.keys import Field, WorkerKeys, listed_by_reference, listed_by_status, purge_key
from workflow_sdk.core.status import Status, move
from workflow_sdk.driver import Clear, Set
from workflow_sdk.execution.clock import Clock
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
        journal, head = self._journal, self._journal.about.head
        if head.status is status:
            return
        facts = self._facts
        journal.write_outside(listed_by_status(head.status.value, facts.created_at, facts.instance_id), None)
        journal.write_outside(listed_by_status(status.value, facts.created_at, facts.instance_id), b"")
        now = float(self._clock.time())
        after = replace(head, status=move(head.status, status), changes=head.changes + 1, changed_at=now)
        journal.set_row(Field.HEAD, after)

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
        return self._journal.about.status

    def let_go(self) -> list[Writing]:
        """Have nobody have the instance any more. If it has an alarm, it is due then."""
        keys, alarm = self._journal.keys, self._journal.about.head.alarm
        writes: list[Writing] = [Clear(keys.lease), Clear(self._worker.claimed(self._facts.instance_id))]
        if self._beats:
            writes += forget_worker(self._worker)
        if alarm is not None:
            # Others wait for the first alarm they know of; this one may come before it.
            writes += Set(keys.alarm(alarm), b""), Signal(keys.due_bell)
        return writes

    def due(self, alarm: float | None) -> None:
        """When it is due, once nobody has it."""
        journal = self._journal
        journal.set_row(Field.HEAD, replace(journal.about.head, alarm=alarm))

    def purge(self, when: float) -> None:
        """When it is to be forgotten, now that it ends."""
        journal = self._journal
        journal.touch()
        journal.set_row(Field.HEAD, replace(journal.about.head, purge_at=when))
        journal.write_outside(purge_key(when, self._facts.instance_id), b"")
