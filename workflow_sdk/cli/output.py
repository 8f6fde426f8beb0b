"""How values, times, lists and errors are shown: in a terminal in its width, over a pipe in plain and whole lines."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from itertools import pairwise
from types import NoneType
from typing import Any, Generic, TypeVar, cast

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workflow_sdk import ErrorInfo, Page, Progress, Wait

T = TypeVar("T")

EXIT_FAILED = 1
EXIT_USAGE = 2

PAGE_MAX = 1000
VALUE_CHARS_MAX = 200

STYLES: dict[str, str] = {
    "running": "cyan",
    "pending": "cyan",
    "sleeping": "blue",
    "waiting": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "rolling_back": "yellow",
    "rolled_back": "yellow",
    "stuck": "bold red",
}

_MAYBE_UNPRINTABLE = re.compile(r"[^\n -~]")
"""Characters of which `str.isprintable` decides whether they can be printed."""

_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def is_terminal() -> bool:
    """Whether a person reads the output. Colours don't tell: some environments force them over a pipe, too."""
    return sys.stdout.isatty()


def console() -> Console:
    """The terminal, which prints what it is given as it is."""
    return Console(markup=False, highlight=False, emoji=False)


def speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def say(text: str) -> None:
    """Print a message on standard error. If nobody reads it any more, that is no reason to end."""
    with suppress(OSError):
        click.echo(f"workflow: {text}", err=True)


def safe(text: str) -> str:
    """The text as one line, with escapes for all that could move the cursor or do other things to a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# -- Values -----------------------------------------------------------------------------------------------------------


def in_json(value: object, *, indent: int | None = None) -> str:
    """Any value as JSON. What JSON has no type for is written as text or as a list."""
    text = json.dumps(_plain(value), ensure_ascii=not speaks_unicode(), indent=indent)
    # JSON may hold characters as they are that a terminal takes for commands. They are only ever within its texts.
    return _MAYBE_UNPRINTABLE.sub(
        lambda found: json.dumps(found[0])[1:-1] if not found[0].isprintable() else found[0], text
    )


def value_text(value: object) -> str:
    """A value in a part of a line."""
    text = safe(json.dumps(_plain(value), ensure_ascii=False))
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 3]}..."


def facts(item: object) -> dict[str, object]:
    """The public fields of a dataclass, by name."""
    names = [field.name for field in fields(cast("Any", item))]
    return {name: getattr(item, name) for name in names if not name.startswith("_")}


def _whole_number(value: int) -> int | str:
    digits_max = sys.get_int_max_str_digits()  # the most that Python writes in decimal; 0 for any number
    return value if not digits_max or value.bit_length() <= 3 * digits_max else hex(value)


def _mapping(value: Mapping[object, object]) -> dict[str, Any]:
    return {key if isinstance(key, str) else str(_plain(key)): _plain(item) for key, item in value.items()}


_CONVERSIONS: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (Enum, lambda value: _plain(value.value)),
    ((NoneType, str, bool), lambda value: value),
    (int, _whole_number),
    (float, lambda value: value if math.isfinite(value) else str(value)),
    ((bytes, bytearray), lambda value: value.hex()),
    ((datetime, date, time), lambda value: value.isoformat()),
    (timedelta, lambda value: value.total_seconds()),
    (Mapping, _mapping),
    (Progress, lambda value: _mapping(value._asdict())),
    ((list, tuple, set, frozenset), lambda value: [_plain(item) for item in value]),
)
"""How a value becomes one that JSON has a type for: the first type that it is an instance of decides."""


def _plain(value: object) -> Any:
    for kinds, convert in _CONVERSIONS:
        if isinstance(value, kinds):
            return convert(value)
    if is_dataclass(value):
        return {name: _plain(item) for name, item in facts(value).items()}
    try:
        return str(value)
    except ValueError:  # as of a fraction of integers that are too long to be written
        return f"<{type(value).__name__}>"


# -- Times, errors and waits, in words --------------------------------------------------------------------------------


def utc_time(when: datetime | None) -> str:
    """A time for another program."""
    return "" if when is None else when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def local_time(when: datetime | None, day: datetime | None = None) -> str:
    """A time for a person, without the date if it is that of `day`."""
    if when is None:
        return ""
    here = when.astimezone()
    is_that_day = day is not None and day.astimezone().date() == here.date()
    return here.strftime("%H:%M:%S" if is_that_day else "%Y-%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """A length of time in its two largest units."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    (size, unit), (smaller_size, smaller) = next(pair for pair in pairwise(_UNITS) if whole >= pair[0][0])
    return f"{whole // size}{unit}{whole % size // smaller_size:02d}{smaller}"


