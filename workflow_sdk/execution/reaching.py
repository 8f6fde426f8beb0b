"""What an instance does to others: a message, a child, a successor; each in the commit that records it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from workflow_sdk.changes import tasks
from workflow_sdk.changes.change import Assume, Change, Get, Steps, Writing, change
from workflow_sdk.changes.decide import new_errand_key
from workflow_sdk.changes.deliver import Letter, Posted, deliver
from workflow_sdk.changes.ending import ending_of, purge_time, tell_watchers
from workflow_sdk.changes.instances import create, new_rows
from workflow_sdk.changes.snapshot import Snapshot, find
from workflow_sdk.core.codec import Codec
from workflow_sdk.core.instance import InstanceRows, Watchers
from workflow_sdk.core.keys import Field, InstanceKeys
from workflow_sdk.core.location import pack_segment
from workflow_sdk.core.outside import Ending, Errand
from workflow_sdk.core.status import Status
from workflow_sdk.core.tasks import TaskEvent, TaskRow, task_key, task_log
from workflow_sdk.core.times import due_at_once
from workflow_sdk.core.tokens import proof_of
from workflow_sdk.driver import Driver, Set
from workflow_sdk.errors import AlreadyExistsError, InboxFullError, InstanceNotFoundError
from workflow_sdk.execution.errands import run_errands
from workflow_sdk.execution.flushing import Staged
from workflow_sdk.execution.idling import Idling
from workflow_sdk.execution.insisting import come_what_may
from workflow_sdk.execution.probe import new_seed
from workflow_sdk.operations.engine import Effect, Start
from workflow_sdk.operations.inputs import check_same_start

__all__ = ["Reaching"]

T = TypeVar("T")

LIVES_MAX = 1000
"""So many children may have had the id that is derived for one: each after a restart of the parent."""

_FOR_AUTHORS: Final = (AlreadyExistsError, InboxFullError, InstanceNotFoundError)
"""What a change that reaches others may raise in the author's code. Anything else is a failure of the store."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """An instance that was started, or was there already."""

    id: str
    ending: Ending | None = None
    """How it ended, if it has. Then nothing was recorded."""
    is_new: bool = False


