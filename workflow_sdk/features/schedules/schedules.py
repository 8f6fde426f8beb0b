"""Listing, changing and deleting schedules. The loop that starts their instances is in `ticking`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypedDict, cast

from msgspec.structs import replace

from workflow_sdk.changes.apply import apply
from workflow_sdk.client.access import Access
from workflow_sdk.client.info import Page
from workflow_sdk.errors import CodecError, DefinitionError, ScheduleNotFoundError
from workflow_sdk.features.schedules import changes
from workflow_sdk.features.schedules.changes import (
    MICROSECONDS,
    check_cron,
    check_every,
    ticks_of,
    time_zone,
    unpack_schedule,
)
from workflow_sdk.features.schedules.rows import (
    CATCH_UPS,
    OVERLAPS,
    SCHEDULES,
    CatchUp,
    Overlap,
    ScheduleRow,
    schedule_key,
)
from workflow_sdk.journal.names import NAME_CHARACTERS_MAX, name_problem
from workflow_sdk.operations.inputs import same_value
from workflow_sdk.rows.keys import last_of
from workflow_sdk.rows.location import subtree
from workflow_sdk.rows.retry import Duration
from workflow_sdk.rows.wire import deadline_of, shown

_log = logging.getLogger("workflow_sdk.runtime")

ID_CHARACTERS_MAX = NAME_CHARACTERS_MAX - len("/2026-11-18T03:00:00.000000Z")


class ScheduleOptions(TypedDict, total=False):
    """When a schedule ticks, and what is done with its ticks."""

    cron: str | None
    every: Duration | None
    timezone: str
    overlap: Overlap
    catch_up: CatchUp


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, at the moment it was read."""

    id: str
    workflow: str
    input: Any
    """The input of the instances, as plain data."""
    cron: str | None
    every: timedelta | None
    timezone: str
    overlap: str
    catch_up: str
    paused: bool
    created_at: datetime
    next_at: datetime | None
    """The next tick; None while the schedule is paused, or if no more ticks come."""
    last_at: datetime | None
    """The last tick that began an instance."""
    last_instance: str | None
    """The id of that instance."""
    waiting: tuple[datetime, ...]
    """The ticks that wait for the end of that instance."""


class Schedules:
    """Lists, pauses, resumes and deletes the schedules of a store."""

    def __init__(self, access: Access) -> None:
        self._access: Access = access

    async def list(self) -> Page[Schedule]:
        """All schedules, sorted by id. One that can't be read is left out and logged; `get` raises the error."""
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
        """The schedule with this id; ScheduleNotFoundError if there is none."""
        raw = await self._access.looking.get(_key(id))
        if raw is None:
            raise ScheduleNotFoundError(f"there is no schedule {id!r}")
        return self._seen(id, unpack_schedule(id, raw))

    async def pause(self, id: str) -> Schedule:
        """Pause a schedule: until it is resumed, its ticks are left out. To pause twice is fine."""
        return await self._change(id, lambda row: replace(row, paused=True, next_at=None))

    async def resume(self, id: str) -> Schedule:
        """Go on after a pause: with the next tick from now on, and with ticks that waited when it began."""

        def resumed(row: ScheduleRow) -> ScheduleRow:
            return replace(row, paused=False, next_at=ticks_of(row)(self._now())) if row.paused else row

        return await self._change(id, resumed)

    async def delete(self, id: str) -> None:
        """Delete a schedule. The instances that it started stay as they are."""
        _key(id)
        await apply(self._access.driver, changes.delete(id))

    async def put(self, id: str, workflow: str, raw_input: bytes, options: ScheduleOptions) -> Schedule:
        """Do what `Client.schedule` does, with a workflow and an input that were checked."""
        wanted = _new(id, workflow, raw_input, options, self._now())
        if wanted.next_at is None:
            raise DefinitionError(f"the schedule {id!r} would never tick: {_when(wanted)}")
        is_same_input = partial(same_value, self._access.codec)
        return self._seen(id, await apply(self._access.driver, changes.put(id, wanted, is_same_input)))

    def _now(self) -> float:
        return self._access.clock.time()

    async def _change(self, id: str, change: Callable[[ScheduleRow], ScheduleRow]) -> Schedule:
        _key(id)
        return self._seen(id, await apply(self._access.driver, changes.update(id, change)))

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
    """Make the row of a schedule that begins now; DefinitionError if an option is wrong."""
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


def _key(id: object) -> bytes:
    if not isinstance(id, str) or name_problem(id) is not None:
        raise DefinitionError(f"the id of a schedule is a text, not {shown(id)}")
    return schedule_key(id)


def _when(row: ScheduleRow) -> str:
    if row.cron is not None:
        return f"cron is {row.cron!r}"
    return f"every is {timedelta(microseconds=row.every or 0)}"


def _time(at: float) -> datetime:
    # From whole microseconds: a float may be a little less than its decimals say.
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(at * MICROSECONDS))