def age(when: datetime) -> str:
    """How long ago, in its largest unit."""
    seconds = max(0, int((datetime.now(UTC) - when).total_seconds()))
    size, unit = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    return f"{seconds // size}{unit}"


def error_text(error: ErrorInfo) -> str:
    """A failure and its kind in a part of a line. That it was cancelled is said by its type."""
    return safe(str(error) if error.kind == "cancelled" else f"{error.kind}: {error}")


def wait_text(waits: Sequence[Wait], day: datetime | None = None) -> str:
    """What is waited for, in words."""
    whats = sorted({safe(wait.message) for wait in waits if wait.message is not None})
    whats += [*_targets(waits, "child", "children"), *_targets(waits, "task", "tasks")]
    whats += _targets(waits, "effect", "effects")
    words = [f"for {', '.join(whats)}"] if whats else []
    times = [wait.until for wait in waits if wait.until is not None]
    if times:
        what = "next attempt" if all(wait.kind == "retry" for wait in waits) else "until"
        words.append(f"{what} {local_time(min(times), day or datetime.now(UTC))}")
    return " ".join(words)


def _targets(waits: Sequence[Wait], kind: str, kinds: str) -> list[str]:
    """The one child, task or effect that is waited for, or how many there are."""
    targets = [safe(wait.target or wait.name) for wait in waits if wait.kind == kind]
    return [f"{len(targets)} {kinds}"] if len(targets) > 1 else [f"{kind} {target}" for target in targets]


# -- Lists: a table for a terminal, lines with tabs over a pipe, JSON for programs ------------------------------------


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """How the items of a list are shown."""

    columns: Sequence[str]
    shrinks: Sequence[str]
    """The columns that shrink first where a terminal is too narrow."""
    cells: Callable[[T], Sequence[str | Text]]
    """An item in a table. Texts are escaped when they are printed."""
    row: Callable[[T], Sequence[str]]
    """An item over a pipe, escaped as well."""
    left_out: str = ""
    """The field that JSON does not have."""


def print_all(items: Iterable[T], as_json: bool, listed: Listed[T]) -> None:
    if is_terminal() and not as_json:
        console().print(_table(items, listed))
        return
    for item in items:
        if as_json:
            click.echo(in_json({name: value for name, value in facts(item).items() if name != listed.left_out}))
        else:
            click.echo("\t".join(map(safe, listed.row(item))))


def _table(items: Iterable[T], listed: Listed[T]) -> Table:
    """A table in the width of the terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in listed.columns:
        table.add_column(column, no_wrap=column not in listed.shrinks, overflow="ellipsis")
    for item in items:
        cells = [cell if isinstance(cell, Text) else Text(safe(cell)) for cell in listed.cells(item)]
        for cell in cells:
            cell.no_wrap = True
            cell.overflow = "ellipsis"
        table.add_row(*cells)
    return table


async def print_pages(read: Callable[..., Awaitable[Page[T]]], limit: int, as_json: bool, listed: Listed[T]) -> None:
    """Print the items that `read` finds page by page, at most `limit` of them, and say if there are more.

    `read` is given the `limit` of a page, and the `cursor` of the page before.
    """
    is_table = is_terminal() and not as_json
    rows: list[T] = []  # of the table: its widths depend on all of them
    left = limit
    cursor: str | None = None
    while True:
        page = await read(limit=min(left + 1, PAGE_MAX), cursor=cursor)
        if is_table:
            rows += page.items[:left]
        else:
            print_all(page.items[:left], as_json, listed)
        has_more = len(page.items) > left
        if has_more or page.cursor is None:
            break
        left -= len(page.items)
        cursor = page.cursor
    if is_table:
        print_all(rows, as_json, listed)
    if has_more:
        click.echo(f"there are more than {'this one' if limit == 1 else f'these {limit}'}; see --limit", err=True)
