"""The commands about instances: start, find, look at, tell, end and forget them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import click
from rich.text import Text

from workflow_sdk import Client, Delivery, Handle, InstanceInfo, Status
from workflow_sdk.cli.app import run
from workflow_sdk.cli.options import duration, instance_argument, json_value, store_option
from workflow_sdk.cli.output import (
    STYLES,
    age,
    console,
    in_json,
    is_terminal,
    print_line,
    safe,
    span,
    table,
    utc_time,
)
from workflow_sdk.cli.tree import Picture, draw, wait_text

__all__ = ["cancel", "find", "list_", "look", "prune", "recover", "result", "send", "show", "start"]

_PAGE_MAX = 1000
_STATUSES = [status.value for status in Status]
_ENDS = [status.value for status in Status if status.is_terminal]


def find(client: Client, id: str) -> Handle[Any]:
    """The handle of an instance, whatever its workflow is: the store knows."""
    return client.handle("", id)


async def look(handle: Handle[Any]) -> Picture:
    """What is to be seen of an instance now."""
    info = await handle.info()
    return Picture(info, await handle.history(), datetime.now(UTC))


@click.command()
@click.argument("name")
@click.argument("input", callback=json_value, metavar="[INPUT-JSON]", required=False)
@click.option("--id", help="Of the instance. Starting it twice is starting it once.")
@store_option
def start(name: str, input: Any, id: str | None, store: str) -> None:
    """Start an instance of the workflow NAME, and print its id.

    INPUT-JSON is '-' for standard input.
    """

    async def use(client: Client) -> str:
        return (await client.start(name, input, id=id)).id

    click.echo(safe(run(store, use)))


@click.command("list")
@click.option("--status", type=click.Choice(_STATUSES), help="Only those.")
@click.option("--workflow", metavar="NAME", help="Only those of this workflow.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="So many at most.")
@store_option
def list_(status: str | None, workflow: str | None, limit: int, store: str) -> None:
    """List instances, oldest first.

    Over a pipe, each is a line with tabs: id, workflow, status, created, changed, wakes, and what it waits for or why
    it failed.
    """

    async def use(client: Client) -> list[InstanceInfo]:
        # One more than asked for tells whether there are more.
        return [info async for info in _instances(client, status, workflow, limit + 1)]

    found = run(store, use)
    shown = found[:limit]
    if is_terminal():
        rows = [_cells(info) for info in shown]
        console().print(table(["ID", "WORKFLOW", "STATUS", "AGE", ""], rows, shrinks=["WORKFLOW", ""]))
    else:
        for info in shown:
            click.echo("\t".join(_row(info)))
    if len(found) > limit:
        click.echo(f"there are more than these {limit}; see --limit", err=True)


async def _instances(
    client: Client, status: str | None, workflow: str | None, limit: int
) -> AsyncIterator[InstanceInfo]:
    cursor: str | None = None
    while limit > 0:
        page = await client.list(status=status, workflow=workflow, limit=min(limit, _PAGE_MAX), cursor=cursor)
        for info in page.items:
            yield info
        limit -= len(page.items)
        cursor = page.cursor
        if cursor is None:
            return


def _note(info: InstanceInfo) -> str:
    if info.error is not None:
        return safe(str(info.error))
    return "" if info.status.is_terminal else wait_text(info.waits)


def _cells(info: InstanceInfo) -> list[Text]:
    status = info.status.value
    return [
        Text(safe(info.id)),
        Text(safe(info.workflow)),
        Text(status, STYLES[status]),
        Text(age(info.created_at)),
        Text(_note(info)),
    ]


def _row(info: InstanceInfo) -> list[str]:
    times = [utc_time(when) for when in (info.created_at, info.updated_at, info.wake_at)]
    awaited = ",".join(sorted({safe(wait.message) for wait in info.waits if wait.message is not None}))
    note = awaited if info.error is None else safe(str(info.error))
    return [safe(info.id), safe(info.workflow), info.status.value, *times, note]


@click.command()
@instance_argument
@click.option("--json", "as_json", is_flag=True, help="Everything there is, as JSON.")
@store_option
def show(id: str, as_json: bool, store: str) -> None:
    """Show an instance and its history: a tree with times, attempts and waits."""

    async def use(client: Client) -> Picture:
        return await look(find(client, id))

    picture = run(store, use)
    if as_json:
        click.echo(_document(picture))
        return
    for line in draw(picture):
        print_line(line)


def _document(picture: Picture) -> str:
    info, history = picture.info, picture.history
    facts: dict[str, object] = {field.name: getattr(info, field.name) for field in fields(info)}
    return in_json(facts | {"history": history.roots, "compensations": history.compensations}, indent=2)


@click.command()
@instance_argument
@click.argument("message")
@click.argument("payload", callback=json_value, metavar="[PAYLOAD-JSON]", required=False)
@click.option("--key", help="The same key is delivered once.")
@store_option
def send(id: str, message: str, payload: Any, key: str | None, store: str) -> None:
    """Send a MESSAGE to an instance, and print what became of it.

    `accepted`: it waits for it. `queued`: it is kept until it listens. `duplicate`: its key has come before.
    PAYLOAD-JSON is '-' for standard input.
    """

    async def use(client: Client) -> Delivery:
        return await find(client, id).send(message, payload, key=key)

    delivery = run(store, use)
    if delivery is Delivery.CLOSED:
        raise click.ClickException(f"instance {id!r} has ended; the message was not stored")
    click.echo(delivery.value)


@click.command()
@instance_argument
@click.option(
    "--timeout", callback=duration, metavar="DURATION", help="How long to wait: 90s, 15m, 12h. Default: for ever."
)
@store_option
def result(id: str, timeout: float | None, store: str) -> None:
    """Wait for the end of an instance, and print its output as JSON.

    Any other end is an error. A timeout leaves the instance alone.
    """

    async def use(client: Client) -> Any:
        return await find(client, id).result(timeout)

    try:
        output = run(store, use)
    except TimeoutError:
        waited = span(timeout) if timeout else "no time at all"
        raise click.ClickException(f"instance {id!r} has not ended in {waited}; it goes on") from None
    click.echo(in_json(output))


@click.command()
@instance_argument
@click.option("--rollback", is_flag=True, help="Undo first what it has done.")
@store_option
def cancel(id: str, rollback: bool, store: str) -> None:
    """End an instance, whatever it does, and print its status."""

    async def use(client: Client) -> Status:
        handle = find(client, id)
        await handle.cancel(rollback=rollback)
        return (await handle.info()).status

    click.echo(run(store, use).value)


@click.command()
@instance_argument
@store_option
def recover(id: str, store: str) -> None:
    """Have an instance run again after it got stuck, and print its status."""

    async def use(client: Client) -> Status:
        handle = find(client, id)
        await handle.recover()
        return (await handle.info()).status

    click.echo(run(store, use).value)


@click.command()
@click.option("--older-than", callback=duration, required=True, metavar="DURATION", help="Since the end: 12h, 30d.")
@click.option("--status", "statuses", type=click.Choice(_ENDS), multiple=True, help="Only those; can be given again.")
@store_option
def prune(older_than: float, statuses: tuple[str, ...], store: str) -> None:
    """Forget the instances that have ended longer ago than that, and print how many they were."""

    async def use(client: Client) -> int:
        return await client.prune(older_than=older_than, statuses=statuses or _ENDS)

    click.echo(run(store, use))
