"""The effects of an instance on others: messages, children, tasks and answers; and its own end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from workflow_sdk.changes import tasks
from workflow_sdk.changes.change import Assume, Change, Get, Steps, Writing, change
from workflow_sdk.changes.decide import new_cleanup_key
from workflow_sdk.changes.deliver import NewMessage, Posted, deliver, ending_of, purge_time, tell_watchers
from workflow_sdk.changes.instances import Snapshot, create, find, new_rows
from workflow_sdk.driver import Set
from workflow_sdk.errors import AlreadyExistsError, InboxFullError, InstanceNotFoundError
from workflow_sdk.instance.cleanups import run_cleanups
from workflow_sdk.instance.inbox_reader import InboxReader
from workflow_sdk.instance.parking import RunParking
from workflow_sdk.instance.session import HeadWriter, RunState, Session
from workflow_sdk.instance.staging import Staged
from workflow_sdk.journal.inbox import Answer, is_answer
from workflow_sdk.operations.calling import come_what_may
from workflow_sdk.operations.engine import Ask
from workflow_sdk.operations.inputs import check_same_start
from workflow_sdk.operations.types import Effect, Start, new_seed
from workflow_sdk.rows.instance import InstanceRows, Watchers
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.rows.location import pack_segment
from workflow_sdk.rows.outside import Cleanup, Ending, TaskEvent, TaskRow, proof_of, task_key, task_log
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import due_at_once

T = TypeVar("T")

LIVES_MAX = 1000
"""How many ids are tried for a child: those before it may belong to children from before a restart of the parent."""

_FOR_AUTHORS: Final = (AlreadyExistsError, InboxFullError, InstanceNotFoundError)
"""The errors of such a change that are raised in the author's code. Any other counts as a failure of the store."""


class _Begun(Struct, frozen=True):
    """A child or successor that was started, or was there already."""

    id: str
    ending: Ending | None = None
    """How it ended, if it had ended already. Then nothing was recorded of it."""
    is_new: bool = False


