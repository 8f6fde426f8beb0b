"""Claiming: who gets an instance, whose deaths count, and when it is stuck for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.changes.scenes import CODEC, FLOWS, GONE, HOUR, NOW, P, kid, parent, rows_of
from tests.changes.store import Store, make
from workflow_sdk.changes.claim import Claim, Claimant, claim, give_back, new_lease
from workflow_sdk.changes.decide import DEATHS_MAX, take_back_death
from workflow_sdk.changes.deliver import NewMessage, deliver
from workflow_sdk.changes.instances import check_workflow, new_rows
from workflow_sdk.changes.workers import Heartbeat
from workflow_sdk.errors import AlreadyExistsError
from workflow_sdk.rows.instance import Birth, Head, InstanceRows, Lease, Try, error_of
from workflow_sdk.rows.keys import TRIES, WAITS, Field, InstanceKeys, worker_keys
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import DUE_AT_ONCE_MAX

pytestmark = pytest.mark.law(10)

OURS = Lease("ours", 1, 10.0)


def claimant(lease: Lease = OURS, **rest: Any) -> Claimant:
    """Who claims `p`."""
    return Claimant(P, FLOWS.get, CODEC, lambda: NOW, lease, **rest)


def claimed(store: Store, lease: Lease = OURS, heard: Any = None, *, has_waited: bool = False, **rest: Any) -> Claim:
    return make(store, claim(claimant(lease, **rest), heard or {}, has_waited=has_waited))


def head(store: Store) -> Head:
    return Head.unpack(store.rows[P.field(Field.HEAD)])


def test_one_that_waits() -> None:
    store = Store(rows_of("waits"))
    make(store, deliver(P, NewMessage("go", b"\xf6"), NOW))
    alarm = head(store).alarm
    assert alarm is not None
    found = claimed(store)
    assert (found.lease, found.status, found.workflow) == (OURS, Status.RUNNING, parent)
    assert found.rows is not None, "all of it was read at once"
    assert found.stamp == store.rows[P.stamp]
    assert store.rows[P.lease] == OURS.pack()
    worker = worker_keys("ours")
    assert worker.claimed("p") in store.rows
    assert Heartbeat.unpack(store.rows[worker.heartbeat]).ttl == 10.0
    assert P.alarm(alarm) not in store.rows
    assert head(store).alarm is None
    assert not any(key.startswith(P.space + WAITS) for key in store.rows)


def test_whoever_beats_elsewhere_writes_no_heartbeat() -> None:
    store = Store(rows_of("waits"))
    claimed(store, beats=False)
    assert worker_keys("ours").heartbeat not in store.rows


@pytest.mark.parametrize("scene", ["completed", "failed", "abandoned"])
def test_one_that_has_ended_is_left_as_it_is(scene: str) -> None:
    store = Store(rows_of(scene))
    assert claimed(store).lease is None
    assert store.rows == rows_of(scene)


def test_one_of_a_workflow_that_is_not_known_here() -> None:
    store = Store(rows_of("waits"))
    found = make(store, claim(Claimant(P, lambda name: None, CODEC, lambda: NOW, OURS), {}, has_waited=False))
    assert (found.lease, found.workflow) == (None, None)
    assert store.rows == rows_of("waits")


def test_one_that_runs_elsewhere() -> None:
    store = Store(rows_of("running"))
    assert claimed(store, takes_over=lambda worker: worker != GONE.worker).lease is None
    assert store.rows == rows_of("running")


def test_one_that_is_there_for_another_workflow() -> None:
    assert check_workflow(kid, "i", "kid") is kid
    with pytest.raises(AlreadyExistsError, match="'i' runs workflow 'parent', not 'kid'"):
        check_workflow(kid, "i", "parent")


def test_one_that_is_stuck_for_its_code_is_tried_again() -> None:
    """The functions beside the workflow may have changed."""
    store = Store(rows_of("stuck"))
    assert claimed(store).status is Status.RUNNING


def test_one_that_is_new() -> None:
    def rows() -> InstanceRows:
        return new_rows(parent, Status.RUNNING, CODEC.encode("x"), NOW, b"s" * 16)

    store = Store()
    found = claimed(store, new=rows)
    assert (found.created, found.lease, found.status) == (True, OURS, Status.RUNNING)
    assert store.rows[P.lease] == OURS.pack()
    assert claimed(Store()).lease is None


def test_a_beginning_that_is_still_to_come() -> None:
    """Whoever started it has a clock that is ahead."""
    keys = InstanceKeys("new")
    store = Store(rows_of("waits"))
    key = keys.field(Field.HEAD)
    store.rows[key] = replace(Head.unpack(store.rows[key]), created_at=NOW + HOUR).pack()
    make(store, claim(Claimant(keys, FLOWS.get, CODEC, lambda: NOW, OURS), {}, has_waited=False))
    assert Birth.unpack(store.rows[keys.field(Field.BIRTH)]).began_at == NOW


# Deaths.


def die(store: Store, times: int, lives: Callable[[str], bool | None] = lambda worker: None) -> Claim:
    """So many workers take the instance over from one another, each from one that has died."""
    found: Claim | None = None
    for number in range(times):
        found = claimed(store, Lease(f"w{number}", 1, 10.0), lives=lives)
    assert found is not None
    return found


def test_a_death_is_noted() -> None:
    store = Store(rows_of("running"))
    found = claimed(store)
    assert [death.lease for death in found.about.deaths.deaths] == [GONE.name]
    assert worker_keys(GONE.worker).claimed("p") not in store.rows


def test_nobody_has_died_who_lives() -> None:
    store = Store(rows_of("running"))
    found = claimed(store, lives=lambda worker: True)
    assert (found.lease, found.about.deaths.deaths) == (OURS, ())


def test_it_is_stuck_after_the_fifth() -> None:
    """The heartbeats of the dead are gone."""
    store = Store(rows_of("running"))
    for number in range(DEATHS_MAX - 1):
        assert claimed(store, Lease(f"w{number}", 1, 10.0), beats=False).lease is not None
    del store.rows[worker_keys(GONE.worker).heartbeat]
    found = claimed(store, Lease("last", 1, 10.0), beats=False)
    assert (found.lease, found.status) == (None, Status.STUCK)
    assert P.lease not in store.rows
    assert head(store).status is Status.STUCK
    assert claimed(store).lease is None, "nobody tries it again"


def test_who_may_live_is_waited_for() -> None:
    """Their heartbeats are there: they were killed just now, or live."""
    store = Store(rows_of("running"))
    die(store, DEATHS_MAX - 1)
    before = dict(store.rows)
    found = claimed(store, Lease("last", 1, 10.0))
    assert found.lease is None
    assert len(found.heartbeats) == DEATHS_MAX
    assert store.rows == before, "nothing was claimed"
    # Nothing is heard of them: they are dead.
    late = Store(before)
    assert claimed(late, Lease("last", 1, 10.0), found.heartbeats, has_waited=True).status is Status.STUCK
    # One has beaten again: it lives, and what was taken from it was no death.
    alive = worker_keys("w0").heartbeat
    store.rows[alive] = Heartbeat(NOW, 10.0, 2).pack()
    found = claimed(store, Lease("last", 1, 10.0), found.heartbeats, has_waited=True)
    assert found.lease == Lease("last", 1, 10.0)
    assert len(found.about.deaths.deaths) == DEATHS_MAX - 1


def test_deaths_count_against_what_was_executed() -> None:
    """What others have noted at the same time is not blamed."""
    store = Store(rows_of("running"))
    leases = [GONE.name]
    for number in range(DEATHS_MAX - 1):
        lease = Lease(f"w{number}", 1, 10.0)
        claimed(store, lease, beats=False)
        leases.append(lease.name)
        store.rows[P.space + TRIES + b"\x15\x01"] = Try("bad", tuple(leases)).pack()
        store.rows[P.space + TRIES + b"\x15\x02"] = Try("good", (lease.name,)).pack()
    del store.rows[worker_keys(GONE.worker).heartbeat]
    found = claimed(store, Lease("last", 1, 10.0), beats=False)
    assert error_of(found.about).message.plain.startswith("5 workers in a row died while they executed 'bad'")


def test_a_death_is_taken_back() -> None:
    store = Store(rows_of("taken over"))
    assert Field.DEATHS in fields(store)
    make(store, take_back_death("p", GONE.name, NOW))
    assert Field.DEATHS not in fields(store)
    make(store, take_back_death("p", GONE.name, NOW))
    make(Store(), take_back_death("p", GONE.name, NOW))


def fields(store: Store) -> set[Field]:
    return {field for field in Field if P.field(field) in store.rows}


# Giving back.


def test_what_is_given_back_is_due() -> None:
    store = Store(rows_of("running"))
    assert make(store, give_back(P, GONE, NOW, forgets_worker=True))
    alarm = head(store).alarm
    assert alarm is not None
    assert alarm < DUE_AT_ONCE_MAX
    assert P.lease not in store.rows
    assert worker_keys(GONE.worker).heartbeat not in store.rows


def test_what_others_have_is_not_given_back() -> None:
    store = Store(rows_of("taken over"))
    assert not make(store, give_back(P, GONE, NOW, forgets_worker=True))
    assert store.rows == rows_of("taken over")


def test_each_lease_is_another_one() -> None:
    assert len({new_lease("w", 1.0) for _ in range(100)}) == 100
