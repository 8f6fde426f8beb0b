"""Stores as the engine leaves them, and changes to be made there."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from tests.changes.store import Store, insisting, make
from workflow_sdk import Client, Context, Driver, open_driver, run_workflow, workflow
from workflow_sdk.changes import decide, rewind, tasks
from workflow_sdk.changes.change import Change
from workflow_sdk.changes.claim import Claim, Claimant, claim, give_back
from workflow_sdk.changes.decide import run_cleanup
from workflow_sdk.changes.deliver import NewMessage, Posted, deliver, hand_over
from workflow_sdk.changes.inboxes import discard
from workflow_sdk.changes.instances import create, new_rows
from workflow_sdk.changes.workers import beat, bury, give_heartbeat, leave
from workflow_sdk.definitions import Workflow
from workflow_sdk.features.schedules import changes as schedules
from workflow_sdk.features.schedules.changes import Kept
from workflow_sdk.features.schedules.rows import SCHEDULES_DUE, SCHEDULES_SIGNAL, ScheduleRow
from workflow_sdk.instance.cleanups import cancelled_by_request
from workflow_sdk.journal.inbox import counted
from workflow_sdk.rows.instance import Head, InstanceRows, Lease
from workflow_sdk.rows.keys import CLEANUPS, INBOX, SHARD_SIGNALS, Field, InstanceKeys, purge_key, worker_keys
from workflow_sdk.rows.location import subtree
from workflow_sdk.rows.outside import TaskRow, task_key
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import due_at_once
from workflow_sdk.values import Codec

__all__ = ["CHANGES", "SCENES", "rows_of", "rung", "said", "seen", "status_of"]

Rows = dict[bytes, bytes]

HOUR = 3600.0
CREATED = 1_000_000.0
NOW = CREATED + 2 * HOUR
"""When the changes are made: what is due every hour is due, and what is kept for an hour is to be forgotten."""

CODEC = Codec()
GONE = Lease("gone", 1, 10.0)
"""Of a worker that has died."""
NEXT = Lease("next", 1, 10.0)
LEASES = [Lease("w0", 1, 10.0), Lease("w1", 1, 10.0)]


class Clock:
    """Stands still."""

    def time(self) -> float:
        return CREATED


async def give_up(value: str) -> None:
    """Undo what can't be undone."""
    raise ValueError("not now")


async def refund(value: str) -> None:
    """Undo it."""


async def charge() -> str:
    return "charged"


@workflow(retention=HOUR)
async def kid(ctx: Context) -> str:
    return str(await ctx.listen("done"))


@workflow(retention=HOUR)
async def parent(ctx: Context, ends: str) -> str:
    await ctx.step("charge", charge, rollback=give_up if ends == "undone" else refund)
    if ends == "completed":
        return ends
    if ends == "stuck":
        await ctx.listen("")
    if ends in ("failed", "undone"):
        raise ValueError(ends)

    async def listens(ctx: Context) -> Any:
        return await ctx.listen("go")

    async def asks(ctx: Context) -> Any:
        return (await ctx.task("approve", roles=["boss"])).value

    async def begins(ctx: Context) -> str:
        return await ctx.child("kid", kid, id="kid")

    await ctx.join("all", {"listens": listens, "asks": asks, "begins": begins})
    return ends


FLOWS: dict[str, Workflow[Any, Any]] = {flow.name: flow for flow in (kid, parent)}


async def _prepare(driver: Driver, ends: str) -> None:
    await run_workflow(parent, ends, driver=driver, instance_id="p", clock=Clock(), workflows=[kid])
    async with Client(driver, clock=Clock()) as client:
        await client.schedule("s", kid, every=HOUR)
        await client.start(kid, id="new")
        if ends == "waits":
            await client.handle(parent, "p").send("other", 1)


async def _rows(ends: str) -> Rows:
    driver = await open_driver("memory://")
    await _prepare(driver, ends)
    return dict(await driver.scan(b"", b"\xff"))


def _claimed(rows: Rows) -> Rows:
    store = Store(rows)
    make(store, claim(_claimant(GONE), {}, has_waited=False))
    return store.rows


def _taken_over(rows: Rows) -> Rows:
    """By a worker that takes the one before for dead."""
    store = Store(rows)
    make(store, claim(_claimant(NEXT), {}, has_waited=False))
    return store.rows


def _over(rows: Rows) -> Rows:
    """Everything has ended, and a worker that has nothing has left its heartbeat."""
    store = Store(rows)
    for number in range(2):
        make(store, insisting(run_cleanup(_cleanup(rows, number), cancelled_by_request(CODEC), NOW)))
    make(store, beat(worker_keys(GONE.worker), None, b"\x01beat"))
    return store.rows


