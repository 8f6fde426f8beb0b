"""Taking an instance over, and giving it back. Whoever holds the lease may write; every commit checks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from secrets import token_bytes
from typing import Any, ClassVar
from uuid import uuid4

import anyio
from msgspec.structs import replace

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.deaths import Blame, Death, Deaths, Try, worker_of_lease, worst
from workflow_sdk.core.error_row import ErrorRow
from workflow_sdk.core.failures import pack_error_info, unpack_error_info
from workflow_sdk.core.instance import Birth, Head, InstanceRows, Lease, Result, Tally
from workflow_sdk.core.keys import (
    TRIES,
    WAITS,
    Field,
    InstanceKeys,
    WorkerKeys,
    listed,
    listed_by_status,
    listed_by_workflow,
    purge_key,
    worker_keys,
)
from workflow_sdk.core.kinds import is_divergence
from workflow_sdk.core.location import subtree
from workflow_sdk.core.status import Status, move
from workflow_sdk.core.times import AHEAD_SECONDS, due_at_once
from workflow_sdk.core.wire import Row
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import AlreadyExistsError, ErrorInfo, StorageLimitError
from workflow_sdk.execution.heartbeats import Heartbeat
from workflow_sdk.execution.insisting import come_what_may
from workflow_sdk.execution.living import lives_here
from workflow_sdk.execution.load import Scannable
from workflow_sdk.execution.probe import probe
from workflow_sdk.execution.snapshot import Snapshot, StoredRows, check_form, read_snapshot
from workflow_sdk.operations.inputs import encode_input

__all__ = [
    "DEATHS_MAX",
    "Claim",
    "Claimant",
    "LetterRow",
    "claim",
    "count_up",
    "forget_worker",
    "new_lease",
    "new_rows",
    "new_seed",
    "put_new",
    "read_tries",
    "result_of",
    "tell_owner",
    "write_changes",
]

DEATHS_MAX = 5
"""Workers that may die in a row under what an instance executes, before it is stuck."""
LOOK_AGAIN_SECONDS = 0.05
"""Between two looks at workers that may be alive."""

_TOO_LARGE = f"{StorageLimitError.__module__}.{StorageLimitError.__qualname__}"


@dataclass(slots=True)
class Claim:
    """An instance as it was claimed, or as it was found if there is nothing to run."""

    about: InstanceRows
    lease: Lease | None
    """The lease while it is ours; None if there was nothing to claim."""
    created: bool = False
    checked: bool = True
    """Whether its input is known to have fitted the workflow's annotation once."""
    nudge: bytes | None = None
    """What the nudge held when `rows` were read."""
    sent: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """The rows that count what was sent, as they were then."""
    rows: StoredRows | None = None
    """Everything that is stored of it, and nobody else has changed since; None if it is to be read."""

    @property
    def status(self) -> Status:
        """What it is doing; pending, if it does not exist."""
        return self.about.status if self.about else Status.PENDING


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


def result_of(info: ErrorInfo, codec: Codec, original: ErrorRow | None = None, culprits: Sequence[str] = ()) -> Result:
    """What an instance has come to that something has stopped; `original` and `culprits` as a `Result` has them."""
    return Result(None, pack_error_info(info, codec), original, tuple(culprits))


