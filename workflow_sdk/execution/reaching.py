"""What an instance does to others: a message, a child, a successor; each in the commit that records it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from msgspec.structs import replace

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.instance import Watchers
from workflow_sdk.core.keys import Field, InstanceKeys
from workflow_sdk.core.location import pack_segment
from workflow_sdk.core.outside import Ending, Errand
from workflow_sdk.core.status import Status
from workflow_sdk.core.tasks import TaskEvent, TaskRow, TaskStatus, task_key, task_log
from workflow_sdk.core.times import due_at_once
from workflow_sdk.core.tokens import proof_of
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Batch, Driver
from workflow_sdk.errors import AlreadyExistsError, InboxFullError, InstanceNotFoundError
from workflow_sdk.execution.deciding import errand_key, find
from workflow_sdk.execution.ending import ending_of, purge_time, tell_watchers
from workflow_sdk.execution.errands import run_errands
from workflow_sdk.execution.flushing import Part, PartState
from workflow_sdk.execution.idling import Idling
from workflow_sdk.execution.insisting import come_what_may
from workflow_sdk.execution.lease import new_rows
from workflow_sdk.execution.posting import Letter, create, post
from workflow_sdk.execution.snapshot import Snapshot, read_standing
from workflow_sdk.execution.tasks import change_task, forget_oldest
from workflow_sdk.operations.engine import Effect, Start
from workflow_sdk.operations.inputs import check_same_start

__all__ = ["Reaching"]

LIVES_MAX = 1000
"""So many children may have had the id that is derived for one: each after a restart of the parent."""


class _Turn:
    """Branches that reach the same instance take turns."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = anyio.Lock(fast_acquire=True)
        self.users = 0


_NOBODY: dict[str, _Turn] = {}
"""Shared by all, and never written to."""


