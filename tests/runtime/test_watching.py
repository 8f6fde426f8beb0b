"""What a worker makes of the heartbeats of others: who is dead, and whose clock is wrong."""

from __future__ import annotations

import logging

import pytest

from workflow_drivers.memory import MemoryDriver
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import Change
from workflow_sdk.changes.workers import Heartbeat, time_of_workers
from workflow_sdk.client.watching import Watch
from workflow_sdk.driver import Batch
from workflow_sdk.errors import CodecError
from workflow_sdk.instance.clock import SystemClock
from workflow_sdk.rows.keys import WorkerKeys
from workflow_sdk.rows.wire import pack_record

pytestmark = pytest.mark.law(10, 20)

TTL = 9.0
LOOK = TTL / 3
HOUR = 3600.0


class Clock(SystemClock):
    """One that is set by hand, and what nobody can set."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_900_000_000.0 + self.passed + self.ahead)
        self.passed = 0.0
        self.ahead = 0.0

    def monotonic(self) -> float:
        """Seconds since it began."""
        return self.passed


class Team:
    """One who watches, and others who write heartbeats by clocks of their own."""

    def __init__(self, **ahead: float) -> None:
        self.clock = Clock()
        self.watch = Watch(self.clock, "me", TTL)
        self.ahead = ahead
        self.rows: dict[str, bytes] = {}
        self.beats = 0

    def beat(self, *names: str) -> None:
        """Each says that it lives."""
        for name in names:
            self.beats += 1
            at = self.clock.time() - self.clock.ahead + self.ahead[name]
            self.rows[name] = Heartbeat(at, TTL, self.beats).pack()

    def look(self) -> set[str]:
        """Look at all of them: the dead."""
        self.watch.look((WorkerKeys(name).heartbeat, raw) for name, raw in self.rows.items())
        return self.watch.dead

    def go_on(self, seconds: float, *alive: str) -> set[str]:
        """Let time pass, with a look every third of a lease: the dead."""
        left = seconds
        while left > 0:
            self.clock.passed += min(LOOK, left)
            left -= LOOK
            self.beat(*alive)
            self.look()
        return self.watch.dead


def test_a_heartbeat_that_does_not_change_is_of_a_dead_worker() -> None:
    team = Team(a=0.0, b=HOUR, c=-HOUR)
    team.beat("a", "b", "c")
    assert team.look() == set()
    assert team.watch.others == 3
    assert team.go_on(TTL - 0.1, "a") == set()
    assert team.watch.next == pytest.approx(TTL)
    assert team.go_on(0.1, "a") == {"b", "c"}
    assert team.watch.others == 1
    team.beat("b")
    assert team.look() == {"c"}, "it has only been slow"


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_however_the_clocks_are_set_meanwhile(ahead: float) -> None:
    team = Team(a=0.0, b=0.0)
    team.beat("a", "b")
    team.look()
    team.clock.ahead += ahead
    assert team.go_on(TTL - 0.1, "a") == set()
    team.clock.ahead -= 2 * ahead
    assert team.go_on(0.1, "a") == {"b"}


def test_a_clock_that_stands_still_is_no_death() -> None:
    team = Team(a=0.0)
    for _ in range(10):
        team.ahead["a"] = -team.clock.passed
        assert team.go_on(LOOK, "a") == set()


def test_who_has_stood_still_has_not_watched() -> None:
    """All of them may have: the machine was paused."""
    team = Team(a=0.0)
    team.beat("a")
    team.look()
    team.clock.passed += 100 * TTL
    assert team.look() == set()
    assert team.watch.next == pytest.approx(team.clock.passed + TTL / 3)
    assert team.go_on(LOOK) == {"a"}


def test_a_heartbeat_that_cannot_be_read_is_buried() -> None:
    team = Team()
    team.rows["a"] = b"\x01no record"
    team.rows["b"] = pack_record([[]])
    team.look()
    assert team.go_on(TTL) == {"a", "b"}
    assert team.watch.ahead == 0


def test_who_claims_to_die_at_once_is_dead_when_it_is_seen() -> None:
    team = Team()
    team.rows["a"] = Heartbeat(team.clock.time(), 0.0, 0).pack()
    assert team.look() == {"a"}


@pytest.mark.parametrize(
    ("others", "mine", "ahead"),
    [
        ({}, HOUR, 0.0),
        ({"a": 0.0}, 0.0, 0.0),
        ({"a": 0.0}, 2.0, 0.0),
        ({"a": 0.0}, HOUR, HOUR),
        ({"a": HOUR}, 0.0, 0.0),
        ({"a": 0.0, "b": 0.0}, HOUR, HOUR),
        ({"a": 0.0, "b": HOUR}, HOUR, 0.0),
        ({"a": -HOUR, "b": HOUR}, 0.0, 0.0),
        ({"a": -HOUR, "b": 0.0, "c": 0.0}, 0.0, 0.0),
        ({"a": -HOUR, "b": -HOUR, "c": 0.0}, 0.0, HOUR),
    ],
    ids=str,
)
def test_the_clock_in_the_middle_counts(others: dict[str, float], mine: float, ahead: float) -> None:
    team = Team(**others)
    team.clock.ahead = mine
    team.beat(*others)
    team.look()
    team.go_on(2 * TTL, *others)
    assert team.watch.ahead == pytest.approx(ahead, abs=LOOK)
    now = team.clock.time()
    judge = team.watch.judge(now, LOOK)
    assert judge(now - LOOK) == now, "it has become due while it was watched"
    assert judge(now - 2 * HOUR) == pytest.approx(now - ahead, abs=LOOK)


def test_who_is_dead_has_no_clock() -> None:
    team = Team(a=0.0)
    team.beat("a")
    team.clock.ahead = HOUR
    team.look()
    assert team.watch.ahead > HOUR - TTL - 1, "as long as it is not known"
    team.go_on(TTL)
    assert team.watch.ahead == 0


def test_a_clock_that_jumps_is_ahead_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    team = Team(a=0.0)
    team.go_on(2 * TTL, "a")
    team.clock.ahead = HOUR
    assert team.watch.ahead == pytest.approx(HOUR, abs=LOOK)
    for _ in range(3):
        team.go_on(LOOK, "a")
    assert caplog.text.count("ahead of those of others") == 1
    team.clock.ahead = 0.0
    team.go_on(LOOK, "a")
    assert team.watch.ahead == 0
    assert caplog.text.count("agrees with those of others again") == 1


@pytest.mark.parametrize(
    ("beats", "now", "expected"),
    [
        ([], 1000.0, 1000.0),
        ([(1000.0, 10.0)], 1003.0, 1003.0),
        ([(1000.0, 10.0)], 5000.0, 1010.0),
        ([(1000.0, 10.0)], 10.0, 1000.0),
        ([(1000.0, 10.0), (4000.0, 30.0)], 5000.0, 4030.0),
        ([(1000.0, 10.0), (5001.0, 30.0)], 5000.0, 5000.0),
    ],
)
async def test_a_client_asks_what_time_it_is_for_workers(
    beats: list[tuple[float, float]], now: float, expected: float
) -> None:
    driver, batch = MemoryDriver(), Batch()
    batch.set(WorkerKeys("damaged").heartbeat, b"\x01no record")
    for number, (at, ttl) in enumerate(beats):
        batch.set(WorkerKeys(f"w{number}").heartbeat, Heartbeat(at, ttl, 1).pack())
    await driver.commit(batch)
    assert await apply(driver, Change(lambda: time_of_workers(now))) == expected
    batch.set(WorkerKeys("virtual").heartbeat, Heartbeat(7.0, 1.0, None).pack())
    await driver.commit(batch)
    assert await apply(driver, Change(lambda: time_of_workers(now))) == now, (
        "what is known without heartbeats is not for them to say"
    )


def test_heartbeats_are_read_as_they_were_written() -> None:
    for beat in (Heartbeat(1000.5, 10.0, 3), Heartbeat(1000.5, 10.0, None)):
        assert Heartbeat.unpack(beat.pack()) == beat
    for raw in (pack_record([]), pack_record(["x"])):
        with pytest.raises(CodecError, match="heartbeat"):
            Heartbeat.unpack(raw)
