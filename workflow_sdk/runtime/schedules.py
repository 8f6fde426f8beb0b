"""Schedules, as everybody can see and change them. `runtime.ticking` is who keeps them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from secrets import token_bytes
from typing import Any, TypedDict, cast

from msgspec.structs import replace

from workflow_sdk.core.keys import (
    SCHEDULES,
    SCHEDULES_BELL,
    due_schedule,
    last_of,
    schedule_key,
    waiting_schedule,
)
from workflow_sdk.core.location import subtree
from workflow_sdk.core.names import NAME_CHARACTERS_MAX, name_problem
from workflow_sdk.core.retry import Duration
from workflow_sdk.core.schedules import CATCH_UPS, OVERLAPS, CatchUp, Overlap, ScheduleRow
from workflow_sdk.core.shown import shown
from workflow_sdk.core.times import deadline_of
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import CodecError, DefinitionError, ScheduleNotFoundError
from workflow_sdk.operations.inputs import same_value
from workflow_sdk.runtime.access import Access
from workflow_sdk.runtime.info import Page
from workflow_sdk.runtime.ticks import MICROSECONDS, check_cron, check_every, ticks_of, time_zone

__all__ = ["Schedule", "ScheduleOptions", "Schedules", "instance_of", "put_schedule", "unpack_schedule"]

_log = logging.getLogger("workflow_sdk.runtime")

ID_CHARACTERS_MAX = NAME_CHARACTERS_MAX - len("/2026-11-18T03:00:00.000000Z")


class ScheduleOptions(TypedDict, total=False):
    """When a schedule ticks, and what becomes of its ticks."""

    cron: str | None
    every: Duration | None
    timezone: str
    overlap: Overlap
    catch_up: CatchUp


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, as it was when it was looked at."""

    id: str
    workflow: str
    input: Any
    """Plain data."""
    cron: str | None
    every: timedelta | None
    timezone: str
    overlap: str
    catch_up: str
    paused: bool
    created_at: datetime
    next_at: datetime | None
    """The next tick; None while it is paused, and if none will come any more."""
    last_at: datetime | None
    """The last tick that began an instance."""
    last_instance: str | None
    """The id of that instance."""
    waiting: tuple[datetime, ...]
    """Ticks that wait for the end of that instance."""


class Schedules:
    """The schedules of a store: what there is, and what is to become of it."""

    def __init__(self, access: Access) -> None:
        self._access: Access = access

    async def list(self) -> Page[Schedule]:
        """All of them, by their ids. One that can't be read is left out, and logged: `get` raises the error."""
        found: list[Schedule] = []
        for key, raw in await self._access.looking.scan(*subtree(SCHEDULES)):
            id = last_of(key)
            try:
                row = unpack_schedule(id, raw)
            except CodecError as error:
                _log.warning("%s", error)
                continue
            found.append(self._seen(id, row))
        return Page(found)

    async def get(self, id: str) -> Schedule:
        """One of them; ScheduleNotFoundError, if there is none with this id."""
        _, row = await self._find(self._access.looking, id)
        return self._seen(id, row)

    async def pause(self, id: str) -> Schedule:
        """Start nothing any more until it is resumed. Ticks that come meanwhile are left out; pausing twice is fine."""
        return await self._change(id, lambda row: replace(row, paused=True, next_at=None))

    async def resume(self, id: str) -> Schedule:
        """Go on after a pause, with the next tick from now on, and with ticks that waited before it."""

        def resumed(row: ScheduleRow) -> ScheduleRow:
            return replace(row, paused=False, next_at=ticks_of(row)(self._now())) if row.paused else row

        return await self._change(id, resumed)

    async def delete(self, id: str) -> None:
        """Forget a schedule. The instances that it began stay as they are."""
        driver = self._access.driver
        while True:
            raw = await driver.get(_key(id))
            if raw is None:
                raise _not_found(id)
            try:
                row = unpack_schedule(id, raw)
            except CodecError:
                row = None  # whoever comes upon what else there is of it finds it gone
            batch = Batch()
            batch.check(schedule_key(id), raw)
            put_schedule(batch, id, row, None)
            if await self._commit(batch):
                return

    async def put(self, id: str, workflow: str, raw_input: bytes, options: ScheduleOptions) -> Schedule:
        """What `Client.schedule` does, with a workflow and an input that were looked at."""
        wanted = _new(id, workflow, raw_input, options, self._now())
        if wanted.next_at is None:
            raise DefinitionError(f"the schedule {id!r} would never tick: {_when(wanted)}")
        driver, codec = self._access.driver, self._access.codec
        while True:
            raw = await driver.get(schedule_key(id))
            before = None if raw is None else unpack_schedule(id, raw)
            after = wanted
            if before is not None:
                same = before.definition == wanted.definition
                if same and same_value(codec, before.input, wanted.input):
                    return self._seen(id, before)
                after = _replaced(before, wanted)
            batch = Batch()
            batch.check(schedule_key(id), raw)
            put_schedule(batch, id, before, after)
            if await self._commit(batch):
                return self._seen(id, after)

    def _now(self) -> float:
        return self._access.clock.time()

    async def _find(self, driver: Driver, id: str) -> tuple[bytes, ScheduleRow]:
        raw = await driver.get(_key(id))
        if raw is None:
            raise _not_found(id)
        return raw, unpack_schedule(id, raw)

    async def _change(self, id: str, change: Callable[[ScheduleRow], ScheduleRow]) -> Schedule:
        while True:
            raw, before = await self._find(self._access.driver, id)
            after = change(before)
            if after == before:
                return self._seen(id, before)
            batch = Batch()
            batch.check(schedule_key(id), raw)
            put_schedule(batch, id, before, after)
            if await self._commit(batch):
                return self._seen(id, after)

    async def _commit(self, batch: Batch) -> bool:
        try:
            await self._access.driver.commit(batch)
        except ConflictError:
            return False
        return True

    def _seen(self, id: str, row: ScheduleRow) -> Schedule:
        return Schedule(
            id=id,
            workflow=row.workflow,
            input=self._access.codec.decode(row.input, plain=True),
            cron=row.cron,
            every=None if row.every is None else timedelta(microseconds=row.every),
            timezone=row.timezone,
            overlap=row.overlap,
            catch_up=row.catch_up,
            paused=row.paused,
            created_at=_time(row.created_at),
            next_at=None if row.next_at is None else deadline_of(row.next_at),
            last_at=None if row.last_at is None else _time(row.last_at),
            last_instance=row.last_instance,
            waiting=tuple(map(_time, row.waiting)),
        )


