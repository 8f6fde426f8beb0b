"""The group of all commands: the store they work on, and how an error is told."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TextIO, TypeVar

import anyio
import click

from workflow_sdk import Client, CodecError, DefinitionError, WorkflowSDKError
from workflow_sdk.cli.options import Given, Store
from workflow_sdk.cli.output import safe

__all__ = ["EXIT_FAILED", "EXIT_USAGE", "App", "group", "run"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""As shells have it: 128, and the number of SIGINT."""
EXIT_PIPE = 141
"""The same of SIGPIPE, which is what ends other programs whose reader has gone."""
MESSAGE_CHARS_MAX = 2000
"""Of an error: an author's exception may hold megabytes."""

T = TypeVar("T")


class _ReaderGoneError(Exception):
    """Nobody reads the output any more. Not an OSError, which click would take for its own affair."""


class App(click.Group):
    """A group that tells an error in one line, and by its exit code."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command line, and exit."""
        extra["standalone_mode"] = False  # click would tell a usage error in three lines
        # Whatever characters are in the store, and whatever the terminal can show: printing never fails.
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
    """What nobody reads is not tried again when Python ends, which would make an exit code of its own of it: 120."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run(store: Store, use: Callable[[Client], Awaitable[T]]) -> T:
    """Open the store, and do something with it."""

    async def opened() -> T:
        async with Client(store.url, codec=store.codec) as client:
            try:
                return await use(client)
            except CodecError as error:
                if store.codec is None and any(word in str(error) for word in ("the stored bytes", "without codec=")):
                    raise CodecError(f"{error}; if values pass through a codec, --codec names it") from None
                raise

    return anyio.run(opened)


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--store", metavar="URL", envvar="WORKFLOW_STORE", help="The store; or in WORKFLOW_STORE.")
@click.option("--codec", metavar="MODULE:OBJECT", envvar="WORKFLOW_CODEC", help="Its codec; or in WORKFLOW_CODEC.")
@click.version_option(package_name="workflow-sdk", message="%(version)s")
@click.pass_context
def group(ctx: click.Context, store: str | None, codec: str | None) -> None:
    """Run workflows, and look after their instances."""
    ctx.obj = Given(store, codec)
