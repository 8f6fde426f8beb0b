"""Keeping schedules: every worker looks at all of them, and the first one starts the instances that are due.

One commit begins the instances of a tick and moves the schedule on. It checks that the schedule is as it was read, so
that of any number of runtimes only one begins them. The row by which a tick is found only says where to look; what is
to be done stands in the row of the schedule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from random import shuffle
from typing import Any

import anyio

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.instances import new_rows
from workflow_sdk.client.directory import first_time
from workflow_sdk.client.watching import Watch, wait_idly
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.features.schedules.changes import Kept, keep
from workflow_sdk.features.schedules.rows import (
    SCHEDULES_DUE,
    SCHEDULES_SIGNAL,
    SCHEDULES_WAITING,
    WAITING_MAX,
    ScheduleRow,
    schedule_key,
    scheduled,
)
from workflow_sdk.instance.clock import Clock
from workflow_sdk.operations.types import new_seed
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import id_in
from workflow_sdk.rows.location import pack, subtree
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import due_at_once
from workflow_sdk.worker.residents import Residents

_log = logging.getLogger("workflow_sdk.runtime")


class Ticking:
    """The loops of one worker that keep schedules."""

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
        """When the loop last looked, by `monotonic`."""
        self._residents = residents
        self._workflows = workflows
        self._retention = retention
        self._on_start = on_start
        """Called with the id of every instance that was started."""
        self._unreadable: dict[str, bytes] = {}
        """The schedules that this worker can't keep, each with its row when that was logged, so that it is logged
        once."""
        self._awaited: set[str] = set()
        """The instances for whose end ticks wait."""
        self._rung = anyio.Event()
        """Set when there may be something to do."""
        self._signal: bytes | None = None
        """The value of the signal when the schedules were read."""
        self._heard = anyio.Event()
        """Set when it was read."""
        residents.on_end.append(self._ended)

    def _ended(self, id: str) -> None:
        # An instance that ends in this process is noticed at once, without the store.
        if id in self._awaited:
            self._rung.set()

    async def listen(self) -> None:
        """Return once a schedule was changed, and the signal that said so was read again."""
        await self._driver.changed(SCHEDULES_SIGNAL, self._signal)
        self._rung.set()
        # Called again before the signal was read again, `changed` would return at once, for the same change.
        heard = self._heard = anyio.Event()
        await heard.wait()

    async def start_what_is_due(self) -> None:
        """Start the instances of ticks that are due or have waited; return when there may be more."""
        rung = self._rung = anyio.Event()
        with self._residents.looks():
            # The signal is read before the schedules: a change between the two reads changes it again, and is not
            # missed.
            self._signal = await self._driver.get(SCHEDULES_SIGNAL)
            self._heard.set()
            until, ends = await self._look()
        if not ends:
            await wait_idly(self._clock, rung, until)
            return

        async def tell(key: bytes, since: bytes | None) -> None:
            await self._driver.changed(key, since)
            rung.set()

        async with anyio.create_task_group() as group:
            for key, since in ends.items():
                group.start_soon(tell, key, since)
            await wait_idly(self._clock, rung, until)
            group.cancel_scope.cancel()

    async def _look(self) -> tuple[float | None, dict[bytes, bytes | None]]:
        """Handle due ticks; return when to look again, and the heads of instances for whose end ticks wait."""
        await self._watch.until_looked()
        now, began = self._clock.time(), self._clock.monotonic()
        judge = self._watch.judge(now, began - self._looked)
        begin, end = subtree(SCHEDULES_DUE)
        to_come = SCHEDULES_DUE + pack((now,)) + b"\xff"
        self._awaited.clear()
        found = await self._find((begin, to_come), subtree(SCHEDULES_WAITING))
        order = list(found)
        # Other workers look at the same schedules. If all began with the first, their commits would conflict.
        shuffle(order)
        times: list[float] = []
        ends: dict[bytes, bytes | None] = {}
        for id in order:
            kept = await self._keep(id, found[id], judge)
            if kept is None:
                continue
            if kept.row.next_at is not None and kept.row.next_at <= now:
                # More is due than one commit may start; or it is not due yet by the clocks of the other workers.
                times.append(now + max(0.0, kept.row.next_at - judge(kept.row.next_at)))
            if kept.row.waiting and kept.head_key is not None:
                ends[kept.head_key] = kept.head
        self._unreadable = {id: raw for id, raw in self._unreadable.items() if id in found}
        # Only ticks after now: rows before that are of schedules that this worker can't keep, or are in `times`.
        first = await first_time(self._driver, to_come, end, lambda key: scheduled(key)[0])
        self._looked = began
        return min(times if first is None else [*times, first], default=None), ends

    async def _find(self, *ranges: tuple[bytes, bytes]) -> dict[str, list[bytes]]:
        """Find the schedules that have rows in these ranges, each with its rows there."""
        found: dict[str, list[bytes]] = {}
        for begin, end in ranges:
            for key, _ in await self._driver.scan(begin, end):
                id = id_in(key)
                if id is not None:
                    found.setdefault(id, []).append(key)
        return found

    async def _keep(self, id: str, rows: list[bytes], judge: Callable[[float], float]) -> Kept | None:
        """Start what is due of one schedule, in one commit; return the schedule, None if it can't be kept here."""
        try:
            kept = await apply(self._driver, keep(id, rows, judge, self._workflows, self._new_rows))
        except (CodecError, DefinitionError) as error:
            raw = await self._driver.get(schedule_key(id)) or b""
            if self._unreadable.get(id) != raw:
                self._unreadable[id] = raw
                _log.error("schedule %s is not kept here: %s", id, error)
            return None
        if kept is None:
            return None
        if kept.row.waiting and kept.row.last_instance is not None:
            self._awaited.add(kept.row.last_instance)
        if kept.is_full:
            last = kept.row.last_instance
            _log.warning("schedule %s: %s ticks wait for %s; more are left out", id, WAITING_MAX, last)
        for instance_id in kept.begun:
            self._on_start(instance_id)
        return kept

    def _new_rows(self, row: ScheduleRow, now: float) -> InstanceRows:
        """Make the rows of an instance that begins now."""
        flow = self._workflows[row.workflow]
        return new_rows(flow, Status.PENDING, row.input, now, new_seed(), self._retention, due_at_once(now))
