"""Claiming an instance so that a cancellation leaves nothing claimed; and which workers of this process are alive."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial

import anyio

from workflow_sdk.changes import claim as changes
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.claim import Claim, Claimant
from workflow_sdk.driver import Driver
from workflow_sdk.operations.calling import come_what_may

REMEMBERED_MAX = 10_000
"""How many workers of this process are remembered after they have ended."""

_living: set[str] = set()
_ended: OrderedDict[str, None] = OrderedDict()


@contextmanager
def living(worker: str) -> Generator[None]:
    """Count a worker of this process as alive while the block runs, and as dead after it."""
    _living.add(worker)
    try:
        yield
    finally:
        _living.discard(worker)
        _ended[worker] = None
        while len(_ended) > REMEMBERED_MAX:
            _ended.popitem(last=False)


def lives_here(worker: str) -> bool | None:
    """Whether a worker is alive, if it is one of this process; None if it is not, or ended long ago."""
    return True if worker in _living else False if worker in _ended else None


def _forget() -> None:
    _living.clear()
    _ended.clear()


if hasattr(os, "register_at_fork"):
    # In the child of a fork no worker of the parent runs.
    os.register_at_fork(after_in_child=_forget)


LOOK_AGAIN_SECONDS = 0.05
"""The time between two looks at the heartbeats of workers that may be alive."""


async def claim(driver: Driver, who: Claimant) -> Claim:
    """Claim an instance, as `workflow_sdk.changes.claim` says. If that is cancelled or fails, nobody has it."""
    heard: dict[str, bytes] = {}
    until: float | None = None
    while True:
        has_waited = until is not None and anyio.current_time() >= until
        committed: list[Claim] = []
        try:
            claimed = await apply(driver, changes.claim(who, heard, has_waited=has_waited), committed.append)
        except (Exception, anyio.get_cancelled_exc_class()):
            if committed:
                # The claim may be stored, and the caller will not run the instance: so release it, and finish that even
                # if it is cancelled again.
                await come_what_may(partial(_give_back, driver, who))
            raise
        if not claimed.heartbeats:
            return claimed
        for worker, heartbeat in claimed.heartbeats.items():
            heard.setdefault(worker, heartbeat)
        until = anyio.current_time() + who.lease.ttl if until is None else until
        await anyio.sleep(LOOK_AGAIN_SECONDS)


async def _give_back(driver: Driver, who: Claimant) -> None:
    with suppress(Exception):  # the store failed: others take the instance over, if we don't claim it again
        await apply(driver, changes.give_back(who.keys, who.lease, who.now(), forgets_worker=who.beats))


def lives(worker: str, *, is_alive: bool) -> bool | None:
    """Whether a worker is alive, as this process knows of its own workers, or the clock of its; None if unknown."""
    here = lives_here(worker)
    return (is_alive or None) if here is None else here
