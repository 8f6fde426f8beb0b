"""Worker processes on one SQLite file, and what is looked at when they are gone."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import anyio.to_thread

from tests.laws.examples import is_fixed
from tests.laws.processes.worker import stores
from tests.patience import PATIENCE
from workflow_sdk import Runtime

__all__ = ["Lines", "Workers", "chance", "is_whole", "pause", "until"]

ROOT = Path(__file__).parents[3]
TTL = 0.5


def environment() -> dict[str, str]:
    """The environment of a worker: its modules are compiled once for all workers, wherever that is kept.

    Compiling them takes a worker longer than all the rest of its start.
    """
    found = dict(os.environ)
    if found.pop("PYTHONDONTWRITEBYTECODE", ""):
        found["PYTHONPYCACHEPREFIX"] = str(ROOT / ".pytest_cache" / "pycache")
    return found


async def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Return once it holds; it is looked at again and again."""
    give_up = time.monotonic() + seconds
    while not holds():  # what another process does sets no event here
        assert time.monotonic() < give_up, "it does not come to that"
        await anyio.sleep(0.005)


def chance() -> random.Random:
    """Random numbers by a seed, which is printed and can be given with WORKFLOW_SDK_SEED."""
    seed = int(os.environ.get("WORKFLOW_SDK_SEED") or (0 if is_fixed() else random.randrange(1 << 32)))
    print(f"WORKFLOW_SDK_SEED={seed}")
    return random.Random(seed)


def is_whole(database: Path) -> bool:
    """Whether SQLite finds nothing wrong in the file. Another process may have it open."""
    with closing(sqlite3.connect(database, timeout=PATIENCE)) as connection:
        found = connection.execute("PRAGMA integrity_check").fetchall()
    assert found == [("ok",)], found
    return True


def is_locked(database: Path) -> bool:
    """Whether somebody is in the middle of a write."""
    with closing(sqlite3.connect(database, timeout=0.3, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


async def pause(database: Path, process: subprocess.Popen[bytes]) -> None:
    """Stop a process, but not with SQLite's lock in its hand, with which it would stop everybody."""
    while True:
        process.send_signal(signal.SIGSTOP)
        # The signal takes effect a little later, thread by thread, and one of them may be about to take the lock.
        await until(lambda: os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG) is not None)
        if not is_locked(database):
            return
        process.send_signal(signal.SIGCONT)
        await anyio.sleep(0.003)


class Lines:
    """A file to which steps append a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def __len__(self) -> int:
        return len(self())

    async def reach(self, count: int) -> None:
        """Return once there are `count` lines."""
        await until(lambda: len(self) >= count)


class Workers:
    """Worker processes on one file, which is `app.db` of the directory unless a test says otherwise."""

    def __init__(self, directory: Path, options: str = "synchronous=normal") -> None:
        self.directory, self.options = directory, options
        self.database = directory / "app.db"
        self.lines = Lines(directory / "lines")
        self.ttl = TTL
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """The store."""
        return f"sqlite:///{self.database}?{self.options}"

    @property
    def log(self) -> str:
        """Where the steps note that they have run."""
        return str(self.lines.path)

    def hold(self, step: int) -> None:
        """Have `stores` wait before the step with this number, until the next `hold` or `let_go`."""
        written = self._gate.with_suffix(".new")
        written.write_text(str(step))
        os.replace(written, self._gate)  # a worker that looks at this moment finds a whole number

    def let_go(self) -> None:
        """Have `stores` wait no more."""
        self._gate.unlink()

    @property
    def _gate(self) -> Path:
        return Path(f"{self.log}.gate")

    def start(self, *arguments: object) -> subprocess.Popen[bytes]:
        """One more; with how large its files may become, and as which user it runs."""
        command = [sys.executable, "-m", "tests.laws.processes.worker", self.url, str(self.ttl), *map(str, arguments)]
        with self._errors(len(self.processes)).open("wb") as errors:
            self.processes.append(subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=errors))
        return self.processes[-1]

    @asynccontextmanager
    async def finishing(self) -> AsyncGenerator[Runtime]:
        """A worker in this process, which is soon there: for tests that are done with what other processes do."""
        async with Runtime(self.url, workflows=[stores], lease_ttl=self.ttl) as runtime:
            yield runtime

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """What it has written to stderr so far."""
        return self._errors(self.processes.index(process)).read_text(errors="replace")

    def all_said(self) -> str:
        """What all of them have."""
        return "".join(map(self.said, self.processes))

    async def until_said(self, process: subprocess.Popen[bytes], what: str) -> None:
        """Return once it has."""
        await until(lambda: what in self.said(process))

    def _errors(self, number: int) -> Path:
        return self.directory / f"worker-{number}.txt"

    async def ended(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code of one that is ending."""
        with anyio.fail_after(PATIENCE):
            return await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)

    async def terminate(self, process: subprocess.Popen[bytes]) -> int:
        """Have one shut down."""
        process.send_signal(signal.SIGTERM)
        return await self.ended(process)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End one at once."""
        process.kill()
        process.wait(timeout=PATIENCE)

    def kill_all(self) -> None:
        """Leave none of them."""
        for process in self.processes:
            self.kill(process)
