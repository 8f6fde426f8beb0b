"""An instance and its history as lines: a heading, and a tree with times, attempts and waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from workflow_sdk import Client, EntryStatus, Handle, History, HistoryEntry, InstanceInfo, Progress, Status, Wait
from workflow_sdk.cli.output import FACT_COLUMN, STYLES, error_text, local_time, safe, span, speaks_unicode, value_text

WAITS_MAX = 8
"""How many waits the heading names. The tree has them all."""

_LINES = ("├─ ", "└─ ", "│  ")
_ASCII_LINES = ("|- ", "`- ", "|  ")


@dataclass(frozen=True, slots=True)
class Picture:
    """An instance as it was at one moment."""

    info: InstanceInfo
    history: History
    now: datetime


def find(client: Client, id: str) -> Handle[Any]:
    """The handle of an instance of any workflow. The name of the workflow is not needed: the store knows it."""
    return client.handle("", id)


async def look(handle: Handle[Any]) -> Picture:
    """An instance as it is now."""
    info = await handle.info()
    return Picture(info, await handle.history(), datetime.now(UTC))


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
    if info.reference is not None:
        yield _fact("reference", safe(info.reference))
    if info.progress is not None:
        yield _fact("progress", progress_text(info.progress))
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
        yield _fact("waits", "  ".join(word for word in words if word))
    if len(info.waits) > WAITS_MAX:
        yield _fact("", f"and {len(info.waits) - WAITS_MAX} more")


def progress_text(progress: Progress) -> str:
    """How far it is, in words."""
    whole = "" if progress.total is None else f" of {progress.total}"
    return f"{progress.done}{whole} {safe(progress.note or '')}".rstrip()


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
    """All that is said of an entry, except its name."""
    info, status = picture.info, entry.status.value
    text = Text.assemble(f"{entry.kind.value} ", (status, STYLES[status]))
    text.append(f"  {local_time(entry.created_at, info.created_at)}{_lasted(picture, entry)}", "dim")
    for part in _attempts(attempts_of(info, entry)):
        text.append(part)
    waits = [wait for wait in info.waits if wait.path == entry.path]
    if waits:
        text.append(f"  {wait_text(waits, info.created_at)}", "blue")
    if entry.error is not None:
        text.append(f"  {error_text(entry.error)}", "red")
    elif entry.status is EntryStatus.COMPLETED and entry.value is not None and not entry.children:
        text.append(f"  = {value_text(entry.value)}")
    return text


def attempts_of(info: InstanceInfo, entry: HistoryEntry) -> int:
    """How many attempts were made, those included that are not in the history yet."""
    return max(entry.attempts, info.attempts.get(entry.path, 0))


def _lasted(picture: Picture, entry: HistoryEntry) -> str:
    """How long an entry took, or has taken so far."""
    if entry.finished_at is not None:
        return f" +{span((entry.finished_at - entry.created_at).total_seconds())}"
    if entry.status.is_final or picture.info.status.is_terminal:
        return ""
    return f" for {span((picture.now - entry.created_at).total_seconds())}"


def _attempts(count: int) -> list[str]:
    return [f"  {count} attempts"] if count > 1 else []


def wait_text(waits: Iterable[Wait], day: datetime | None = None) -> str:
    """What is waited for, in words."""
    waits = list(waits)
    whats = sorted({safe(wait.message) for wait in waits if wait.message is not None})
    whats += [*_targets(waits, "child", "children"), *_targets(waits, "task", "tasks")]
    words = [f"for {', '.join(whats)}"] if whats else []
    times = [wait.until for wait in waits if wait.until is not None]
    if times:
        what = "next attempt" if all(wait.kind == "retry" for wait in waits) else "until"
        words.append(f"{what} {local_time(min(times), day or datetime.now(UTC))}")
    return " ".join(words)


def _targets(waits: Sequence[Wait], kind: str, kinds: str) -> list[str]:
    """The one child or task that is waited for, or how many there are."""
    targets = [safe(wait.target or wait.name) for wait in waits if wait.kind == kind]
    return [f"{len(targets)} {kinds}"] if len(targets) > 1 else [f"{kind} {target}" for target in targets]