class Reaching(Idling):
    """The part of an execution that reaches other instances."""

    __slots__ = ("_left_something", "_posting", "codec", "driver", "failure")

    def __init__(self, *, driver: Driver, codec: Codec, **rest: Any) -> None:
        super().__init__(**rest)
        self.driver: Driver = driver
        self.codec: Codec = codec
        self.failure: Exception | None = None
        """The store failed, or the lease is lost. Nothing more is written."""
        self._posting = _NOBODY
        """Whose turn it is to reach which instance."""
        self._left_something = False
        """A wait ended early, and of what hung on it the end may have come that was not read."""

    async def post(self, target: str, message: str, payload: bytes, effect: Effect) -> None:
        if self._posting is _NOBODY:
            self._posting = {}
        # One commit reaches a target only once. Who looked at it before his turn would look at it again each time.
        turn = self._posting.setdefault(target, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                await self._post(target, message, payload, effect)
        finally:
            turn.users -= 1
            if not turn.users:
                del self._posting[target]

    async def _post(self, target: str, message: str, payload: bytes, effect: Effect) -> None:
        keys, letter, again = InstanceKeys(target), Letter(message, payload), False
        while True:
            batch = Batch()
            found = await self._standing(keys)
            if not found.about:
                raise InstanceNotFoundError(f"there is no instance {target!r} to send {message!r} to")
            try:
                posted = await post(self.driver, batch, keys, found, letter, self.now(), self._is_here, again=again)
            except InboxFullError:
                raise
            except Exception as error:  # noqa: BLE001  # the store failed
                self.storage_failed(error)
                await self.never()
            if not posted.is_stored:
                batch = Batch()
            outcome = posted.delivery.value
            tell = None
            if posted.is_stored:
                tell = partial(self._message_came if posted.is_here else self.host.is_due, target)
            if await self._dispatch(target, batch, effect, outcome, len(payload), tell=tell):
                return
            again = True

    async def expire(self, effect: Effect) -> bool:
        batch = Batch()
        batch.check(self.journal.keys.nudge, self.mail.nudge)
        # It reaches nobody, and so any number of them go with one commit.
        return await self._dispatch(f"wait {effect.location.hex()}", batch, effect, "", 0)

    async def begin(self, start: Start, effect: Effect) -> Ending | None:
        workflow: Workflow[Any, Any] | str = start.workflow
        for number in range(1 if start.is_given else LIVES_MAX):
            id = f"{start.id}:{number}" if number else start.id
            keys = InstanceKeys(id)
            while True:
                batch, now = Batch(), self.now()
                found: Snapshot | None = None
                if start.is_given or number:
                    found = await self._standing(keys)
                if found is not None and found.about:
                    if not start.is_given:
                        break  # of an earlier life of this instance
                    self._check_same(start, id, found)
                    if not start.is_watched:
                        await self._dispatch(id, batch, effect, id, 0)
                        return None
                    ended = await self._adopt(id, effect)
                    if ended is not None:
                        return ended
                    if effect.is_done:
                        return None
                    continue
                # What it starts is kept as long as itself, where nothing else is said.
                retention = self.journal.about.birth.retention
                rows = new_rows(workflow, Status.PENDING, start.input, now, retention, due_at_once(now))
                create(batch, keys, rows)

                def watch(version: int, keys: InstanceKeys = keys) -> list[tuple[bytes, bytes]]:
                    watcher = (self.instance_id, pack_segment(version) + start.location)
                    return [(keys.field(Field.WATCHERS), Watchers((watcher,)).pack())]

                more, tell = watch if start.is_watched else None, partial(self.host.is_due, id)
                if await self._dispatch(id, batch, effect, id, len(start.input), more, tell):
                    return None
                if not start.is_given:
                    break  # it is there by now, or has been all the time
        raise AlreadyExistsError(f"instance {start.id!r} and its namesakes exist already")

    def _check_same(self, start: Start, id: str, found: Snapshot) -> None:
        if id == self.instance_id:
            raise AlreadyExistsError(f"instance {id!r} can't start itself; to start over, return ContinueAsNew")
        name = start.workflow if isinstance(start.workflow, str) else start.workflow.name
        check_same_start(self.codec, id, found.about, (name, start.input))

    async def _adopt(self, id: str, effect: Effect) -> Ending | None:
        """Wait for the end of an instance that was started by someone else; how it ended, if it has."""
        try:
            found = await find(self.driver, id)
        except InstanceNotFoundError:
            return None  # it was deleted meanwhile
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
            await self.never()
        if found.status.is_terminal:
            return ending_of(found.about)
        others = found.about.watchers
        batch = Batch()
        # Its end is a change of its status; and whoever ends it looks at who waits for that.
        batch.check(found.keys.field(Field.HEAD), found.about.raw[Field.HEAD])
        batch.check(found.keys.field(Field.WATCHERS), found.about.raw.get(Field.WATCHERS))

        def watch(version: int, keys: InstanceKeys = found.keys) -> list[tuple[bytes, bytes]]:
            watcher = (self.instance_id, pack_segment(version) + effect.location)
            return [(keys.field(Field.WATCHERS), Watchers((*others, watcher)).pack())]

        await self._dispatch(id, batch, effect, id, 0, watch)
        return None

    async def _standing(self, keys: InstanceKeys) -> Snapshot:
        try:
            return await read_standing(self.driver, keys)
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
            await self.never()

    async def _dispatch(
        self,
        target: str,
        batch: Batch,
        effect: Effect,
        outcome: str,
        weight: int,
        more: Callable[[int], list[tuple[bytes, bytes]]] | None = None,
        tell: Callable[[], None] | None = None,
    ) -> bool:
        """Whether it is done; False if what it reaches has moved on. `tell` is called when it is, cancelled or not."""

        def rows(version: int) -> list[tuple[bytes, bytes]]:
            return effect.rows(version, outcome) + (more(version) if more is not None else [])

        def stored() -> None:
            effect.stored()
            if tell is not None:
                tell()

        part = Part(target, batch, rows, stored, effect.is_wanted, weight)
        self.flusher.stage(part)
        await self.flush()
        if part.state is PartState.WITHDRAWN:
            await self.never()
        return part.state is PartState.STORED

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
        while True:
            batch, now = Batch(), self.now()
            try:
                raw = await self.driver.get(task_key(id))
            except Exception as error:  # noqa: BLE001  # the store failed
                self.storage_failed(error)
                await self.never()
            if raw is not None:
                row = TaskRow.unpack(raw)
                if row.status is TaskStatus.COMPLETED:
                    return False
                batch.check(task_key(id), raw)
                after = replace(row, status=TaskStatus.EXPIRED, ended_at=now)
                change_task(batch, row, after, TaskEvent("expired", None, now))
                try:
                    await forget_oldest(self.driver, batch, row.instance)
                except Exception as error:  # noqa: BLE001  # the store failed
                    self.storage_failed(error)
                    await self.never()
            if await self._dispatch(f"task {id}", batch, effect, id, 0):
                return True

    # What lies outside and is not waited for any more.

    def abandon_outside(self, location: bytes, *, rollback: bool = False) -> list[bytes]:
        journal = self.journal
        errands: list[bytes] = []
        for at, what in journal.drop_outside(location):
            self._left_something = True
            if what.ends:
                errands.append(errand_key())
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
        batch = Batch()
        self.standing.let_go(batch, None)
        error = await self.flusher.try_commit(batch, self._ended)
        if error is not None:
            self.storage_failed(error)

    def _ended(self, here: Iterable[str] = ()) -> None:
        """The last commit is in the store. `here`: who of those who wait for the end is to be told here as well."""
        self.is_away = True
        for id in here:
            self._message_came(id)

    async def _end(self) -> None:
        """Commit the end, and tell those who wait for it."""
        journal, watched = self.journal, self.journal.keys.field(Field.WATCHERS)
        raw = journal.about.raw.get(Field.WATCHERS)
        while not self.is_away:
            batch = Batch()
            self.standing.let_go(batch, None)
            if (purge := purge_time(journal.about, self.now())) is not None:
                self.standing.purge(batch, purge)
            # Others may have begun to wait while it ran.
            batch.check(watched, raw)
            error: Exception | None = None
            try:
                watchers = () if raw is None else Watchers.unpack(raw).watchers
                here = await tell_watchers(
                    self.driver, batch, self.instance_id, ending_of(journal.about), watchers, self.now(), self._is_here
                )
                error = await self.flusher.try_commit(batch, partial(self._ended, here))
            except Exception as failure:  # noqa: BLE001  # the store failed
                error = failure
            if error is None:
                return
            again = False
            with suppress(Exception):  # the store failed: what is known is the first error
                before, raw = raw, await self.driver.get(watched)
                again = (raw is not None or before is not None) and await self.flusher.may_try_again(error, batch)
            if not again:
                self.storage_failed(error)
                return
