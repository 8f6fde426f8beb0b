"""The group of all commands, and how it tells an error: in one line, and by the exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, NoReturn, TextIO

import click

from workflow_sdk.cli.checking import check, dump
from workflow_sdk.cli.doctor import doctor
from workflow_sdk.cli.instances import cancel, list_, prune, recover, restart_from, result, send, show, start
from workflow_sdk.cli.options import Given
from workflow_sdk.cli.output import EXIT_FAILED, EXIT_USAGE, safe
from workflow_sdk.cli.schedules import delete_schedule, pause_schedule, resume_schedule, schedules
from workflow_sdk.cli.tasks import assign, complete, release, tasks
from workflow_sdk.cli.watch import watch
from workflow_sdk.cli.worker import worker
from workflow_sdk.errors import DefinitionError, WorkflowSDKError

EXIT_INTERRUPTED = 130
"""What shells exit with after SIGINT: 128 and its number."""
EXIT_PIPE = 141
"""The same of SIGPIPE, which ends other programs when nobody reads their output any more."""
MESSAGE_CHARS_MAX = 2000
"""How much of an error is printed: the exception of an author may hold megabytes."""


class _ReaderGoneError(Exception):
    """Nobody reads the output any more. It is no OSError, which click would deal with itself."""


class App(click.Group):
    """A group of commands that tells an error in one line, and by the exit code."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command line, and exit."""
        extra["standalone_mode"] = False  # click would tell a usage error in three lines
        # Printing must not fail, whatever characters are in the store and whatever the terminal can show.
        out: object = sys.stdout
        if out is None:  # closed by whoever has started us
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the end
        elif isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="backslashreplace")
        code = self._code(*args, **extra)
        _abandon(sys.stderr)
        sys.exit(code)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a command line."""
        for arg in args:
            if any("\ud800" <= c <= "\udfff" for c in arg):
                raise click.UsageError(f"{arg!r:.100} is no text in the encoding of this terminal")
            if "\0" in arg:
                raise click.UsageError(f"{arg!r:.100} holds a NUL, which no argument can")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command of this context."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGoneError from None

    def _code(self, *args: Any, **extra: Any) -> int:
        try:
            code = super().main(*args, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return EXIT_USAGE
        except click.ClickException as error:
            return _tell(error.format_message(), error.exit_code)
        except click.Abort:
            return EXIT_INTERRUPTED
        except DefinitionError as error:
            return _tell(str(error), EXIT_USAGE)
        except WorkflowSDKError as error:
            return _tell(str(error), EXIT_FAILED)
        except _ReaderGoneError:
            _abandon_output()
            return EXIT_PIPE
        except OSError as error:
            _abandon_output()
            return _tell(str(error) or type(error).__name__, EXIT_FAILED)
        return code if isinstance(code, int) else 0


def _tell(message: str, code: int) -> int:
    line = safe(" ".join(message.split()))
    click.echo(f"workflow: {line if len(line) <= MESSAGE_CHARS_MAX else f'{line[:MESSAGE_CHARS_MAX]}...'}", err=True)
    return code


def _abandon_output() -> None:
    _abandon(sys.stdout)


def _abandon(stream: TextIO | None) -> None:
    """Drop what a stream could not write, or Python would try again at its end, and exit with 120."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--store", metavar="URL", envvar="WORKFLOW_STORE", help="The store; or in WORKFLOW_STORE.")
@click.option("--codec", metavar="MODULE:OBJECT", envvar="WORKFLOW_CODEC", help="Its codec; or in WORKFLOW_CODEC.")
@click.version_option(package_name="workflow-sdk", message="%(version)s")
@click.pass_context
def cli(ctx: click.Context, store: str | None, codec: str | None) -> None:
    """Run workflows, and look after their instances."""
    ctx.obj = Given(store, codec)


for _command in (
    worker,
    start,
    list_,
    show,
    send,
    result,
    cancel,
    recover,
    restart_from,
    prune,
    tasks,
    complete,
    assign,
    release,
    watch,
    schedules,
    pause_schedule,
    resume_schedule,
    delete_schedule,
    check,
    dump,
    doctor,
):
    cli.add_command(_command)
