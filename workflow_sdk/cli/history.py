"""An instance with its history: as a tree with times, attempts and waits, shown once or until the instance ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import anyio
import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from workflow_sdk import Client, EntryStatus, History, HistoryEntry, InstanceInfo, Progress, Status
from workflow_sdk.cli.graphs import run_lines
from workflow_sdk.cli.options import command, find, id_argument
from workflow_sdk.cli.output import (
    STYLES,
    console,
    error_text,
    facts,
    in_json,
    is_terminal,
    local_time,
    safe,
    span,
    speaks_unicode,
    value_text,
    wait_text,
)

WAITS_MAX = 8
"""How many waits the heading names. The tree has them all."""
FACT_COLUMN = 12
"""The column in which the text of a fact about an instance begins."""
FACT_LINES_MAX = 8
"""How many lines of a terminal a fact takes at most. A longer error is whole in the JSON."""

POLL_SECONDS = 0.25
POLL_REST = 10
"""How many times as long as a look took is waited before the next: each look reads the whole history."""

_LINES = ("├─ ", "└─ ", "│  ")
_ASCII_LINES = ("|- ", "`- ", "|  ")


@dataclass(frozen=True, slots=True)
class _Picture:
    """An instance as it was at one moment."""

    info: InstanceInfo
    history: History
    now: datetime

    @property
    def is_over(self) -> bool:
        """Whether nothing happens any more by itself."""
        return self.info.status.is_terminal or self.info.status is Status.STUCK

    def attempts(self, entry: HistoryEntry) -> int:
        """How many attempts were made, those included that are not in the history yet."""
        return max(entry.attempts, self.info.attempts.get(entry.path, 0))


async def _look(client: Client, id: str) -> _Picture:
    handle = find(client, id)
    info = await handle.info()
    return _Picture(info, await handle.history(), datetime.now(UTC))


@command()
@id_argument
@click.option("--json", "as_json", is_flag=True, help="Everything there is, as JSON.")
@click.option(
    "--graph",
    is_flag=False,
    flag_value="",
    metavar="[FILE|MODULE:GRAPH]",
    help="The steps of its graph and what has become of them; of another version, if one is named.",
)
async def show(client: Client, id: str, as_json: bool, graph: str | None) -> None:
    """Show an instance and its history: a tree with times, attempts and waits."""
    picture = await _look(client, id)
    if graph is not None:
        async for line in run_lines(client, picture.info, picture.history, graph):
            click.echo(line)
        return
    if not as_json:
        _print(_tree(picture))
        return
    recorded = {"history": picture.history.roots, "compensations": picture.history.compensations}
    click.echo(in_json(facts(picture.info) | recorded, indent=2))


# -- Watching ---------------------------------------------------------------------------------------------------------


@command()
@id_argument
async def watch(client: Client, id: str) -> None:
    """Watch an instance until it ends or is stuck.

    Over a pipe, each thing that happens is a line. The exit code is 0 if it has completed.
    """
    is_live = is_terminal() and not console().is_dumb_terminal  # one that can't move its cursor
    last = await (_show_live(client, id) if is_live else _poll(client, id, partial(_print_news, {})))
    info = last.info
    if info.status is not Status.COMPLETED:
        why = f": {info.error}" if info.error else ""
        raise click.ClickException(f"instance {id!r} is {info.status.value}{why}")


async def _poll(client: Client, id: str, show: Callable[[_Picture], None]) -> _Picture:
    """Show the instance again and again, until it is over; how it is then."""
    while True:
        began = anyio.current_time()
        picture = await _look(client, id)
        took = anyio.current_time() - began
        show(picture)
        if picture.is_over:
            return picture
        await anyio.sleep(max(POLL_SECONDS, POLL_REST * took))


async def _show_live(client: Client, id: str) -> _Picture:
    screen = console()

    def show(picture: _Picture) -> None:
        if not picture.is_over:
            live.update(Group(*_fitting(_tree(picture), screen.height - 1)), refresh=True)

    # Nothing else prints meanwhile. A redirected stdout would have no encoding, and the tree would be drawn in ASCII.
    with Live(console=screen, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False) as live:
        last = await _poll(client, id, show)
    _print(_tree(last))
    return last


def _fitting(lines: list[Text], height: int) -> list[Text]:
    """The heading and the end of a tree that is too long: at the end is what happens."""
    for line in lines:
        line.no_wrap = True  # also a fact, which `show` gives the lines that it needs
        line.overflow = "ellipsis"
    if len(lines) <= height:
        return lines
    below = max(0, height - 2)
    left_out = Text(f"... {len(lines) - 1 - below} lines", "dim")
    return [lines[0], left_out, *lines[len(lines) - below :]]


def _print_news(seen: dict[str, object], picture: _Picture) -> None:
    """Print lines for what is not as in `seen`, which is brought up to date."""
    lines: list[Text] = []
    info = picture.info
    # A composite comes before what is in it, but ends after.
    for entry in sorted(picture.history, key=lambda entry: entry.finished_at or entry.created_at):
        now = (entry.status, picture.attempts(entry), entry.created_at)
        if seen.get(entry.path) != now:
            seen[entry.path] = now
            lines.append(Text(f"{safe(entry.path)}  ").append_text(_entry_text(picture, entry)))
    whole = (info.status, [(wait.path, wait.message) for wait in info.waits], info.progress)
    if seen.get("") != whole:
        seen[""] = whole
        waits = "" if picture.is_over else wait_text(info.waits, info.created_at)
        progress = "" if info.progress is None else _progress_text(info.progress)
        said = [safe(info.id), info.status.value, local_time(info.updated_at), progress, waits]
        lines.append(Text("  ".join(filter(None, said))))
    _print(lines)


# -- Lines ------------------------------------------------------------------------------------------------------------


def _print(lines: Sequence[Text]) -> None:
    """Print each line at once: on a terminal cut, or wrapped if the line allows it; over a pipe whole."""
    screen = console() if is_terminal() else None
    for line in lines:
        if screen is None:
            click.echo(line.plain)
            continue
        for part in _wrapped(screen, line) if line.no_wrap is False else [line]:
            screen.print(part, no_wrap=True, overflow="ellipsis", crop=True)


def _wrapped(screen: Console, line: Text) -> list[Text]:
    """The lines of a fact on a terminal. All of its text is in one column, beside its name."""
    width = max(10, screen.width - FACT_COLUMN)
    column = line[FACT_COLUMN:]
    column.truncate(width * FACT_LINES_MAX, overflow="ellipsis")
    parts = column.wrap(screen, width, no_wrap=False)
    for part in parts:
        part.rstrip()
    return [line[:FACT_COLUMN] + parts[0], *(Text(" " * FACT_COLUMN) + part for part in parts[1:])]


def _tree(picture: _Picture) -> list[Text]:
    """All lines of an instance."""
    lines = [*_heading(picture.info), *_branches(picture, picture.history.roots, "", "")]
    if picture.info.status is not Status.COMPLETED:
        for item in picture.history.compensations:
            line = Text.assemble("undo ", (safe(item.path), "bold"), f"  {item.progress}{_attempts(item.attempts)}")
            if item.error is not None:
                line.append(f"  {error_text(item.error)}", "red")
            lines.append(line)
    return lines


def _heading(info: InstanceInfo) -> Iterator[Text]:
    status = info.status.value
    yield Text.assemble((safe(info.workflow), "bold"), f" {safe(info.id)}  ", (status, STYLES[status]))
    took = span((info.updated_at - info.created_at).total_seconds())
    ended = "ended" if info.status.is_terminal else "changed"
    changed = local_time(info.updated_at, info.created_at)
    yield _fact("started", f"{local_time(info.created_at)}, {ended} {changed}, after {took}")
    if info.wake_at is not None and not info.status.is_terminal:
        yield _fact("wakes", local_time(info.wake_at))
    if info.reference is not None:
        yield _fact("reference", safe(info.reference))
    if info.progress is not None:
        yield _fact("progress", _progress_text(info.progress))
    if info.state:
        yield _fact("state", value_text(info.state))
    if info.input is not None:
        yield _fact("input", value_text(info.input))
    if info.status is Status.COMPLETED:
        yield _fact("output", value_text(info.output))
    if info.error is not None:
        yield _fact("error", error_text(info.error), "red")
    yield from _waits(info)


def _waits(info: InstanceInfo) -> Iterator[Text]:
    """Each wait, with what it takes to reach it from outside."""
    for wait in info.waits[:WAITS_MAX]:
        words = [wait.kind, safe(wait.path), wait_text([wait], info.created_at), f"token {wait.token}"]
        if wait.error is not None:
            words.append(f"after {wait.attempts} failed: {error_text(wait.error)}")
        yield _fact("waits", "  ".join(filter(None, words)))
    if len(info.waits) > WAITS_MAX:
        yield _fact("", f"and {len(info.waits) - WAITS_MAX} more")


def _fact(name: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"  {name:<{FACT_COLUMN - 2}}", "dim"), (text, style), no_wrap=False)


def _branches(picture: _Picture, entries: Sequence[HistoryEntry], parent: str, indent: str) -> Iterator[Text]:
    fork, last_fork, through = _LINES if speaks_unicode() else _ASCII_LINES
    for entry in entries:
        is_last = entry is entries[-1]
        # Under a loop, the name of an entry is preceded by its turn.
        name = entry.path[len(parent) :].lstrip("/")
        line = Text.assemble((indent + (last_fork if is_last else fork), "dim"), (safe(name), "bold"), "  ")
        yield line.append_text(_entry_text(picture, entry))
        yield from _branches(picture, entry.children, entry.path, indent + ("   " if is_last else through))


def _entry_text(picture: _Picture, entry: HistoryEntry) -> Text:
    """All that is said of an entry, except its name."""
    info, status = picture.info, entry.status.value
    text = Text.assemble(f"{entry.kind.value} ", (status, STYLES[status]))
    text.append(f"  {local_time(entry.created_at, info.created_at)}{_lasted(picture, entry)}", "dim")
    text.append(_attempts(picture.attempts(entry)))
    waits = [wait for wait in info.waits if wait.path == entry.path]
    if waits:
        text.append(f"  {wait_text(waits, info.created_at)}", "blue")
    if entry.error is not None:
        text.append(f"  {error_text(entry.error)}", "red")
    elif entry.status is EntryStatus.COMPLETED and entry.value is not None and not entry.children:
        text.append(f"  = {value_text(entry.value)}")
    return text


def _attempts(count: int) -> str:
    return f"  {count} attempts" if count > 1 else ""


def _lasted(picture: _Picture, entry: HistoryEntry) -> str:
    """How long an entry took, or has taken so far."""
    if entry.finished_at is not None:
        return f" +{span((entry.finished_at - entry.created_at).total_seconds())}"
    if entry.status.is_final or picture.info.status.is_terminal:
        return ""
    return f" for {span((picture.now - entry.created_at).total_seconds())}"


def _progress_text(progress: Progress) -> str:
    """How far it is, in words."""
    whole = "" if progress.total is None else f" of {progress.total}"
    return f"{progress.done}{whole} {safe(progress.note or '')}".rstrip()
