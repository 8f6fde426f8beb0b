"""Taking an instance over, and giving it back. Whoever holds the lease may write; every commit checks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from secrets import token_bytes
from time import monotonic
from typing import Any, cast
from uuid import uuid4

import anyio

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.deaths import (
    Blame,
    Death,
    Try,
    lease_name,
    pack_deaths,
    unpack_deaths,
    worker_of_lease,
    worst,
)
from workflow_sdk.core.failures import pack_error_info, unpack_error_info
from workflow_sdk.core.keys import (
    TRIES,
    WAITS,
    Field,
    InstanceKeys,
    WorkerKeys,
    listed,
    listed_by_status,
    listed_by_workflow,
    worker_keys,
)
from workflow_sdk.core.kinds import is_divergence
from workflow_sdk.core.location import subtree
from workflow_sdk.core.status import Status, move
from workflow_sdk.core.times import AHEAD_SECONDS, due_at_once
from workflow_sdk.core.wire import pack_record, unpack_record
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import AlreadyExistsError, ErrorInfo, StorageLimitError
from workflow_sdk.execution.heartbeats import Heartbeat
from workflow_sdk.execution.insisting import come_what_may
from workflow_sdk.execution.living import lives_here
from workflow_sdk.execution.load import Scannable
from workflow_sdk.execution.probe import probe
from workflow_sdk.execution.snapshot import Snapshot, StoredRows, read_snapshot
from workflow_sdk.operations.inputs import encode_input

__all__ = [
    "DEATHS_MAX",
    "Claim",
    "Claimant",
    "claim",
    "count_up",
    "error_fields",
    "forget_worker",
    "list_instance",
    "new_fields",
    "new_lease",
    "new_seed",
    "put_new",
    "read_tries",
    "tell_owner",
    "unknown_fields",
]

DEATHS_MAX = 5
"""Workers that may die in a row under what an instance executes, before it is stuck."""
LOOK_AGAIN_SECONDS = 0.05
"""Between two looks at workers that may be alive."""

_TOO_LARGE = f"{StorageLimitError.__module__}.{StorageLimitError.__qualname__}"


@dataclass(slots=True)
class Claim:
    """An instance as it was claimed, or as it was found if there is nothing to run."""

    status: Status
    fields: dict[Field, bytes]
    lease: bytes | None
    """What the lease holds while it is ours; None if there was nothing to claim."""
    created: bool = False
    checked: bool = True
    """Whether its input is known to have fitted the workflow's annotation once."""
    nudge: bytes | None = None
    """What the nudge held when `rows` were read."""
    sent: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """The rows that count what was sent, as they were then."""
    rows: StoredRows | None = None
    """Everything that is stored of it, and nobody else has changed since; None if it is to be read."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who wants to run what."""

    driver: Driver
    keys: InstanceKeys
    workflow: Workflow[object, object]
    codec: Codec
    now: Callable[[], float]
    lease_ttl: float
    worker: str = field(default_factory=lambda: uuid4().hex)
    takes_over: Callable[[str], bool] = lambda worker: True
    """Whether it claims what this worker has. If not, that is left alone."""
    is_alive: Callable[[str], bool] = lambda worker: False
    """Whether it is known that this worker is alive: then it is no death that something is taken from it."""
    is_dead: Callable[[str], bool] = lambda worker: False
    """Whether somebody has watched this worker for as long as its lease, and has heard nothing of it."""
    creates: bool = True
    """Whether it creates the instance if there is none."""
    beats: bool = True
    """Whether the worker's heartbeat is that of this one run: it begins and ends with the claim."""
    retention: float | None = None
    """How many seconds after its end an instance is forgotten, where its workflow does not say."""


def error_fields(
    info: ErrorInfo, codec: Codec, original: list[object] | None = None, culprits: Sequence[str] = ()
) -> list[object]:
    """The error field: what stopped the instance; what had made it fail before, if that is something else; and the
    paths of the operations whose failures it died of.
    """
    return [pack_error_info(info, codec), original, list(culprits)]


