"""Keeping schedules: every runtime looks at all of them, and whoever comes first begins what is due.

One commit begins the instances of a tick and moves the schedule on. It checks the schedule as it was read, so that of
any number of runtimes one has it. A row of a tick in the store only says where to look; the schedule says what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import shuffle
from typing import Any

import anyio
from msgspec.structs import replace

from workflow_sdk.core.instance import Head
from workflow_sdk.core.keys import (
    SCHEDULES_BELL,
    SCHEDULES_DUE,
    SCHEDULES_WAITING,
    Field,
    InstanceKeys,
    due_schedule,
    id_in,
    schedule_key,
    scheduled,
    waiting_schedule,
)
from workflow_sdk.core.location import subtree
from workflow_sdk.core.schedules import WAITING_MAX, Plan, ScheduleRow, decide
from workflow_sdk.core.status import Status
from workflow_sdk.core.times import due_at_once
from workflow_sdk.core.tuples import pack
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.execution.clock import Activity, Clock
from workflow_sdk.execution.lease import new_rows
from workflow_sdk.execution.posting import create
from workflow_sdk.runtime.merging import first_time
from workflow_sdk.runtime.residents import Residents
from workflow_sdk.runtime.schedules import instance_of, put_schedule, unpack_schedule
from workflow_sdk.runtime.ticks import ticks_of
from workflow_sdk.runtime.watching import Watch

__all__ = ["Ticking"]

_log = logging.getLogger("workflow_sdk.runtime")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A schedule as it was read, and whether the instance that it began last has ended."""

    id: str
    raw: bytes
    row: ScheduleRow
    head_key: bytes | None
    """Where the head of that instance is, if its status matters."""
    head: bytes | None

    @property
    def is_busy(self) -> bool:
        """Whether it has not ended. One that was deleted has."""
        return self.head is not None and not Head.unpack(self.head).status.is_terminal


