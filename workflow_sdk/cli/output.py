"""How values, times and tables are shown: for a terminal in its width, over a pipe in plain and whole lines."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import Any, cast

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workflow_sdk import ErrorInfo, Progress

__all__ = [
    "FACT_COLUMN",
    "STYLES",
    "age",
    "console",
    "error_text",
    "in_json",
    "is_terminal",
    "local_time",
    "more_text",
    "print_line",
    "safe",
    "say",
    "span",
    "speaks_unicode",
    "table",
    "utc_time",
    "value_text",
]

VALUE_CHARS_MAX = 200
FACT_COLUMN = 12
"""Where what is said of an instance as a whole begins."""
FACT_LINES_MAX = 8
"""Of a terminal; of an error that is longer, the rest is in the JSON."""

_UNPRINTABLE = re.compile(r"[^\n -~]")
"""What may be: `str.isprintable` decides."""

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
    """Whether a person reads along. Not a matter of colours, which some environments force over a pipe, too."""
    return sys.stdout.isatty()


def console() -> Console:
    """The terminal, with nothing of its own added to what it is given."""
    return Console(markup=False, highlight=False, emoji=False)


def speaks_unicode() -> bool:
    """Whether the output can be more than ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def print_line(line: Text) -> None:
    """A line: cut to the terminal, or wrapped if it says so; whole over a pipe; and there at once."""
    if is_terminal():
        screen = console()
        for part in _wrapped(screen, line) if line.no_wrap is False else [line]:
            screen.print(part, no_wrap=True, overflow="ellipsis", crop=True)
    else:
        sys.stdout.write(f"{line.plain}\n")
        sys.stdout.flush()


def say(text: str) -> None:
    """A message to whoever looks after this process. Nobody may: that is no reason to end."""
    with suppress(OSError):
        click.echo(f"workflow: {text}", err=True)


def _wrapped(screen: Console, line: Text) -> list[Text]:
    """The lines of a fact, whose text has a column of its own."""
    width = max(10, screen.width - FACT_COLUMN)
    column = line[FACT_COLUMN:]
    column.truncate(width * FACT_LINES_MAX, overflow="ellipsis")
    parts = column.wrap(screen, width, no_wrap=False)
    for part in parts:
        part.rstrip()
    return [line[:FACT_COLUMN] + parts[0], *(Text(" " * FACT_COLUMN) + part for part in parts[1:])]


def safe(text: str) -> str:
    """Text as one line, which can't move the cursor or do other things to a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def more_text(limit: int) -> str:
    """What is said where a list was cut."""
    return f"there are more than {'this one' if limit == 1 else f'these {limit}'}; see --limit"


def error_text(error: ErrorInfo) -> str:
    """A failure and its kind in a part of a line. That it was cancelled is said by its type."""
    return safe(str(error) if error.kind == "cancelled" else f"{error.kind}: {error}")


# -- Values -----------------------------------------------------------------------------------------------------------


def in_json(value: object, *, indent: int | None = None) -> str:
    """Any value as JSON. What JSON has no type for is written as text or as a list."""
    text = json.dumps(_plain(value), ensure_ascii=not speaks_unicode(), indent=indent)
    # JSON may hold characters as they are that a terminal takes for commands. They are only ever within its texts.
    return _UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1] if not found[0].isprintable() else found[0], text)


def value_text(value: object) -> str:
    """A value in a part of a line."""
    text = safe(json.dumps(_plain(value), ensure_ascii=False))
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 3]}..."


def _plain(value: object) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        digits_max = sys.get_int_max_str_digits()  # the most that Python writes in decimal; 0 for any number
        return value if not digits_max or value.bit_length() <= 3 * digits_max else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return {key if isinstance(key, str) else str(_plain(key)): _plain(item) for key, item in mapping.items()}
    if isinstance(value, Progress):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in cast("Iterable[object]", value)]
    if is_dataclass(value):
        names = [field.name for field in fields(value) if not field.name.startswith("_")]
        return {name: _plain(getattr(value, name)) for name in names}
    try:
        return str(value)
    except ValueError:  # as of a fraction of such integers
        return f"<{type(value).__name__}>"


# -- Times ------------------------------------------------------------------------------------------------------------


def utc_time(when: datetime | None) -> str:
    """A time for another program."""
    return "" if when is None else when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def local_time(when: datetime, day: datetime | None = None) -> str:
    """A time for a person, without the date if it is on that day."""
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
    """A table in the width of the terminal. The columns that may shrink do so before the others are touched."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, no_wrap=column not in shrinks, overflow="ellipsis")
    for row in rows:
        for cell in row:
            cell.no_wrap = True
            cell.overflow = "ellipsis"
        made.add_row(*row)
    return made