class RunOutside:
    """Makes the effects of one run on others: messages, children, successors, tasks and answers."""

    __slots__ = ("_parking", "_session", "_state", "left_something")

    def __init__(self, session: Session, parking: RunParking, state: RunState) -> None:
        self._session = session
        self._parking = parking
        self._state = state
        self.left_something: bool = False
        """Whether a wait for a child or a task ended early: its end may be in the inbox, though nobody waits for it."""

    @property
    def _id(self) -> str:
        return self._session.journal.keys.instance_id

    @property
    def children(self) -> Iterable[str]:
        """The ids of the children that the instance waits for."""
        return [what.id for what in self._session.journal.outside.values() if what.kind == "child"]

    async def _make(
        self, change: Change[T], effect: Effect, *, weight: int = 0, stored: Callable[[T], None] | None = None
    ) -> T:
        """Make a change in one commit with all else that changed, and return its value. It also writes its own record.

        `stored` is called once it is stored, even if the branch is cancelled meanwhile.
        """

        def done(value: T) -> None:
            if stored is not None:
                stored(value)

        staged = Staged(change, effect.is_wanted, done, weight)
        await self._session.flusher.make(staged, self._parking.flush)
        outcome = staged.outcome
        if outcome is None or (outcome.error is None and not staged.is_stored):
            await self._session.life.never()
        if outcome.error is not None and not isinstance(outcome.error, _FOR_AUTHORS):
            self._session.life.storage_failed(outcome.error)
            await self._session.life.never()
        return outcome.get()

    @property
    def _version(self) -> int:
        """The version of the instance after the next commit."""
        return self._session.journal.unwritten.version + 1

    def _record(self, effect: Effect, outcome: str) -> list[Writing]:
        """The writes that record the outcome of an effect."""
        return [Set(key, raw) for key, raw in effect.rows(self._version, outcome)]

    async def post(self, target: str, message: str, payload: bytes, effect: Effect) -> None:
        @change
        def send() -> Steps[Posted]:
            posted = yield from deliver(InstanceKeys(target), NewMessage(message, payload), now, self.is_here)
            yield self._record(effect, posted.delivery.value)
            return posted

        def stored(posted: Posted) -> None:
            effect.stored()
            if posted.worker is not None and self.is_here(posted.worker):
                self.message_came(target)
            elif posted.is_stored:
                self._is_due(target)

        now = self._session.clock.time()
        await self._make(send(), effect, weight=len(payload), stored=stored)

    async def expire(self, effect: Effect) -> bool:
        stamp = self._parking.stamp

        @change
        def expire() -> Steps[bool]:
            if (yield Assume(self._session.journal.keys.stamp, stamp)) != stamp:
                return False
            yield self._record(effect, "")
            return True

        return await self._make(expire(), effect, stored=partial(_stored_if, effect))

    async def begin(self, start: Start, effect: Effect) -> Ending | None:
        # An instance that this one starts has the same retention, if its workflow gives none.
        retention = self._session.journal.about.birth.retention
        now = self._session.clock.time()
        rows = new_rows(start.workflow, Status.PENDING, start.input, now, new_seed(), retention, due_at_once(now))

        def stored(begun: _Begun) -> None:
            if begun.ending is None:
                effect.stored()
            if begun.is_new:
                self._is_due(begun.id)

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
                    yield _watch(keys, (), (self._id, pack_segment(self._version) + start.location))
                return _Begun(id, is_new=True)
            # The id is taken by a child from before a restart of this instance: try the next.
        raise AlreadyExistsError(f"instance {start.id!r} and its namesakes exist already")

    def _adopt(self, found: Snapshot, start: Start, effect: Effect) -> Steps[_Begun]:
        """Wait for the end of an instance that somebody else has started, or return how it ended."""
        keys, id = found.keys, found.keys.instance_id
        if id == self._id:
            raise AlreadyExistsError(f"instance {id!r} can't start itself; to start over, return ContinueAsNew")
        name = start.workflow if isinstance(start.workflow, str) else start.workflow.name
        check_same_start(self._session.codec, id, found.about, (name, start.input))
        if not start.is_watched:
            yield self._record(effect, id)
            return _Begun(id)
        # The commit checks both rows: the head changes when the instance ends, and the other one when somebody else
        # begins to wait for its end.
        yield Get(keys.field(Field.HEAD))
        yield Get(keys.field(Field.WATCHERS))
        if found.status.is_terminal:
            return _Begun(id, ending_of(found.about))
        yield self._record(effect, id)
        watcher = (self._id, pack_segment(self._version) + effect.location)
        yield _watch(keys, found.about.watchers, watcher)
        return _Begun(id)

    def is_here(self, worker: str) -> bool:
        here = self._session.host.here
        return worker == self._session.worker or (here is not None and here.is_worker(worker))

    def message_came(self, id: str) -> None:
        if id == self._id:
            self._parking.arrivals.signal(lease=False)
        elif self._session.host.here is not None:
            self._session.host.here.message_came(id)

    def _is_due(self, id: str) -> None:
        if self._session.host.here is not None:
            self._session.host.here.is_due(id)

    async def answer(self, key: bytes, raw: bytes, is_asked: bool | None = None) -> None:
        """Give an answer to the sender that waits for it under this key. When this returns, that is stored.

        `is_asked`: whether somebody waits, if that is known. Then the answer goes with what is to be written already.
        """
        take = self._session.host.answers.pop(key, None)
        if take is not None:
            self._session.journal.write_outside(key, None)
            self._state.show()
            # `then` hands the answer over as soon as this is stored, before a cancellation can come in between: after
            # that, a replay would not answer again.
            handed_over = partial(take, Answer(raw).pack())
            if not await self._session.flusher.flush(alone=self._parking.waits.active == 1, then=handed_over):
                await self._session.life.never()
            return
        if await self._is_asked(key) if is_asked is None else is_asked:
            self._session.journal.write_outside(key, Answer(raw).pack())
        await self._parking.flush()

    async def _is_asked(self, key: bytes) -> bool:
        try:
            asked = await self._session.driver.get(key)
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)
            await self._session.life.never()
        return asked is not None and not is_answer(asked)

    # Tasks.

    def open_task(self, row: TaskRow, location: bytes) -> None:
        journal, seed, id = self._session.journal, self._session.facts.seed, self._id

        def pack(version: int) -> bytes:
            token = pack_segment(version) + location
            return replace(row, token=token, proof=proof_of(seed, id, token)).pack()

        journal.write_outside(task_key(row.id), pack)
        for place in (*row.places(), row.own_place):
            journal.write_outside(place, b"")
        created = TaskEvent("created", None, row.created_at, row.assignee)
        # Sorts before all events that are appended later.
        journal.write_outside(task_log(row.id) + pack_segment(0), created.pack())

    # Effects.

    @property
    def machines(self) -> Any:
        return self._session.host.machines

    async def ask(self, ask: Ask, effect: Effect, asked: Callable[[], None]) -> None:
        @change
        def asks() -> Steps[None]:
            id = yield from ask(pack_segment(self._version) + effect.location)
            yield self._record(effect, id)

        def stored(_: None) -> None:
            effect.stored()
            asked()

        await self._make(asks(), effect, stored=stored)

    async def expire_task(self, id: str, effect: Effect) -> bool:
        now = self._session.clock.time()

        @change
        def expire() -> Steps[bool]:
            if not (yield from tasks.expire(id, now)):
                return False
            yield self._record(effect, id)
            return True

        return await self._make(expire(), effect, stored=partial(_stored_if, effect))

    # Children and tasks for which nobody waits any more.

    def abandon(self, location: bytes, *, rollback: bool = False) -> list[bytes]:
        journal = self._session.journal
        cleanups: list[bytes] = []
        for at, what in journal.drop_outside(location):
            self.left_something = True
            if what.ends:
                cleanups.append(new_cleanup_key())
                token = pack_segment(what.since) + at
                cleanup = Cleanup(what.kind, what.id, self._id, token, rollback)
                journal.write_outside(cleanups[-1], cleanup.pack())
        return cleanups

    async def clean_up(self, cleanups: list[bytes]) -> None:
        try:
            await run_cleanups(self._session.driver, self._session.codec, self._session.clock.time, cleanups)
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)
            await self._session.life.never()


