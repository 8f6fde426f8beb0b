"""Running a runtime until it is told to stop, in one process or several."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from subprocess import DEVNULL
from typing import Any

import anyio
import click
from anyio.abc import Process
from click.core import ParameterSource

from workflow_sdk import Runtime
from workflow_sdk.cli.app import EXIT_FAILED

__all__ = ["worker"]

RESTART_SECONDS = 1.0


@click.command()
@click.argument("target", metavar="MODULE:RUNTIME")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="How many of them.")
@click.pass_context
def worker(ctx: click.Context, target: str, processes: int) -> int:
    """Run workflows until SIGTERM or SIGINT.

    MODULE:RUNTIME names a Runtime, or a function without parameters that returns one; the module is also looked for in
    the working directory. What is under way is let finish, for as long as the runtime's grace period.

    With several processes, one that was killed is started again. One that fails ends them all.
    """
    if ctx.parent is not None and ctx.parent.get_parameter_source("store") is ParameterSource.COMMANDLINE:
        raise click.UsageError("a worker's store is that of its runtime; --store is for the other commands")
    found = _find(target)
    if processes > 1:
        return anyio.run(_supervise, target, processes)
    # Nothing, if the module has set logging up itself.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    anyio.run(_serve, _runtime(target, found), target)
    return 0


async def _serve(runtime: Runtime, target: str) -> None:
    async with runtime:
        click.echo(f"workflow: {target} runs in process {os.getpid()}", err=True)
        await runtime.serve()


# -- From `module:runtime` to a runtime -------------------------------------------------------------------------------


def _find(target: str) -> object:
    """What `module:attribute` names."""
    module_name, colon, path = target.partition(":")
    if not module_name or not colon or not path:
        raise click.UsageError(f"write module:runtime, such as app:runtime, not {target!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a script has its own directory there
    found: Any = _import(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise click.UsageError(f"the module {module_name!r} has no {path!r}") from None
    return found


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise click.UsageError(f"there is no module {name!r}") from None
        raise _author_error(f"the module {name!r} can't be imported", error) from error
    except Exception as error:  # an author's module may raise anything
        raise _author_error(f"the module {name!r} can't be imported", error) from error


def _runtime(target: str, found: object) -> Runtime:
    """The runtime, if need be made by the function that was named."""
    if not isinstance(found, Runtime) and callable(found) and not isinstance(found, type):
        make: Callable[[], object] = found
        try:
            found = make()
        except Exception as error:  # as may an author's function
            raise _author_error(f"{target} has made no runtime", error) from error
    if isinstance(found, Runtime):
        return found
    raise click.UsageError(f"{target} is {type(found).__name__!r}: no Runtime, and no function that returns one")


def _author_error(what: str, error: Exception) -> click.ClickException:
    """One line, with the place."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return click.ClickException(f"{what}: {type(error).__name__}: {error}{place}")


# -- Several processes ------------------------------------------------------------------------------------------------


class _Team:
    """Processes that are started, kept, and stopped together."""

    def __init__(self, target: str) -> None:
        # A module, not the script: that may be any file.
        self.command = [sys.executable, "-m", "workflow_sdk.cli", "worker", target]
        self.running: set[Process] = set()
        self.stopping = anyio.Event()
        self.code = 0

    def stop(self) -> None:
        """Have every process shut down gracefully."""
        self.stopping.set()
        for process in self.running:
            process.terminate()

    async def keep(self) -> None:
        """Run a process, and again whenever it is killed."""
        while not self.stopping.is_set():
            code = await self.run()
            if self.stopping.is_set() or code == 0:
                # Stopped before it could listen to signals is stopped, too.
                self.code = self.code or (code if code not in (0, -signal.SIGTERM) else 0)
                return
            if code > 0:
                self.code = code
                self.stop()
                return
            click.echo(f"workflow: a worker was killed by signal {-code}; it is started again", err=True)
            with anyio.move_on_after(RESTART_SECONDS):
                await self.stopping.wait()

    async def run(self) -> int:
        """The exit code of one process."""
        # In a group of its own, or Ctrl-C would reach it twice, from the terminal and from here; the second kills.
        process = await anyio.open_process(
            self.command, stdin=DEVNULL, stdout=None, stderr=None, start_new_session=True
        )
        self.running.add(process)
        if self.stopping.is_set():
            process.terminate()
        try:
            return await process.wait()
        finally:
            self.running.discard(process)


async def _supervise(target: str, processes: int) -> int:
    team = _Team(target)
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
