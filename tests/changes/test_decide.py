"""Decisions from outside: cancel, wake, evict, delete, recover, restart, and the cleanups that come of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.changes.scenes import CANCELLED, GONE, HOUR, KID, NOW, SCENES, P, rows_of
from tests.changes.store import Store, insisting, make, make_together
from tests.leftovers import leftovers
from workflow_sdk.changes import decide, rewind
from workflow_sdk.changes.change import Change
from workflow_sdk.changes.decide import run_cleanup
from workflow_sdk.changes.deliver import NewMessage, deliver
from workflow_sdk.errors import DefinitionError, InstanceNotFoundError, InstanceStateError
from workflow_sdk.rows.instance import Head, Tally
from workflow_sdk.rows.keys import CLEANUPS, OUTSIDE, ROOT, WAITS, Field, InstanceKeys, purge_key, worker_keys
from workflow_sdk.rows.location import unpack
from workflow_sdk.rows.outside import TaskRow, TaskStatus, task_key
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import DUE_AT_ONCE_MAX

pytestmark = pytest.mark.law(9)

ENDED = ("completed", "failed", "abandoned", "over")


def head(store: Store, keys: InstanceKeys = P) -> Head:
    return Head.unpack(store.rows[keys.field(Field.HEAD)])


def is_due(store: Store) -> bool:
    alarm = head(store).alarm
    return alarm is not None and alarm < DUE_AT_ONCE_MAX and P.alarm(alarm) in store.rows


def cleanups(store: Store) -> list[bytes]:
    return sorted(key for key in store.rows if key.startswith(CLEANUPS))


def of(store: Store, part: bytes) -> list[bytes]:
    return [key for key in store.rows if key.startswith(P.space + part)]


# Cancelling.


def test_a_cancel_ends_what_waits() -> None:
    store = Store(rows_of("waits"))
    found = make(store, decide.cancel("p", CANCELLED, NOW, rollback=False))
    assert found is not None
    assert sorted(found) == cleanups(store), "one for the child, one for the task"
    assert len(found) == 2
    assert head(store).status is Status.CANCELLED
    assert head(store).purge_at == NOW + HOUR
    assert purge_key(NOW + HOUR, "p") in store.rows
    assert of(store, WAITS) == of(store, OUTSIDE) == []


def test_a_cancel_takes_an_instance_from_its_worker() -> None:
    store, worker = Store(rows_of("running")), worker_keys(GONE.worker)
    make(store, decide.cancel("p", CANCELLED, NOW, rollback=False))
    assert P.lease not in store.rows
    assert worker.claimed("p") not in store.rows
    assert worker.stamp in store.rows, "it is told"


def test_one_that_never_stands_still_is_taken_away_first() -> None:
    """Whoever runs it commits again and again: the second time, the cancel waits for no third."""
    store = Store(rows_of("running"))

    def busy() -> None:
        tally = Tally.unpack(store.rows[P.field(Field.TALLY)])
        store.rows[P.field(Field.TALLY)] = Tally(tally.commits + 1, tally.taken).pack()

    change = decide.cancel("p", CANCELLED, NOW, rollback=False)
    assert _make_beside(store, change, busy, times=1) is None
    assert P.lease not in store.rows, "nobody has it, for some seconds"
    assert head(store).status is Status.RUNNING
    assert make(store, change) is not None
    assert head(store).status is Status.CANCELLED


def _make_beside(store: Store, change: Change[Any], meanwhile: Any, times: int) -> Any:
    """Make a change, while something happens before each of the first commits."""
    commit, left = store.commit, [times]

    async def disturbed(batch: Any) -> None:
        if left[0]:
            left[0] -= 1
            meanwhile()
        await commit(batch)

    store.commit = disturbed  # type: ignore[method-assign]
    try:
        return make(store, change)
    finally:
        store.commit = commit  # type: ignore[method-assign]


def test_a_cancel_that_undoes() -> None:
    store = Store(rows_of("waits"))
    make(store, decide.cancel("p", CANCELLED, NOW, rollback=True))
    assert head(store).status is Status.ROLLING_BACK
    assert head(store).cancelled
    assert is_due(store)


def test_what_is_being_undone_is_undone_to_the_end() -> None:
    store = Store(rows_of("undone"))
    make(store, decide.cancel("p", CANCELLED, NOW, rollback=False))
    assert head(store).status is Status.ROLLING_BACK


@pytest.mark.parametrize("scene", ["completed", "failed"])
def test_what_has_ended_can_not_be_cancelled(scene: str) -> None:
    with pytest.raises(InstanceStateError, match="it has ended"):
        make(Store(rows_of(scene)), decide.cancel("p", CANCELLED, NOW, rollback=False))


def test_a_second_cancel_changes_nothing() -> None:
    store = Store(rows_of("abandoned"))
    assert make(store, decide.cancel("p", CANCELLED, NOW, rollback=False)) == []
    assert store.rows == rows_of("abandoned")


def test_a_message_meanwhile_does_not_hold_a_cancel_up() -> None:
    store = Store(rows_of("waits"))
    changes: list[Change[Any]] = [
        insisting(decide.cancel("p", CANCELLED, NOW, rollback=False)),
        deliver(P, NewMessage("go", b"\xf6"), NOW),
    ]
    make_together(store, changes, [0, 0, 0, 0, 1, 1, 1, 1, 1])
    assert head(store).status is Status.CANCELLED


# Cleanups.


def test_cleanups_end_the_child_and_the_task() -> None:
    store = Store(rows_of("abandoned"))
    for key in cleanups(store):
        assert make(store, run_cleanup(key, CANCELLED, NOW)) == []
    assert cleanups(store) == []
    assert head(store, KID).status is Status.CANCELLED
    (task,) = _tasks(store)
    assert task.status is TaskStatus.CANCELLED
    assert make(store, run_cleanup(CLEANUPS + b"done long ago", CANCELLED, NOW)) == []


def _tasks(store: Store) -> list[TaskRow]:
    start = task_key("")[:-2]
    return [TaskRow.unpack(raw) for key, raw in store.rows.items() if key.startswith(start)]


def test_a_child_that_has_ended_by_itself_is_left_alone() -> None:
    store = Store(rows_of("abandoned"))
    make(store, insisting(decide.cancel("kid", CANCELLED, NOW, rollback=False)))
    before = head(store, KID)
    for key in cleanups(store):
        make(store, run_cleanup(key, CANCELLED, NOW))
    assert (cleanups(store), head(store, KID)) == ([], before)


# Looking, parking, forgetting.


def test_one_that_is_woken_is_due() -> None:
    store = Store(rows_of("waits"))
    make(store, decide.wake("p", NOW))
    assert is_due(store)


@pytest.mark.parametrize("wake", [True, False])
def test_the_worker_is_told_to_look_or_to_park(wake: bool) -> None:
    store, worker = Store(rows_of("running")), worker_keys(GONE.worker)
    make(store, decide.wake("p", NOW) if wake else decide.evict("p"))
    assert worker.stamp in store.rows
    assert store.rows[P.stamp] != rows_of("running").get(P.stamp)
    assert (P.evicted in store.rows) is not wake


@pytest.mark.parametrize("scene", [*ENDED, "stuck"])
def test_what_can_not_be_woken(scene: str) -> None:
    with pytest.raises(InstanceStateError):
        make(Store(rows_of(scene)), decide.wake("p", NOW))


@pytest.mark.parametrize("scene", SCENES)
def test_only_what_has_ended_can_be_deleted(scene: str) -> None:
    store = Store(rows_of(scene))
    if scene == "empty":
        with pytest.raises(InstanceNotFoundError):
            make(store, decide.delete("p"))
    elif scene in ENDED:
        make(store, decide.delete("p"))
        keys = [unpack(key[len(ROOT) :]) for key in store.rows]
        assert [key for key in leftovers(keys) if "p" in key] == []
        assert not [key for key in keys if key[:2] == (1, "p")]
    else:
        with pytest.raises(InstanceStateError, match="only one that has ended"):
            make(store, decide.delete("p"))
        assert store.rows == rows_of(scene)


def test_what_is_kept_long_enough_is_forgotten() -> None:
    store = Store(rows_of("completed"))
    ended = head(store).changed_at
    assert not make(store, decide.forget_if("p", Status.FAILED, NOW))
    assert not make(store, decide.forget_if("p", Status.COMPLETED, ended))
    assert make(store, decide.forget_if("p", Status.COMPLETED, NOW))
    assert P.field(Field.HEAD) not in store.rows


def test_a_row_that_says_to_forget_what_runs_again_is_cleared() -> None:
    store = Store(rows_of("completed"))
    at = head(store).purge_at
    assert at is not None
    make(store, insisting(rewind.restart_from("p", None, NOW)))
    store.rows[purge_key(at, "p")] = b""
    make(store, decide.purge(purge_key(at, "p"), "p"))
    assert P.field(Field.HEAD) in store.rows
    assert purge_key(at, "p") not in store.rows


def test_what_a_stalled_worker_has_is_due_for_others() -> None:
    store = Store(rows_of("running"))
    make(store, decide.give_back_stalled("p", "another", NOW))
    assert store.rows == rows_of("running")
    make(store, decide.give_back_stalled("p", GONE.worker, NOW))
    assert is_due(store)
    assert P.lease not in store.rows


# Running again.


@pytest.mark.parametrize("scene", SCENES)
def test_what_is_recovered_runs_again(scene: str) -> None:
    store = Store(rows_of(scene))
    if scene == "stuck":
        make(store, rewind.recover("p", NOW))
        assert head(store).status is Status.RUNNING
        assert is_due(store)
        assert Field.RESULT not in {field for field in Field if P.field(field) in store.rows}
    else:
        with pytest.raises((InstanceStateError, InstanceNotFoundError)):
            make(store, rewind.recover("p", NOW))


@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene != "empty"])
@pytest.mark.parametrize("path", [None, "charge"])
def test_any_can_be_restarted(scene: str, path: str | None) -> None:
    store = Store(rows_of(scene))
    make(store, insisting(rewind.restart_from("p", path, NOW)))
    assert head(store).status is Status.RUNNING
    assert is_due(store)
    assert P.lease not in store.rows
    assert head(store).changes > 0


def test_a_restart_from_nowhere() -> None:
    store = Store(rows_of("completed"))
    with pytest.raises(DefinitionError, match="no entry 'nowhere'"):
        make(store, rewind.restart_from("p", "nowhere", NOW))
    assert store.rows == rows_of("completed")