async def claim(who: Claimant, value: object, seen: Snapshot | None = None) -> Claim:
    """Take the instance over, creating it if it is new. `seen` is what is known of it already.

    A finished instance is returned as it is, and so is a stuck one, unless its code has changed or is what it is stuck
    for: the fingerprint does not cover the functions beside the workflow.
    """
    seen = seen or await read_snapshot(who.driver, who.keys)
    patience = _Patience(who)
    while True:
        found, lease = seen.fields, seen.lease
        if Field.STATUS not in found:
            if not who.creates:
                return Claim(Status.PENDING, found, None)
            claimed = _create(who, value)
        else:
            _check_workflow(who, found)
            if lease is not None and not who.takes_over(str(unpack_record(lease)[0])):
                return Claim(Status(unpack_record(found[Field.STATUS])[0]), found, None)
            deaths = unpack_deaths(found.get(Field.DEATHS))
            blame = Blame(None, ())
            if lease is not None and _has_died(who, found, lease):
                tries = await read_tries(who.driver, who.keys) if deaths else {}
                name = lease_name(lease)
                deaths.append(Death(name, noted=any(name in tried.leases for tried in tries.values())))
                deaths, blame = await patience.judge(deaths, tries)
                if patience.waits:
                    seen = await read_snapshot(who.driver, who.keys)
                    continue
            claimed = _take_over(who, found, deaths, blame)
            if claimed.fields is found:
                return claimed
        batch = Batch()
        batch.check(who.keys.lease, lease)
        # Every claim, and every decision about the instance, counts this up.
        batch.check(who.keys.field(Field.VERSION), found.get(Field.VERSION))
        # A message may move the alarm, and counts nothing up.
        batch.check(who.keys.field(Field.ALARM), found.get(Field.ALARM))
        if lease is not None or Field.DEATHS in found:
            # Whoever was taken for dead, and lives, takes that back, and counts nothing up either.
            batch.check(who.keys.field(Field.DEATHS), found.get(Field.DEATHS))
        if lease is None and seen.rows is not None and not claimed.created:
            # Nobody has it, so what was read is still all there is; but for messages, which this holds off.
            batch.check(who.keys.nudge, seen.nudge)
            claimed.nudge, claimed.sent, claimed.rows = seen.nudge, seen.sent, seen.rows
        if lease is not None and found.get(Field.COMMITS) != claimed.fields.get(Field.COMMITS):
            # Whoever has it may be alive, and commit meanwhile.
            batch.check(who.keys.field(Field.COMMITS), found.get(Field.COMMITS))
        _write(batch, who, found, claimed, lease)
        try:
            await who.driver.commit(batch)
        except ConflictError:
            again = await read_snapshot(who.driver, who.keys)
            if (again.lease, again.nudge, again.fields) == (lease, seen.nudge, found):
                raise
            seen = again
            continue
        except (Exception, anyio.get_cancelled_exc_class()):
            # It may have been applied; and whoever asked for it will not run the instance.
            await come_what_may(partial(_give_back, who, claimed))
            raise
        return claimed


async def _give_back(who: Claimant, claimed: Claim) -> None:
    """Have the instance due for others at once, if it is ours. Whether it is, only the store knows."""
    with suppress(Exception):  # the store failed: others take it over when they hear nothing of us
        if claimed.lease is None or await who.driver.get(who.keys.lease) != claimed.lease:
            return
        batch, now, worker = Batch(), due_at_once(who.now()), worker_keys(who.worker)
        batch.check(who.keys.lease, claimed.lease)
        batch.clear(who.keys.lease)
        batch.clear(worker.claimed(who.keys.instance_id))
        if who.beats:
            forget_worker(batch, worker)
        batch.set(who.keys.field(Field.ALARM), pack_record([now]))
        batch.set(who.keys.alarm(now), b"")
        batch.set(who.keys.due_bell, token_bytes(8))
        await who.driver.commit(batch)