async def claim(who: Claimant, value: object, seen: Snapshot | None = None) -> Claim:
    """Take the instance over, creating it if it is new. `seen` is what is known of it already.

    A finished instance is returned as it is, and so is a stuck one, unless its code has changed or is what it is stuck
    for: the fingerprint does not cover the functions beside the workflow.
    """
    seen = seen or await read_snapshot(who.driver, who.keys)
    patience = _Patience(who)
    while True:
        found, lease = seen.about, seen.lease
        if not found:
            if not who.creates:
                return Claim(found, None)
            await check_form(who.driver)
            claimed = _create(who, value)
        else:
            _check_workflow(who, found)
            if lease is not None and not who.takes_over(lease.worker):
                return Claim(found, None)
            deaths = list(found.deaths.deaths)
            blame = Blame(None, ())
            if lease is not None and _has_died(who, found, lease):
                tries = await read_tries(who.driver, who.keys) if deaths else {}
                deaths.append(Death(lease.name, noted=any(lease.name in tried.leases for tried in tries.values())))
                deaths, blame = await patience.judge(deaths, tries)
                if patience.waits:
                    seen = await read_snapshot(who.driver, who.keys)
                    continue
            claimed = _take_over(who, found, deaths, blame)
            if claimed.about is found:
                return claimed
        batch = Batch()
        batch.check(who.keys.lease, None if lease is None else lease.pack())
        # Every claim, and every decision about the instance, changes its head; so does a message that moves the alarm.
        batch.check(who.keys.field(Field.HEAD), found.raw.get(Field.HEAD))
        if lease is not None or Field.DEATHS in found.raw:
            # Whoever was taken for dead, and lives, takes that back, and changes nothing else.
            batch.check(who.keys.field(Field.DEATHS), found.raw.get(Field.DEATHS))
        if lease is None and seen.rows is not None and not claimed.created:
            # Nobody has it, so what was read is still all there is; but for messages, which this holds off.
            batch.check(who.keys.nudge, seen.nudge)
            claimed.nudge, claimed.sent, claimed.rows = seen.nudge, seen.sent, seen.rows
        if lease is not None and found.tally != claimed.about.tally:
            # Whoever has it may be alive, and commit meanwhile.
            batch.check(who.keys.field(Field.TALLY), found.raw.get(Field.TALLY))
        _write(batch, who, found, claimed, lease)
        try:
            await who.driver.commit(batch)
        except ConflictError:
            again = await read_snapshot(who.driver, who.keys)
            if (again.lease, again.nudge, again.about.raw) == (lease, seen.nudge, found.raw):
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
        if claimed.lease is None or await who.driver.get(who.keys.lease) != claimed.lease.pack():
            return
        batch, now, worker = Batch(), due_at_once(who.now()), worker_keys(who.worker)
        batch.check(who.keys.lease, claimed.lease.pack())
        batch.clear(who.keys.lease)
        batch.clear(worker.claimed(who.keys.instance_id))
        if who.beats:
            forget_worker(batch, worker)
        batch.set(who.keys.field(Field.HEAD), replace(claimed.about.head, alarm=now).pack())
        batch.set(who.keys.alarm(now), b"")
        batch.set(who.keys.due_bell, token_bytes(8))
        await who.driver.commit(batch)


def _write(batch: Batch, who: Claimant, found: InstanceRows, claimed: Claim, before: Lease | None) -> None:
    write_changes(batch, who.keys, found, claimed.about)
    if before is not None:
        batch.clear(worker_keys(before.worker).claimed(who.keys.instance_id))
    waits = who.keys.range(WAITS)
    if Field.DEATHS in found.raw and Field.DEATHS not in claimed.about.raw:
        batch.clear_range(*who.keys.range(TRIES))
    if not claimed.created and (claimed.rows is None or claimed.rows.between(*waits)):
        # What waits still will say so again.
        batch.clear_range(*waits)
    if claimed.status is Status.STUCK:
        batch.clear(who.keys.lease)
        claimed.lease = None
    else:
        assert claimed.lease is not None, "an instance that runs has a lease"
        batch.set(who.keys.lease, claimed.lease.pack())
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


def write_changes(batch: Batch, keys: InstanceKeys, before: InstanceRows, after: InstanceRows) -> None:
    """Bring the rows of an instance, and those by which it is found, from what they were to what they are to be.

    Whoever runs it writes rows of its own: what is not changed here is left as it is there.
    """
    for gone in before.raw.keys() - after.raw.keys():
        batch.clear(keys.field(gone))
    for key, raw in after.raw.items():
        if before.raw.get(key) != raw:
            batch.set(keys.field(key), raw)
    list_instance(batch, keys, before.head if before else None, after.head)


def forget_worker(batch: Batch, worker: WorkerKeys) -> None:
    """Nothing is left of a worker that has nothing any more."""
    batch.clear(worker.heartbeat)
    batch.clear(worker.bell)
    batch.clear_range(*subtree(worker.letters))


