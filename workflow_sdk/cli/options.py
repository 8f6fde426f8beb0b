"""What is read from the command line: a store, an instance, JSON, a duration."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["duration", "instance_argument", "json_value", "store_option"]

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)", re.ASCII)
_SECONDS_MAX = 100 * 365 * 86_400.0


def json_value(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """A value as JSON, or `-` for what comes over standard input."""
    if value is None:
        return None
    text = sys.stdin.read() if value == "-" else value
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"no JSON ({error}): {text:.60}; a text is written as '\"text\"'") from None


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds, or a number with its unit."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value)
    seconds = float(found[1]) * _UNITS[found[2]] if found else -1.0
    if not 0 <= seconds <= _SECONDS_MAX:
        raise click.BadParameter(f"a duration is a number of seconds, or one such as 90s, 15m, 12h, 30d, not {value!r}")
    return seconds


def _store(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    found = value or ctx.obj
    if not isinstance(found, str) or not found:
        raise click.UsageError("which store? Give --store, such as sqlite:///app.db, or set WORKFLOW_STORE")
    return found


def store_option(command: F) -> F:
    """The store: after the command, before it, or in the environment."""
    text = "The store; or in WORKFLOW_STORE. Such as sqlite:///app.db."
    return click.option("--store", metavar="URL", callback=_store, help=text)(command)


def instance_argument(command: F) -> F:
    """The id of an instance."""
    return click.argument("id", metavar="ID")(command)
