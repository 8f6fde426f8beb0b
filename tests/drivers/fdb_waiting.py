"""Waiting for the double of FoundationDB."""

from __future__ import annotations

import threading

import anyio
import pytest

from tests.drivers.fdb_double import Double
from tests.drivers.fdb_double.network import network
from tests.drivers.until import some_turns, until
from workflow_drivers.foundationdb._binding import Future
from workflow_drivers.foundationdb._session import settled

__all__ = ["all_is_done", "do_not_wait_for_silence"]


async def all_is_done() -> None:
    """Let the network thread do all that it was given, and the event loop what comes of that, several times."""
    for _ in range(5):
        done = threading.Event()
        network.post(done.set)
        await until(done.is_set)
        await some_turns()


def do_not_wait_for_silence(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the time for a commit's answer be over as soon as the cluster has the commit and says nothing."""
    known = 0

    def silences() -> int:
        happened = list(double.cluster.faults.happened)
        return sum(fault.moment == "commit" and fault.silent for fault in happened)

    async def settled_or_silent(future: Future, deadline: float) -> BaseException | None:
        nonlocal known
        await until(lambda: future.is_ready() or silences() > known)
        if not future.is_ready():
            known += 1
            deadline = anyio.current_time()
        return await settled(future, deadline)

    monkeypatch.setattr("workflow_drivers.foundationdb._commit.settled", settled_or_silent)