def _write(batch: Batch, who: Claimant, found: dict[Field, bytes], claimed: Claim, before: bytes | None) -> None:
    for key in found.keys() - claimed.fields.keys():
        batch.clear(who.keys.field(key))
    for key, raw in claimed.fields.items():
        if found.get(key) != raw:
            batch.set(who.keys.field(key), raw)
    if before is not None:
        batch.clear(worker_keys(str(unpack_record(before)[0])).claimed(who.keys.instance_id))
    list_instance(batch, who.keys.instance_id, found, claimed.fields)
    waits = who.keys.range(WAITS)
    if Field.DEATHS in found and Field.DEATHS not in claimed.fields:
        batch.clear_range(*who.keys.range(TRIES))
    if not claimed.created and (claimed.rows is None or claimed.rows.between(*waits)):
        # What waits still will say so again.
        batch.clear_range(*waits)
    if Field.ALARM in found:
        batch.clear(who.keys.alarm(float(unpack_record(found[Field.ALARM])[0])))
    if claimed.status is Status.STUCK:
        batch.clear(who.keys.lease)
        claimed.lease = None
    else:
        assert claimed.lease is not None, "an instance that runs has a lease"
        batch.set(who.keys.lease, claimed.lease)
        worker = worker_keys(who.worker)
        batch.set(worker.claimed(who.keys.instance_id), b"")
        if who.beats:
            batch.set(worker.heartbeat, Heartbeat(who.now(), who.lease_ttl, 0).pack())
        if before is not None:
            # Whoever had it, and is waiting for a message, learns at once that it lost it.
            batch.set(who.keys.nudge, token_bytes(16))
            if who.beats:
                # It is alive, as far as anybody knows.
                tell_owner(batch, before, who.keys.instance_id)


def forget_worker(batch: Batch, worker: WorkerKeys) -> None:
    """Nothing is left of a worker that has nothing any more."""
    batch.clear(worker.heartbeat)
    batch.clear(worker.bell)
    batch.clear_range(*subtree(worker.letters))


def tell_owner(batch: Batch, lease: bytes, instance_id: str, *orders: str) -> None:
    """Have the worker that has the instance look at it, or do what it is told."""
    worker = worker_keys(str(unpack_record(lease)[0]))
    batch.append(worker.letters, pack_record([instance_id, *orders]))
    batch.set(worker.bell, token_bytes(16))


def list_instance(batch: Batch, id: str, before: dict[Field, bytes], after: dict[Field, bytes]) -> None:
    """Keep the directory in step with the fields of an instance."""
    created_at = float(unpack_record(after[Field.BIRTH])[0])
    if Field.STATUS not in before:
        batch.set(listed(created_at, id), b"")
        batch.set(listed_by_workflow(str(unpack_record(after[Field.VERSION])[0]), created_at, id), b"")
    elif before[Field.STATUS] != after[Field.STATUS]:
        batch.clear(listed_by_status(str(unpack_record(before[Field.STATUS])[0]), created_at, id))
    batch.set(listed_by_status(str(unpack_record(after[Field.STATUS])[0]), created_at, id), b"")


_epochs = count(1)


def new_lease(worker: str, ttl: float) -> bytes:
    """A lease that no claim has had before: what is late of an earlier one, by the same worker too, is refused."""
    return pack_record([worker, next(_epochs), ttl])


def new_fields(
    workflow: Workflow[Any, Any], status: Status, raw_input: bytes, now: float, retention: float | None = None
) -> dict[Field, bytes]:
    """The fields of an instance that begins now. `retention`: where its workflow says nothing of it."""
    fields = {
        Field.STATUS: pack_record([status.value]),
        Field.VERSION: pack_record([workflow.name, workflow.version, workflow.fingerprint, 1, now]),
        Field.INPUT: pack_record([raw_input]),
        Field.BIRTH: pack_record([now, new_seed()]),
        Field.COMMITS: pack_record([1]),
    }
    _keep(fields, workflow, retention)
    return fields


def _keep(fields: dict[Field, bytes], workflow: Workflow[Any, Any], retention: float | None) -> None:
    kept = retention if workflow.retention is None else workflow.retention
    if kept is not None:
        fields[Field.RETENTION] = pack_record([kept])


def unknown_fields(name: str, raw_input: bytes, now: float, retention: float | None = None) -> dict[Field, bytes]:
    """The fields of an instance whose workflow is not known here."""
    fields = {
        Field.STATUS: pack_record([Status.PENDING.value]),
        Field.VERSION: pack_record([name, 0, "", 1, now]),
        Field.INPUT: pack_record([raw_input]),
        Field.BIRTH: pack_record([now, new_seed()]),
        Field.COMMITS: pack_record([1]),
    }
    if retention is not None:
        fields[Field.RETENTION] = pack_record([retention])
    return fields