def _abandoned(rows: Rows) -> Rows:
    """Nobody waits any more for the child and the task."""
    store = Store(rows)
    make(store, decide.cancel("p", cancelled_by_request(CODEC), NOW, rollback=False))
    return store.rows


@cache
def rows_of(scene: str) -> Mapping[bytes, bytes]:
    """The rows of a store."""
    if scene == "running":
        return _claimed(dict(rows_of("waits")))
    if scene == "taken over":
        return _taken_over(dict(rows_of("running")))
    if scene == "over":
        return _over(dict(rows_of("abandoned")))
    if scene == "empty":
        return {}
    if scene == "abandoned":
        return _abandoned(dict(rows_of("waits")))
    return asyncio.run(_rows(scene))


SCENES = ["waits", "running", "taken over", "abandoned", "over", "completed", "failed", "stuck", "undone", "empty"]


def _claimant(lease: Lease, id: str = "p") -> Claimant:
    return Claimant(InstanceKeys(id), FLOWS.get, CODEC, lambda: NOW, lease)


def _new(row: ScheduleRow | None = None, now: float = NOW) -> InstanceRows:
    return new_rows(kid, Status.PENDING, CODEC.encode(None), now, b"s" * 16, HOUR, due_at_once(now))


def _task(rows: Mapping[bytes, bytes]) -> str:
    """The id of the task, if there is one."""
    found = [row.id for key, raw in rows.items() if (row := _as_task(key, raw)) is not None]
    return found[0] if found else "none"


def _as_task(key: bytes, raw: bytes) -> Any:
    try:
        row = TaskRow.unpack(raw)
    except Exception:  # noqa: BLE001  # it is another row
        return None
    return row if key == task_key(row.id) else None


def _cleanup(rows: Mapping[bytes, bytes], number: int) -> bytes:
    found = sorted(key for key in rows if key.startswith(CLEANUPS))
    return found[number] if number < len(found) else CLEANUPS + b"none"


def _message(rows: Mapping[bytes, bytes]) -> bytes:
    space = InstanceKeys("p").space + INBOX
    found = sorted(key for key in rows if key.startswith(space))
    return found[0][len(space) :] if found else b"none"


def _purge(rows: Mapping[bytes, bytes]) -> Change[None]:
    raw = rows.get(InstanceKeys("p").field(Field.HEAD))
    at = None if raw is None else Head.unpack(raw).purge_at
    return decide.purge(purge_key(at or 1.0, "p"), "p")


def _keep(rows: Mapping[bytes, bytes]) -> Change[Kept | None]:
    begin, end = subtree(SCHEDULES_DUE)
    by = [key for key in rows if begin <= key < end]
    return schedules.keep("s", by, lambda at: NOW, FLOWS, _new)


def _nobody(worker: str) -> bool:
    return False


def _pause(row: ScheduleRow) -> ScheduleRow:
    return replace(row, paused=True, next_at=None)


P, KID = InstanceKeys("p"), InstanceKeys("kid")
CANCELLED = cancelled_by_request(CODEC)
GO = NewMessage("go", CODEC.encode(1))

