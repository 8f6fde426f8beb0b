"""Changes of tasks and of schedules, of inboxes, answers and workers."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from tests.changes import scenes
from tests.changes.scenes import CODEC, FLOWS, GONE, HOUR, NOW, P, rows_of
from tests.changes.store import Store, make
from workflow_sdk.changes import tasks, workers
from workflow_sdk.changes.change import Change, clear, write
from workflow_sdk.changes.deliver import NewMessage, deliver, forget_row, go_on_waiting
from workflow_sdk.changes.inboxes import discard
from workflow_sdk.changes.instances import check_form, create
from workflow_sdk.driver import Set
from workflow_sdk.errors import (
    CodecError,
    InstanceNotFoundError,
    NotAuthorizedError,
    ScheduleNotFoundError,
    StaleError,
)
from workflow_sdk.features.schedules import changes as schedules
from workflow_sdk.features.schedules.rows import (
    SCHEDULES_SIGNAL,
    ScheduleRow,
    due_schedule,
    schedule_key,
    waiting_schedule,
)
from workflow_sdk.journal.inbox import Answer, AnswerKind, is_answer
from workflow_sdk.rows.instance import Head, InstanceRows
from workflow_sdk.rows.keys import INBOX, Field, InstanceKeys, answer_key, worker_keys
from workflow_sdk.rows.outside import TaskEvent, TaskRow, TaskStatus, ended_tasks_of, task_key, task_log, tasks_open

pytestmark = pytest.mark.law(1)


def task(store: Store) -> TaskRow:
    """The task that the instance waits for."""
    start = task_key("")[:-2]
    (raw,) = [raw for key, raw in store.rows.items() if key.startswith(start)]
    return TaskRow.unpack(raw)


def log(store: Store) -> list[tuple[str, str | None, str | None]]:
    """What happened to it."""
    start = task_log(task(store).id)
    events = [TaskEvent.unpack(raw) for key, raw in sorted(store.rows.items()) if key.startswith(start)]
    return [(event.what, event.by, event.to) for event in events]


def complete(store: Store, by: str = "ann", *roles: str) -> None:
    make(store, tasks.complete(task(store).id, b"\x01", by, {*roles}, NOW, lambda worker: False))


def test_a_task_is_completed_once() -> None:
    store = Store(rows_of("waits"))
    complete(store, "ann", "boss")
    found = task(store)
    assert (found.status, found.by, found.result) == (TaskStatus.COMPLETED, "ann", b"\x01")
    assert log(store) == [("created", None, None), ("completed", "ann", None)]
    assert not any(key.startswith(tasks_open()) for key in store.rows)
    assert any(key.startswith(ended_tasks_of("p")) for key in store.rows)
    assert Head.unpack(store.rows[P.field(Field.HEAD)]).alarm is not None
    with pytest.raises(StaleError, match="is completed by 'ann'"):
        complete(store, "bob", "boss")


def test_a_task_is_for_those_who_may() -> None:
    store = Store(rows_of("waits"))
    with pytest.raises(NotAuthorizedError, match="is for 'boss'; 'ann' has none"):
        complete(store, "ann", "clerk")
    assert store.rows == rows_of("waits")


def test_a_task_that_nobody_waits_for_any_more() -> None:
    with pytest.raises(StaleError, match="has ended"):
        complete(Store(rows_of("abandoned")), "ann", "boss")


def test_the_time_for_a_task_is_over() -> None:
    store = Store(rows_of("waits"))
    found = task(store)
    store.rows[task_key(found.id)] = replace(found, until=NOW - 1).pack()
    with pytest.raises(StaleError, match="the time for task"):
        complete(store, "ann", "boss")


def test_a_task_changes_hands() -> None:
    store = Store(rows_of("waits"))
    id = task(store).id
    make(store, tasks.assign(id, "assigned", "ann", "bob", NOW))
    assert task(store).assignee == "bob"
    make(store, tasks.assign(id, "released", "bob", None, NOW))
    assert task(store).assignee is None
    assert log(store) == [("created", None, None), ("assigned", "ann", "bob"), ("released", "bob", None)]
    with pytest.raises(InstanceNotFoundError, match="no task 'x'"):
        make(store, tasks.assign("x", "assigned", None, "bob", NOW))


def test_a_task_expires_unless_it_was_completed() -> None:
    store = Store(rows_of("waits"))
    id = task(store).id
    assert make(store, Change(lambda: tasks.expire(id, NOW)))
    assert task(store).status is TaskStatus.EXPIRED
    store = Store(rows_of("waits"))
    complete(store, "ann", "boss")
    assert not make(store, Change(lambda: tasks.expire(id, NOW)))
    assert make(Store(), Change(lambda: tasks.expire("gone", NOW)))


def test_a_task_is_opened_again() -> None:
    store = Store(rows_of("waits"))
    complete(store, "ann", "boss")
    make(store, Change(lambda: tasks.reopen(task(store).id, NOW)))
    found = task(store)
    assert (found.status, found.by, found.result, found.ended_at) == (TaskStatus.OPEN, None, None, None)
    assert any(key.startswith(tasks_open()) for key in store.rows)
    assert not any(key.startswith(ended_tasks_of("p")) for key in store.rows)


def test_the_last_of_the_tasks_that_are_over_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "ENDED_MAX", 3)
    store = Store(rows_of("waits"))
    first = task(store)
    for number in range(6):
        row = replace(first, id=f"t{number}", created_at=NOW + number)
        places = [Set(place, b"") for place in (*row.places(), row.own_place)]
        make(store, write([Set(task_key(row.id), row.pack()), *places]))
        make(store, Change(partial(tasks.end_task, row.id, TaskStatus.CANCELLED, NOW + row.created_at)))
    over = [key for key in store.rows if key.startswith(ended_tasks_of("p"))]
    assert len(over) == 3
    left = {key for key in store.rows if key.startswith(task_key("t")[:-1])}
    assert left == {task_key(f"t{number}") for number in (3, 4, 5)}


def test_a_task_that_is_over_now_is_kept_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks by which others have ended were ahead."""
    monkeypatch.setattr(tasks, "ENDED_MAX", 3)
    store = Store(rows_of("waits"))
    first = task(store)
    for number in range(5):
        row = replace(first, id=f"t{number}", created_at=NOW + number)
        make(store, write([Set(task_key(row.id), row.pack()), Set(row.own_place, b"")]))
        make(store, Change(partial(tasks.end_task, row.id, TaskStatus.CANCELLED, NOW + 60)))
    make(store, tasks.complete(first.id, b"\x01", "ann", {"boss"}, NOW, lambda worker: False))
    assert TaskRow.unpack(store.rows[task_key(first.id)]).status is TaskStatus.COMPLETED
    assert len([key for key in store.rows if key.startswith(ended_tasks_of("p"))]) == 3


