"""The rows of workers: heartbeats, which also carry the time by the worker's clock, and signals."""

from __future__ import annotations

from typing import ClassVar

from workflow_sdk.changes.change import Assume, Get, Signal, Steps, Writing, change, scan
from workflow_sdk.driver import Append, Clear, ClearRange, Set
from workflow_sdk.errors import CodecError
from workflow_sdk.rows.instance import Lease
from workflow_sdk.rows.keys import InstanceKeys, WorkerKeys, worker_keys
from workflow_sdk.rows.location import subtree
from workflow_sdk.rows.wire import Row

SKEW_SECONDS = 5.0
"""Clocks that differ by no more than this agree."""


class Heartbeat(Row, frozen=True):
    """A row that a worker writes again and again. As long as it changes, the worker is alive."""

    WHAT: ClassVar[str] = "a heartbeat"

    at: float
    """When it was written, by the clock of its worker."""
    ttl: float
    """After how many seconds without another one the worker is taken for dead."""
    number: int | None
    """Another number each time, so that the row changes even if the clock stands still. None if the worker writes only
    one heartbeat, since it shares a clock with the others that knows who is alive."""


class SignalRow(Row, frozen=True):
    """A signal to a worker: one of its instances is to look for messages, or is to be evicted."""

    WHAT: ClassVar[str] = "a signal"

    id: str
    evicts: bool = False
    """Whether the instance is to be evicted. If not, it is to look for messages."""


def time_of_workers(now: float) -> Steps[float]:
    """The time by the clocks of those who run instances; `now`, if it agrees with one of them or there is none.

    A client asks for this before it decides whether a deadline is over, or sets an alarm: its own clock may be wrong.
    """
    nearest: float | None = None
    for _, raw in (yield from scan(*WorkerKeys.heartbeats())):
        try:
            heartbeat = Heartbeat.unpack(raw)
        except CodecError:
            continue
        if heartbeat.number is None:
            return now
        # A worker that is alive writes the next heartbeat long before its clock shows this.
        latest = heartbeat.at + heartbeat.ttl
        if heartbeat.at - SKEW_SECONDS <= now <= latest + SKEW_SECONDS:
            return now
        its = min(max(now, heartbeat.at), latest)
        if nearest is None or abs(its - now) < abs(nearest - now):
            nearest = its
    return now if nearest is None else nearest


def no_worker(worker: str) -> bool:
    """Answer no, whichever worker is asked about."""
    return False


def tell_owner(lease: Lease, instance_id: str, *, evict: bool = False) -> list[Writing]:
    """The writes that have the worker with this lease look at the instance, or evict it."""
    worker = worker_keys(lease.worker)
    return [Append(worker.signals, SignalRow(instance_id, evict).pack()), Signal(worker.stamp)]


def forget_worker(worker: WorkerKeys) -> list[Writing]:
    """The writes that forget a worker, which must have no instance any more."""
    return [Clear(worker.heartbeat), Clear(worker.stamp), ClearRange(*subtree(worker.signals))]


def forget_signals(worker: WorkerKeys, last: bytes) -> ClearRange:
    """The write that forgets the signals of a worker up to the one with the key `last`."""
    return ClearRange(subtree(worker.signals)[0], last + b"\x00")


@change
def beat(worker: WorkerKeys, before: bytes | None, heartbeat: bytes, last: bytes | None = None) -> Steps[bool]:
    """Write a heartbeat; False if the row does not hold `before`, the previous one, since the worker was buried.

    `last`: the key of the last signal that the worker has read. The signals up to that one are deleted.
    """
    found: bytes | None = yield Assume(worker.heartbeat, before)
    yield Set(worker.heartbeat, heartbeat)
    if last is not None:
        yield forget_signals(worker, last)
    return found == before


@change
def beat_while_there(worker: WorkerKeys, heartbeat: bytes) -> Steps[None]:
    """Write a heartbeat, unless the worker was buried or has left."""
    if (yield Get(worker.heartbeat)) is not None:
        yield Set(worker.heartbeat, heartbeat)


@change
def beat_with_lease(keys: InstanceKeys, lease: bytes, worker: WorkerKeys, heartbeat: bytes) -> Steps[None]:
    """Write a heartbeat, if the worker still has this lease of an instance."""
    if (yield Assume(keys.lease, lease)) == lease:
        yield Set(worker.heartbeat, heartbeat)


@change
def leave(worker: WorkerKeys) -> Steps[None]:
    """Forget a worker that ends, unless it still has instances, which others have to take over."""
    if not (yield from scan(*worker.all_claimed(), limit=1)):
        yield forget_worker(worker)


@change
def bury(dead: WorkerKeys, heartbeat: bytes) -> Steps[None]:
    """Forget a dead worker, if this is still its last heartbeat and it has no instance any more."""
    # If the worker is alive after all, it may claim again. But it writes another heartbeat before it does.
    if (yield Get(dead.heartbeat)) == heartbeat and not (yield from scan(*dead.all_claimed(), limit=1)):
        yield forget_worker(dead)


@change
def give_heartbeat(worker: WorkerKeys, now: float) -> Steps[None]:
    """Write a heartbeat for a worker that has instances but no heartbeat, so that others can see it run out."""
    if (yield Get(worker.heartbeat)) is None:
        yield Set(worker.heartbeat, Heartbeat(now, 0.0, 0).pack())