CHANGES: dict[str, Callable[[Mapping[bytes, bytes], int], Change[Any]]] = {
    "deliver": lambda rows, who: deliver(P, GO, NOW),
    "deliver with a key": lambda rows, who: deliver(P, NewMessage("go", CODEC.encode(who), key="k"), NOW),
    "deliver to the child": lambda rows, who: deliver(KID, NewMessage("done", CODEC.encode(who)), NOW),
    "deliver to a state": lambda rows, who: deliver(P, NewMessage("go", CODEC.encode(who), expected_version=3), NOW),
    "hand over": lambda rows, who: hand_over(P, GONE.pack(), None, GO, NOW),
    "cancel": lambda rows, who: insisting(decide.cancel("p", CANCELLED, NOW, rollback=False)),
    "cancel and undo": lambda rows, who: insisting(decide.cancel("p", CANCELLED, NOW, rollback=True)),
    "cancel the child": lambda rows, who: insisting(decide.cancel("kid", CANCELLED, NOW, rollback=False)),
    "evict": lambda rows, who: decide.evict("p"),
    "wake": lambda rows, who: decide.wake("p", NOW),
    "recover": lambda rows, who: rewind.recover("p", NOW),
    "restart": lambda rows, who: insisting(rewind.restart_from("p", None, NOW)),
    "restart from a step": lambda rows, who: insisting(rewind.restart_from("p", "charge", NOW)),
    "delete": lambda rows, who: decide.delete("p"),
    "delete the child": lambda rows, who: decide.delete("kid"),
    "forget": lambda rows, who: decide.forget_if("p", Status.COMPLETED, NOW),
    "purge": lambda rows, who: _purge(rows),
    "claim": lambda rows, who: claim(_claimant(LEASES[who]), {}, has_waited=False),
    "claim the child": lambda rows, who: claim(_claimant(LEASES[who], "kid"), {}, has_waited=False),
    "claim a new one": lambda rows, who: claim(_claimant(LEASES[who], "new"), {}, has_waited=False),
    "give back": lambda rows, who: give_back(P, GONE, NOW, forgets_worker=True),
    "give back what is stalled": lambda rows, who: decide.give_back_stalled("p", GONE.worker, NOW),
    "take a death back": lambda rows, who: decide.take_back_death("p", GONE.name, NOW),
    "create": lambda rows, who: create(InstanceKeys("other"), _new()),
    "create the same": lambda rows, who: create(P, _new()),
    "complete": lambda rows, who: tasks.complete(_task(rows), b"\xf6", f"by {who}", {"boss"}, NOW, _nobody),
    "assign": lambda rows, who: tasks.assign(_task(rows), "assigned", None, f"to {who}", NOW),
    "run a cleanup": lambda rows, who: insisting(run_cleanup(_cleanup(rows, 0), CANCELLED, NOW)),
    "run another cleanup": lambda rows, who: insisting(run_cleanup(_cleanup(rows, 1), CANCELLED, NOW)),
    "discard": lambda rows, who: discard(P, _message(rows), CODEC.encode),
    "pause": lambda rows, who: schedules.update("s", _pause),
    "delete the schedule": lambda rows, who: schedules.delete("s"),
    "tick": lambda rows, who: _keep(rows),
    "beat": lambda rows, who: beat(worker_keys(GONE.worker), None, b"\x01beat %d" % who),
    "bury": lambda rows, who: bury(worker_keys(GONE.worker), rows.get(worker_keys(GONE.worker).heartbeat, b"")),
    "leave": lambda rows, who: leave(worker_keys(GONE.worker)),
    "give a heartbeat": lambda rows, who: give_heartbeat(worker_keys(GONE.worker), NOW),
}


HEADS = [InstanceKeys(id).field(Field.HEAD) for id in ("p", "kid", "new")]
WORKER_SIGNALS = [worker_keys(lease.worker).signals for lease in (GONE, NEXT, *LEASES)]


def said(value: object) -> object:
    """What a change has come to, but for what is drawn by chance."""
    if isinstance(value, Claim):
        return "claim", value.status, value.lease, value.created
    if isinstance(value, Posted):
        return "posted", value.delivery, value.worker
    if isinstance(value, Kept):
        return "kept", value.row, value.begun
    if isinstance(value, list):
        return "cleanups", len(value)
    if isinstance(value, tuple):
        return tuple(map(said, value))
    return value


def rung(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> set[bytes]:
    """The signals that were set."""
    return {key for key, raw in after.items() if _is_signal(key) and before.get(key) != raw}


def seen(rows: Mapping[bytes, bytes]) -> dict[object, object]:
    """The rows of a store, but for what is drawn by chance, and for the keys that are made in the order of commits."""
    found: dict[object, object] = {}
    many: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for key, raw in sorted(rows.items()):
        if _is_signal(key):
            continue
        if key in HEADS:
            # Whoever is taken away first is changed once more.
            found[key] = replace(Head.unpack(raw), changes=0)
        elif key.startswith(CLEANUPS):
            many[CLEANUPS].append(raw)
        elif key[-13:-12] == b"\x33" and key[-12:-2] == bytes(10):
            many[key[:-13]].append(raw)
        elif (counter := _counter(key)) is not None:
            found[counter] = found.get(counter, 0) + _count(raw)  # type: ignore[operator]
        else:
            found[key] = raw
    for key, values in many.items():
        # A worker may be told twice of the same.
        found[key] = sorted(set(values)) if key in WORKER_SIGNALS else sorted(values) if key == CLEANUPS else values
    return found


def _is_signal(key: bytes) -> bool:
    stamps = [InstanceKeys(id).stamp for id in ("p", "kid", "new")]
    signals = [worker_keys(lease.worker).stamp for lease in (GONE, NEXT, *LEASES)]
    return key in (*stamps, *signals, *SHARD_SIGNALS, SCHEDULES_SIGNAL)


def _counter(key: bytes) -> bytes | None:
    """Which instance's messages a row counts."""
    for id in ("p", "kid", "new"):
        stamp = InstanceKeys(id).stamp
        if key.startswith(stamp) and key != stamp:
            return stamp + b" in all"
    return None


def _count(raw: bytes) -> int:
    return counted(raw)


def status_of(scene: str) -> Status | None:
    """What the instance is doing that the changes are about, if it is there."""
    raw = rows_of(scene).get(P.field(Field.HEAD))
    return None if raw is None else Head.unpack(raw).status
