"""Whether the code at hand still fits what is under way: before it is deployed, or anywhere else with a dump."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import click

from workflow_sdk import ReplayReport, Runtime, Workflow, dump_histories, replay_check
from workflow_sdk.cli.app import EXIT_FAILED
from workflow_sdk.cli.named import find, made
from workflow_sdk.cli.options import Given, Store, given_store, store_options
from workflow_sdk.cli.output import in_json, safe

__all__ = ["check", "dump"]

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLE = "app:runtime"


def finished_option(command: F) -> F:
    """How many of those that have ended."""
    text = "And N finished ones of each workflow."
    return click.option("--finished", type=click.IntRange(min=0), default=0, metavar="N", help=text)(command)


@click.command()
@click.argument("target", metavar="MODULE:WORKFLOWS")
@finished_option
@click.option("--dump", type=click.Path(dir_okay=False, path_type=Path), help="What `workflow dump` has written.")
@click.option("--store", metavar="URL", help="The store; or in WORKFLOW_STORE.")
@click.option("--codec", metavar="MODULE:OBJECT", help="What its values pass through; or in WORKFLOW_CODEC.")
@click.option("--json", "as_json", is_flag=True, help="For a program.")
@click.pass_context
def check(
    ctx: click.Context,
    target: str,
    finished: int,
    dump: Path | None,
    store: str | None,
    codec: str | None,
    as_json: bool,
) -> int:
    """Replay what is under way against the code at hand.

    MODULE:WORKFLOWS names a Runtime, a workflow, several, or a function that returns one of these. Nothing is executed,
    and nothing is written. The exit code is 1 if there is an instance that would not go on with this code, or one whose
    workflow a Runtime that was named does not have.
    """
    named = _made(target, find(target, EXAMPLE))
    workflows = _workflows(target, named)
    handlers = named.handlers if isinstance(named, Runtime) else ()
    given = cast("Given", ctx.obj)
    if dump is not None and store is not None:
        raise click.UsageError("--dump takes the place of a store: give one of the two")
    # A dump has its values as the store has them.
    found = given_store(given, store or ("memory://" if dump is not None else None), codec)
    source = found.url if dump is None else dump
    report = anyio.run(lambda: replay_check(source, workflows, finished=finished, codec=found.codec, handlers=handlers))
    if as_json:
        click.echo(in_json(_plain(report)))
    else:
        click.echo("\n".join(safe(line) for line in str(report).splitlines()))
    # A runtime is all that will run: what it does not know, nobody takes.
    left_out = bool(report.unknown) and isinstance(named, Runtime)
    return EXIT_FAILED if left_out or not report.ok else 0


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@finished_option
@store_options()
def dump(file: Path, finished: int, store: Store) -> None:
    """Write what is under way to FILE, for `workflow check --dump`.

    It has all that is recorded, with inputs and results.
    """
    count = anyio.run(lambda: dump_histories(store.url, file, finished=finished, codec=store.codec))
    click.echo(f"{count} {'history' if count == 1 else 'histories'}")


def _workflows(target: str, named: object) -> list[Workflow[Any, Any]]:
    several = _several(named)
    if not all(isinstance(flow, Workflow) for flow in several):
        kind = type(several[0]).__name__ if len(several) == 1 else "several things"
        raise click.UsageError(f"{target} is {kind!r}: no workflows, no Runtime, and returns none")
    return several


def _made(target: str, found: object) -> object:
    if not callable(found) or isinstance(found, (Workflow, Runtime, type)):
        return found  # pyright: ignore[reportUnknownVariableType]  # narrowed to a workflow of anything
    make: Callable[[], object] = found
    return made(target, make, "workflows")


def _several(found: object) -> list[Any]:
    if isinstance(found, Runtime):
        return list(found.workflows)
    return list(cast("Iterable[Any]", found)) if isinstance(found, (list, tuple, set)) else [found]


def _plain(report: ReplayReport) -> dict[str, object]:
    return {
        "replayed": dict(report.replayed),
        "unknown": dict(report.unknown),
        "problems": [
            {
                "id": problem.instance_id,
                "workflow": problem.workflow,
                "status": problem.status,
                "kind": problem.kind,
                "message": problem.message,
            }
            for problem in report.problems
        ],
    }
