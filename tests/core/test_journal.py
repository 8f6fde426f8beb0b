"""What one instance remembers, and which part of it the store does not know."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from workflow_sdk.journal.compensation import Compensation
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.journal.journal import Journal
from workflow_sdk.journal.unwritten import WriteSet
from workflow_sdk.rows.entries import Entry, EntryTrouble, RetryData, SleepData
from workflow_sdk.rows.instance import Head, Result, Tally, WaitRow
from workflow_sdk.rows.keys import (
    ARCHIVE,
    COMPENSATIONS,
    HISTORY,
    INBOX,
    METADATA,
    TAKINGS,
    Field,
    InstanceKeys,
    field_key,
    sequence_key,
    waits_of,
)
from workflow_sdk.rows.location import pack_pair, pack_segment, split_last, subtree
from workflow_sdk.rows.status import EntryStatus, Kind, Status
from workflow_sdk.rows.wire import ErrorRow, Text

pytestmark = pytest.mark.law(2)

KEYS = InstanceKeys("i")
Rows = dict[bytes, bytes]

locations = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(lambda parts: b"".join(map(pack_segment, parts)))


COUNT = KEYS.field(Field.TALLY)


def head(changes: int) -> Head:
    """The head of an instance."""
    return Head("w", 1, "", 1.0, Status.RUNNING, changes, 1.0)


def changed(writes: WriteSet) -> dict[bytes, bytes | None]:
    """The rows of a write set, without the one that counts the commits."""
    return {key: value for key, value in writes.rows.items() if key != COUNT}


def write(rows: Rows, writes: WriteSet) -> None:
    """What a store does with a write set; but for the count of commits."""
    for begin, end in writes.clears:
        for key in [key for key in rows if begin <= key < end]:
            del rows[key]
    for key, value in changed(writes).items():
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value


class Model:
    """The journal, the store behind it, and what the store must hold when everything is written."""

    def __init__(self) -> None:
        self.journal = Journal(KEYS)
        self.stored: Rows = {}
        self.expected: Rows = {}
        self.flying: WriteSet | None = None
        self.count = 0

    def put(self, location: bytes) -> None:
        self.count += 1
        entry = Entry(Kind.STEP, self.count, 1.0)
        self.journal.history.put(location, entry)
        self.expected[KEYS.space + HISTORY + location] = entry.pack()

    def trouble(self, location: bytes) -> None:
        self.count += 1
        trouble = EntryTrouble("a/b", self.count, 1.0, ErrorRow("E", Text(), Text(), "application", {}))
        self.journal.history.trouble(location, trouble)
        self.expected[KEYS.space + METADATA + location] = trouble.pack()

    def clear_history(self, location: bytes) -> None:
        self.journal.history.clear_turns(location, subtree(location)[1], shown=True)
        for part in (HISTORY, METADATA):
            write(
                self.expected, WriteSet([subtree(KEYS.space + part + location)], {KEYS.space + part + location: None})
            )

    def clear_losers(self, winner: bytes) -> None:
        """Of a race around the last segment, which is that of the winner."""
        race, _ = split_last(winner)
        self.journal.history.clear_losers(race, winner)
        for part in (HISTORY, METADATA):
            begin, end = subtree(KEYS.space + part + race)
            for key in [key for key in self.expected if begin <= key < end]:
                if not key.startswith(KEYS.space + part + winner):
                    del self.expected[key]

    def set_row(self, value: int) -> None:
        row = head(value) if value else None
        self.journal.set_row(Field.HEAD, row)
        write(self.expected, WriteSet(rows={KEYS.field(Field.HEAD): None if row is None else row.pack()}))

    def take(self, _: Any) -> None:
        if self.flying is None:
            self.flying = self.journal.unwritten.take()

    def land(self, arrived: bool) -> None:
        """The write that is in flight is stored; or it is not; or it is, and nobody is told."""
        if self.flying is not None:
            if arrived:
                write(self.stored, self.flying)
            else:
                self.journal.unwritten.restore(self.flying)
            self.flying = None

    def land_unseen(self, _: Any) -> None:
        if self.flying is not None:
            write(self.stored, self.flying)
            self.journal.unwritten.restore(self.flying)
            self.flying = None


OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["put", "trouble", "clear_history", "clear_losers"]), locations),
    st.tuples(st.just("set_row"), st.integers(0, 3)),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("land"), st.booleans()),
    st.tuples(st.just("land_unseen"), st.none()),
)


@settings(max_examples=effort(200))
@given(st.lists(OPERATIONS, max_size=40))
def test_the_store_has_everything_in_the_end(operations: list[tuple[str, Any]]) -> None:
    model = Model()
    for name, argument in operations:
        getattr(model, name)(argument)
    model.land(True)
    model.take(None)
    model.land(True)
    assert model.stored == model.expected
    assert not model.journal.unwritten.is_dirty


def test_what_changes_while_it_is_written_stays_unknown() -> None:
    journal, location = Journal(KEYS), pack_segment(0)
    entry = Entry(Kind.STEP, 0, 1.0)
    journal.history.put(location, entry)
    writes = journal.unwritten.take()
    assert not journal.unwritten.is_dirty
    before = entry.pack()
    entry.complete(b"v", 2.0)
    journal.history.put(location, entry)
    assert changed(writes) == {KEYS.space + HISTORY + location: before}, "what is in flight does not change"
    assert journal.unwritten.is_dirty
    journal.unwritten.restore(writes)
    assert changed(journal.unwritten.take()) == {KEYS.space + HISTORY + location: entry.pack()}, "the newer one wins"


def test_an_entry_is_written_as_it_stands_when_it_is_taken() -> None:
    journal, location = Journal(KEYS), pack_segment(0)
    entry = Entry(Kind.STEP, 0, 1.0)
    journal.history.put(location, entry)
    entry.status = EntryStatus.WAITING
    assert changed(journal.unwritten.take()) == {KEYS.space + HISTORY + location: entry.pack()}


def test_what_is_cleared_after_a_failed_write_does_not_come_back() -> None:
    journal, location = Journal(KEYS), pack_segment(0)
    journal.history.put(location + pack_segment(1), Entry(Kind.STEP, 0, 1.0))
    writes = journal.unwritten.take()
    journal.history.clear_turns(location, subtree(location)[1], shown=True)
    journal.unwritten.restore(writes)
    assert not any(changed(journal.unwritten.take()).values())


def test_waits_are_told_and_taken_back() -> None:
    journal, rows = Journal(KEYS), Rows()
    journal.begin_wait(pack_segment(1), ["a", "b"], WaitRow("message", "a", "a", None, 1, 0), None)
    journal.begin_wait(pack_segment(2), [], WaitRow("timer", "s", "s", 1.0, 1, 0), None)
    write(rows, journal.unwritten.take())
    expected = {waits_of("a") + pack_segment(1), waits_of("b") + pack_segment(1), waits_of("") + pack_segment(2)}
    assert set(rows) == {KEYS.space + key for key in expected}
    journal.end_wait(pack_segment(1), ["a", "b"])
    write(rows, journal.unwritten.take())
    assert set(rows) == {KEYS.space + waits_of("") + pack_segment(2)}
    journal.begin_wait(pack_segment(3), ["c"], WaitRow("message", "c", "c", None, 1, 0), None)
    journal.forget_waits()
    write(rows, journal.unwritten.take())
    assert rows == {}


def test_an_unchanged_field_is_not_written() -> None:
    journal = Journal(KEYS)
    journal.set_row(Field.HEAD, head(1))
    journal.unwritten.take()
    journal.set_row(Field.HEAD, head(1))
    assert not journal.unwritten.is_dirty
    assert journal.about.head == head(1)
    journal.set_row(Field.HEAD, None)
    assert not journal.about
    assert changed(journal.unwritten.take()) == {KEYS.field(Field.HEAD): None}


def test_turns_are_cleared_up_to_one() -> None:
    journal, rows = Journal(KEYS), Rows()
    for turn in range(300):
        journal.history.put(pack_segment(1) + pack_pair(1, turn) + pack_segment(2), Entry(Kind.STEP, turn, 1.0))
    write(rows, journal.unwritten.take())
    journal.history.clear_turns(pack_segment(1) + pack_pair(1, 3), pack_segment(1) + pack_pair(1, 298), shown=True)
    write(rows, journal.unwritten.take())
    assert sorted(Entry.unpack(raw).ordinal for raw in rows.values()) == [0, 1, 2, 298, 299]


def test_of_a_race_only_the_winner_is_kept() -> None:
    journal, race = Journal(KEYS), pack_segment(1)
    around, winner = pack_segment(0), race + pack_segment(3)
    losers = [race + pack_segment(number) for number in (2, 4, 300)]
    for location in (around, race, winner, *losers):
        journal.history.put(location, Entry(Kind.STEP, 0, 1.0))
        journal.history.load_entry(location + pack_segment(5), Entry(Kind.ATTEMPT, 0, 1.0).pack())
        if location != race:
            table = journal.names.open(location + pack_segment(6), journal.names.root, 0, 1)
            table.intern(f"of {location.hex()}")
    journal.history.clear_losers(race, winner)
    kept = {KEYS.space + HISTORY + location for location in (around, race, winner)}
    assert {key for key in changed(journal.unwritten.take()) if key.startswith(KEYS.space + HISTORY)} == kept
    assert set(journal.history.loaded) == {around, race, winner}
    assert set(journal.names.texts.values()) == {f"of {location.hex()}" for location in (around, winner)}


def test_a_scope_that_is_not_entered_is_not_loaded() -> None:
    journal = Journal(KEYS)
    for location in (pack_segment(1), pack_segment(1) + pack_segment(2), pack_segment(10)):
        journal.history.load_entry(location, Entry(Kind.ATTEMPT, 0, 1.0).pack())
    journal.history.forget_loaded(pack_segment(1))
    assert set(journal.history.loaded) == {b""}, "scopes that are still to come"


def message(number: int) -> InboxMessage:
    return InboxMessage(bytes([number]), "m", b"p", 1.0)


def test_a_taken_message_leaves_the_inbox() -> None:
    journal = Journal(KEYS)
    journal.inbox.add(message(1))
    journal.takings.take(message(1))
    assert len(journal.inbox) == 0
    assert changed(journal.unwritten.take()) == {KEYS.space + INBOX + b"\x01": None}


def test_takings_are_given_back_or_made_final() -> None:
    race, branch = pack_segment(1), pack_segment(1) + pack_segment(2)
    other = pack_segment(11) + pack_segment(2)
    for give_back in (True, False):
        journal, rows = Journal(KEYS), Rows()
        for number, location in enumerate([branch, branch + pack_segment(3), other]):
            journal.inbox.add(message(number))
            journal.takings.take(message(number))
            journal.takings.keep(location, 0, message(number))
        write(rows, journal.unwritten.take())
        loaded = Journal(KEYS)
        for key, raw in rows.items():
            loaded.takings.load(key.removeprefix(KEYS.space), raw)
        assert loaded.takings.rows == journal.takings.rows
        loaded.takings.settle(race, give_back=give_back)
        write(rows, loaded.unwritten.take())
        back = {KEYS.space + INBOX + bytes([n]): message(n).pack() for n in range(2)} if give_back else {}
        assert rows.pop(KEYS.space + TAKINGS + other + pack_segment(0))
        assert rows == back
        assert len(loaded.inbox) == len(back)


def test_compensations_are_numbered_and_forgotten() -> None:
    journal, rows = Journal(KEYS), Rows()
    for number in range(3):
        assert journal.compensations.next_sequence == number
        journal.compensations.register(
            Compensation(journal.compensations.new_sequence(), b"", "s", None, b"v", tagged=True)
        )
    journal.compensations.update(Compensation(1, b"", "s", None, b"v", tagged=True).done())
    assert (journal.compensations.count, journal.compensations.next_sequence) == (3, 3)
    journal.history.keep_in_archive([(pack_segment(1), b"row")])
    write(rows, journal.unwritten.take())
    assert set(rows) == {KEYS.space + sequence_key(n) for n in range(3)} | {KEYS.space + ARCHIVE + pack_segment(1)}
    journal.compensations.forget()
    write(rows, journal.unwritten.take())
    assert (rows, journal.compensations.count, journal.compensations.next_sequence) == ({}, 0, 3)
    assert sequence_key(0).startswith(COMPENSATIONS)


def test_what_was_discarded_is_not_written() -> None:
    journal = Journal(KEYS)
    journal.history.put(pack_segment(0), Entry(Kind.STEP, 0, 1.0))
    journal.history.clear_turns(*subtree(pack_segment(1)), shown=True)
    journal.set_row(Field.HEAD, None)
    journal.unwritten.discard(keep_fields=True)
    assert journal.unwritten.take() == WriteSet([], {KEYS.space + field_key(Field.HEAD): None})
    journal.history.put(pack_segment(0), Entry(Kind.STEP, 0, 1.0))
    journal.set_row(Field.HEAD, head(1))
    journal.unwritten.discard()
    assert not journal.unwritten.is_dirty


def test_a_reply_is_written_where_the_asker_looks() -> None:
    journal = Journal(KEYS)
    journal.write_outside(b"elsewhere", b"answer")
    assert changed(journal.unwritten.take()) == {b"elsewhere": b"answer"}


def test_a_commit_that_changes_the_instance_counts_and_a_replay_does_not() -> None:
    journal, location = Journal(KEYS), pack_segment(0)
    journal.history.put(location, Entry(Kind.STEP, 0, 1.0))
    journal.history.put(location + pack_segment(1), Entry(Kind.STEP, 0, 1.0))
    assert journal.unwritten.take().rows[COUNT] == Tally(1).pack()
    journal.set_row(Field.HEAD, head(1))
    journal.begin_wait(location, ["a"], WaitRow("message", "a", "a", None, 1, 0), None)
    journal.end_wait(location, ["b"])
    journal.forget_waits()
    assert COUNT not in journal.unwritten.take().rows
    assert journal.unwritten.version == 1
    journal.set_row(Field.RESULT, Result(b"x"))
    writes = journal.unwritten.take()
    assert writes.rows[COUNT] == Tally(2).pack()
    journal.unwritten.restore(writes)
    assert journal.unwritten.version == 1
    assert journal.unwritten.take().rows[COUNT] == Tally(2).pack(), "what failed was not counted"


def test_a_wait_is_known_by_the_commit_that_it_began_with() -> None:
    journal, location = Journal(KEYS), pack_segment(0)
    journal.history.put(location + pack_segment(1), Entry(Kind.STEP, 0, 1.0))
    journal.unwritten.take()
    entry = Entry(Kind.SLEEP, 1, 1.0)
    entry.wait(SleepData(5.0))
    journal.history.put(location, entry)
    about = WaitRow("timer", "s", "s", 5.0, 1, 0)
    journal.begin_wait(location, [], about, entry)
    rows = journal.unwritten.take().rows
    told = rows[KEYS.space + waits_of("") + location]
    assert told is not None
    assert WaitRow.unpack(told).since == entry.since == 2
    journal.history.put(location + pack_segment(1), Entry(Kind.STEP, 0, 1.0))
    journal.begin_wait(location, [], about, entry)
    told = journal.unwritten.take().rows[KEYS.space + waits_of("") + location]
    assert told is not None
    assert WaitRow.unpack(told).since == 2, "it is the same wait"
    entry.wait(SleepData(6.0))
    journal.history.put(location, entry)
    journal.unwritten.take()
    assert entry.since == 4, "and this is another"


def test_the_next_wait_at_a_place_is_known_by_its_own_commit() -> None:
    journal, location = Journal(KEYS), pack_segment(0)
    entry = Entry(Kind.STEP, 0, 1.0)
    tokens: list[int] = []
    for attempt in range(4):
        # As a step does that waits, goes on and fails again before anything else is stored.
        if attempt:
            journal.end_wait(location, [])
            entry.status = EntryStatus.RUNNING
        entry.wait(RetryData(5.0 + attempt))
        journal.history.put(location, entry)
        journal.begin_wait(location, [], WaitRow("retry", "s", "s", 5.0, 1, 0), entry)
        told = journal.unwritten.take().rows[KEYS.space + waits_of("") + location]
        assert told is not None
        tokens.append(WaitRow.unpack(told).since)
    assert tokens == [1, 2, 3, 4]
