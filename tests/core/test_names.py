"""Names and their indexes: each written once, and freed with the turns that used it."""

from __future__ import annotations

import fdb.tuple
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.journal.names import Names, NameTable
from workflow_sdk.rows.keys import NAMES
from workflow_sdk.rows.location import segments

pytestmark = pytest.mark.law(12)

LOOP, INNER = b"\x15\x01", b"\x15\x01\x05\x15\x01\x14\x00\x15\x02"
texts = st.sampled_from("abcdefgh")


class Store:
    """What is written of the names."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.writes = 0

    def write(self, key: bytes, value: bytes | None) -> None:
        self.writes += 1
        if value is None:
            del self.rows[key]
        else:
            self.rows[key] = value

    def reload(self) -> Names:
        names = Names(self.write)
        for key, value in self.rows.items():
            (index,) = segments(key.removeprefix(NAMES))
            assert isinstance(index, int)
            names.load(index, value)
        return names


def open_names() -> tuple[Store, Names]:
    store = Store()
    return store, Names(store.write)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True))
def test_a_name_has_one_index_for_ever(given_texts: list[str]) -> None:
    store, names = open_names()
    indexes = [names.root.intern(text) for text in given_texts]
    assert indexes == list(range(len(given_texts)))
    assert [names.root.intern(text) for text in given_texts] == indexes
    assert store.writes == len(given_texts)
    again = store.reload()
    assert [again.root.find(text) for text in given_texts] == indexes
    assert again.texts == dict(enumerate(given_texts))
    assert again.root.intern("a new one that is long") == len(given_texts)


def test_an_unknown_name_is_not_found() -> None:
    assert open_names()[1].root.find("a") is None


def test_a_loop_finds_the_names_around_it() -> None:
    store, names = open_names()
    outer = names.root.intern("outer")
    loop = names.open(LOOP, names.root, 0, 0)
    inner = names.open(INNER, loop, 0, 0)
    assert inner.find("outer") == loop.find("outer") == outer
    own = loop.intern("own")
    assert inner.find("own") == own
    assert names.root.find("own") is None
    assert fdb.tuple.unpack(next(reversed(store.rows)).removeprefix(NAMES)) == (own,)


def test_a_name_goes_with_the_last_turn_that_used_it() -> None:
    store, names = open_names()
    loop = names.open(LOOP, names.root, 0, 0)
    for turn in range(100):
        loop.turn = turn
        loop.intern("every turn")
        loop.intern(f"turn {turn}")
        loop.prune(turn - 4)
        assert len(store.rows) <= 6
    assert set(loop.index) == {"every turn", *(f"turn {turn}" for turn in range(95, 100))}
    assert set(names.texts.values()) == set(loop.index)


def test_a_name_that_every_turn_uses_is_not_written_in_every_turn() -> None:
    store, names = open_names()
    loop = names.open(LOOP, names.root, 0, 20)
    for turn in range(100):
        loop.turn = turn
        loop.intern("every turn")
        loop.prune(turn - 20)
    assert store.writes <= 7
    assert loop.find("every turn") == 0


@given(st.lists(st.lists(texts, max_size=4), max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_a_name_is_never_freed_too_early(turns: list[list[str]], keep: int, ahead: int) -> None:
    store, names = open_names()
    loop = names.open(LOOP, names.root, 0, ahead)
    used: list[dict[str, int]] = []
    for turn, turn_texts in enumerate(turns):
        loop.turn = turn
        used.append({text: loop.intern(text) for text in turn_texts})
        loop.prune(turn - keep)
        kept = used[max(0, turn - keep) :]
        assert all(names.texts[index] == text for found in kept for text, index in found.items())
        reloaded = store.reload().open(LOOP, names.root, turn, ahead)
        assert all(reloaded.find(text) == index for text, index in used[turn].items())


def test_what_is_left_of_a_finished_loop_goes_to_the_table_around_it() -> None:
    store, names = open_names()
    loop = names.open(LOOP, names.root, 3, 0)
    inner = names.open(INNER, loop, 0, 0)
    index = inner.intern("kept")
    inner.end()
    assert (loop.find("kept"), names.root.find("kept")) == (index, None)
    loop.end()
    assert names.root.find("kept") == index
    assert store.reload().root.find("kept") == index


def test_two_loops_with_the_same_name_of_their_own() -> None:
    store, names = open_names()
    first, second = names.open(LOOP, names.root, 0, 0), names.open(b"\x15\x02", names.root, 0, 0)
    one, two = first.intern("same"), second.intern("same")
    assert one != two
    first.end()
    second.end()
    for known in (names, store.reload()):
        assert known.root.find("same") == one, "the first stays the one that is found"
        assert known.texts[one] == known.texts[two] == "same"


def test_names_under_a_cleared_location_are_freed() -> None:
    store, names = open_names()
    names.root.intern("root")
    tables: list[NameTable] = [names.open(owner, names.root, 0, 0) for owner in (LOOP, INNER, b"\x15\x02")]
    for number, table in enumerate(tables):
        table.intern(f"own {number}")
    names.drop(LOOP)
    assert sorted(names.texts.values()) == ["own 2", "root"]
    assert len(store.rows) == 2