class LetterRow(Row, frozen=True):
    """A letter to a worker: which of its instances is to be looked at."""

    WHAT: ClassVar[str] = "a letter"

    id: str
    evicts: bool = False
    """It is to be put away."""


def tell_owner(batch: Batch, lease: Lease, instance_id: str, *, evict: bool = False) -> None:
    """Have the worker that has the instance look at it, or put it away."""
    worker = worker_keys(lease.worker)
    batch.append(worker.letters, LetterRow(instance_id, evict).pack())
    batch.set(worker.bell, token_bytes(16))


def list_instance(batch: Batch, keys: InstanceKeys, before: Head | None, after: Head) -> None:
    """Keep the rows by which an instance is found in step with its head. `before` is None for a new one."""
    id, created_at = keys.instance_id, after.created_at
    if before is None:
        batch.set(listed(created_at, id), b"")
        batch.set(listed_by_workflow(after.workflow, created_at, id), b"")
    elif before.status is not after.status:
        batch.clear(listed_by_status(before.status.value, created_at, id))
    batch.set(listed_by_status(after.status.value, created_at, id), b"")
    if before is not None and before.alarm is not None and before.alarm != after.alarm:
        batch.clear(keys.alarm(before.alarm))
    if before is not None and before.purge_at is not None and before.purge_at != after.purge_at:
        batch.clear(purge_key(before.purge_at, id))
    if after.purge_at is not None and (before is None or before.purge_at != after.purge_at):
        batch.set(purge_key(after.purge_at, id), b"")


_epochs = count(1)


def new_lease(worker: str, ttl: float) -> Lease:
    """A lease that no claim has had before: what is late of an earlier one, by the same worker too, is refused."""
    return Lease(worker, next(_epochs), float(ttl))


def new_rows(
    workflow: Workflow[Any, Any] | str,
    status: Status,
    raw_input: bytes,
    now: float,
    retention: float | None = None,
    alarm: float | None = None,
) -> InstanceRows:
    """The rows of an instance that begins now. A workflow that is not known here is given by its name.

    `retention`: where the workflow says nothing of it.
    """
    now = float(now)
    if isinstance(workflow, str):
        head = Head(workflow, 0, "", now, status, 1, now, alarm)
    else:
        head = Head(workflow.name, workflow.version, workflow.fingerprint, now, status, 1, now, alarm)
        retention = retention if workflow.retention is None else workflow.retention
    rows = InstanceRows()
    rows.set(Field.HEAD, head)
    rows.set(Field.BIRTH, Birth(raw_input, new_seed(), None if retention is None else float(retention)))
    rows.set(Field.TALLY, Tally(1))
    return rows


def put_new(batch: Batch, keys: InstanceKeys, rows: InstanceRows) -> None:
    """Create an instance, if there is none with this id. Who runs it, or when it is due, is for others to add."""
    batch.check(keys.field(Field.HEAD), None)
    write_changes(batch, keys, InstanceRows(), rows)


def count_up(rows: InstanceRows) -> None:
    """One more commit changes the instance."""
    rows.set(Field.TALLY, replace(rows.tally, commits=rows.tally.commits + 1))


def new_seed() -> bytes:
    """What the uuids and random numbers of an instance come from."""
    watched = probe.get()
    return (watched.seed if watched is not None else None) or token_bytes(16)


def _create(who: Claimant, value: object) -> Claim:
    raw = encode_input(who.codec, who.workflow, value)
    rows = new_rows(who.workflow, Status.RUNNING, raw, who.now(), who.retention)
    return Claim(rows, new_lease(who.worker, who.lease_ttl), created=True)


def _check_workflow(who: Claimant, found: InstanceRows) -> None:
    name = found.head.workflow
    if name != who.workflow.name:
        raise AlreadyExistsError(
            f"instance {who.keys.instance_id!r} runs workflow {name!r}, not {who.workflow.name!r}; "
            "give this one another id, or run it with the workflow it was started with"
        )


