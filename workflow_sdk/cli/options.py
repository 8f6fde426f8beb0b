"""What is read from the command line: a store, an instance, JSON, a duration."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TextIO, TypeGuard, TypeVar, cast
from urllib.parse import parse_qsl

import click

from workflow_sdk.cli.named import find, made

__all__ = ["Given", "Store", "duration", "given_store", "instance_argument", "json_value", "store_options"]

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)", re.ASCII)
_SECONDS_MAX = 100 * 365 * 86_400.0
_CODEC_EXAMPLE = "app:codec"


def json_value(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """A value as JSON, or `-` for what comes over standard input."""
    if value is None:
        return None
    text = value if value != "-" else _standard_input()
    try:
        return json.loads(text, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"standard input is no text ({error})") from None
    except (ValueError, RecursionError) as error:
        shown = text if isinstance(text, str) else text.decode(errors="replace")
        raise click.BadParameter(f"no JSON ({error}): {shown:.60}; a text is written as '\"text\"'") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _standard_input() -> bytes:
    stream: TextIO | None = sys.stdin
    if stream is None:
        raise click.BadParameter("standard input is closed")
    return stream.buffer.read()  # JSON is UTF-8, whatever the terminal is


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds, or a number with its unit."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value)
    seconds = float(found[1]) * _UNITS[found[2]] if found else -1.0
    if not 0 <= seconds <= _SECONDS_MAX:
        raise click.BadParameter(f"a duration is a number of seconds, or one such as 90s, 15m, 12h, 30d, not {value!r}")
    return seconds


def instance_argument(command: F) -> F:
    """The id of an instance."""
    return click.argument("id", metavar="ID")(command)


# -- The store --------------------------------------------------------------------------------------------------------


class Codec(Protocol):
    """What `Client` takes as its codec."""

    def encode(self, data: bytes, /) -> bytes:
        """What to store for `data`."""
        ...

    def decode(self, data: bytes, /) -> bytes:
        """What `encode` was given."""
        ...


@dataclass(frozen=True, slots=True)
class Given:
    """What was said before the command, or in the environment."""

    store: str | None
    codec: str | None


@dataclass(frozen=True, slots=True)
class Store:
    """A store, and what its values pass through."""

    url: str
    codec: Codec | Sequence[Codec] | None


def store_options(*, creates: bool = False) -> Callable[[F], F]:
    """Give a command its `store`: from after the command, before it, or the environment.

    Unless it `creates` one, a store that is not there is an error.
    """

    def decorate(command: F) -> F:
        @click.option("--store", metavar="URL", help="The store; or in WORKFLOW_STORE. Such as sqlite:///app.db.")
        @click.option("--codec", metavar="MODULE:OBJECT", help="What its values pass through; or in WORKFLOW_CODEC.")
        @click.pass_context
        @wraps(command)
        def with_store(ctx: click.Context, /, *args: Any, store: str | None, codec: str | None, **others: Any) -> Any:
            found = given_store(cast("Given", ctx.obj), store, codec, creates=creates)
            return command(*args, store=found, **others)

        return cast("F", with_store)

    return decorate


def given_store(before: Given, url: str | None, codec: str | None, *, creates: bool = False) -> Store:
    """The store that a command is for, from what was said after it and before it."""
    # What is given but empty is a slip, such as a variable of a shell that is not set: no other store will do for it.
    url = before.store if url is None else url
    if not url:
        raise click.UsageError("which store? Give --store, such as sqlite:///app.db, or set WORKFLOW_STORE")
    codec = before.codec if codec is None else codec
    return Store(url if creates else _existing(url), _codec(codec) if codec else None)


def _existing(url: str) -> str:
    """The URL of a store that has to be there. An explicit `mode` is the user's own decision."""
    location, mark, query = url.partition("?")
    if not url.startswith("sqlite://") or any(name == "mode" for name, _ in parse_qsl(query, keep_blank_values=True)):
        return url
    return f"{location}?{query}&mode=rw" if mark and query else f"{location}?mode=rw"


def _codec(target: str) -> Codec | Sequence[Codec]:
    found = find(target, _CODEC_EXAMPLE)
    if callable(found) and (isinstance(found, type) or not _is_codec(found)):
        found = made(target, found, "codec")
    if _is_codec(found):
        return found
    several = _several(found)
    codecs = [codec for codec in several if _is_codec(codec)]
    if codecs and len(codecs) == len(several):
        return codecs
    raise click.UsageError(f"{target} is {type(found).__name__!r}: no codec, which has `encode` and `decode`")


def _several(found: object) -> Sequence[object]:
    return cast("Sequence[object]", found) if isinstance(found, (list, tuple)) else ()


def _is_codec(found: object) -> TypeGuard[Codec]:
    return all(callable(getattr(found, name, None)) for name in ("encode", "decode"))
