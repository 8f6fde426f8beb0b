"""Running a runtime until it is told to stop, in one process or in several that are kept and stopped together."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from subprocess import DEVNULL

import anyio
import anyio.lowlevel
import click
from anyio.abc import Process
from click.core import ParameterSource

from workflow_sdk import Runtime
from workflow_sdk.cli.options import made, named
from workflow_sdk.cli.output import EXIT_FAILED, say

RUNS = b"r"
"""What a process of a team says on its socket once it runs."""

RESTART_SECONDS = 1.0
RESTART_SECONDS_MAX = 30.0
"""The pause before a restart doubles up to this. After a process that has lasted as long, it is short again."""


@click.command()
@click.argument("target", metavar="MODULE:RUNTIME")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="How many of them.")
@click.option("--uvloop", is_flag=True, help="Run on the event loop uvloop, which the extra `uvloop` installs.")
@click.option("--team", type=int, hidden=True)
@click.pass_context
def worker(ctx: click.Context, target: str, processes: int, uvloop: bool, team: int | None) -> int:
    """Run workflows until SIGTERM or SIGINT.

    MODULE:RUNTIME names a Runtime, or a function without parameters that returns one; the module is also looked for in
    the working directory. What is under way is let finish, for as long as the runtime's grace period.

    With several processes, one that ends by itself is started again, unless it has never run: then all end.
    """
    for name in ("store", "codec"):
        if ctx.find_root().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"a worker's {name} is that of its runtime; --{name} is for the other commands")
    if uvloop and find_spec("uvloop") is None:
        raise click.UsageError("uvloop is not installed; install workflow-sdk[uvloop], or leave out --uvloop")
    found = named(target, "app:runtime")
    if processes > 1:
        return anyio.run(_supervise, [target, *(["--uvloop"] if uvloop else [])], processes)
    # Nothing, if the module has set logging up itself.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    runtime = made(target, found, "runtime")
    if not isinstance(runtime, Runtime):
        kind = type(runtime).__name__
        raise click.UsageError(f"{target} is {kind!r}: no Runtime, and no function that returns one")
    anyio.run(_serve, runtime, target, team, backend_options={"use_uvloop": uvloop})
    return 0


async def _serve(runtime: Runtime, target: str, team: int | None) -> None:
    async with runtime, anyio.create_task_group() as group:

        async def serve() -> None:
            await runtime.serve()
            group.cancel_scope.cancel()

        group.start_soon(serve)
        await anyio.lowlevel.checkpoint()  # so that it listens to signals before the line below invites one
        say(f"{target} runs in process {os.getpid()}")
        if team is not None:
            await _until_alone(team)
            say(f"process {os.getpid()} shuts down: the one that keeps it is gone")
            group.cancel_scope.cancel()


async def _until_alone(team: int) -> None:
    """Wait until the process that keeps the team is gone, however it ended."""
    with socket.socket(fileno=team) as keeper:
        with suppress(OSError):  # it may be gone by now
            keeper.send(RUNS)
        await anyio.wait_readable(keeper)  # nothing is ever sent to here, so this is the end of the other process


# -- Several processes ------------------------------------------------------------------------------------------------


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


async def _supervise(arguments: Sequence[str], processes: int) -> int:
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
