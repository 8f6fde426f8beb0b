"""An instance and its history as lines: a heading, and a tree with times, attempts and waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.text import Text

from workflow_sdk import EntryStatus, History, HistoryEntry, InstanceInfo, Status, Wait
from workflow_sdk.cli.output import FACT_COLUMN, STYLES, error_text, local_time, safe, span, speaks_unicode, value_text

__all__ = ["Picture", "draw", "entry_text", "wait_text"]

_LINES = ("├─ ", "└─ ", "│  ")
_ASCII_LINES = ("|- ", "`- ", "|  ")


@dataclass(frozen=True, slots=True)
class Picture:
    """An instance at one moment."""

    info: InstanceInfo
    history: History
    now: datetime


def draw(picture: Picture) -> list[Text]:
    """All lines of an instance."""
    lines = list(_heading(picture))
    lines.extend(_branches(picture, picture.history.roots, "", ""))
    if picture.info.status is not Status.COMPLETED:
        for item in picture.history.compensations:
            line = Text.assemble("undo ", (safe(item.path), "bold"), f"  {item.progress}", *_attempts(item.attempts))
            if item.error is not None:
                line.append(f"  {error_text(item.error)}", "red")
            lines.append(line)
    return lines


def _heading(picture: Picture) -> Iterator[Text]:
    info = picture.info
    status = info.status.value
    yield Text.assemble((safe(info.workflow), "bold"), f" {safe(info.id)}  ", (status, STYLES[status]))
    took = span((info.updated_at - info.created_at).total_seconds())
    ended = "ended" if info.status.is_terminal else "changed"
    changed = local_time(info.updated_at, info.created_at)
    yield _fact("started", f"{local_time(info.created_at)}, {ended} {changed}, after {took}")
    if info.wake_at is not None and not info.status.is_terminal:
        yield _fact("wakes", local_time(info.wake_at))
    if info.input is not None:
        yield _fact("input", value_text(info.input))
    if info.status is Status.COMPLETED:
        yield _fact("output", value_text(info.output))
    if info.error is not None:
        yield _fact("error", error_text(info.error), "red")


def _fact(name: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"  {name:<{FACT_COLUMN - 2}}", "dim"), (text, style), no_wrap=False)


def _branches(picture: Picture, entries: Iterable[HistoryEntry], parent: str, indent: str) -> Iterator[Text]:
    fork, last_fork, through = _LINES if speaks_unicode() else _ASCII_LINES
    entries = list(entries)
    for entry in entries:
        last = entry is entries[-1]
        # Under a loop, the name of an entry is preceded by its turn.
        name = entry.path[len(parent) :].lstrip("/")
        line = Text.assemble((indent + (last_fork if last else fork), "dim"), (safe(name), "bold"), "  ")
        yield line.append_text(entry_text(picture, entry))
        yield from _branches(picture, entry.children, entry.path, indent + ("   " if last else through))


def entry_text(picture: Picture, entry: HistoryEntry) -> Text:
    """What there is to say of an entry, but for its name."""
    status = entry.status.value
    text = Text.assemble(f"{entry.kind.value} ", (status, STYLES[status]))
    text.append(f"  {local_time(entry.created_at, picture.info.created_at)}", "dim")
    if entry.finished_at is not None:
        text.append(f" +{span((entry.finished_at - entry.created_at).total_seconds())}", "dim")
    elif not entry.status.is_final and not picture.info.status.is_terminal:
        text.append(f" for {span((picture.now - entry.created_at).total_seconds())}", "dim")
    attempts = max(entry.attempts, picture.info.attempts.get(entry.path, 0))
    for part in _attempts(attempts):
        text.append(part)
    waits = [wait for wait in picture.info.waits if wait.path == entry.path]
    if waits:
        text.append(f"  {wait_text(waits, picture.info.created_at)}", "blue")
    if entry.error is not None:
        text.append(f"  {error_text(entry.error)}", "red")
    elif entry.status is EntryStatus.COMPLETED and entry.value is not None and not entry.children:
        text.append(f"  = {value_text(entry.value)}")
    return text


def _attempts(count: int) -> list[str]:
    return [f"  {count} attempts"] if count > 1 else []


def wait_text(waits: Iterable[Wait], day: datetime | None = None) -> str:
    """What is waited for, in words."""
    waits = list(waits)
    messages = sorted({wait.message for wait in waits if wait.message is not None})
    times = [wait.until for wait in waits if wait.until is not None]
    words = f"for {', '.join(map(safe, messages))}" if messages else ""
    if times:
        retry = all(wait.kind == "retry" for wait in waits)
        words += f" {'next attempt' if retry else 'until'} {local_time(min(times), day or datetime.now(UTC))}"
    return words.strip()
