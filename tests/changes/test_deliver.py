"""Delivering a message: who is told, what is counted, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.changes.scenes import GONE, NOW, P, rows_of
from tests.changes.store import Store, make, make_together
from workflow_sdk.changes import deliver as keyed
from workflow_sdk.changes.deliver import Delivery, NewMessage, deliver, hand_over
from workflow_sdk.changes.inboxes import limit_inboxes
from workflow_sdk.errors import InboxFullError, InstanceNotFoundError
from workflow_sdk.journal.inbox import InboxMessage, counted
from workflow_sdk.rows.instance import Birth, CountRow, Head, WaitRow
from workflow_sdk.rows.keys import (
    DELIVERED,
    INBOX,
    KEYS_IN_ORDER,
    WAITS,
    Field,
    InstanceKeys,
    waits_of,
    worker_keys,
)
from workflow_sdk.rows.location import pack_segment
from workflow_sdk.rows.outside import proof_of, shown_token
from workflow_sdk.rows.wire import DUE_AT_ONCE_MAX

pytestmark = pytest.mark.law(1)

HEAD = P.field(Field.HEAD)


def inbox(store: Store) -> list[InboxMessage]:
    """The messages of the instance."""
    start = P.space + INBOX
    return [
        InboxMessage.unpack(key[len(start) :], raw)
        for key, raw in sorted(store.rows.items())
        if key[: len(start)] == start
    ]


def test_one_that_is_awaited() -> None:
    store = Store(rows_of("waits"))
    before = store.rows[P.stamp]
    posted = make(store, deliver(P, NewMessage("go", b"\x01"), NOW))
    assert (posted.delivery, posted.worker) == (Delivery.ACCEPTED, None)
    assert [(message.name, message.payload, message.sent_at) for message in inbox(store)][-1] == ("go", b"\x01", NOW)
    assert store.rows[P.stamp] != before
    alarm = Head.unpack(store.rows[HEAD]).alarm
    assert alarm is not None
    assert alarm < DUE_AT_ONCE_MAX
    assert P.alarm(alarm) in store.rows


def test_one_that_nobody_waits_for() -> None:
    store = Store(rows_of("waits"))
    assert make(store, deliver(P, NewMessage("else", b"\x01"), NOW)).delivery is Delivery.QUEUED


def test_an_instance_that_is_due_is_not_made_due_again() -> None:
    store = Store(rows_of("waits"))
    make(store, deliver(P, NewMessage("go", b"\x01"), NOW))
    head = store.rows[HEAD]
    make(store, deliver(P, NewMessage("go", b"\x01"), NOW + 1))
    assert store.rows[HEAD] == head


@pytest.mark.parametrize("is_here", [False, True])
def test_its_worker_is_told(is_here: bool) -> None:
    """Unless that is in this process, and told in memory."""
    store, worker = Store(rows_of("running")), worker_keys(GONE.worker)
    posted = make(store, deliver(P, NewMessage("go", b"\x01"), NOW, lambda name: is_here))
    assert posted.worker == GONE.worker
    assert (worker.stamp in store.rows) is not is_here
    assert any(key.startswith(worker.signals) for key in store.rows) is not is_here
    assert Head.unpack(store.rows[HEAD]).alarm is None


@pytest.mark.parametrize("scene", ["completed", "abandoned", "failed"])
def test_one_to_an_instance_that_has_ended(scene: str) -> None:
    store = Store(rows_of(scene))
    assert make(store, deliver(P, NewMessage("go", b"\x01"), NOW)).delivery is Delivery.CLOSED
    assert store.rows == rows_of(scene)


def test_one_to_an_instance_that_is_stuck() -> None:
    """It is kept, and nobody is to run the instance for that."""
    store = Store(rows_of("stuck"))
    assert make(store, deliver(P, NewMessage("go", b"\x01"), NOW)).delivery is Delivery.QUEUED
    assert Head.unpack(store.rows[HEAD]).alarm is None


def test_one_to_nobody() -> None:
    with pytest.raises(InstanceNotFoundError, match="'p'"):
        make(Store(), deliver(P, NewMessage("go", b"\x01"), NOW))


def test_there_is_a_limit() -> None:
    store = Store(rows_of("waits"))
    make(store, limit_inboxes(2))
    make(store, deliver(P, NewMessage("go", b"\x01"), NOW))
    before = dict(store.rows)
    with pytest.raises(InboxFullError, match="2 messages"):
        make(store, deliver(P, NewMessage("go", b"\x01"), NOW))
    assert store.rows == before


def test_senders_that_meet_count_in_different_rows() -> None:
    store = Store(rows_of("waits"))
    notes = [deliver(P, NewMessage("go", b"\x01"), NOW) for _ in range(2)]
    outcomes = make_together(store, notes, [0, 1] * 10)
    assert [what for what, _ in outcomes] == ["done", "done"]
    counts = [counted(raw) for key, raw in store.rows.items() if key.startswith(P.stamp) and key != P.stamp]
    assert sorted(counts) == [1, 2]


# Keys.


def test_a_key_is_delivered_once() -> None:
    store = Store(rows_of("waits"))
    said = [make(store, deliver(P, NewMessage("go", bytes([n]), key="k"), NOW)).delivery for n in range(2)]
    assert said == [Delivery.ACCEPTED, Delivery.DUPLICATE]
    assert [message.payload for message in inbox(store) if message.name == "go"] == [b"\x00"]


def test_keys_that_are_old_and_many_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "KEYS_KEPT", 3)
    store = Store(rows_of("waits"))
    for number in range(8):
        late = NOW + number * keyed.KEYS_SECONDS
        make(store, deliver(P, NewMessage("go", b"", key=f"k{number}"), late))
    for part in (DELIVERED, KEYS_IN_ORDER):
        assert sum(key.startswith(P.space + part) for key in store.rows) == 3


def test_what_is_refused_uses_no_key() -> None:
    """Who sends it again, as keys are meant for, is not told that it was delivered."""
    store = Store(rows_of("waits"))
    for refused in (NewMessage("go", b"", key="k", expected_version=0), NewMessage("go", b"", key="k", token="00")):
        assert make(store, deliver(P, refused, NOW)).delivery is Delivery.STALE
    assert store.rows == rows_of("waits")
    assert make(store, deliver(P, NewMessage("go", b"", key="k"), NOW)).delivery is Delivery.ACCEPTED


def test_a_refusal_writes_nothing() -> None:
    store = Store(rows_of("waits"))
    _, row, token = wait_of(store)
    make(store, deliver(P, NewMessage("go", b"", key="used", token=token, expected_version=row.since), NOW))
    before = dict(store.rows)
    for note in (
        NewMessage("go", b"", key="used"),
        NewMessage("go", b"", key="used", token=token),
        NewMessage("go", b"", key="new", token=token),
        NewMessage("go", b"", key="new", expected_version=row.since + 7),
    ):
        refused = make(store, deliver(P, note, NOW)).delivery
        assert refused in (Delivery.DUPLICATE, Delivery.STALE)
        assert store.rows == before


# Waits.


def wait_of(store: Store, message: str = "go") -> tuple[bytes, WaitRow, str]:
    """Where the wait for a message is, what it is, and its token."""
    start = P.space + waits_of(message)
    ((key, raw),) = [(key, raw) for key, raw in store.rows.items() if key.startswith(start)]
    row = WaitRow.unpack(raw)
    token = pack_segment(row.since) + key[len(start) :]
    seed = Birth.unpack(store.rows[P.field(Field.BIRTH)]).seed
    return key, row, shown_token(proof_of(seed, "p", token), token)


def test_a_token_is_for_one_message() -> None:
    store = Store(rows_of("waits"))
    key, _, token = wait_of(store)
    said = [make(store, deliver(P, NewMessage("go", b"", token=token), NOW)).delivery for _ in range(2)]
    assert said == [Delivery.ACCEPTED, Delivery.STALE]
    assert WaitRow.unpack(store.rows[key]).promised == 1
    assert inbox(store)[-1].only_for is not None


def test_a_token_of_a_wait_that_is_over() -> None:
    store = Store(rows_of("waits"))
    key, row, token = wait_of(store)
    store.rows[key] = replace(row, until=NOW - 1).pack()
    assert make(store, deliver(P, NewMessage("go", b"", token=token), NOW)).delivery is Delivery.STALE


def test_a_token_that_nobody_has_shown() -> None:
    store = Store(rows_of("waits"))
    for token in ("00", "no token", wait_of(store)[2][:-2] + "ff"):
        assert make(store, deliver(P, NewMessage("go", b"", token=token), NOW)).delivery is Delivery.STALE
    assert store.rows == rows_of("waits")


def test_a_wait_that_has_not_parked_again_is_open() -> None:
    """Only its entry says so, while the instance is run again."""
    store = Store(rows_of("running"))
    _, _, token = wait_of(Store(rows_of("waits")))
    assert not any(key.startswith(P.space + WAITS) for key in store.rows)
    said = [make(store, deliver(P, NewMessage("go", b"", token=token), NOW)).delivery for _ in range(2)]
    assert said == [Delivery.ACCEPTED, Delivery.STALE]


def test_a_state_is_answered_once() -> None:
    store = Store(rows_of("waits"))
    _, row, _ = wait_of(store)
    note = NewMessage("go", b"", expected_version=row.since)
    said = [make(store, deliver(P, note, NOW)).delivery for _ in range(2)]
    assert said == [Delivery.ACCEPTED, Delivery.STALE]
    other = NewMessage("go", b"", expected_version=row.since + 100)
    assert make(store, deliver(P, other, NOW)).delivery is Delivery.STALE


# In memory.


def test_what_is_handed_over_is_counted() -> None:
    store = Store(rows_of("running"))
    assert make(store, hand_over(P, GONE.pack(), None, NewMessage("go", b""), NOW)) == 1
    assert make(store, hand_over(P, GONE.pack(), 1, NewMessage("go", b""), NOW)) == 2
    assert CountRow.unpack(store.rows[P.field(Field.HANDED)]).count == 2
    assert store.calls == 2, "without a read"


def test_nothing_is_handed_over_to_one_that_left() -> None:
    store = Store(rows_of("waits"))
    assert make(store, hand_over(P, GONE.pack(), None, NewMessage("go", b""), NOW)) is None
    assert store.rows == rows_of("waits")


def test_whoever_has_miscounted_hands_nothing_over() -> None:
    store = Store(rows_of("running"))
    assert make(store, hand_over(P, GONE.pack(), 7, NewMessage("go", b""), NOW)) is None
    assert store.rows == rows_of("running")


def test_a_stranger() -> None:
    assert make(Store(), hand_over(InstanceKeys("x"), GONE.pack(), None, NewMessage("go", b""), NOW)) is None
