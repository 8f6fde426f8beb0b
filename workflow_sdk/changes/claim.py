"""Claiming an instance, and giving it back. Whoever holds the lease may write; every commit of a run checks it.

A claim counts the deaths of workers under the instance, and makes it stuck if there were too many. A finished instance
is left as it is. So is a stuck one, unless its code has changed, or may have: one that is stuck because of a mistake in
the code is tried again at each claim, since the fingerprint does not cover the functions beside the workflow.

The lease is the fence. The commit of a claim replaces it. From then on, every commit of the worker that had the
instance fails, since it checks the lease of that worker. So a claim does not wait for the other worker to agree. Of two
workers that claim at once, one commit conflicts, and that worker finds the instance taken when it looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from workflow_sdk.changes.change import Get, Hold, Look, Signal, Steps, Writing, change, read
from workflow_sdk.changes.decide import DEATHS_MAX, read_tries
from workflow_sdk.changes.instances import Snapshot, StoredRows, check_form, count_up, find_all, make_due, store
from workflow_sdk.changes.workers import Heartbeat, forget_worker, no_worker, tell_owner
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Clear, ClearRange, Set
from workflow_sdk.errors import ErrorInfo, StorageLimitError
from workflow_sdk.rows.instance import (
    Birth,
    Blame,
    Death,
    Deaths,
    Head,
    InstanceRows,
    Lease,
    Result,
    Try,
    error_of,
    worker_of_lease,
    worst,
)
from workflow_sdk.rows.keys import TRIES, WAITS, Field, InstanceKeys, worker_keys
from workflow_sdk.rows.status import Status, move
from workflow_sdk.rows.wire import AHEAD_SECONDS
from workflow_sdk.values import Codec
from workflow_sdk.values.exceptions import is_divergence
from workflow_sdk.values.failures import result_of, unpack_error_info

_TOO_LARGE = f"{StorageLimitError.__module__}.{StorageLimitError.__qualname__}"

_epochs = count(1)


def new_lease(worker: str, ttl: float) -> Lease:
    """A lease that no claim had before: so late commits under an earlier lease are refused, even of the same worker."""
    return Lease(worker, next(_epochs), float(ttl))


# Shared by all claims, and never written to: few have any of these.
_NOTHING_SENT: dict[bytes, bytes] = {}
_NO_HEARTBEATS: dict[str, bytes] = {}


class Claim(Struct):
    """An instance as it was claimed, or as it was found if there is nothing to run."""

    about: InstanceRows
    lease: Lease | None
    """The lease that was taken; None if there was nothing to claim."""
    created: bool = False
    checked: bool = True
    """Whether its input was checked against the workflow's annotation when it was started."""
    stamp: bytes | None = None
    """The value of the inbox stamp when `rows` were read."""
    sent: dict[bytes, bytes] = field(default_factory=lambda: _NOTHING_SENT)
    """The rows that count the messages sent to the instance, as they were when `rows` were read."""
    rows: StoredRows | None = None
    """All rows of the instance; None if they are too many to be read at once, or another worker had the instance."""
    workflow: Workflow[Any, Any] | None = None
    """The workflow of the instance; None if it is not known here."""
    heartbeats: Mapping[str, bytes] = field(default_factory=lambda: _NO_HEARTBEATS)
    """If there are any, nothing was claimed: with the deaths of these workers the instance would become stuck, and they
    may be alive. The caller waits for as long as a lease, and sees whether the heartbeats change."""

    @property
    def status(self) -> Status:
        """What the instance is doing; pending, if it does not exist."""
        return self.about.status if self.about else Status.PENDING


def _unknown(worker: str) -> bool | None:
    return None


def _anybody(worker: str) -> bool:
    return True


