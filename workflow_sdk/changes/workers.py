"""What workers have in the store: heartbeats, letters, and what time it is for those who run instances."""

from __future__ import annotations

from typing import ClassVar

from workflow_sdk.changes.change import Assume, Get, Signal, Steps, Writing, change, scan
from workflow_sdk.core.instance import Lease
from workflow_sdk.core.keys import InstanceKeys, WorkerKeys, worker_keys
from workflow_sdk.core.location import subtree
from workflow_sdk.core.wire import Row
from workflow_sdk.driver import Append, Clear, ClearRange, Set
from workflow_sdk.errors import CodecError

__all__ = [
    "SKEW_SECONDS",
    "Heartbeat",
    "LetterRow",
    "beat",
    "beat_while_there",
    "beat_with_lease",
    "bury",
    "forget_worker",
    "give_heartbeat",
    "leave",
    "tell_owner",
    "time_of_workers",
]

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


class LetterRow(Row, frozen=True):
    """A letter to a worker: which of its instances is to be looked at."""

    WHAT: ClassVar[str] = "a letter"

    id: str
    evicts: bool = False
    """It is to be put away."""


def time_of_workers(now: float) -> Steps[float]:
    """What time it is for those who run instances; `now` if that agrees with one of them, or if there is none.

    A client asks for this before it acts on a time that they are to act on: its own clock may be wrong.
    """
    nearest: float | None = None
    for _, raw in (yield from scan(*WorkerKeys.heartbeats())):
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


def tell_owner(lease: Lease, instance_id: str, *, evict: bool = False) -> list[Writing]:
    """Have the worker that has the instance look at it, or put it away."""
    worker = worker_keys(lease.worker)
    return [Append(worker.letters, LetterRow(instance_id, evict).pack()), Signal(worker.bell)]


def forget_worker(worker: WorkerKeys) -> list[Writing]:
    """Forget a worker that has nothing any more."""
    return [Clear(worker.heartbeat), Clear(worker.bell), ClearRange(*subtree(worker.letters))]


@change
def beat(worker: WorkerKeys, before: bytes | None, heartbeat: bytes) -> Steps[bool]:
    """Say that a worker lives; False if it was buried since it said so last. `before`: what it has said then."""
    found: bytes | None = yield Assume(worker.heartbeat, before)
    yield Set(worker.heartbeat, heartbeat)
    return found == before


@change
def beat_while_there(worker: WorkerKeys, heartbeat: bytes) -> Steps[None]:
    """Say that a worker lives, unless it was buried or has left."""
    if (yield Get(worker.heartbeat)) is not None:
        yield Set(worker.heartbeat, heartbeat)


@change
def beat_with_lease(keys: InstanceKeys, lease: bytes, worker: WorkerKeys, heartbeat: bytes) -> Steps[None]:
    """Say that a worker lives, as long as it has the lease of an instance."""
    if (yield Assume(keys.lease, lease)) == lease:
        yield Set(worker.heartbeat, heartbeat)


@change
def leave(worker: WorkerKeys) -> Steps[None]:
    """Forget a worker, unless something is left of it that others have to take over."""
    if not (yield from scan(*worker.all_claimed(), limit=1)):
        yield forget_worker(worker)


@change
def bury(dead: WorkerKeys, heartbeat: bytes) -> Steps[None]:
    """Forget a worker that is dead, and of which this was the last heartbeat, once it has nothing any more."""
    # It may have something anew, if it lives: then it has another heartbeat first.
    if (yield Get(dead.heartbeat)) == heartbeat and not (yield from scan(*dead.all_claimed(), limit=1)):
        yield forget_worker(dead)


@change
def give_heartbeat(worker: WorkerKeys, now: float) -> Steps[None]:
    """Have a worker found that has something and no heartbeat: it is dead as soon as this one is seen."""
    if (yield Get(worker.heartbeat)) is None:
        yield Set(worker.heartbeat, Heartbeat(now, 0.0, 0).pack())
