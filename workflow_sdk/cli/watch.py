"""Watching an instance until it ends: a tree that lives, or over a pipe a line for all that happens."""

from __future__ import annotations

import anyio
import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from workflow_sdk import Client, InstanceInfo, Status
from workflow_sdk.cli.options import Store, instance_argument, run, store_options
from workflow_sdk.cli.output import console, is_terminal, local_time, print_line, safe
from workflow_sdk.cli.tree import Picture, attempts_of, draw, entry_text, find, look, progress_text, wait_text

POLL_SECONDS = 0.25
POLL_REST = 10
"""How many times as long as a look took is waited before the next: each look reads the whole history."""


@click.command()
@instance_argument
@store_options()
def watch(id: str, store: Store) -> None:
    """Watch an instance until it ends or is stuck.

    Over a pipe, each thing that happens is a line. The exit code is 0 if it has completed.
    """
    is_live = is_terminal() and not console().is_dumb_terminal  # one that can't move its cursor

    async def use(client: Client) -> InstanceInfo:
        return await (_live(client, id) if is_live else _lines(client, id))

    info = run(store, use)
    if info.status is not Status.COMPLETED:
        raise click.ClickException(
            f"instance {id!r} is {info.status.value}" + (f": {info.error}" if info.error else "")
        )


def _is_over(info: InstanceInfo) -> bool:
    return info.status.is_terminal or info.status is Status.STUCK


async def _live(client: Client, id: str) -> InstanceInfo:
    handle = find(client, id)
    screen = console()
    # Nothing else prints meanwhile. A redirected stdout would have no encoding, and the tree would be drawn in ASCII.
    with Live(console=screen, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False) as live:
        while True:
            began = anyio.current_time()
            picture = await look(handle)
            took = anyio.current_time() - began
            if _is_over(picture.info):
                break
            live.update(Group(*_fitting(draw(picture), screen.height - 1)), refresh=True)
            await anyio.sleep(max(POLL_SECONDS, POLL_REST * took))
    for line in draw(picture):
        print_line(line)
    return picture.info


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


async def _lines(client: Client, id: str) -> InstanceInfo:
    handle = find(client, id)
    seen: dict[str, object] = {}
    while True:
        began = anyio.current_time()
        picture = await look(handle)
        took = anyio.current_time() - began
        for line in _news(picture, seen):
            print_line(line)
        if _is_over(picture.info):
            return picture.info
        await anyio.sleep(max(POLL_SECONDS, POLL_REST * took))


def _news(picture: Picture, seen: dict[str, object]) -> list[Text]:
    """Lines for what is not as in `seen`, which is brought up to date."""
    lines: list[Text] = []
    info = picture.info
    # A composite comes before what is in it, but ends after.
    for entry in sorted(picture.history, key=lambda entry: entry.finished_at or entry.created_at):
        now = (entry.status, attempts_of(info, entry), entry.created_at)
        if seen.get(entry.path) != now:
            seen[entry.path] = now
            lines.append(Text(f"{safe(entry.path)}  ").append_text(entry_text(picture, entry)))
    whole = (info.status, [(wait.path, wait.message) for wait in info.waits], info.progress)
    if seen.get("") != whole:
        seen[""] = whole
        waits = "" if _is_over(info) else wait_text(info.waits, info.created_at)
        progress = "" if info.progress is None else progress_text(info.progress)
        facts = [safe(info.id), info.status.value, local_time(info.updated_at), progress, waits]
        line = "  ".join(fact for fact in facts if fact)
        lines.append(Text(line))
    return lines
