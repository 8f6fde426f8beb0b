"""Which rows of a history are read: not those under finished operations."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.instance.loading import PAGE_MIN, HistoryCursor
from workflow_sdk.journal.journal import Journal
from workflow_sdk.rows.entries import Entry, LoopData
from workflow_sdk.rows.keys import HISTORY, InstanceKeys
from workflow_sdk.rows.location import pack_pair, pack_segment, split_last, subtree
from workflow_sdk.rows.status import EntryStatus, Kind

pytestmark = pytest.mark.law(12)

KEYS = InstanceKeys("i")
PREFIX = KEYS.space + HISTORY


@dataclass
class Store:
    """A history, and what was read of it."""

    entries: dict[bytes, Entry] = field(default_factory=dict[bytes, Entry])
    scans: int = 0
    rows_read: int = 0

    def put(self, location: bytes, kind: Kind, *, final: bool = False, turn: int | None = None) -> None:
        status = EntryStatus.COMPLETED if final else EntryStatus.RUNNING
        data = None if turn is None else LoopData(turn)
        self.entries[location] = Entry(kind, len(self.entries), 1.0, status=status, data=data)

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        keys = sorted(PREFIX + location for location in self.entries)
        found = [key for key in keys if begin <= key < end][:limit]
        self.scans += 1
        self.rows_read += len(found)
        return [(key, self.entries[key[len(PREFIX) :]].pack()) for key in found]

    def load(self, *, whole: bool = False) -> dict[bytes, Entry]:
        """What a cursor loads, by location."""
        journal = Journal(KEYS)
        cursor = HistoryCursor(journal, HISTORY, whole=whole)
        while cursor.begin is not None:
            cursor.feed(self.scan(cursor.begin, cursor.end, cursor.limit))
        return {
            scope + segment: entry
            for scope, entries in journal.history.loaded.items()
            for segment, entry in entries.items()
        }


def needed(store: Store) -> dict[bytes, Entry]:
    """What must be loaded, told in another way: all but what is under a finished operation or in an old turn."""

    def is_hidden(location: bytes) -> bool:
        scope, segment = split_last(location)
        while scope:
            above = store.entries.get(scope)
            if above is not None and above.is_final and above.kind.is_composite:
                return True
            if above is not None and isinstance(above.data, LoopData):
                _, own = split_last(scope)
                if segment < b"\x05" + own + pack_segment(above.data.turn):
                    return True
            scope, segment = split_last(scope)
        return False

    return {location: entry for location, entry in store.entries.items() if not is_hidden(location)}


@dataclass
class Node:
    """An operation of a random history."""

    kind: Kind
    final: bool
    turn: int
    children: list[Node]


leaf = st.builds(Node, st.sampled_from([Kind.STEP, Kind.SLEEP]), st.booleans(), st.just(0), st.just([]))
composite = [Kind.LOOP, Kind.JOIN, Kind.RACE, Kind.MAP, Kind.ATTEMPT, Kind.BRANCH]
nodes = st.recursive(
    leaf,
    lambda inner: st.builds(
        Node, st.sampled_from(composite), st.booleans(), st.integers(0, 4), st.lists(inner, max_size=6)
    ),
    max_leaves=40,
)


def plant(store: Store, node: Node, scope: bytes, number: int) -> None:
    location = scope + pack_segment(number)
    store.put(location, node.kind, final=node.final, turn=node.turn if node.kind is Kind.LOOP else None)
    for n, child in enumerate(node.children):
        if node.kind is Kind.LOOP:
            plant(store, child, location + pack_pair(number, n), 7)
        elif node.kind is Kind.MAP:
            store.put(location + pack_pair(number, n), Kind.BRANCH, final=child.final)
            plant(store, child, location + pack_pair(number, n), 7)
        else:
            plant(store, child, location, n)


@given(st.lists(nodes, max_size=8))
def test_everything_but_what_is_finished_is_loaded(roots: list[Node]) -> None:
    store = Store()
    for number, node in enumerate(roots):
        plant(store, node, b"", number)
    assert store.load() == needed(store)
    assert store.load(whole=True) == store.entries


def test_an_empty_history_is_one_read() -> None:
    store = Store()
    assert store.load() == {}
    assert store.scans == 1


def test_ten_thousand_rows_are_few_reads() -> None:
    store = Store()
    for number in range(10_000):
        store.put(pack_segment(number), Kind.STEP, final=True)
    assert len(store.load()) == 10_000
    assert store.scans <= 8


def test_what_is_under_a_finished_operation_is_skipped_not_read() -> None:
    store = Store()
    store.put(pack_segment(0), Kind.JOIN, final=True)
    for number in range(5000):
        store.put(pack_segment(0) + pack_segment(number), Kind.STEP, final=True)
    store.put(pack_segment(1), Kind.SLEEP)
    assert set(store.load()) == {pack_segment(0), pack_segment(1)}
    assert store.rows_read <= PAGE_MIN + 1
    assert store.scans == 2


def test_the_turns_that_a_loop_has_behind_it_are_skipped() -> None:
    store = Store()
    store.put(pack_segment(0), Kind.LOOP, turn=990)
    for turn in range(1000):
        store.put(pack_segment(0) + pack_pair(0, turn) + pack_segment(1), Kind.STEP, final=True)
    assert len(store.load()) == 1 + 10
    assert store.rows_read <= PAGE_MIN + 10


def test_a_skip_that_ends_with_a_page() -> None:
    for size in range(PAGE_MIN - 3, PAGE_MIN + 4):
        store = Store()
        store.put(pack_segment(0), Kind.ATTEMPT, final=True)
        for number in range(size):
            store.put(pack_segment(0) + pack_segment(number), Kind.STEP, final=True)
        store.put(pack_segment(1), Kind.STEP)
        assert store.load() == needed(store)


def test_the_end_of_the_history_is_the_end() -> None:
    begin, end = subtree(PREFIX)
    cursor = HistoryCursor(Journal(KEYS), HISTORY)
    assert (cursor.begin, cursor.end, cursor.limit) == (begin, end, PAGE_MIN)
    cursor.feed([])
    assert cursor.begin is None
