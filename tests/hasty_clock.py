"""A virtual clock for tests whose steps hang."""

from __future__ import annotations

from datetime import datetime

from workflow_sdk.testing import VirtualClock

__all__ = ["hasty_clock"]


def hasty_clock(start: datetime | None = None) -> VirtualClock:
    """A clock that lets no real time pass for the sake of a step that is under way.

    Other clocks wait a tenth of a second before they jump to the next timer: the step may be about to end. Where every
    step that is under way hangs until a timer is due, that is nothing but waiting.
    """
    return VirtualClock(start, quiet=0.001)