def _new(id: str, workflow: str, raw_input: bytes, options: ScheduleOptions, now: float) -> ScheduleRow:
    """A schedule that begins now; DefinitionError, if there is anything wrong with it."""
    if name_problem(id) is not None or len(id) > ID_CHARACTERS_MAX:
        raise DefinitionError(f"the id of a schedule is a text of 1 to {ID_CHARACTERS_MAX} characters, not {shown(id)}")
    if unknown := options.keys() - ScheduleOptions.__annotations__.keys():
        raise TypeError(f"a schedule has no {', '.join(sorted(unknown))}")
    cron, every = options.get("cron"), options.get("every")
    if (cron is None) == (every is None):
        raise DefinitionError(f"the schedule {id!r} ticks by `cron` or `every` so often: give one of the two")
    timezone, overlap, catch_up = (options.get(name, default) for name, default in _DEFAULTS.items())
    if overlap not in OVERLAPS:
        raise DefinitionError(f'overlap is "skip", "queue" or "allow", not {shown(overlap)}')
    if catch_up not in CATCH_UPS:
        raise DefinitionError(f'catch_up is "last", "all" or "none", not {shown(catch_up)}')
    time_zone(timezone)
    row = ScheduleRow(
        workflow=workflow,
        input=raw_input,
        cron=None if cron is None else check_cron(cron),
        every=None if every is None else check_every(every),
        timezone=str(timezone),
        overlap=cast("Any", overlap),
        catch_up=cast("Any", catch_up),
        paused=False,
        created_at=now,
        since=now,
        next_at=None,
        last_at=None,
        last_instance=None,
        waiting=(),
    )
    return replace(row, next_at=ticks_of(row)(now))


_DEFAULTS = {"timezone": "UTC", "overlap": "skip", "catch_up": "last"}


def _replaced(before: ScheduleRow, wanted: ScheduleRow) -> ScheduleRow:
    """The new definition, with what was. Ticks of the old one that wait are gone."""
    return replace(
        wanted,
        paused=before.paused,
        created_at=before.created_at,
        next_at=None if before.paused else wanted.next_at,
        last_at=before.last_at,
        last_instance=before.last_instance,
    )


def put_schedule(batch: Batch, id: str, before: ScheduleRow | None, after: ScheduleRow | None) -> None:
    """Write a schedule, or clear it, with the rows by which it is found when something is to be done."""
    if before is not None and before.next_at is not None:
        batch.clear(due_schedule(float(before.next_at), id))
    batch.clear(waiting_schedule(id))
    if after is None:
        batch.clear(schedule_key(id))
        return
    batch.set(schedule_key(id), after.pack())
    if after.next_at is not None:
        batch.set(due_schedule(float(after.next_at), id), b"")
    if after.waiting and not after.paused:
        batch.set(waiting_schedule(id), b"")
    batch.set(SCHEDULES_BELL, token_bytes(8))


def unpack_schedule(id: str, raw: bytes) -> ScheduleRow:
    """The schedule that a row holds; CodecError, which names it, if it can't be one."""
    try:
        return ScheduleRow.unpack(raw)
    except CodecError as error:
        raise CodecError(f"schedule {id!r}: {error}; it can be deleted") from None


def instance_of(id: str, tick: float) -> str:
    """The id of the instance that a tick begins."""
    return f"{id}/{_time(tick).isoformat().removesuffix('+00:00')}Z"


def _key(id: object) -> bytes:
    if not isinstance(id, str) or name_problem(id) is not None:
        raise DefinitionError(f"the id of a schedule is a text, not {shown(id)}")
    return schedule_key(id)


def _not_found(id: str) -> ScheduleNotFoundError:
    return ScheduleNotFoundError(f"there is no schedule {id!r}")


def _when(row: ScheduleRow) -> str:
    if row.cron is not None:
        return f"cron is {row.cron!r}"
    return f"every is {timedelta(microseconds=row.every or 0)}"


def _time(at: float) -> datetime:
    # From whole microseconds: a float may be a little less than its decimals say.
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(at * MICROSECONDS))
