"""Claiming an instance, and giving it back. Whoever holds the lease may write; every commit checks it.

Whoever claims takes over what the one before has left: it counts the deaths of workers that died under the instance,
and has it stuck if there were too many. A finished instance is left as it is, and so is a stuck one, unless its code
has changed or is what it is stuck for: the fingerprint does not cover the functions beside the workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from msgspec.structs import replace

from workflow_sdk.changes.change import Get, Hold, Look, Signal, Steps, Writing, change, read
from workflow_sdk.changes.deaths import DEATHS_MAX, read_tries
from workflow_sdk.changes.instances import count_up, make_due, store
from workflow_sdk.changes.snapshot import Snapshot, StoredRows, check_form, find_all
from workflow_sdk.changes.workers import Heartbeat, forget_worker, tell_owner
from workflow_sdk.core.codec import Codec
from workflow_sdk.core.deaths import Blame, Death, Deaths, Try, worker_of_lease, worst
from workflow_sdk.core.failures import unpack_error_info
from workflow_sdk.core.instance import Birth, Head, InstanceRows, Lease, Result
from workflow_sdk.core.keys import TRIES, WAITS, Field, InstanceKeys, worker_keys
from workflow_sdk.core.kinds import is_divergence
from workflow_sdk.core.results import result_of
from workflow_sdk.core.status import Status, move
from workflow_sdk.core.times import AHEAD_SECONDS
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Clear, ClearRange, Set
from workflow_sdk.errors import AlreadyExistsError, ErrorInfo, StorageLimitError

__all__ = ["Claim", "Claimant", "check_workflow", "claim", "give_back", "new_lease"]

_TOO_LARGE = f"{StorageLimitError.__module__}.{StorageLimitError.__qualname__}"

_epochs = count(1)


def new_lease(worker: str, ttl: float) -> Lease:
    """A lease that no claim has had before: what is late of an earlier one, by the same worker too, is refused."""
    return Lease(worker, next(_epochs), float(ttl))


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
    workflow: Workflow[Any, Any] | None = None
    """What it runs; None if that is not known here."""
    heartbeats: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Of workers that may be alive, though so many deaths count against the instance that it would be stuck: whoever
    claims has to wait and see whether they change. Nothing was claimed."""

    @property
    def status(self) -> Status:
        """What it is doing; pending, if it does not exist."""
        return self.about.status if self.about else Status.PENDING


def _unknown(worker: str) -> bool | None:
    return None


def _nobody(worker: str) -> bool:
    return False