class Claimant(Struct, frozen=True):
    """Who claims which instance, and on which terms."""

    keys: InstanceKeys
    workflow: Callable[[str], Workflow[Any, Any] | None]
    """Returns the workflow of a name; None if it is not known here."""
    codec: Codec
    now: Callable[[], float]
    lease: Lease
    """The lease that the claim writes."""
    takes_over: Callable[[str], bool] = _anybody
    """Whether the instance is claimed if the worker with this id has it."""
    lives: Callable[[str], bool | None] = _unknown
    """Whether the worker with this id is alive; None if only the store can tell. To take an instance from a worker that
    is alive is not counted as a death."""
    is_dead: Callable[[str], bool] = no_worker
    """Whether the worker with this id was watched for as long as its lease, and its heartbeat did not change."""
    new: Callable[[], InstanceRows] | None = None
    """Makes the rows of a new instance; None if the instance has to exist."""
    beats: bool = True
    """Whether the worker exists for this one run only: then its heartbeat begins and ends with the claim."""
    retention: float | None = None
    """How many seconds after its end the instance is deleted, if its workflow does not say."""


@change
def claim(who: Claimant, heard: Mapping[str, bytes], *, has_waited: bool) -> Steps[Claim]:
    """Claim an instance. If it does not exist, create it first, unless `who.new` is None.

    `heard`: the heartbeats of workers that may be alive, as an earlier try found them; see `Claim.heartbeats`.
    `has_waited`: whether as long as a lease has passed since then.
    """
    seen = yield from find_all(who.keys)
    if not seen.about:
        return (yield from _create(who, seen))
    workflow = who.workflow(seen.about.head.workflow)
    if workflow is None or (seen.lease is not None and not who.takes_over(seen.lease.worker)):
        return Claim(seen.about, None, workflow=workflow)
    return (yield from _take_over(who, seen, workflow, heard, has_waited=has_waited))


def _create(who: Claimant, seen: Snapshot) -> Steps[Claim]:
    """Create an instance that does not exist, and claim it; do nothing if `who.new` is None."""
    if who.new is None:
        return Claim(seen.about, None)
    yield from check_form()
    yield Get(who.keys.field(Field.HEAD))
    rows = who.new()
    claimed = Claim(rows, who.lease, created=True, workflow=who.workflow(rows.head.workflow))
    yield _store(who, seen, claimed)
    return claimed


def _take_over(
    who: Claimant, seen: Snapshot, workflow: Workflow[Any, Any], heard: Mapping[str, bytes], *, has_waited: bool
) -> Steps[Claim]:
    """Claim an instance that exists, whether another worker has it or nobody does."""
    keys, found, lease = who.keys, seen.about, seen.lease
    # Every claim and every decision about the instance changes its lease or its head. So does a message that makes it
    # due.
    yield Hold((keys.lease, keys.field(Field.HEAD)))
    deaths, blame = found.deaths.deaths, Blame(None, ())
    if lease is not None or deaths:
        # A worker that was taken for dead, and is alive, takes its death back: that changes only this row.
        yield Get(keys.field(Field.DEATHS))
    if lease is not None and _has_died(who, found, lease):
        deaths, blame, alive = yield from _count_death(who, deaths, lease, heard, has_waited=has_waited)
        if alive and who.beats and not has_waited:
            return Claim(found, None, workflow=workflow, heartbeats=alive)
    # All rows on which the decision below depends were read above, and the commit checks them.
    claimed = _decide(who, workflow, found, deaths, blame)
    if claimed.about is not found:
        yield from _take(who, seen, claimed)
    return claimed


def _take(who: Claimant, seen: Snapshot, claimed: Claim) -> Steps[None]:
    """Write the rows of an instance after the decision, and its new lease if it is to run."""
    keys = who.keys
    if seen.lease is None and seen.rows is not None:
        # Nobody has the instance, so only messages can have come since, and the check of the stamp rules them out.
        yield Get(keys.stamp)
        claimed.stamp, claimed.sent, claimed.rows = seen.stamp, seen.sent, seen.rows
    if seen.lease is not None and seen.about.tally != claimed.about.tally:
        # The worker that has it may be alive and commit meanwhile, which also counts up this row.
        yield Get(keys.field(Field.TALLY))
    yield _store(who, seen, claimed)


# Deaths.


class _Counted(NamedTuple):
    """The deaths that count against an instance, after one more was added."""

    deaths: tuple[Death, ...]
    """The deaths, without those of workers that may be alive."""
    blame: Blame
    alive: dict[str, bytes]
    """The workers that may be alive, and their heartbeats."""