def put_new(batch: Batch, keys: InstanceKeys, fields: dict[Field, bytes]) -> None:
    """Create an instance, if there is none with this id. Who runs it, or when it is due, is for others to add."""
    batch.check(keys.field(Field.VERSION), None)
    for key, value in fields.items():
        batch.set(keys.field(key), value)
    list_instance(batch, keys.instance_id, {}, fields)


def count_up(fields: dict[Field, bytes]) -> None:
    """One more commit changes the instance."""
    before, *rest = unpack_record(fields[Field.COMMITS]) if Field.COMMITS in fields else [0]
    fields[Field.COMMITS] = pack_record([before + 1, *rest])


def new_seed() -> bytes:
    """What the uuids and random numbers of an instance come from."""
    watched = probe.get()
    return (watched.seed if watched is not None else None) or token_bytes(16)


def _create(who: Claimant, value: object) -> Claim:
    raw = encode_input(who.codec, who.workflow, value)
    fields = new_fields(who.workflow, Status.RUNNING, raw, who.now(), who.retention)
    return Claim(Status.RUNNING, fields, new_lease(who.worker, who.lease_ttl), created=True)


def _check_workflow(who: Claimant, found: dict[Field, bytes]) -> None:
    name = unpack_record(found[Field.VERSION])[0]
    if name != who.workflow.name:
        raise AlreadyExistsError(
            f"instance {who.keys.instance_id!r} runs workflow {name!r}, not {who.workflow.name!r}; "
            "give this one another id, or run it with the workflow it was started with"
        )


def _has_died(who: Claimant, found: dict[Field, bytes], lease: bytes) -> bool:
    """Whether an instance that is taken over was being executed by a worker that has died, as far as is known here.

    Nobody gave it back. Whoever is alive nevertheless takes its death back: see `survivors`.
    """
    owner = str(unpack_record(lease)[0])
    status = Status(unpack_record(found[Field.STATUS])[0])
    if owner == who.worker or status not in (Status.RUNNING, Status.ROLLING_BACK):
        return False
    return not (lives_here(owner) or who.is_alive(owner))


class _Patience:
    """How long somebody waits to be sure that the workers are dead for whose deaths an instance is to be stuck.

    A heartbeat that has not run out may be that of a worker which was killed just now. Whoever takes over at once waits
    until it has, or until it is renewed.
    """

    def __init__(self, who: Claimant) -> None:
        self._who = who
        self._until: float | None = None
        self._heard: dict[str, bytes] = {}
        """What the heartbeats were when they were looked at first."""
        self.waits: bool = False
        """Whether it is to be looked at again."""

    async def judge(self, deaths: list[Death], tries: dict[bytes, Try]) -> tuple[list[Death], Blame]:
        """The deaths that count, and what most of them are of."""
        who = self._who
        self.waits = False
        blame = worst(deaths, tries)
        if len(blame.leases) < DEATHS_MAX:
            return deaths, blame
        alive = {name for name in blame.leases if await self._may_live(worker_of_lease(name))}
        if alive and who.beats:
            if self._until is None:
                self._until = monotonic() + who.lease_ttl
            if monotonic() < self._until:
                self.waits = True
                await anyio.sleep(LOOK_AGAIN_SECONDS)
                return deaths, blame
            alive = {name for name in alive if await self._may_live(worker_of_lease(name), waited=True)}
        left = [death for death in deaths if death.lease not in alive]
        return left, worst(left, tries)

    async def _may_live(self, worker: str, *, waited: bool = False) -> bool:
        """Whether a worker may be alive: its heartbeat is there; or has changed, if we have waited for that."""
        who = self._who
        here = lives_here(worker)
        if here is not None:
            return here
        if who.is_alive(worker):
            return True
        raw = None if who.is_dead(worker) else await who.driver.get(worker_keys(worker).heartbeat)
        if raw is None:
            return False
        return self._heard.setdefault(worker, raw) != raw or not waited


