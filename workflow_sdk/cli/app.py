"""The group of all commands: the store they work on, and how an error is told."""

from __future__ import annotations

import io
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import anyio
import click

from workflow_sdk import Client, DefinitionError, WorkflowSDKError
from workflow_sdk.cli.output import safe

__all__ = ["EXIT_FAILED", "EXIT_USAGE", "App", "group", "run"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""As shells have it: 128, and the number of SIGINT."""

T = TypeVar("T")


class App(click.Group):
    """A group that tells an error in one line, and by its exit code."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command line, and exit."""
        extra["standalone_mode"] = False  # click would tell a usage error in three lines
        # Whatever characters are in the store, and whatever the terminal can show: printing never fails.
        out: object = sys.stdout
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="backslashreplace")
        sys.exit(self._code(*args, **extra))

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
        except OSError as error:
            # Not that the reader of a pipe, such as `head`, has had enough: click ends quietly then.
            return _tell(str(error), EXIT_FAILED)
        return code if isinstance(code, int) else 0


def _tell(message: str, code: int) -> int:
    click.echo(f"workflow: {safe(' '.join(message.split()))}", err=True)
    return code


def run(store: str, use: Callable[[Client], Awaitable[T]]) -> T:
    """Open the store, and do something with it."""

    async def opened() -> T:
        async with Client(store) as client:
            return await use(client)

    return anyio.run(opened)


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--store", metavar="URL", envvar="WORKFLOW_STORE", help="The store; or in WORKFLOW_STORE.")
@click.version_option(package_name="workflow-sdk", message="%(version)s")
@click.pass_context
def group(ctx: click.Context, store: str | None) -> None:
    """Run workflows, and look after their instances."""
    ctx.obj = store