def _count_death(
    who: Claimant, before: tuple[Death, ...], lease: Lease, heard: Mapping[str, bytes], *, has_waited: bool
) -> Steps[_Counted]:
    """Add the death of the worker that had this lease, and leave out the deaths of workers that may be alive."""
    tries = (yield from read_tries(who.keys)) if before else dict[bytes, Try]()
    deaths = (*before, Death(lease.name, noted=any(lease.name in tried.leases for tried in tries.values())))
    alive = yield from _alive(who, worst(deaths, tries), heard, has_waited=has_waited)
    deaths = tuple(death for death in deaths if worker_of_lease(death.lease) not in alive)
    return _Counted(deaths, worst(deaths, tries), alive)


def _has_died(who: Claimant, found: InstanceRows, lease: Lease) -> bool:
    """Whether the worker with this lease counts as having died while it executed the instance.

    A worker that is alive after all takes its death back: see `take_back_death`.
    """
    if lease.worker == who.lease.worker or found.status not in (Status.RUNNING, Status.ROLLING_BACK):
        return False
    return who.lives(lease.worker) is not True


def _alive(who: Claimant, blame: Blame, heard: Mapping[str, bytes], *, has_waited: bool) -> Steps[dict[str, bytes]]:
    """The blamed workers that may be alive, with their heartbeats; none if too few are blamed for it to become stuck.

    A worker that was killed just now still has a heartbeat that has not run out. So before a claim makes an instance
    stuck, it waits until the heartbeat has run out, or was written again.
    """
    alive: dict[str, bytes] = {}
    for name in blame.leases if len(blame.leases) >= DEATHS_MAX else ():
        worker = worker_of_lease(name)
        lives = who.lives(worker)
        if lives is None and not who.is_dead(worker):
            raw = yield Look(worker_keys(worker).heartbeat)
            if raw is not None and (not has_waited or heard.get(worker, raw) != raw):
                alive[worker] = raw
        elif lives:
            alive[worker] = b""
    return alive


# What an instance is to be.


def _decide(
    who: Claimant, workflow: Workflow[Any, Any], found: InstanceRows, deaths: Sequence[Death], blame: Blame
) -> Claim:
    """Decide whether an instance runs, becomes stuck or is left as it was found."""
    if found.status.is_terminal:
        return Claim(found, None, workflow=workflow)
    seals = _readable(who.codec, found.birth)
    if found.status is Status.STUCK and not _is_mended(who, workflow, found):
        return Claim(found, None, workflow=workflow)
    rows = found.copy()
    if found.status is Status.STUCK:
        # The reason for which it is stuck is dropped. If it was rolling back, the error for which it does that is kept.
        original = found.result.original
        rows.set(Field.RESULT, None if original is None else Result(error=original))
        rows.set(Field.DEATHS, None)
        count_up(rows)
    else:
        rows.set(Field.DEATHS, Deaths(tuple(deaths)) if deaths else None)
    if len(blame.leases) >= DEATHS_MAX:
        _crash(who, rows, blame)
        return Claim(rows, None, workflow=workflow)
    _run(who, workflow, found, rows, seals)
    # A process that knows the workflow, and so its fingerprint, checked the input. After the first run nobody knows.
    checked = found.status is Status.PENDING and bool(found.head.fingerprint)
    return Claim(rows, who.lease, checked=checked, workflow=workflow)


def _run(
    who: Claimant, workflow: Workflow[Any, Any], found: InstanceRows, rows: InstanceRows, seals: tuple[bytes, ...]
) -> None:
    """Change the rows of an instance to those of one that runs with the code of this process."""
    now = float(who.now())
    rows.set(Field.BIRTH, _birth(who, workflow, found, seals, now))
    rows.set(
        Field.HEAD,
        replace(
            found.head,
            version=workflow.version,
            fingerprint=workflow.fingerprint,
            status=_status_to_run(found),
            changes=found.head.changes + 1,
            changed_at=now,
            alarm=None,
        ),
    )


def _status_to_run(found: InstanceRows) -> Status:
    status = found.status
    if status is Status.ROLLING_BACK:
        return status
    undoes = status is Status.STUCK and found.result.original is not None
    return move(status, Status.ROLLING_BACK if undoes else Status.RUNNING)