class Reaching(Idling):
    """The part of an execution that reaches other instances."""

    __slots__ = ("_left_something", "codec", "driver", "failure")

    def __init__(self, *, driver: Driver, codec: Codec, **rest: Any) -> None:
        super().__init__(**rest)
        self.driver: Driver = driver
        self.codec: Codec = codec
        self.failure: Exception | None = None
        """The store failed, or the lease is lost. Nothing more is written."""
        self._left_something = False
        """A wait ended early, and of what hung on it the end may have come that was not read."""

    async def _make(
        self, change: Change[T], effect: Effect, *, weight: int = 0, stored: Callable[[T], None] | None = None
    ) -> T:
        """Make a change in one commit with the rest: what came of it. It writes the record of the effect as well.

        `stored` is called once it is in the store, cancelled or not.
        """

        def done(value: T) -> None:
            if stored is not None:
                stored(value)

        staged = Staged(change, effect.is_wanted, done, weight)
        self.flusher.stage(staged)
        await self.flush()
        while staged.has_moved_on:
            staged = Staged(change, effect.is_wanted, done, weight, retries=staged.retries + 1)
            self.flusher.stage(staged)
            await self.flush()
        outcome = staged.outcome
        if outcome is None or (outcome.error is None and not staged.is_stored):
            await self.never()
        if outcome.error is not None and not isinstance(outcome.error, _FOR_AUTHORS):
            self.storage_failed(outcome.error)
            await self.never()
        return outcome.get()

    @property
    def _version(self) -> int:
        """The number of the state of the instance that begins with the next commit."""
        return self.journal.version + 1

    def _record(self, effect: Effect, outcome: str) -> list[Writing]:
        """Record what came of an effect."""
        return [Set(key, raw) for key, raw in effect.rows(self._version, outcome)]

    async def post(self, target: str, message: str, payload: bytes, effect: Effect) -> None:
        @change
        def send() -> Steps[Posted]:
            posted = yield from deliver(InstanceKeys(target), Letter(message, payload), now, self._is_here)
            yield self._record(effect, posted.delivery.value)
            return posted

        def stored(posted: Posted) -> None:
            effect.stored()
            if posted.worker is not None and self._is_here(posted.worker):
                self._message_came(target)
            elif posted.is_stored:
                self.host.is_due(target)

        now = self.now()
        await self._make(send(), effect, weight=len(payload), stored=stored)

    async def expire(self, effect: Effect) -> bool:
        nudge = self.mail.nudge

        @change
        def expire() -> Steps[bool]:
            if (yield Assume(self.journal.keys.nudge, nudge)) != nudge:
                return False
            yield self._record(effect, "")
            return True

        return await self._make(expire(), effect, stored=partial(_stored_if, effect))

    async def begin(self, start: Start, effect: Effect) -> Ending | None:
        # What it starts is kept as long as itself, where nothing else is said.
        retention = self.journal.about.birth.retention
        now = self.now()
        rows = new_rows(start.workflow, Status.PENDING, start.input, now, new_seed(), retention, due_at_once(now))

        def stored(begun: _Begun) -> None:
            if begun.ending is None:
                effect.stored()
            if begun.is_new:
                self.host.is_due(begun.id)

        begun = await self._make(self._begin(start, rows, effect), effect, weight=len(start.input), stored=stored)
        return begun.ending

    @change
    def _begin(self, start: Start, rows: InstanceRows, effect: Effect) -> Steps[_Begun]:
        for number in range(1 if start.is_given else LIVES_MAX):
            id = f"{start.id}:{number}" if number else start.id
            keys = InstanceKeys(id)
            if start.is_given:
                found = yield from find(keys)
                if found.about:
                    return (yield from self._adopt(found, start, effect))
            if (yield from create(keys, rows)):
                yield self._record(effect, id)
                if start.is_watched:
                    yield _watch(keys, (), (self.instance_id, pack_segment(self._version) + start.location))
                return _Begun(id, is_new=True)
            # It is of an earlier life of this instance.
        raise AlreadyExistsError(f"instance {start.id!r} and its namesakes exist already")

    def _adopt(self, found: Snapshot, start: Start, effect: Effect) -> Steps[_Begun]:
        """Wait for the end of an instance that was started by someone else; or see how it ended."""
        keys, id = found.keys, found.keys.instance_id
        if id == self.instance_id:
            raise AlreadyExistsError(f"instance {id!r} can't start itself; to start over, return ContinueAsNew")
        name = start.workflow if isinstance(start.workflow, str) else start.workflow.name
        check_same_start(self.codec, id, found.about, (name, start.input))
        if not start.is_watched:
            yield self._record(effect, id)
            return _Begun(id)
        # Its end is a change of its status; and whoever ends it looks at who waits for that.
        yield Get(keys.field(Field.HEAD))
        yield Get(keys.field(Field.WATCHERS))
        if found.status.is_terminal:
            return _Begun(id, ending_of(found.about))
        yield self._record(effect, id)
        watcher = (self.instance_id, pack_segment(self._version) + effect.location)
        yield _watch(keys, found.about.watchers, watcher)
        return _Begun(id)

    def _is_here(self, worker: str) -> bool:
        return worker == self.standing.worker or self.host.is_here(worker)

    def _message_came(self, id: str) -> None:
        if id == self.instance_id:
            self.poke(lease=False)
        else:
            self.host.message_came(id)

    # Tasks.

    def open_task(self, row: TaskRow, location: bytes) -> None:
        journal, seed, id = self.journal, self.facts.seed, self.instance_id

        def pack(version: int) -> bytes:
            token = pack_segment(version) + location
            return replace(row, token=token, proof=proof_of(seed, id, token)).pack()

        journal.write_outside(task_key(row.id), pack)
        for place in (*row.places(), row.own_place):
            journal.write_outside(place, b"")
        created = TaskEvent("created", None, row.created_at, row.assignee)
        # Before everything that is appended.
        journal.write_outside(task_log(row.id) + pack_segment(0), created.pack())

    async def expire_task(self, id: str, effect: Effect) -> bool:
        now = self.now()

        @change
        def expire() -> Steps[bool]:
            if not (yield from tasks.expire(id, now)):
                return False
            yield self._record(effect, id)
            return True

        return await self._make(expire(), effect, stored=partial(_stored_if, effect))

    # What lies outside and is not waited for any more.

    def abandon_outside(self, location: bytes, *, rollback: bool = False) -> list[bytes]:
        journal = self.journal
        errands: list[bytes] = []
        for at, what in journal.drop_outside(location):
            self._left_something = True
            if what.ends:
                errands.append(new_errand_key())
                token = pack_segment(what.since) + at
                errand = Errand(what.kind, what.id, self.instance_id, token, rollback)
                journal.write_outside(errands[-1], errand.pack())
        return errands

    async def run_errands(self, errands: list[bytes]) -> None:
        try:
            await run_errands(self.driver, self.codec, self.now, errands)
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
            await self.never()

    # The end.

    async def finish(self, status: Status) -> None:
        """The last commit: how the instance ended, and that it is nobody's any more.

        Whoever cancels the run waits for it: a status that is an end must not be stored without what goes with it.
        """
        cancelled = await come_what_may(lambda: self._finish(status))
        if cancelled is not None:
            raise cancelled

    async def _finish(self, status: Status) -> None:
        if self.is_away or self.failure is not None:
            return
        self.get_past_deaths()
        self.standing.become(status)
        if status is not Status.STUCK:
            self.show()
        if status.is_terminal:
            if self._left_something:
                with suppress(Exception):  # the store failed: it will say so again
                    await self.mail.refresh(standing=False, all=True)
            self.journal.drop_endings()
            await self._end()
            return
        self.standing.due(None)
        error = await self.flusher.try_commit(self._let_go(), self._ended)
        if error is not None:
            self.storage_failed(error)

    async def _end(self) -> None:
        """Commit the end, and tell those who wait for it."""
        about, now = self.journal.about, self.now()
        self.standing.due(None)
        if (purge := purge_time(about, now)) is not None:
            self.standing.purge(purge)
        error = await self.flusher.try_commit(self._let_go_for_good(ending_of(about), now), self._ended)
        if error is not None:
            self.storage_failed(error)

    @change
    def _let_go(self) -> Steps[list[str]]:
        yield self.standing.let_go()
        return []

    @change
    def _let_go_for_good(self, ending: Ending, now: float) -> Steps[list[str]]:
        """Tell those who wait for the end: those of them who are to be told in memory as well."""
        about, keys = self.journal.about, self.journal.keys
        # Others may have begun to wait while it ran.
        raw = yield Assume(keys.field(Field.WATCHERS), about.raw.get(Field.WATCHERS))
        here: list[str] = []
        if raw is not None:
            watchers = Watchers.unpack(raw).watchers
            here = yield from tell_watchers(keys.instance_id, ending, watchers, now, self._is_here)
        yield self.standing.let_go()
        return here

    def _ended(self, here: Iterable[str]) -> None:
        """The last commit is in the store. `here`: who of those who wait for the end is to be told here as well."""
        self.is_away = True
        for id in here:
            self._message_came(id)


def _watch(keys: InstanceKeys, others: Iterable[tuple[str, bytes]], watcher: tuple[str, bytes]) -> Set:
    """Have an instance tell one more of its end."""
    return Set(keys.field(Field.WATCHERS), Watchers((*others, watcher)).pack())


def _stored_if(effect: Effect, is_recorded: bool) -> None:
    if is_recorded:
        effect.stored()