# Schedules.


def schedule(store: Store) -> ScheduleRow:
    return ScheduleRow.unpack(store.rows[schedule_key("s")])


def new_rows(row: ScheduleRow, now: float) -> InstanceRows:
    return scenes._new(row, now)  # pyright: ignore[reportPrivateUsage]


def keep(store: Store, now: float = NOW) -> schedules.Kept | None:
    return make(store, schedules.keep("s", [], lambda at: now, FLOWS, new_rows))


def test_what_is_due_begins() -> None:
    store = Store(rows_of("waits"))
    before = schedule(store)
    assert before.next_at is not None
    kept = keep(store)
    assert kept is not None
    assert len(kept.begun) == 1, "one for the last of the ticks that were missed"
    assert InstanceKeys(kept.begun[0]).field(Field.HEAD) in store.rows
    after = schedule(store)
    assert after.next_at is not None
    assert after.next_at > NOW
    assert due_schedule(before.next_at, "s") not in store.rows
    assert due_schedule(after.next_at, "s") in store.rows
    # The same again: it is not due, and nothing is written.
    rows = dict(store.rows)
    kept = keep(store)
    assert kept is not None
    assert (kept.begun, store.rows) == ((), rows)


def test_a_tick_waits_for_the_instance_before() -> None:
    store = Store(rows_of("waits"))
    make(store, schedules.update("s", lambda row: replace(row, overlap="queue")))
    keep(store)
    kept = keep(store, NOW + HOUR)
    assert kept is not None
    assert (len(kept.row.waiting), kept.begun) == (1, ())
    assert waiting_schedule("s") in store.rows
    assert kept.head is not None


def test_a_tick_that_was_begun_by_hand() -> None:
    """Its instance is there: it is not begun again."""
    store = Store(rows_of("waits"))
    due = schedule(store)
    kept = keep(Store(rows_of("waits")))
    assert kept is not None
    (id,) = kept.begun
    row = new_rows(due, NOW)
    make(store, create(InstanceKeys(id), row))
    head = store.rows[InstanceKeys(id).field(Field.HEAD)]
    kept = keep(store)
    assert kept is not None
    assert kept.begun == ()
    assert store.rows[InstanceKeys(id).field(Field.HEAD)] == head


def test_a_schedule_of_an_unknown_workflow_is_left_to_others() -> None:
    store = Store(rows_of("waits"))
    assert make(store, schedules.keep("s", [], lambda at: NOW, {}, new_rows)) is None
    assert store.rows == rows_of("waits")


def test_rows_that_lead_to_nothing_are_cleared() -> None:
    store, stray = Store(rows_of("waits")), due_schedule(7.0, "gone")
    store.rows[stray] = b""
    assert make(store, schedules.keep("gone", [stray], lambda at: NOW, FLOWS, new_rows)) is None
    assert stray not in store.rows


