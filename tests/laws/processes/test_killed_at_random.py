"""Workers are killed at random moments, again and again: everything ends right, and what was committed runs once."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import anyio
import pytest

from tests.chaos import effort
from tests.laws.processes.parts import Workers, chance, is_whole, until
from tests.laws.processes.worker import MESSAGES, TURNS, mixes
from tests.ledger import read
from tests.patience import PATIENCE
from tests.runtime.parts import opened
from workflow_sdk import Client, EntryStatus, Handle, Status, WorkflowStuckError

pytestmark = pytest.mark.law(1)

INSTANCES = 4
WIDTH = 3
"""Steps of one instance that may be under way at once."""


def expected(name: str) -> dict[str, Any]:
    """The output of one instance."""
    joined = {f"b{n}": [f"{name} join {n} first", f"{name} join {n} second"] for n in range(3)}
    return {"joined": joined, "turns": TURNS, "heard": [*range(MESSAGES)], "amount": 1}


def expected_lines(name: str) -> set[str]:
    """What the steps of one instance note."""
    joined = {f"{name} join {n} {which}" for n in range(3) for which in ("first", "second")}
    turns = {f"{name} turn {n}" for n in range(TURNS)} | {f"{name} heard {n}" for n in range(MESSAGES)}
    return {f"{name} begin"} | joined | turns


class Load:
    """The instances of one test, and what was seen of them whenever a worker was killed."""

    def __init__(self, workers: Workers, client: Client) -> None:
        self.workers, self.client = workers, client
        workers.ttl = 1.0  # with several of them, who is slow is not to be taken for dead
        self.handles: list[Handle[dict[str, Any]]] = []
        self.committed: dict[str, int] = {}
        """Steps whose outcome is committed, and how many lines there were when that was seen."""
        self.may_end = anyio.Event()
        """Set once a worker was killed. Before that no instance gets its last message, so that none is over."""

    async def start(self, rounds: int) -> None:
        """Start the instances of so many rounds, and send each its messages."""
        for number in range(rounds):
            for which in range(INSTANCES):
                handle = await self.client.start(mixes, str(self.workers.lines.path), id=f"i{number}-{which}")
                self.handles.append(handle)

    async def send_all(self) -> None:
        """Each message twice, with the same key, while the instances run; some end before they have heard all."""
        for number in range(MESSAGES):
            if number == MESSAGES - 1:
                await self.may_end.wait()
            for _ in range(2):
                for handle in self.handles:
                    await handle.send("m", number, key=f"m{number}")

    async def look(self) -> None:
        """Note which steps are committed by now."""
        found: set[str] = set()
        for handle in self.handles:
            for entry in await handle.history():
                if entry.kind == "step" and entry.status is EntryStatus.COMPLETED:
                    found.add(str(entry.value))
        lines = len(self.workers.lines)
        for step in found:
            self.committed.setdefault(step, lines)

    def repeated(self) -> list[str]:
        """Steps that have run after they were seen to be committed."""
        lines = self.workers.lines()
        last = {step: number for number, step in enumerate(lines)}
        return [step for step, before in self.committed.items() if last[step] >= before]

    async def recover(self) -> None:
        """Have those go on under which too many have died in a row."""
        for handle in self.handles:
            if (await handle.info()).status is Status.STUCK:
                await handle.recover()

    async def expect(self, kills: int) -> None:
        """Everything is as if nobody had been killed."""
        names = [handle.id for handle in self.handles]
        for handle in self.handles:
            while True:
                try:
                    assert await handle.result(timeout=PATIENCE) == expected(handle.id)
                except WorkflowStuckError as error:
                    # Five workers in a row were killed under it before they had done anything.
                    assert "died while they ran it" in str(error)  # noqa: PT017  # it may come again
                    await handle.recover()
                else:
                    break
        # One that was only slow, on a machine with other things to do, was taken for dead too.
        slow = self.workers.all_said().count("was taken over")
        counts = Counter(self.workers.lines())
        assert set(counts) == set[str]().union(*map(expected_lines, names)), "no step is lost"
        assert sum(counts.values()) - len(counts) <= (kills * len(names) + slow) * WIDTH, "only what was under way"
        assert len(self.repeated()) <= slow * WIDTH, self.repeated()
        async with opened(self.workers.url) as driver:
            for name in names:
                assert (await read(driver, f"{name} turns"), await read(driver, f"{name} end")) == (TURNS, 1), name
        assert is_whole(self.workers.database)

    async def more(self, lines: int) -> None:
        """Return once there are so many more lines, or there is nothing more to do."""
        enough = len(self.workers.lines) + lines
        await until(lambda: len(self.workers.lines) >= enough or self.is_over())

    def is_over(self) -> bool:
        """Whether every step that may run has run, as far as the lines tell."""
        each = len(expected_lines("")) - (0 if self.may_end.is_set() else 1)
        return len(set(self.workers.lines())) == len(self.handles) * each


async def killing(workers: Workers, count: int, kills: int) -> int:
    """So many workers at once, one of which is killed again and again, while they have work; how often that was."""
    dice = chance()
    async with Client(workers.url) as client, anyio.create_task_group() as group:
        load = Load(workers, client)
        await load.start(rounds=1 + kills // 4)
        alive = [workers.start() for _ in range(count)]
        group.start_soon(load.send_all)
        done = 0
        while done < kills and not (done and load.is_over()):
            await load.more(dice.randrange(1, 12))
            await anyio.sleep(dice.random() * 0.02)  # at any moment, and not just when a line was written
            victim = alive.pop(dice.randrange(count))
            workers.kill(victim)
            done += 1
            await load.look()
            load.may_end.set()
            alive.append(workers.start())
            await load.recover()
        print(f"{done} kills, {len(workers.lines)} lines")
        await load.expect(done)
        return done
    raise AssertionError("the group has ended early")


async def test_one_worker_is_killed_again_and_again(workers: Workers) -> None:
    assert await killing(workers, 1, effort(4)) > 0


@pytest.mark.parametrize("workers", ["synchronous=full"], indirect=True)
async def test_one_of_two_workers_is_killed_again_and_again(workers: Workers) -> None:
    assert await killing(workers, 2, effort(5)) > 0


async def test_all_workers_are_killed_at_once(workers: Workers) -> None:
    dice = chance()
    async with Client(workers.url) as client, anyio.create_task_group() as group:
        load = Load(workers, client)
        await load.start(rounds=1)
        group.start_soon(load.send_all)
        for _ in range(2):
            both = [workers.start(), workers.start()]
            await load.more(dice.randrange(1, 15))
            for process in both:
                process.send_signal(signal.SIGKILL)
            for process in both:
                process.wait()
            await load.look()
        load.may_end.set()
        workers.start()
        await load.expect(kills=4)
