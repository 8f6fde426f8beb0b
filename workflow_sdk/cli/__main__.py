"""`workflow`, or `python -m workflow_sdk.cli`: the group of all commands, and how it tells an error."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, NoReturn, TextIO

try:
    import click

    from workflow_sdk.cli import cells, doctor, graphs, history, instances, journals, worker
    from workflow_sdk.cli.output import EXIT_FAILED, EXIT_USAGE, safe, say
    from workflow_sdk.errors import DefinitionError, WorkflowSDKError
except ModuleNotFoundError as _error:
    if _error.name is None or _error.name.partition(".")[0] not in ("click", "rich"):
        raise
    sys.exit("workflow: the command line needs the extra `cli`: pip install 'workflow-sdk[cli]'")
except KeyboardInterrupt:
    sys.exit(130)

EXIT_INTERRUPTED = 130
"""What shells exit with after SIGINT: 128 and its number."""
EXIT_PIPE = 141
"""The same of SIGPIPE, which ends other programs when nobody reads their output any more."""
MESSAGE_CHARS_MAX = 2000
"""How much of an error is printed: the exception of an author may hold megabytes."""


class App(click.Group):
    """A group of commands that tells an error in one line, and by the exit code."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
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
        for arg in args:
            if any("\ud800" <= c <= "\udfff" for c in arg):
                raise click.UsageError(f"{arg!r:.100} is no text in the encoding of this terminal")
            if "\0" in arg:
                raise click.UsageError(f"{arg!r:.100} holds a NUL, which no argument can")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # nobody reads the output any more; click would exit with a code of its own
            _abandon(sys.stdout)
            raise click.exceptions.Exit(EXIT_PIPE) from None

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
        except WorkflowSDKError as error:
            return _tell(str(error), EXIT_USAGE if isinstance(error, DefinitionError) else EXIT_FAILED)
        except OSError as error:
            _abandon(sys.stdout)
            return _tell(str(error) or type(error).__name__, EXIT_FAILED)
        return code if isinstance(code, int) else 0


def _tell(message: str, code: int) -> int:
    line = safe(" ".join(message.split()))
    say(line if len(line) <= MESSAGE_CHARS_MAX else f"{line[:MESSAGE_CHARS_MAX]}...")
    return code


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
def cli(store: str | None, codec: str | None) -> None:
    """Run workflows, and look after their instances."""


for _module in (instances, cells, history, journals, worker, doctor):
    for _command in list(vars(_module).values()):
        if isinstance(_command, click.Command):
            cli.add_command(_command)
# Its commands are in it, and none of them beside the others.
cli.add_command(graphs.graph)


def main() -> None:
    """Run the command line of this process, and exit."""
    cli(prog_name="workflow")


if __name__ == "__main__":
    main()