def _watch(keys: InstanceKeys, others: Iterable[tuple[str, bytes]], watcher: tuple[str, bytes]) -> Set:
    """The write that has an instance tell one more instance of its end."""
    return Set(keys.field(Field.WATCHERS), Watchers((*others, watcher)).pack())


def _stored_if(effect: Effect, is_recorded: bool) -> None:
    if is_recorded:
        effect.stored()


class Finish:
    """Stores the end of one run's instance, or that it is stuck."""

    __slots__ = ("_head", "_outside", "_reader", "_session", "_state")

    def __init__(
        self, session: Session, reader: InboxReader, head: HeadWriter, state: RunState, outside: RunOutside
    ) -> None:
        self._session = session
        self._reader = reader
        self._head = head
        self._state = state
        self._outside = outside

    async def finish(self, status: Status) -> None:
        """Store the status, which is an end or `STUCK`, and release the instance.

        A cancellation of the run waits for this: an end must not be stored without what goes with it.
        """
        now = self._session.clock.time()
        cancelled = await come_what_may(lambda: self._finish(status, now))
        if cancelled is not None:
            raise cancelled

    async def _finish(self, status: Status, now: float) -> None:
        """Do what `finish` promises. May be called again after a cancellation, and does the same then."""
        if self._session.life.is_away or self._session.life.failure is not None:
            return
        self._session.life.get_past_deaths()
        self._head.become(status)
        if status is not Status.STUCK:
            self._state.show()
        self._head.due(None)
        if not status.is_terminal:
            error = await self._session.flusher.try_commit(self._release(), self._released, insisted=True)
        else:
            if self._outside.left_something:
                with suppress(Exception):  # the store failed: the commit below will find out, too
                    await self._reader.refresh(with_lease=False, all=True)
            self._session.journal.drop_endings()
            about = self._session.journal.about
            if (purge := purge_time(about, now)) is not None:
                self._head.purge(purge)
            change = self._release_for_good(ending_of(about), now)
            error = await self._session.flusher.try_commit(change, self._released, insisted=True)
        if error is not None:
            self._session.life.storage_failed(error)

    @change
    def _release(self) -> Steps[list[str]]:
        yield self._head.let_go()
        return []

    @change
    def _release_for_good(self, ending: Ending, now: float) -> Steps[list[str]]:
        """Release the instance, and tell those that wait for its end; return those to be told in this process."""
        about, keys = self._session.journal.about, self._session.journal.keys
        # Others may have begun to wait for the end while the instance ran. If so, the change is made again.
        raw = yield Assume(keys.field(Field.WATCHERS), about.raw.get(Field.WATCHERS))
        here: list[str] = []
        if raw is not None:
            watchers = Watchers.unpack(raw).watchers
            here = yield from tell_watchers(keys.instance_id, ending, watchers, now, self._outside.is_here)
        yield self._head.let_go()
        return here

    def _released(self, here: Iterable[str]) -> None:
        """Note that the last commit is stored. `here`: the waiting instances that are to be told in this process."""
        self._session.life.went_away()
        for id in here:
            self._outside.message_came(id)
