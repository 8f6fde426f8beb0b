"""The keys of schedules."""

from __future__ import annotations

from workflow_sdk.errors import CodecError
from workflow_sdk.rows.keys import ROOT
from workflow_sdk.rows.location import pack, unpack

SCHEDULES: bytes = ROOT + pack((14, 1))
SCHEDULES_DUE: bytes = ROOT + pack((14, 2))
"""What the next ticks begin with; a time and an id follow."""
SCHEDULES_SIGNAL: bytes = ROOT + pack((14, 3))
SCHEDULES_WAITING: bytes = ROOT + pack((14, 4))


def schedule_key(schedule_id: str) -> bytes:
    """Where a schedule is."""
    return SCHEDULES + pack((schedule_id,))


def due_schedule(when: float, schedule_id: str) -> bytes:
    """The row of a schedule's next tick: they sort by their time."""
    return SCHEDULES_DUE + pack((when, schedule_id))


def waiting_schedule(schedule_id: str) -> bytes:
    """The row of a schedule of which ticks wait."""
    return SCHEDULES_WAITING + pack((schedule_id,))


def scheduled(due: bytes) -> tuple[float, str]:
    """The time and the schedule of the row of a tick."""
    parts = unpack(due[len(ROOT) :])
    when, id = parts[2:] if len(parts) == 4 else (None, None)
    if type(when) is not float or type(id) is not str:
        raise CodecError(f"a key in the store is not of this library's making: {due!r:.100}")
    return when, id
