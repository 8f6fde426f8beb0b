"""How values, times and tables are shown: for a terminal in its width, over a pipe in plain and whole lines."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from types import NoneType
from typing import Any, cast

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workflow_sdk import ErrorInfo, Progress

EXIT_FAILED = 1
EXIT_USAGE = 2

VALUE_CHARS_MAX = 200
FACT_COLUMN = 12
"""The column in which the text of a fact about an instance begins."""
FACT_LINES_MAX = 8
"""How many lines of a terminal a fact takes at most. A longer error is whole in the JSON."""

_MAYBE_UNPRINTABLE = re.compile(r"[^\n -~]")
"""Characters of which `str.isprintable` decides whether they can be printed."""

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


def is_terminal() -> bool:
    """Whether a person reads the output. Colours don't tell: some environments force them over a pipe, too."""
    return sys.stdout.isatty()


def console() -> Console:
    """The terminal, which prints what it is given as it is."""
    return Console(markup=False, highlight=False, emoji=False)


def speaks_unicode() -> bool:
    """Whether the output can be more than ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def print_line(line: Text) -> None:
    """Print a line at once: on a terminal cut, or wrapped if the line allows it; over a pipe whole."""
    if is_terminal():
        screen = console()
        for part in _wrapped(screen, line) if line.no_wrap is False else [line]:
            screen.print(part, no_wrap=True, overflow="ellipsis", crop=True)
    else:
        sys.stdout.write(f"{line.plain}\n")
        sys.stdout.flush()


def say(text: str) -> None:
    """Print a message on standard error. If nobody reads it any more, that is no reason to end."""
    with suppress(OSError):
        click.echo(f"workflow: {text}", err=True)


def _wrapped(screen: Console, line: Text) -> list[Text]:
    """The lines of a fact on a terminal. All of its text is in one column, beside its name."""
    width = max(10, screen.width - FACT_COLUMN)
    column = line[FACT_COLUMN:]
    column.truncate(width * FACT_LINES_MAX, overflow="ellipsis")
    parts = column.wrap(screen, width, no_wrap=False)
    for part in parts:
        part.rstrip()
    return [line[:FACT_COLUMN] + parts[0], *(Text(" " * FACT_COLUMN) + part for part in parts[1:])]


def safe(text: str) -> str:
    """The text as one line, with escapes for all that could move the cursor or do other things to a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def error_text(error: ErrorInfo) -> str:
    """A failure and its kind in a part of a line. That it was cancelled is said by its type."""
    return safe(str(error) if error.kind == "cancelled" else f"{error.kind}: {error}")


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


def facts(item: object, *, without: str = "") -> dict[str, object]:
    """The fields of a dataclass by name, without one of them."""
    found = {field.name: getattr(item, field.name) for field in fields(cast("Any", item))}
    found.pop(without, None)
    return found


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
        return {name: _plain(item) for name, item in facts(value).items() if not name.startswith("_")}
    try:
        return str(value)
    except ValueError:  # as of a fraction of integers that are too long to be written
        return f"<{type(value).__name__}>"


# -- Times ------------------------------------------------------------------------------------------------------------


def utc_time(when: datetime | None) -> str:
    """A time for another program."""
    return "" if when is None else when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def local_time(when: datetime, day: datetime | None = None) -> str:
    """A time for a person, without the date if it is that of `day`."""
    here = when.astimezone()
    if day is not None and day.astimezone().date() == here.date():
        return here.strftime("%H:%M:%S")
    return here.strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """A length of time in its two largest units."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for size, unit, smaller_size, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller_size:02d}{smaller}"
    raise AssertionError("a minute and more is at least a minute")


def age(when: datetime) -> str:
    """How long ago, in its largest unit."""
    seconds = max(0, int((datetime.now(UTC) - when).total_seconds()))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


# -- Tables -----------------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Iterable[Sequence[Text]], *, shrinks: Sequence[str] = ()) -> Table:
    """A table in the width of the terminal. If that is too narrow, the columns that are named shrink first."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, no_wrap=column not in shrinks, overflow="ellipsis")
    for row in rows:
        for cell in row:
            cell.no_wrap = True
            cell.overflow = "ellipsis"
        made.add_row(*row)
    return made
