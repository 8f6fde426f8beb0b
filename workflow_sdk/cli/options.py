"""What is read from the command line: JSON, a duration, an object of the author, and a store, which is opened here."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from operator import attrgetter
from typing import Any, TextIO, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl

import anyio
import click

from workflow_sdk import Client, CodecError, Handle, Runtime, Workflow
from workflow_sdk.codecs import Codec

Codecs: TypeAlias = Codec | Sequence[Codec]
F = TypeVar("F", bound=Callable[..., Any] | click.Command)

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)", re.ASCII)
_SECONDS_MAX = 100 * 365 * 86_400.0
_NEVER_CALLED: tuple[type, ...] = (Workflow, Runtime, type)


def id_argument(use: F) -> F:
    return click.argument("id", metavar="ID")(use)


def store_option(use: F) -> F:
    text = "The store; or in WORKFLOW_STORE. Such as sqlite:///app.db."
    return click.option("--store", metavar="URL", help=text)(use)


def codec_option(use: F) -> F:
    text = "What its values pass through; or in WORKFLOW_CODEC."
    return click.option("--codec", metavar="MODULE:OBJECT", help=text)(use)


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


# -- Objects of the author's ------------------------------------------------------------------------------------------


def named(target: str, example: str) -> Any:
    """The object that `module:attribute` names. The module may also be in the working directory."""
    module_name, colon, path = target.partition(":")
    if not module_name or not colon or not path:
        kind = example.partition(":")[2]
        raise click.UsageError(f"write module:{kind}, such as {example}, not {target!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a script has its own directory there
    module = _import(module_name)
    try:
        return attrgetter(path)(module)
    except AttributeError:
        raise click.UsageError(f"the module {module_name!r} has no {path!r}") from None


def made(target: str, found: Any, what: str) -> Any:
    """What was named; or, if that is a function of the author, what it returns."""
    return _call(target, found, what) if callable(found) and not isinstance(found, _NEVER_CALLED) else found


def _call(target: str, make: Callable[[], Any], what: str) -> Any:
    try:
        return make()
    except Exception as error:  # as may any function of an author
        raise _author_error(f"{target} has made no {what}", error) from error


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except Exception as error:  # an author's module may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise click.UsageError(f"there is no module {name!r}") from None
        raise _author_error(f"the module {name!r} can't be imported", error) from error


def _author_error(what: str, error: Exception) -> click.ClickException:
    """An error in the code of an author, in one line and with its place."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return click.ClickException(f"{what}: {type(error).__name__}: {error}{place}")


# -- The store --------------------------------------------------------------------------------------------------------


def command(
    name: str | None = None, *, creates: bool = False
) -> Callable[[Callable[..., Awaitable[None]]], click.Command]:
    """Make a command of a coroutine that takes a client of the store, and whatever else the command line has.

    A store that does not exist is an error, unless the command `creates` it.
    """

    def decorate(use: Callable[..., Awaitable[None]]) -> click.Command:
        @wraps(use)
        def run(*, store: str | None, codec: str | None, **others: Any) -> None:
            url, codecs = given_store(store, codec, creates=creates)

            async def opened() -> None:
                async with Client(url, codec=codecs) as client:
                    try:
                        await use(client, **others)
                    except CodecError as error:
                        if codecs is None and any(
                            word in str(error) for word in ("the stored bytes", "without codec=")
                        ):
                            raise CodecError(f"{error}; if values pass through a codec, --codec names it") from None
                        raise

            anyio.run(opened)

        return codec_option(store_option(click.command(name)(run)))

    return decorate


def find(client: Client, id: str) -> Handle[Any]:
    """The handle of an instance of any workflow. The name of the workflow is not needed: the store knows it."""
    return client.handle("", id)


def given_store(url: str | None, codec: str | None, *, creates: bool = False) -> tuple[str, Codecs | None]:
    """The store and its codec, as they were named after the command, or else before it or in the environment."""
    # An empty name is a mistake, such as a variable of a shell that is not set. It must not fall back to another store.
    url = _given_before("store") if url is None else url
    if not url:
        raise click.UsageError("which store? Give --store, such as sqlite:///app.db, or set WORKFLOW_STORE")
    return url if creates else _existing(url), given_codec(codec)


def given_codec(target: str | None) -> Codecs | None:
    """The codec of this name, or of the one that was named before the command or in the environment."""
    target = _given_before("codec") if target is None else target
    if not target:
        return None
    found: object = named(target, "app:codec")
    if isinstance(found, type) or (callable(found) and not _is_codec(found)):
        found = _call(target, found, "codec")
    kind = type(found).__name__
    several = cast("Sequence[object]", found) if isinstance(found, (list, tuple)) else [found]
    if several and all(map(_is_codec, several)):
        return cast("Codecs", found)
    raise click.UsageError(f"{target} is {kind!r}: no codec, which has `encode` and `decode`")


def _given_before(name: str) -> str | None:
    return cast("str | None", click.get_current_context().find_root().params[name])


def _existing(url: str) -> str:
    """The URL of a store that has to exist. A `mode` in the URL is the decision of the user."""
    location, mark, query = url.partition("?")
    if not url.startswith("sqlite://") or any(name == "mode" for name, _ in parse_qsl(query, keep_blank_values=True)):
        return url
    return f"{location}?{query}&mode=rw" if mark and query else f"{location}?mode=rw"


def _is_codec(found: object) -> bool:
    return all(callable(getattr(found, name, None)) for name in ("encode", "decode"))
