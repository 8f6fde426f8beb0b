"""What several tests of drivers look at."""

from __future__ import annotations

import threading
import time

import pytest


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once SQLite has found its file busy, and pauses before it tries again."""
    event = threading.Event()

    def sleep(seconds: float) -> None:
        event.set()
        time.sleep(seconds)

    monkeypatch.setattr("workflow_drivers.sqlite._file.sleep", sleep)
    return event
