"""Who may run, and whose time is next: two small things that everything in a runtime goes through."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.worker.slots import Slots, Timers

IDS = st.sampled_from("abcdefg")


class Served(list[str]):
    """Who was given a slot while waiting for a turn, in order."""

    def of(self, id: str) -> Callable[[], None]:
        """What notes it."""
        return lambda: self.append(id)


def test_first_come_first_served() -> None:
    slots, served = Slots(2), Served()
    assert slots.take("a")
    assert slots.take("b")
    assert not slots.take("c"), "there are two"
    assert not slots.crowded, "it was only a question"
    for id in "cde":
        slots.queue_up(id, served.of(id))
    assert slots.crowded
    assert served == []
    slots.leave("a")
    assert served == ["c"]
    slots.leave("b")
    assert served == ["c", "d"]
    assert slots.crowded
    slots.leave("d")
    assert served == ["c", "d", "e"]
    assert not slots.crowded


def test_nobody_jumps_the_queue() -> None:
    slots, served = Slots(1), Served()
    slots.take("a")
    slots.queue_up("b", served.of("b"))
    assert slots.take("a"), "whoever has one keeps it"
    assert not slots.take("b"), "waiting for a turn is not having one"
    slots.queue_up("a", served.of("a"))
    assert served == ["b"], "the slot goes to whoever stood there before"
    slots.leave("b")
    assert served == ["b", "a"]


def test_whoever_waits_for_a_turn_keeps_the_place() -> None:
    slots, served = Slots(1), Served()
    slots.take("a")
    for id in "bcb":
        slots.queue_up(id, served.of(id))
    slots.leave("a")
    slots.leave("b")
    assert served == ["b", "c"]


def test_a_free_slot_is_had_at_once() -> None:
    slots, served = Slots(1), Served()
    slots.queue_up("a", served.of("a"))
    assert served == ["a"]
    slots.queue_up("a", served.of("a"))
    assert served == ["a", "a"], "nobody else wants it"


def test_leaving_the_line() -> None:
    slots, served = Slots(1), Served()
    slots.take("a")
    slots.queue_up("b", served.of("b"))
    slots.leave("b")
    slots.leave("never heard of")
    slots.leave("a")
    assert served == []
    assert slots.take("c")


def test_passing_a_slot_on() -> None:
    slots, served = Slots(1), Served()
    slots.take("a")
    slots.queue_up("c", served.of("c"))
    slots.pass_on("a", "b")
    assert served == [], "it was not free in between"
    slots.leave("a")
    assert served == []
    slots.leave("b")
    assert served == ["c"]


def test_a_long_line_of_those_who_want_nothing_any_more() -> None:
    """Each leaves as soon as it is its turn. However long the line is, that takes no stack."""
    slots, served = Slots(1), Served()
    slots.take("first")

    def leave(id: str) -> Callable[[], None]:
        def go_on() -> None:
            served.append(id)
            slots.leave(id)

        return go_on

    ids = [str(number) for number in range(5000)]
    for id in ids:
        slots.queue_up(id, leave(id))
    slots.leave("first")
    assert served == ids
    assert slots.take("next")


class NaiveSlots:
    """The same, as one would say it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.running: list[str] = []
        self.line: list[str] = []
        self.served = Served()

    def take(self, id: str) -> bool:
        if id not in self.running and not self.line and len(self.running) < self.most:
            self.running.append(id)
        return id in self.running

    def queue_up(self, id: str) -> None:
        if id in self.running:
            self.running.remove(id)
        if id not in self.line:
            self.line.append(id)
        self.serve()

    def leave(self, id: str) -> None:
        self.running = [other for other in self.running if other != id]
        self.line = [other for other in self.line if other != id]
        self.serve()

    def pass_on(self, id: str, to: str) -> None:
        self.running[self.running.index(id)] = to

    def serve(self) -> None:
        while self.line and len(self.running) < self.most:
            self.running.append(self.line.pop(0))
            self.served.append(self.running[-1])


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["take", "stand", "leave", "pass"]), IDS, IDS), max_size=60),
)
def test_slots_are_like_a_naive_model(most: int, deeds: list[tuple[str, str, str]]) -> None:
    slots, served, naive = Slots(most), Served(), NaiveSlots(most)
    for deed, id, other in deeds:
        if deed == "take":
            assert slots.take(id) == naive.take(id)
        elif deed == "stand":
            slots.queue_up(id, served.of(id))
            naive.queue_up(id)
        elif deed == "leave":
            slots.leave(id)
            naive.leave(id)
        elif id in naive.running and other not in (*naive.running, *naive.line):
            slots.pass_on(id, other)
            naive.pass_on(id, other)
        assert served == naive.served
        assert slots.crowded == bool(naive.line)
        assert len(naive.running) <= most
    for id in list("abcdefg"):
        assert slots.take(id) == naive.take(id), "in the end the same ones have a slot"


def test_the_first_time_is_next() -> None:
    timers = Timers()
    assert timers.next is None
    assert timers.due(1e9) == []
    assert timers.set("a", 3.0), "it is the next of all"
    assert not timers.set("b", 5.0)
    assert timers.set("c", 1.0)
    assert timers.next == 1.0
    assert timers.due(0.9) == []
    assert timers.due(3.0) == ["c", "a"], "in order of time, and the time itself is due"
    assert timers.next == 5.0
    assert timers.due(9.0) == ["b"]
    assert timers.due(9.0) == [], "they have none afterwards"


def test_the_earlier_time_counts() -> None:
    timers = Timers()
    timers.set("a", 3.0)
    assert not timers.set("a", 4.0), "it is looked at before that, and can say so again"
    assert not timers.set("a", 3.0)
    assert timers.next == 3.0
    assert timers.set("a", 2.0)
    assert timers.due(10.0) == ["a"], "once"


def test_one_without_a_time() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    timers.set("b", 2.0)
    timers.discard("a")
    timers.discard("never heard of")
    assert timers.next == 2.0
    assert timers.set("a", 1.5)
    assert timers.due(10.0) == ["a", "b"]


def test_what_ended_early_leaves_little_behind() -> None:
    """Neither many times of one, nor one time of each of many."""
    timers = Timers()
    for number in range(10_000):
        timers.set("a", -float(number))
        timers.set(str(number), 1.0)
        timers.discard(str(number))
    assert len(timers._heap) < 200  # pyright: ignore[reportPrivateUsage]
    assert timers.due(0.0) == ["a"]
    assert timers.next is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "set", "discard", "due"]), IDS, st.integers(0, 30).map(float)), max_size=300
    )
)
def test_timers_are_like_a_naive_model(deeds: list[tuple[str, str, float]]) -> None:
    timers, times = Timers(), dict[str, float]()
    for deed, id, time in deeds:
        if deed == "set":
            changes = time < times.get(id, float("inf"))
            is_next = timers.set(id, time)
            if changes:
                times[id] = time
            assert not is_next or (changes and time == min(times.values()))
            assert is_next or not changes or time >= min(times.values())
            if changes and all(other > time for name, other in times.items() if name != id):
                assert is_next, "whoever sleeps until the next time must be told of an earlier one"
        elif deed == "discard":
            timers.discard(id)
            times.pop(id, None)
        else:
            due = timers.due(time)
            assert sorted(due) == sorted(id for id, when in times.items() if when <= time)
            assert [times[id] for id in due] == sorted(times[id] for id in due)
            for id in due:
                del times[id]
        assert timers.next == min(times.values(), default=None)