def _has_died(who: Claimant, found: InstanceRows, lease: Lease) -> bool:
    """Whether an instance that is taken over was being executed by a worker that has died, as far as is known here.

    Nobody gave it back. Whoever is alive nevertheless takes its death back: see `survivors`.
    """
    if lease.worker == who.worker or found.status not in (Status.RUNNING, Status.ROLLING_BACK):
        return False
    return not (lives_here(lease.worker) or who.is_alive(lease.worker))


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
                self._until = anyio.current_time() + who.lease_ttl
            if anyio.current_time() < self._until:
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


def _take_over(who: Claimant, found: InstanceRows, deaths: list[Death], blame: Blame) -> Claim:
    workflow, head = who.workflow, found.head
    status = head.status
    changed = (head.version, head.fingerprint) != (workflow.version, workflow.fingerprint)
    if status.is_terminal:
        return Claim(found, None)
    seals = _readable(who.codec, found.birth)
    rows = found.copy()
    if status is Status.STUCK:
        result = found.result
        if not changed and not _is_stuck_for_code(unpack_error_info(found.error, who.codec), result.culprits):
            return Claim(found, None)
        after = move(status, Status.RUNNING if result.original is None else Status.ROLLING_BACK)
        rows.set(Field.RESULT, None if result.original is None else Result(error=result.original))
        rows.set(Field.DEATHS, None)
        count_up(rows)
    else:
        after = status if status is Status.ROLLING_BACK else move(status, Status.RUNNING)
        rows.set(Field.DEATHS, Deaths(tuple(deaths)) if deaths else None)
    if len(blame.leases) >= DEATHS_MAX:
        return _crashed(who, rows, blame)
    now = float(who.now())
    birth = replace(found.birth, seals=seals)
    kept = who.retention if workflow.retention is None else workflow.retention
    if kept is not None:
        birth = replace(birth, retention=float(kept))
    if status is Status.PENDING and head.created_at > now + AHEAD_SECONDS:
        # Who started it has a clock that is ahead of ours, and ours is the one that counts from here on.
        birth = replace(birth, generation=1, began_at=now)
    rows.set(Field.BIRTH, birth)
    rows.set(
        Field.HEAD,
        replace(
            head,
            version=workflow.version,
            fingerprint=workflow.fingerprint,
            status=after,
            changes=head.changes + 1,
            changed_at=now,
            alarm=None,
        ),
    )
    # Whoever started it did not know the workflow; or it is not known any more who did.
    checked = status is Status.PENDING and bool(head.fingerprint)
    return Claim(rows, new_lease(who.worker, who.lease_ttl), checked=checked)


def _readable(codec: Codec, birth: Birth) -> tuple[bytes, ...]:
    """`SealedError`, if a codec that wrote values of the instance is not here. The seals, with that of this worker."""
    is_own = False
    for seal in (birth.input, *birth.seals):
        if codec.is_own(seal):
            is_own = True
        else:
            codec.check_readable(seal)
    return birth.seals if is_own else (*birth.seals, codec.encode(None))


def _is_stuck_for_code(info: ErrorInfo, culprits: Sequence[str]) -> bool:
    """Whether it is a slip or divergence; not a crash loop, nor a handler that failed, for whatever reason it did.

    Nor what was too large for the store: its steps would run again, with the same outcome.
    """
    if info.type == _TOO_LARGE:
        return False
    return not culprits and (info.kind == "definition" or is_divergence(info))


def _crashed(who: Claimant, rows: InstanceRows, blame: Blame) -> Claim:
    what = "they ran it, without a commit in between" if blame.path is None else f"they executed {blame.path!r}"
    info = ErrorInfo(
        "workflow_sdk.errors.WorkflowStuckError",
        f"{len(blame.leases)} workers in a row died while {what}; "
        "mend what kills them, and run it again with changed code, or `recover` it",
        kind="consistency",
    )
    head = rows.head
    original = rows.result.error if head.status is Status.ROLLING_BACK else None
    rows.set(Field.RESULT, result_of(info, who.codec, original))
    after = replace(head, status=move(head.status, Status.STUCK), changes=head.changes + 1, alarm=None)
    rows.set(Field.HEAD, replace(after, changed_at=float(who.now())))
    count_up(rows)
    return Claim(rows, None)
