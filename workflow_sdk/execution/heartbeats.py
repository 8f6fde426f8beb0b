"""What a worker says to show that it lives, and what time it is for those who do."""

from __future__ import annotations

from typing import ClassVar

from workflow_sdk.core.keys import WorkerKeys
from workflow_sdk.core.wire import Row
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError

__all__ = ["SKEW_SECONDS", "Heartbeat", "time_of_workers"]

SKEW_SECONDS = 5.0
"""Clocks that differ by no more than this agree."""


class Heartbeat(Row, frozen=True):
    """A row that its worker writes again and again. Whether it is alive shows in that the row changes."""

    WHAT: ClassVar[str] = "a heartbeat"

    at: float
    """When it was written, by the clock of its worker."""
    ttl: float
    """After how many seconds without another one the worker is taken for dead."""
    number: int | None
    """Another one each time, so that the row changes even if the clock stands still. None if there is no second one:
    then everybody knows by their clock who is alive."""


async def time_of_workers(driver: Driver, now: float) -> float:
    """What time it is for those who run instances; `now` if that agrees with one of them, or if there is none.

    A client asks for this before it acts on a time that they are to act on: its own clock may be wrong.
    """
    nearest: float | None = None
    for _, raw in await driver.scan(*WorkerKeys.heartbeats()):
        try:
            heartbeat = Heartbeat.unpack(raw)
        except CodecError:
            continue
        if heartbeat.number is None:
            return now
        # Written again long before it is this old, if its worker is alive.
        latest = heartbeat.at + heartbeat.ttl
        if heartbeat.at - SKEW_SECONDS <= now <= latest + SKEW_SECONDS:
            return now
        its = min(max(now, heartbeat.at), latest)
        if nearest is None or abs(its - now) < abs(nearest - now):
            nearest = its
    return now if nearest is None else nearest