def _anybody(worker: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who wants to run what."""

    keys: InstanceKeys
    workflow: Callable[[str], Workflow[Any, Any] | None]
    """The workflow of a name, if it is known here."""
    codec: Codec
    now: Callable[[], float]
    lease: Lease
    """What it is to have."""
    takes_over: Callable[[str], bool] = _anybody
    """Whether it claims what this worker has. If not, that is left alone."""
    lives: Callable[[str], bool | None] = _unknown
    """Whether this worker is alive, as far as that is known without a look at the store. While it is, it is no death
    that something is taken from it."""
    is_dead: Callable[[str], bool] = _nobody
    """Whether somebody has watched this worker for as long as its lease, and has heard nothing of it."""
    new: Callable[[], InstanceRows] | None = None
    """Makes the rows of the instance, if there is none. Without this, none is created."""
    beats: bool = True
    """Whether the worker's heartbeat is that of this one run: it begins and ends with the claim."""
    retention: float | None = None
    """How many seconds after its end an instance is forgotten, where its workflow does not say."""


@change
def claim(who: Claimant, heard: Mapping[str, bytes], *, has_waited: bool) -> Steps[Claim]:
    """Claim an instance, creating it if it is new.

    `heard`: the heartbeats that workers had when they were looked at first. `has_waited`: somebody has waited since for
    as long as a lease.
    """
    keys = who.keys
    seen = yield from find_all(keys)
    found, lease = seen.about, seen.lease
    if not found:
        if who.new is None:
            return Claim(found, None)
        yield from check_form()
        yield Get(keys.field(Field.HEAD))
        rows = who.new()
        claimed = Claim(rows, who.lease, created=True, workflow=who.workflow(rows.head.workflow))
        yield _store(who, seen, claimed)
        return claimed
    workflow = who.workflow(found.head.workflow)
    if workflow is None or (lease is not None and not who.takes_over(lease.worker)):
        return Claim(found, None, workflow=workflow)
    # Every claim, and every decision about the instance, changes its head; so does a message that moves the alarm.
    yield Hold((keys.lease, keys.field(Field.HEAD)))
    deaths, blame = found.deaths.deaths, Blame(None, ())
    if lease is not None or deaths:
        # Whoever was taken for dead, and lives, takes that back, and changes nothing else.
        yield Get(keys.field(Field.DEATHS))
    if lease is not None and _has_died(who, found, lease):
        deaths, tries = yield from _with_death(keys, deaths, lease)
        alive = yield from _alive(who, worst(deaths, tries), heard, has_waited=has_waited)
        if alive and who.beats and not has_waited:
            return Claim(found, None, workflow=workflow, heartbeats=alive)
        deaths = tuple(death for death in deaths if worker_of_lease(death.lease) not in alive)
        blame = worst(deaths, tries)
    claimed = _take_over(who, workflow, found, deaths, blame)
    if claimed.about is not found:
        yield from _take(who, seen, claimed)
    return claimed


def _take(who: Claimant, seen: Snapshot, claimed: Claim) -> Steps[None]:
    """Write what has become of an instance that is taken over."""
    keys = who.keys
    if seen.lease is None and seen.rows is not None:
        # Nobody has it, so what was read is still all there is; but for messages, which this holds off.
        yield Get(keys.nudge)
        claimed.nudge, claimed.sent, claimed.rows = seen.nudge, seen.sent, seen.rows
    if seen.lease is not None and seen.about.tally != claimed.about.tally:
        # Whoever has it may be alive, and commit meanwhile.
        yield Get(keys.field(Field.TALLY))
    yield _store(who, seen, claimed)


def _with_death(
    keys: InstanceKeys, deaths: tuple[Death, ...], lease: Lease
) -> Steps[tuple[tuple[Death, ...], dict[bytes, Try]]]:
    """The deaths of an instance with that of the one who had this lease, and what was executed then."""
    tries = (yield from read_tries(keys)) if deaths else dict[bytes, Try]()
    return (*deaths, Death(lease.name, noted=any(lease.name in tried.leases for tried in tries.values()))), tries


def _has_died(who: Claimant, found: InstanceRows, lease: Lease) -> bool:
    """Whether an instance that is taken over was being executed by a worker that has died, as far as is known here.

    Nobody gave it back. Whoever is alive nevertheless takes its death back: see `changes.deaths`.
    """
    if lease.worker == who.lease.worker or found.status not in (Status.RUNNING, Status.ROLLING_BACK):
        return False
    return who.lives(lease.worker) is not True


def _alive(who: Claimant, blame: Blame, heard: Mapping[str, bytes], *, has_waited: bool) -> Steps[dict[str, bytes]]:
    """The workers that may be alive of those for whose deaths an instance is to be stuck, and their heartbeats.

    A heartbeat that has not run out may be that of a worker which was killed just now. Whoever takes over at once waits
    until it has, or until it is renewed.
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


def _take_over(
    who: Claimant, workflow: Workflow[Any, Any], found: InstanceRows, deaths: Sequence[Death], blame: Blame
) -> Claim:
    head = found.head
    status = head.status
    changed = (head.version, head.fingerprint) != (workflow.version, workflow.fingerprint)
    nothing = Claim(found, None, workflow=workflow)
    if status.is_terminal:
        return nothing
    seals = _readable(who.codec, found.birth)
    rows = found.copy()
    if status is Status.STUCK:
        result = found.result
        if not changed and not _is_stuck_for_code(unpack_error_info(found.error, who.codec), result.culprits):
            return nothing
        after = move(status, Status.RUNNING if result.original is None else Status.ROLLING_BACK)
        rows.set(Field.RESULT, None if result.original is None else Result(error=result.original))
        rows.set(Field.DEATHS, None)
        count_up(rows)
    else:
        after = status if status is Status.ROLLING_BACK else move(status, Status.RUNNING)
        rows.set(Field.DEATHS, Deaths(tuple(deaths)) if deaths else None)
    if len(blame.leases) >= DEATHS_MAX:
        _crash(who, rows, blame)
        return Claim(rows, None, workflow=workflow)
    now = float(who.now())
    rows.set(Field.BIRTH, _birth(who, workflow, found, seals, now))
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
    return Claim(rows, who.lease, checked=checked, workflow=workflow)


def _birth(
    who: Claimant, workflow: Workflow[Any, Any], found: InstanceRows, seals: tuple[bytes, ...], now: float
) -> Birth:
    """What an instance began with, as it is for the one who runs it from here on."""
    birth = replace(found.birth, seals=seals)
    kept = who.retention if workflow.retention is None else workflow.retention
    if kept is not None:
        birth = replace(birth, retention=float(kept))
    if found.status is Status.PENDING and found.head.created_at > now + AHEAD_SECONDS:
        # Who started it has a clock that is ahead of ours, and ours is the one that counts from here on.
        birth = replace(birth, generation=1, began_at=now)
    return birth


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


def _crash(who: Claimant, rows: InstanceRows, blame: Blame) -> None:
    """Have an instance stuck that workers die of."""
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
    """Write what has become of an instance, and who has it now."""
    keys, before, found = who.keys, seen.lease, seen.about
    writes = store(keys, found, claimed.about)
    if before is not None:
        writes.append(Clear(worker_keys(before.worker).claimed(keys.instance_id)))
    waits = keys.range(WAITS)
    if Field.DEATHS in found.raw and Field.DEATHS not in claimed.about.raw:
        writes.append(ClearRange(*keys.range(TRIES)))
    if not claimed.created and (claimed.rows is None or claimed.rows.between(*waits)):
        # What waits still will say so again.
        writes.append(ClearRange(*waits))
    if claimed.lease is None:
        writes.append(Clear(keys.lease))
        return writes
    writes.append(Set(keys.lease, claimed.lease.pack()))
    worker = worker_keys(claimed.lease.worker)
    writes.append(Set(worker.claimed(keys.instance_id), b""))
    if who.beats:
        writes.append(Set(worker.heartbeat, Heartbeat(who.now(), claimed.lease.ttl, 0).pack()))
    if before is not None:
        # Whoever had it, and is waiting for a message, learns at once that it lost it.
        writes.append(Signal(keys.nudge))
        if who.beats:
            # It is alive, as far as anybody knows.
            writes += tell_owner(before, keys.instance_id)
    return writes


@change
def give_back(keys: InstanceKeys, lease: Lease, now: float, *, forgets_worker: bool) -> Steps[bool]:
    """Have an instance due for others at once; False if this lease is not the one that it has."""
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


def check_workflow(workflow: Workflow[Any, Any], id: str, name: str) -> Workflow[Any, Any]:
    """The workflow, if that is its name; else AlreadyExistsError."""
    if name != workflow.name:
        raise AlreadyExistsError(
            f"instance {id!r} runs workflow {name!r}, not {workflow.name!r}; "
            "give this one another id, or run it with the workflow it was started with"
        )
    return workflow
