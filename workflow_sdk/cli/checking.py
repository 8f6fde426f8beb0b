"""The commands that find out whether code still fits the instances that are under way, in a store or in a dump."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import click

from workflow_sdk import ReplayReport, Runtime, Workflow, dump_histories, replay_check
from workflow_sdk.cli.options import Codec, Given, Store, given_store, made, named, store_options
from workflow_sdk.cli.output import EXIT_FAILED, in_json, safe

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLE = "app:runtime"


def finished_option(command: F) -> F:
    """The option for how many finished instances are replayed, too."""
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
    found = _made(target, named(target, EXAMPLE))
    workflows = _workflows(target, found)
    runtime = found if isinstance(found, Runtime) else None
    handlers = runtime.handlers if runtime is not None else ()
    source, codecs = _source(cast("Given", ctx.obj), dump, store, codec)
    report = anyio.run(lambda: replay_check(source, workflows, finished=finished, codec=codecs, handlers=handlers))
    click.echo(in_json(_plain(report)) if as_json else _text(report))
    # A runtime is all that will run: nobody takes an instance of a workflow that it does not know.
    left_out = runtime is not None and bool(report.unknown)
    return EXIT_FAILED if left_out or not report.ok else 0


def _source(
    given: Given, dump: Path | None, store: str | None, codec: str | None
) -> tuple[str | Path, Codec | Sequence[Codec] | None]:
    """The store or the dump that is read, and the codec of its values."""
    if dump is None:
        found = given_store(given, store or None, codec)
        return found.url, found.codec
    if store is not None:
        raise click.UsageError("--dump takes the place of a store: give one of the two")
    # The values in a dump are as the store has them, so they need the codec. The store itself is not opened.
    return dump, given_store(given, "memory://", codec).codec


def _text(report: ReplayReport) -> str:
    return "\n".join(safe(line) for line in str(report).splitlines())


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
