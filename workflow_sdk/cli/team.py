"""Several processes of a worker: started, kept, and stopped together."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from subprocess import DEVNULL

import anyio
from anyio.abc import Process

from workflow_sdk.cli.output import EXIT_FAILED, say

RUNS = b"r"
"""What a process says on its socket once it runs."""

RESTART_SECONDS = 1.0
RESTART_SECONDS_MAX = 30.0
"""The pause before a restart doubles up to this. After a process that has lasted as long, it is short again."""


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended, whether it had begun to run workflows, and how long it lasted."""

    pid: int
    code: int
    has_run: bool
    lasted: float

    def __str__(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"has ended with exit code {self.code}"
        return f"process {self.pid} {how}"


class Team:
    """Processes that are kept running and stopped together."""

    def __init__(self, arguments: Sequence[str]) -> None:
        # A module, not the script: that may be any file.
        self.command: list[str] = [sys.executable, "-m", "workflow_sdk.cli", "worker", *arguments]
        self.running: set[Process] = set()
        self.stopping: anyio.Event = anyio.Event()
        self.code: int = 0

    def stop(self) -> None:
        """Have every process shut down gracefully."""
        self.stopping.set()
        for process in self.running:
            _terminate(process)

    async def keep(self) -> None:
        """Run a process, and again whenever it ends by itself."""
        pause, ever_ran = RESTART_SECONDS, False
        while not self.stopping.is_set():
            end = await self.run()
            if self.stopping.is_set():
                # Stopped before it could listen to signals is stopped, too.
                self.code = self.code or (end.code if end.code != -signal.SIGTERM else 0)
                return
            ever_ran = ever_ran or end.has_run
            if not ever_ran:
                # What can't be started now can't be the next time either, so whoever started us has to know.
                say(f"{end} before it ran; all are stopped")
                self.code = end.code or EXIT_FAILED
                self.stop()
                return
            if end.lasted >= RESTART_SECONDS_MAX:
                pause = RESTART_SECONDS
            say(f"{end}; another is started in {pause:.0f} s")
            with anyio.move_on_after(pause):
                await self.stopping.wait()
            pause = min(2 * pause, RESTART_SECONDS_MAX)

    async def run(self) -> End:
        """One process, to its end."""
        # Only this process has our end of the pair. The child finds it closed when this process ends, even by SIGKILL.
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                # In a session of its own. Else Ctrl-C would reach it twice, from the terminal and from here, and the
                # second signal ends it at once.
                process = await anyio.open_process(
                    [*self.command, "--team", str(theirs.fileno())],
                    stdin=DEVNULL,
                    stdout=None,
                    stderr=None,
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                )
            began = time.monotonic()
            self.running.add(process)
            if self.stopping.is_set():
                _terminate(process)
            try:
                code = await process.wait()
            finally:
                self.running.discard(process)
            ours.setblocking(False)
            said = b""
            with suppress(OSError):
                said = ours.recv(len(RUNS))
            return End(process.pid, code, said == RUNS, time.monotonic() - began)


def _terminate(process: Process) -> None:
    with suppress(ProcessLookupError):  # it has ended just now
        process.terminate()


async def supervise(arguments: Sequence[str], processes: int) -> int:
    """Keep so many workers with these arguments until SIGTERM or SIGINT; the exit code."""
    team = Team(arguments)
    async with anyio.create_task_group() as group:

        async def listen() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    team.stop()

        group.start_soon(listen)
        async with anyio.create_task_group() as workers:
            for _ in range(processes):
                workers.start_soon(team.keep)
        group.cancel_scope.cancel()
    return team.code if team.code >= 0 else EXIT_FAILED