class Ticking:
    """The schedules, as one worker keeps them."""

    def __init__(
        self,
        driver: Driver,
        clock: Clock,
        watch: Watch,
        residents: Residents,
        workflows: Mapping[str, Workflow[Any, Any]],
        on_start: Callable[[str], None],
        retention: float | None,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._watch = watch
        self._looked = clock.monotonic()
        """When it looked last."""
        self._residents = residents
        self._workflows = workflows
        self._retention = retention
        self._on_start = on_start
        """Told of every instance that was begun."""
        self._unreadable: dict[str, bytes] = {}
        """Schedules that can't be kept here, as they were when that was said: it is said once."""
        self._awaited: set[str] = set()
        """Instances that have to end before something waiting begins."""
        self._rung = anyio.Event()
        """Set when there may be something to do."""
        self._bell: bytes | None = None
        """What the bell held when the schedules were read."""
        self._heard = anyio.Event()
        """Set when it was read."""
        residents.on_end.append(self._ended)

    def _ended(self, id: str) -> None:
        # What ends here needs no way through the store.
        if id in self._awaited:
            self._rung.set()

    async def listen(self) -> None:
        """Notice that a schedule was changed."""
        await self._driver.changed(SCHEDULES_BELL, self._bell)
        self._rung.set()
        # The bell is read before the schedules are.
        heard = self._heard = anyio.Event()
        await heard.wait()

    async def start_what_is_due(self) -> None:
        """Begin what is due, and what has waited for its turn; return when there may be more."""
        rung = self._rung = anyio.Event()
        with self._residents.looks():
            self._bell = await self._driver.get(SCHEDULES_BELL)
            self._heard.set()
            until, ends = await self._look()
        if not ends:
            await self._clock.wait(rung, until, _nothing)
            return

        async def tell(key: bytes, since: bytes | None) -> None:
            await self._driver.changed(key, since)
            rung.set()

        async with anyio.create_task_group() as group:
            for key, since in ends.items():
                group.start_soon(tell, key, since)
            await self._clock.wait(rung, until, _nothing)
            group.cancel_scope.cancel()

    async def _look(self) -> tuple[float | None, dict[bytes, bytes | None]]:
        """Do so; return when to look again, and the keys that tell of the end of an instance that others wait for."""
        driver = self._driver
        await self._watch.until_looked()
        now, began = self._clock.time(), self._clock.monotonic()
        judge = self._watch.judge(now, began - self._looked)
        begin, end = subtree(SCHEDULES_DUE)
        to_come = SCHEDULES_DUE + pack((now,)) + b"\xff"
        self._awaited.clear()
        ids: dict[str, list[bytes]] = {}
        for key, _ in [*await driver.scan(begin, to_come), *await driver.scan(*subtree(SCHEDULES_WAITING))]:
            id = id_in(key)
            if id is not None:
                ids.setdefault(id, []).append(key)
        order = list(ids)
        # Others look at the same schedules. If all began with the first, they would be in each other's way.
        shuffle(order)
        until: float | None = None
        ends: dict[bytes, bytes | None] = {}
        for id in order:
            seen = await self._keep(id, ids[id], judge)
            if seen is None:
                continue
            if seen.row.next_at is not None and seen.row.next_at <= now:
                # A commit does not begin any number of instances; or it is not due by the clocks of the others.
                later = now + max(0.0, seen.row.next_at - judge(seen.row.next_at))
                until = later if until is None else min(until, later)
            if seen.row.waiting and seen.head_key is not None:
                ends[seen.head_key] = seen.head
        self._unreadable = {id: raw for id, raw in self._unreadable.items() if id in ids}
        # What is left of the past is not ours to keep.
        first = await first_time(driver, to_come, end, lambda key: scheduled(key)[0])
        if first is not None:
            until = first if until is None else min(until, first)
        self._looked = began
        return until, ends

    async def _keep(self, id: str, rows: list[bytes], judge: Callable[[float], float]) -> _Seen | None:
        """Do what is to be done for one schedule, in one commit; return how it is then, if it is kept here."""
        try:
            while True:
                seen = await self._read(id, rows)
                if seen is None or seen.row.workflow not in self._workflows:
                    return None
                now = judge(seen.row.next_at or 0.0)
                plan = decide(seen.row, now, ticks_of(seen.row), is_busy=seen.is_busy)
                if (plan.starts, plan.waiting, plan.next_at) == ((), seen.row.waiting, seen.row.next_at):
                    return seen
                if await self._carry_out(seen, plan, now):
                    return await self._read(id, [])
        except (CodecError, DefinitionError) as error:
            raw = await self._driver.get(schedule_key(id)) or b""
            if self._unreadable.get(id) != raw:
                self._unreadable[id] = raw
                _log.error("schedule %s is not kept here: %s", id, error)
            return None

    async def _read(self, id: str, rows: list[bytes]) -> _Seen | None:
        """A schedule that something may be to be done for; `rows` are what says so."""
        driver = self._driver
        raw = await driver.get(schedule_key(id))
        row = None if raw is None else unpack_schedule(id, raw)
        await self._clear(id, raw, [key for key in rows if row is None or not _leads_to(key, id, row)])
        if raw is None or row is None or row.paused:
            return None
        if row.overlap == "allow" or row.last_instance is None:
            return _Seen(id, raw, row, None, None)
        if row.waiting:
            self._awaited.add(row.last_instance)
        head_key = InstanceKeys(row.last_instance).field(Field.HEAD)
        return _Seen(id, raw, row, head_key, await driver.get(head_key))

    async def _clear(self, id: str, raw: bytes | None, rows: list[bytes]) -> None:
        """Clear rows that lead to nothing, as are left of a schedule that could not be read when it was deleted."""
        batch = Batch()
        batch.check(schedule_key(id), raw)
        for key in rows:
            # Most often somebody else was faster, and has cleared them.
            if await self._driver.get(key) is not None:
                batch.clear(key)
        if batch.writes:
            with suppress(ConflictError):
                await self._driver.commit(batch)

    async def _carry_out(self, seen: _Seen, plan: Plan, now: float) -> bool:
        """Begin what is to begin, and move the schedule on; False if it is another one by now."""
        id, flow = seen.id, self._workflows[seen.row.workflow]
        batch = Batch()
        batch.check(schedule_key(id), seen.raw)
        after = plan.applied(seen.row)
        begun: list[str] = []
        for tick in plan.starts:
            keys = InstanceKeys(instance_of(id, tick))
            after = replace(after, last_instance=keys.instance_id)
            if await self._driver.get(keys.field(Field.HEAD)) is not None:
                continue  # the tick of a schedule of this id that was deleted since, or started by hand: it has begun
            rows = new_rows(flow, Status.PENDING, seen.row.input, now, self._retention, due_at_once(now))
            create(batch, keys, rows)
            begun.append(keys.instance_id)
        if begun and seen.head_key is not None:
            # It may have been given another try since.
            batch.check(seen.head_key, seen.head)
        put_schedule(batch, id, seen.row, after)
        try:
            await self._driver.commit(batch)
        except ConflictError:
            return False
        if plan.is_full:
            _log.warning("schedule %s: %s ticks wait for %s; more are left out", id, WAITING_MAX, after.last_instance)
        for instance_id in begun:
            self._on_start(instance_id)
        return True


def _leads_to(key: bytes, id: str, row: ScheduleRow) -> bool:
    """Whether a row by which a schedule is found is one that it has."""
    if key == waiting_schedule(id):
        return bool(row.waiting) and not row.paused
    return row.next_at is not None and key == due_schedule(float(row.next_at), id)


def _nothing() -> Activity:
    return Activity.NONE