def _is_mended(who: Claimant, workflow: Workflow[Any, Any], found: InstanceRows) -> bool:
    """Whether a stuck instance may go on with the code of this process."""
    is_other = (found.head.version, found.head.fingerprint) != (workflow.version, workflow.fingerprint)
    return is_other or _is_stuck_for_code(unpack_error_info(error_of(found), who.codec), found.result.failed_operations)


def _birth(
    who: Claimant, workflow: Workflow[Any, Any], found: InstanceRows, seals: tuple[bytes, ...], now: float
) -> Birth:
    """The `Birth` row of an instance for the worker that runs it from now on."""
    birth = replace(found.birth, seals=seals)
    kept = who.retention if workflow.retention is None else workflow.retention
    if kept is not None:
        birth = replace(birth, retention=float(kept))
    if found.status is Status.PENDING and found.head.created_at > now + AHEAD_SECONDS:
        # The clock of the client that started it is ahead of ours, and from now on ours counts.
        birth = replace(birth, generation=1, began_at=now)
    return birth


def _readable(codec: Codec, birth: Birth) -> tuple[bytes, ...]:
    """The seals of an instance, with that of this worker; SealedError if a value of it needs another codec."""
    is_own = False
    for seal in (birth.input, *birth.seals):
        if codec.is_own(seal):
            is_own = True
        else:
            codec.check_readable(seal)
    return birth.seals if is_own else (*birth.seals, codec.encode(None))


def _is_stuck_for_code(info: ErrorInfo, failed_operations: Sequence[str]) -> bool:
    """Whether an instance is stuck because of a mistake in the code or a divergence, which other code may mend.

    A crash loop or a handler that failed is not mended so. Nor is something that was too large for the store: its steps
    would run again, with the same outcome.
    """
    if info.type == _TOO_LARGE:
        return False
    return not failed_operations and (info.kind == "definition" or is_divergence(info))


def _crash(who: Claimant, rows: InstanceRows, blame: Blame) -> None:
    """Change the rows of an instance in a crash loop to those of a stuck one."""
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


def _store(who: Claimant, seen: Snapshot, claimed: Claim) -> list[Writing]:
    """The writes that store the rows of a claimed instance, and the lease."""
    keys, found = who.keys, seen.about
    writes = store(keys, found, claimed.about)
    if seen.lease is not None:
        writes.append(Clear(worker_keys(seen.lease.worker).claimed(keys.instance_id)))
    if Field.DEATHS in found.raw and Field.DEATHS not in claimed.about.raw:
        writes.append(ClearRange(*keys.range(TRIES)))
    waits = keys.range(WAITS)
    if not claimed.created and (claimed.rows is None or claimed.rows.between(*waits)):
        # The branches that still wait write these rows again when the run comes to them.
        writes.append(ClearRange(*waits))
    return [*writes, *([Clear(keys.lease)] if claimed.lease is None else _store_lease(who, seen.lease, claimed.lease))]


def _store_lease(who: Claimant, before: Lease | None, lease: Lease) -> list[Writing]:
    """The writes that store the lease of an instance. `before`: the lease that another worker had."""
    keys, worker = who.keys, worker_keys(lease.worker)
    writes: list[Writing] = [Set(keys.lease, lease.pack()), Set(worker.claimed(keys.instance_id), b"")]
    if who.beats:
        writes.append(Set(worker.heartbeat, Heartbeat(who.now(), lease.ttl, 0).pack()))
    if before is not None:
        # The run that had it may wait for a message. It watches the stamp, and finds out that it has lost the lease.
        writes.append(Signal(keys.stamp))
        if who.beats:
            # `run_workflow` may take an instance from a worker that is alive, and that may watch only its signals.
            writes += tell_owner(before, keys.instance_id)
    return writes


@change
def give_back(keys: InstanceKeys, lease: Lease, now: float, *, forgets_worker: bool) -> Steps[bool]:
    """Release an instance, so that others can claim it at once; False if this is not its lease any more."""
    if (yield Get(keys.lease)) != lease.pack():
        return False
    worker = worker_keys(lease.worker)
    yield [Clear(keys.lease), Clear(worker.claimed(keys.instance_id))]
    if forgets_worker:
        yield forget_worker(worker)
    head = yield from read(Head, keys.field(Field.HEAD))
    if head is not None:
        yield make_due(keys, head, now)
    return True
