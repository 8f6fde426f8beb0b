"""What is read from the command line: JSON, a duration, the name of an object, and a store, which is opened here."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TextIO, TypeGuard, TypeVar, cast
from urllib.parse import parse_qsl

import anyio
import click

from workflow_sdk import Client, CodecError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

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
    raise ValueError(f"{name} is not a JSON number")


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


# -- Objects of the author's ------------------------------------------------------------------------------------------


def named(target: str, example: str) -> object:
    """The object that `module:attribute` names. The module may also be in the working directory."""
    module_name, colon, path = target.partition(":")
    if not module_name or not colon or not path:
        kind = example.partition(":")[2]
        raise click.UsageError(f"write module:{kind}, such as {example}, not {target!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a script has its own directory there
    found: Any = _import(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise click.UsageError(f"the module {module_name!r} has no {path!r}") from None
    return found


def made(target: str, make: Callable[[], object], what: str) -> object:
    """What the function of the author returns; an error of that function is told in one line."""
    try:
        return make()
    except Exception as error:  # as may any function of an author
        raise _author_error(f"{target} has made no {what}", error) from error


def _author_error(what: str, error: Exception) -> click.ClickException:
    """An error in the code of an author, in one line and with its place."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return click.ClickException(f"{what}: {type(error).__name__}: {error}{place}")


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise click.UsageError(f"there is no module {name!r}") from None
        raise _author_error(f"the module {name!r} can't be imported", error) from error
    except Exception as error:  # an author's module may raise anything
        raise _author_error(f"the module {name!r} can't be imported", error) from error


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
    """What the command line says before the command, or the environment."""

    store: str | None
    codec: str | None


@dataclass(frozen=True, slots=True)
class Store:
    """A store, and the codec that its values pass through."""

    url: str
    codec: Codec | Sequence[Codec] | None


def run(store: Store, use: Callable[[Client], Awaitable[T]]) -> T:
    """Open the store, and return what `use` returns for a client of it."""

    async def opened() -> T:
        async with Client(store.url, codec=store.codec) as client:
            try:
                return await use(client)
            except CodecError as error:
                if store.codec is None and any(word in str(error) for word in ("the stored bytes", "without codec=")):
                    raise CodecError(f"{error}; if values pass through a codec, --codec names it") from None
                raise

    return anyio.run(opened)


def store_options(*, creates: bool = False) -> Callable[[F], F]:
    """Give a command the parameter `store`: named after the command, before it, or in the environment.

    A store that does not exist is an error, unless the command `creates` it.
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
    """The store of a command, as named after the command or else before it."""
    # An empty name is a mistake, such as a variable of a shell that is not set. It must not fall back to another store.
    url = before.store if url is None else url
    if not url:
        raise click.UsageError("which store? Give --store, such as sqlite:///app.db, or set WORKFLOW_STORE")
    codec = before.codec if codec is None else codec
    return Store(url if creates else _existing(url), _codec(codec) if codec else None)


def _existing(url: str) -> str:
    """The URL of a store that has to exist. A `mode` in the URL is the decision of the user."""
    location, mark, query = url.partition("?")
    if not url.startswith("sqlite://") or any(name == "mode" for name, _ in parse_qsl(query, keep_blank_values=True)):
        return url
    return f"{location}?{query}&mode=rw" if mark and query else f"{location}?mode=rw"


def _codec(target: str) -> Codec | Sequence[Codec]:
    found = named(target, _CODEC_EXAMPLE)
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