async def read_tries(store: Scannable, keys: InstanceKeys) -> dict[bytes, Try]:
    """The operations that were being executed, by their locations, as far as somebody has noted them."""
    begin, end = keys.range(TRIES)
    start = len(keys.space) + len(TRIES)
    return {key[start:]: Try.unpack(raw) for key, raw in await store.scan(begin, end)}


def _take_over(who: Claimant, found: dict[Field, bytes], deaths: list[Death], blame: Blame) -> Claim:
    workflow = who.workflow
    status = Status(unpack_record(found[Field.STATUS])[0])
    _, version, fingerprint, commits, _ = unpack_record(found[Field.VERSION])
    changed = (version, fingerprint) != (workflow.version, workflow.fingerprint)
    if status.is_terminal:
        return Claim(status, found, None)
    fields = dict(found)
    _check_readable(who.codec, fields)
    if status is Status.STUCK:
        info, original, culprits = unpack_record(found[Field.ERROR])
        if not changed and not _is_stuck_for_code(unpack_error_info(info, who.codec), culprits):
            return Claim(status, found, None)
        after = move(status, Status.RUNNING if original is None else Status.ROLLING_BACK)
        if original is None:
            del fields[Field.ERROR]
        else:
            fields[Field.ERROR] = pack_record([original, None, []])
        fields.pop(Field.DEATHS, None)
        count_up(fields)
    else:
        after = status if status is Status.ROLLING_BACK else move(status, Status.RUNNING)
        raw = pack_deaths(deaths)
        if raw is not None:
            fields[Field.DEATHS] = raw
    fields.pop(Field.ALARM, None)
    if len(blame.leases) >= DEATHS_MAX:
        return _crashed(who, fields, status, blame)
    _keep(fields, workflow, who.retention)
    if status is Status.PENDING and float(unpack_record(found[Field.BIRTH])[0]) > who.now() + AHEAD_SECONDS:
        # Who started it has a clock that is ahead of ours, and ours is the one that counts from here on.
        fields[Field.GENERATION] = pack_record([1, who.now()])
    fields[Field.STATUS] = pack_record([after.value])
    fields[Field.VERSION] = pack_record([workflow.name, workflow.version, workflow.fingerprint, commits + 1, who.now()])
    # Whoever started it did not know the workflow; or it is not known any more who did.
    checked = status is Status.PENDING and bool(fingerprint)
    return Claim(after, fields, new_lease(who.worker, who.lease_ttl), checked=checked)


def _check_readable(codec: Codec, fields: dict[Field, bytes]) -> None:
    """`SealedError`, if a codec that wrote values of the instance is not here. That of this worker is added to them."""
    seals = cast("list[bytes]", unpack_record(fields[Field.SEALS])[0]) if Field.SEALS in fields else []
    is_own = False
    for seal in (unpack_record(fields[Field.INPUT])[0], *seals):
        if codec.is_own(seal):
            is_own = True
        else:
            codec.check_readable(seal)
    if not is_own:
        fields[Field.SEALS] = pack_record([[*seals, codec.encode(None)]])


def _is_stuck_for_code(info: ErrorInfo, culprits: Sequence[str]) -> bool:
    """Whether it is a slip or divergence; not a crash loop, nor a handler that failed, for whatever reason it did.

    Nor what was too large for the store: its steps would run again, with the same outcome.
    """
    if info.type == _TOO_LARGE:
        return False
    return not culprits and (info.kind == "definition" or is_divergence(info))


def _crashed(who: Claimant, fields: dict[Field, bytes], status: Status, blame: Blame) -> Claim:
    what = "they ran it, without a commit in between" if blame.path is None else f"they executed {blame.path!r}"
    info = ErrorInfo(
        "workflow_sdk.errors.WorkflowStuckError",
        f"{len(blame.leases)} workers in a row died while {what}; "
        "mend what kills them, and run it again with changed code, or `recover` it",
        kind="consistency",
    )
    original = unpack_record(fields[Field.ERROR])[0] if status is Status.ROLLING_BACK else None
    fields[Field.ERROR] = pack_record(error_fields(info, who.codec, original))
    fields[Field.STATUS] = pack_record([move(status, Status.STUCK).value])
    count_up(fields)
    return Claim(Status.STUCK, fields, None)
