"""A process is killed in the middle of its work: the store opens, and the work goes on where it was."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.execution.killed import count
from tests.patience import PATIENCE
from workflow_sdk import EntryStatus, Status, open_driver, read_history, run_workflow

pytestmark = pytest.mark.law(1)

ROOT = Path(__file__).parents[2]


class Victim:
    """A process that runs the workflow, and the traces it leaves."""

    def __init__(self, directory: Path, steps: int) -> None:
        self.database, self.log, self.steps = directory / "app.db", directory / "log", steps

    def ran(self) -> list[int]:
        """The steps that ran so far."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def kill_once(self, hang_at: int, at_least: int) -> None:
        """Start the process, and kill it once that many steps have run."""
        command = [sys.executable, "-m", "tests.execution.killed", str(self.database), str(self.log)]
        process = subprocess.Popen([*command, str(self.steps), str(hang_at)], cwd=ROOT)
        try:
            give_up = time.monotonic() + PATIENCE
            while len(self.ran()) < at_least and process.poll() is None:
                assert time.monotonic() < give_up, "the process does not get on"
                time.sleep(0.005)
        finally:
            process.kill()
            process.wait(timeout=PATIENCE)

    async def finish(self) -> int | None:
        """Go on in this process, to the end."""
        driver = await open_driver(f"sqlite:///{self.database}")
        try:
            before = await read_history(driver, "i")
            assert before.status is Status.RUNNING
            assert all(entry.status is EntryStatus.COMPLETED for entry in before)
            result = await run_workflow(count, driver=driver, instance_id="i")
            assert result.status is Status.COMPLETED
            return result.output
        finally:
            await driver.aclose()


async def test_killed_in_the_middle_of_a_step(tmp_path: Path) -> None:
    victim = Victim(tmp_path, 6)
    victim.kill_once(hang_at=3, at_least=4)
    assert victim.ran() == [0, 1, 2, 3]
    assert await victim.finish() == sum(range(6))
    assert victim.ran() == [0, 1, 2, 3, 3, 4, 5], "finished steps do not run again; the interrupted one does"


@pytest.mark.parametrize("kills", [3])
async def test_killed_again_and_again(tmp_path: Path, kills: int) -> None:
    steps = 300
    victim = Victim(tmp_path, steps)
    for number in range(kills):
        enough = (number + 1) * 60
        # On a machine that is slow to kill, it does not get any further than this.
        victim.kill_once(hang_at=enough + 50, at_least=enough)
    assert await victim.finish() == sum(range(steps))
    counts = Counter(victim.ran())
    assert set(counts) == set(range(steps)), "no step is lost"
    assert sum(counts.values()) - steps <= kills, "at most one step for each kill runs again"
