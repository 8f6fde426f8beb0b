"""Making changes: what is read holds until the commit, several go together, and none sees half of another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.changes.store import Store, make, make_together
from workflow_drivers.memory import MemoryDriver
from workflow_sdk.changes import apply as applying
from workflow_sdk.changes.apply import apply_all
from workflow_sdk.changes.change import (
    Assume,
    Change,
    Draw,
    Get,
    Look,
    Retries,
    Scan,
    Signal,
    Steps,
    change,
    get,
    pages,
)
from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Set
from workflow_sdk.errors import ConflictError, InstanceNotFoundError
from workflow_sdk.testing import FaultyDriver

pytestmark = pytest.mark.law(1)


@change
def add(key: bytes, number: int) -> Steps[int]:
    """Add to a number."""
    found = int((yield from get(key)) or b"0") + number
    yield Set(key, b"%d" % found)
    return found


@change
def move(begin: bytes, end: bytes, number: int) -> Steps[bool]:
    """Move so much from one number to another, if there is so much."""
    if (yield from add(begin, -number)) < 0:
        raise ValueError("there is not so much")
    yield from add(end, number)
    return True


def test_what_was_read_holds_until_the_commit() -> None:
    store = Store({b"n": b"1"})
    # Both read, then both commit: the second one is made again.
    assert sorted(make_together(store, [add(b"n", 10), add(b"n", 100)], [0, 1, 0, 1])) == [("done", 11), ("done", 111)]
    assert store.rows == {b"n": b"111"}


def test_a_change_that_raises_writes_nothing() -> None:
    store = Store({b"a": b"5"})
    with pytest.raises(ValueError, match="not so much"):
        make(store, move(b"a", b"b", 6))
    assert store.rows == {b"a": b"5"}


def test_a_change_that_writes_nothing_is_not_committed() -> None:
    store = Store({b"a": b"5"})

    @change
    def read() -> Steps[bytes | None]:
        return (yield from get(b"a"))

    assert make(store, read()) == b"5"
    assert store.calls == 1


def test_a_change_sees_what_it_has_written() -> None:
    seen: list[object] = []

    @change
    def write() -> Steps[None]:
        yield Set(b"k2", b"new")
        yield Clear(b"k3")
        seen.append((yield Get(b"k2")))
        seen.append((yield Get(b"k3")))
        seen.append((yield Scan(b"k", b"l")))
        yield ClearRange(b"k1", b"k3")
        seen.append((yield Look(b"k1")))
        seen.append((yield Scan(b"k", b"l", 1)))
        yield Set(b"k1", b"again")
        seen.append((yield Scan(b"k", b"l", 1, True)))
        seen.append((yield Scan(b"k", b"l")))

    store = Store({b"k1": b"1", b"k2": b"2", b"k3": b"3", b"k4": b"4"})
    make(store, write())
    assert seen == [
        b"new",
        None,
        [(b"k1", b"1"), (b"k2", b"new"), (b"k4", b"4")],
        None,
        [(b"k4", b"4")],
        [(b"k4", b"4")],
        [(b"k1", b"again"), (b"k4", b"4")],
    ]
    assert store.rows == {b"k1": b"again", b"k4": b"4"}


def test_rows_of_a_range_that_was_read_are_not_read_again() -> None:
    @change
    def read() -> Steps[tuple[object, object]]:
        yield Scan(b"k", b"l")
        found = (yield Get(b"k1")), (yield Get(b"k2"))
        yield Set(b"done", b"")
        return found

    store = Store({b"k1": b"1"})
    assert make(store, read()) == (b"1", None)
    assert store.calls == 2  # the range, and the commit


@pytest.mark.parametrize("changed", [b"k1", b"k2"])
def test_what_is_taken_from_a_range_is_checked(changed: bytes) -> None:
    @change
    def read() -> Steps[tuple[object, object]]:
        yield Scan(b"k", b"l")
        found = (yield Get(b"k1")), (yield Get(b"k2"))
        yield Set(b"done", b"")
        return found

    store = Store({b"k1": b"1"})
    outcomes = make_together(store, [read(), add(changed, 5)], [0, 0, 1, 1, 1, 0])
    expected = (b"6", None) if changed == b"k1" else (b"1", b"5")
    assert outcomes[0] == ("done", expected)


def test_what_is_only_looked_at_may_change() -> None:
    @change
    def look() -> Steps[object]:
        found = yield Look(b"n")
        yield Set(b"done", b"")
        return found

    assert make_together(Store({b"n": b"1"}), [look(), add(b"n", 1)], [0, 0, 1, 1, 1, 0])[0] == ("done", b"1")


def test_what_is_known_is_not_read_the_first_time() -> None:
    @change
    def write(known: bytes) -> Steps[tuple[bytes, int]]:
        found: bytes = yield Assume(b"n", known)
        yield Set(b"n", found + b"!")
        return found, (yield Retries())

    store = Store({b"n": b"1"})
    assert make(store, write(b"1")) == (b"1", 0)
    assert store.calls == 1
    assert make(store, write(b"1")) == (b"1!", 1)


def test_a_signal_is_never_what_it_was() -> None:
    @change
    def ring() -> Steps[None]:
        yield Signal(b"s")

    store, seen = Store(), set[bytes]()
    for _ in range(100):
        make(store, ring())
        seen.add(store.rows[b"s"])
    assert len(seen) == 100


def test_a_number_is_drawn_by_chance() -> None:
    @change
    def draw() -> Steps[int]:
        number: int = yield Draw(3)
        return number

    assert {make(Store(), draw()) for _ in range(200)} == {0, 1, 2}


def test_a_range_in_parts() -> None:
    @change
    def read(size: int) -> Steps[list[bytes]]:
        return [key for key, _ in (yield from pages(b"k", b"l", size))]

    rows = {b"k%d" % number: b"" for number in range(7)}
    for size in (1, 3, 7, 8):
        assert make(Store(rows), read(size)) == sorted(rows)


async def test_a_store_that_speaks_of_conflicts_without_a_reason() -> None:
    driver = FaultyDriver(MemoryDriver())

    class Refusing(MemoryDriver):
        async def commit(self, batch: Batch) -> None:
            raise ConflictError("so it says")

    with pytest.raises(ConflictError):
        await applying.apply(Refusing(), add(b"n", 1))
    assert await applying.apply(driver, add(b"n", 1)) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_who_made_a_change_is_told(fails: bool) -> None:
    """Also if it may have been applied all the same."""

    class Breaking(MemoryDriver):
        async def commit(self, batch: Batch) -> None:
            await super().commit(batch)
            if fails:
                raise OSError("no answer")

    told: list[int] = []
    driver = Breaking()
    try:
        assert await applying.apply(driver, add(b"n", 3), told.append) == 3
    except OSError:
        assert fails
    assert told == [3]


def test_an_assumption_that_is_wrong_is_found_out_without_a_commit() -> None:
    @change
    def refuse() -> Steps[bytes]:
        found: bytes = yield Assume(b"n", b"wrong")
        yield Get(b"other")
        yield Look(b"another")
        if found == b"wrong":
            raise ValueError("not so")
        return found

    assert make(Store({b"n": b"right"}), refuse()) == b"right"


def test_a_refusal_comes_to_an_end_though_others_write_without_one() -> None:
    store, count = Store({b"n": b"0"}), 0

    @change
    def refuse() -> Steps[str]:
        nonlocal count
        yield Get(b"n")
        yield Get(b"m")
        count += 1
        store.rows[b"n"] = b"%d" % count  # others do so
        return "no"

    assert make(store, refuse()) == "no"
    assert count < 10


# Several in one commit.


async def test_several_go_with_one_commit() -> None:
    commits: list[Batch] = []

    class Counting(MemoryDriver):
        async def commit(self, batch: Batch) -> None:
            commits.append(batch)
            await super().commit(batch)

    driver = Counting()
    outcomes = await apply_all(driver, [add(b"n", 1), add(b"m", 5), add(b"n", 10)])
    assert [outcome.get() for outcome in outcomes] == [1, 5, 11]
    assert len(commits) == 1
    assert await driver.get(b"n") == b"11"


async def test_one_that_fails_fails_alone() -> None:
    driver = MemoryDriver()
    changes: list[Change[Any]] = [add(b"a", 5), move(b"a", b"b", 6), move(b"a", b"b", 2)]
    outcomes = await apply_all(driver, changes)
    assert [outcome.value for outcome in outcomes] == [5, None, True]
    assert isinstance(outcomes[1].error, ValueError)
    with pytest.raises(ValueError, match="not so much"):
        outcomes[1].get()
    assert (await driver.get(b"a"), await driver.get(b"b")) == (b"3", b"2")


async def test_what_the_store_raises_is_no_outcome() -> None:
    class Broken(MemoryDriver):
        async def get(self, key: bytes) -> bytes | None:
            raise OSError("the disk is gone")

    for changes in ([add(b"n", 1)], [add(b"n", 1), add(b"n", 1)]):
        with pytest.raises(OSError, match="disk"):
            await apply_all(Broken(), changes)


async def test_a_later_one_finds_what_an_earlier_one_makes() -> None:
    """Though they read side by side."""

    @change
    def need(key: bytes) -> Steps[bytes]:
        found = yield from get(key)
        if found is None:
            raise InstanceNotFoundError("it is not there")
        yield Append(b"log", found)
        return found

    changes: list[Change[Any]] = [need(b"n"), add(b"n", 1), need(b"n")]
    outcomes = await apply_all(MemoryDriver(), changes)
    assert isinstance(outcomes[0].error, InstanceNotFoundError)
    assert outcomes[2].get() == b"1"


KEYS = [b"a", b"b", b"c"]
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(KEYS), st.binary(max_size=1)),
        st.tuples(st.just("copy"), st.sampled_from(KEYS), st.sampled_from(KEYS)),
        st.tuples(st.just("count"), st.sampled_from(KEYS), st.just(b"")),
        st.tuples(st.just("clear"), st.sampled_from(KEYS), st.sampled_from(KEYS)),
        st.tuples(st.just("fail"), st.sampled_from(KEYS), st.binary(max_size=1)),
    ),
    max_size=4,
)


def _program(steps: list[tuple[str, bytes, bytes]]) -> Change[list[object]]:
    @change
    def run() -> Steps[list[object]]:
        seen: list[object] = []
        for what, key, other in steps:
            if what == "set":
                yield Set(key, other)
            elif what == "copy":
                found: bytes | None = yield Get(key)
                seen.append(found)
                yield Clear(other) if found is None else Set(other, found)
            elif what == "count":
                # It depends on the whole range, and says so by what it reads.
                count = 0
                for each in KEYS:
                    count += (yield Get(each)) is not None
                seen.append(count)
                yield Set(key, b"%d" % count)
            elif what == "clear":
                yield ClearRange(min(key, other), max(key, other))
            elif (yield Get(key)) == other:
                raise ValueError("it is so")
        return seen

    return run()


def _after(rows: dict[bytes, bytes], programs: list[Change[list[object]]]) -> tuple[dict[bytes, bytes], list[object]]:
    store, outcomes = Store(rows), list[object]()
    for program in programs:
        outcomes += make_together(store, [program], [])
    return store.rows, outcomes


@given(
    st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=1)),
    st.lists(_steps, min_size=2, max_size=4),
)
async def test_several_are_as_if_one_after_the_other(
    rows: dict[bytes, bytes], programs: list[list[tuple[str, bytes, bytes]]]
) -> None:
    changes = [_program(steps) for steps in programs]
    driver = MemoryDriver()
    batch = Batch()
    for key, value in rows.items():
        batch.set(key, value)
    await driver.commit(batch)
    outcomes = await apply_all(driver, changes)
    after, expected = _after(rows, changes)
    assert dict(await driver.scan(b"", b"\xff")) == after
    said = [
        ("done", one.value) if one.error is None else (type(one.error).__name__, str(one.error)) for one in outcomes
    ]
    assert said == expected


@given(
    st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=1)),
    _steps,
    _steps,
    st.lists(st.integers(0, 1), max_size=30),
)
def test_two_side_by_side_are_as_if_one_after_the_other(
    rows: dict[bytes, bytes],
    one: list[tuple[str, bytes, bytes]],
    other: list[tuple[str, bytes, bytes]],
    order: list[int],
) -> None:
    store = Store(rows)
    outcomes = make_together(store, [_program(one), _program(other)], order)
    first, second = _program(one), _program(other)
    straight = _after(rows, [first, second])
    turned_rows, (said_by_other, said_by_one) = _after(rows, [second, first])
    assert (store.rows, outcomes) in (straight, (turned_rows, [said_by_one, said_by_other]))
