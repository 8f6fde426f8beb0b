"""A virtual clock for a store that is some milliseconds away.

What is on its way in a real cluster is nothing that the clock could see: the word of a commit comes by a watch. And a
commit may take a tenth of a second at times, which is for how long most tests let a step be quiet.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from datetime import datetime

import anyio
import pytest

from workflow_sdk.testing import VirtualClock

__all__ = ["be_patient"]

STEP_SECONDS = 1.0
WORD_SECONDS = 0.1
"""Longer is surer, and takes longer: tests with many jumps have seconds for all of them."""


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clocks let real time pass before they jump."""
    begin, is_idle = VirtualClock.__init__, VirtualClock._is_idle

    def __init__(self: VirtualClock, start: datetime | None = None, *, quiet: float = STEP_SECONDS) -> None:
        begin(self, start, quiet=max(quiet, STEP_SECONDS))

    async def still_is_idle(self: VirtualClock) -> bool:
        if not await is_idle(self):
            return False
        before = self._version
        await anyio.sleep(WORD_SECONDS)
        return before == self._version and await is_idle(self)

    monkeypatch.setattr(VirtualClock, "__init__", __init__)
    monkeypatch.setattr(VirtualClock, "_is_idle", still_is_idle)
