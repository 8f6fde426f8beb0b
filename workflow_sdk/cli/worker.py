"""Running a runtime until it is told to stop, in one process or several."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import anyio
import anyio.lowlevel
import click
from click.core import ParameterSource

from workflow_sdk import Runtime, Workflow
from workflow_sdk.cli.options import made, named
from workflow_sdk.cli.output import say
from workflow_sdk.cli.team import RUNS, supervise


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
        if ctx.parent is not None and ctx.parent.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"a worker's {name} is that of its runtime; --{name} is for the other commands")
    if uvloop and find_spec("uvloop") is None:
        raise click.UsageError("uvloop is not installed; install workflow-sdk[uvloop], or leave out --uvloop")
    found = named(target, "app:runtime")
    if processes > 1:
        return anyio.run(supervise, [target, *(["--uvloop"] if uvloop else [])], processes)
    # Nothing, if the module has set logging up itself.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    anyio.run(_serve, _runtime(target, found), target, team, backend_options={"use_uvloop": uvloop})
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


def _runtime(target: str, found: object) -> Runtime:
    """The runtime, if need be made by the function that was named."""
    anything: Any = found
    if not isinstance(found, Runtime) and callable(found) and not isinstance(anything, type | Workflow):
        make: Callable[[], Any] = anything
        found = made(target, make, "runtime")
    if isinstance(found, Runtime):
        return found
    raise click.UsageError(f"{target} is {type(found).__name__!r}: no Runtime, and no function that returns one")