def test_the_same_schedule_is_stored_once() -> None:
    store = Store(rows_of("waits"))
    wanted = schedule(store)
    made = make(store, schedules.put("s", wanted, lambda one, other: one == other))
    assert (made, store.rows) == (wanted, rows_of("waits"))
    other = replace(wanted, every=7_000_000, next_at=NOW + 7)
    make(store, schedules.update("s", lambda row: replace(row, paused=True, next_at=None)))
    signal = store.rows[SCHEDULES_SIGNAL]
    made = make(store, schedules.put("s", other, lambda one, other: one == other))
    assert (made.every, made.paused, made.next_at) == (7_000_000, True, None), "a paused one stays paused"
    assert store.rows[SCHEDULES_SIGNAL] != signal


def test_a_schedule_is_deleted_whatever_it_is() -> None:
    store = Store(rows_of("waits"))
    store.rows[schedule_key("s")] = b"\x01no schedule"
    with pytest.raises(CodecError, match="schedule 's'"):
        make(store, schedules.update("s", lambda row: row))
    make(store, schedules.delete("s"))
    assert schedule_key("s") not in store.rows
    with pytest.raises(ScheduleNotFoundError):
        make(store, schedules.delete("s"))


# Inboxes and answers.


def test_a_message_is_discarded_with_what_it_asks() -> None:
    store, reply = Store(rows_of("waits")), answer_key("p", "r")
    make(store, deliver(P, NewMessage("ask", CODEC.encode(1), reply_to=reply), NOW))
    start = P.space + INBOX
    ids = [key[len(start) :] for key in sorted(store.rows) if key.startswith(start)]
    assert make(store, discard(P, ids[-1], CODEC.encode))
    assert not make(store, discard(P, ids[-1], CODEC.encode))
    answer = Answer.unpack(store.rows[reply])
    assert answer.kind is AnswerKind.DISCARDED
    assert CODEC.decode(answer.value) == "message 'ask' to 'p' was discarded"
    with pytest.raises(InstanceNotFoundError):
        make(Store(), discard(P, ids[0], CODEC.encode))


def test_whoever_waits_for_an_answer_says_so() -> None:
    store = Store({b"k": b""})
    first = make(store, go_on_waiting(b"k"))
    second = make(store, go_on_waiting(b"k"))
    assert first != second == store.rows[b"k"]
    assert not is_answer(store.rows[b"k"])
    store.rows[b"k"] = Answer(b"\xf6", AnswerKind.ANSWERED).pack()
    assert make(store, go_on_waiting(b"k")) is None
    assert make(Store(), go_on_waiting(b"k")) is None


def test_a_row_is_forgotten_if_it_is_as_it_was() -> None:
    store = Store({b"k": b"new"})
    assert not make(store, forget_row(b"k", b"old"))
    assert make(store, forget_row(b"k", b"new"))
    assert store.rows == {}


# Workers.


def test_a_worker_notices_that_it_was_buried() -> None:
    store, worker = Store(), worker_keys("w")
    assert make(store, workers.beat(worker, None, b"1"))
    assert make(store, workers.beat(worker, b"1", b"2"))
    make(store, workers.bury(worker, b"2"))
    assert worker.heartbeat not in store.rows
    assert not make(store, workers.beat(worker, b"2", b"3"))
    assert store.rows[worker.heartbeat] == b"3"


def test_nobody_is_buried_who_has_something_or_beats() -> None:
    worker = worker_keys(GONE.worker)
    store = Store(rows_of("running"))
    make(store, workers.bury(worker, store.rows[worker.heartbeat]))
    make(store, workers.leave(worker))
    assert store.rows == rows_of("running")
    store = Store({worker.heartbeat: b"new"})
    make(store, workers.bury(worker, b"old"))
    assert store.rows == {worker.heartbeat: b"new"}


def test_a_worker_that_left_beats_no_more() -> None:
    store, worker = Store(), worker_keys(GONE.worker)
    make(store, workers.beat_while_there(worker, b"1"))
    make(store, workers.beat_with_lease(P, GONE.pack(), worker, b"1"))
    assert store.rows == {}
    store = Store(rows_of("running"))
    make(store, workers.beat_while_there(worker, b"1"))
    assert store.rows[worker.heartbeat] == b"1"
    make(store, workers.beat_with_lease(P, GONE.pack(), worker, b"2"))
    assert store.rows[worker.heartbeat] == b"2"


def test_a_worker_without_a_heartbeat_is_given_one() -> None:
    store, worker = Store(), worker_keys("w")
    make(store, workers.give_heartbeat(worker, NOW))
    found = workers.Heartbeat.unpack(store.rows[worker.heartbeat])
    assert (found.at, found.ttl) == (NOW, 0.0)
    make(store, workers.give_heartbeat(worker, NOW + 1))
    assert workers.Heartbeat.unpack(store.rows[worker.heartbeat]) == found


# The rest.


def test_rows_are_cleared() -> None:
    store = Store({b"a": b"", b"b": b""})
    make(store, clear([b"a", b"b"]))
    assert store.rows == {}


def test_a_store_of_before_the_first_release() -> None:
    make(Store(rows_of("waits")), check_form())
    store = Store({P.field(Field.HEAD): b"\x01\x8a"})
    with pytest.raises(CodecError, match="from before its first release"):
        make(store, check_form())
