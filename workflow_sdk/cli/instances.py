"""The commands about instances: start, find, look at, tell, end and forget them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import click
from rich.text import Text

from workflow_sdk import Client, Delivery, Handle, InstanceInfo, Status
from workflow_sdk.cli.app import run
from workflow_sdk.cli.options import Store, duration, instance_argument, json_value, store_options
from workflow_sdk.cli.output import (
    STYLES,
    age,
    console,
    error_text,
    in_json,
    is_terminal,
    print_line,
    safe,
    span,
    table,
    utc_time,
)
from workflow_sdk.cli.tree import Picture, draw, wait_text

__all__ = ["cancel", "find", "list_", "look", "prune", "recover", "restart_from", "result", "send", "show", "start"]

_PAGE_MAX = 1000
_STATUSES = [status.value for status in Status]
_UNDER_WAY = {status for status in Status if not status.is_terminal and status is not Status.STUCK}
_ENDS = [status.value for status in Status if status.is_terminal]


def find(client: Client, id: str) -> Handle[Any]:
    """The handle of an instance, whatever its workflow is: the store knows."""
    return client.handle("", id)


async def find_readable(client: Client, id: str) -> Handle[Any]:
    """The same, once a value of it could be read.

    What is written without the codec of the others, they could not read. So nothing is.
    """
    handle = find(client, id)
    await handle.info()
    return handle


async def look(handle: Handle[Any]) -> Picture:
    """What is to be seen of an instance now."""
    info = await handle.info()
    return Picture(info, await handle.history(), datetime.now(UTC))


@click.command()
@click.argument("name")
@click.argument("input", callback=json_value, metavar="[INPUT-JSON]", required=False)
@click.option("--id", help="Of the instance. Starting it twice is starting it once.")
@store_options(creates=True)
def start(name: str, input: Any, id: str | None, store: Store) -> None:
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
@click.option("--json", "as_json", is_flag=True, help="Everything but the history, as JSON: a line for each.")
@store_options()
def list_(status: str | None, workflow: str | None, limit: int, as_json: bool, store: Store) -> None:
    """List instances, oldest first.

    Over a pipe, each is a line with tabs: id, workflow, status, created, changed, wakes, and what it waits for or why
    it failed.
    """
    is_table = is_terminal() and not as_json
    rows: list[list[Text]] = []

    async def use(client: Client) -> bool:
        """Show them; whether there are more."""
        left = limit
        async for info in _instances(client, status, workflow, limit + 1):
            if not left:
                return True
            left -= 1
            if is_table:
                rows.append(_cells(info))
            else:
                # At once: there may be many, and the reader may want the first ones only.
                click.echo(in_json(_facts(info)) if as_json else "\t".join(_row(info)))
        return False

    has_more = run(store, use)
    if is_table:
        console().print(table(["ID", "WORKFLOW", "STATUS", "AGE", ""], rows, shrinks=["WORKFLOW", ""]))
    if has_more:
        click.echo(f"there are more than {'this one' if limit == 1 else f'these {limit}'}; see --limit", err=True)


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
        return error_text(info.error)
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
    note = awaited if info.error is None else error_text(info.error)
    return [safe(info.id), safe(info.workflow), info.status.value, *times, note]


@click.command()
@instance_argument
@click.option("--json", "as_json", is_flag=True, help="Everything there is, as JSON.")
@store_options()
def show(id: str, as_json: bool, store: Store) -> None:
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
    history = picture.history
    recorded = {"history": history.roots, "compensations": history.compensations}
    return in_json(_facts(picture.info) | recorded, indent=2)


def _facts(info: InstanceInfo) -> dict[str, object]:
    return {field.name: getattr(info, field.name) for field in fields(info)}


@click.command()
@instance_argument
@click.argument("message")
@click.argument("payload", callback=json_value, metavar="[PAYLOAD-JSON]", required=False)
@click.option("--key", help="The same key is delivered once.")
@store_options()
def send(id: str, message: str, payload: Any, key: str | None, store: Store) -> None:
    """Send a MESSAGE to an instance, and print what became of it.

    `accepted`: it waits for it. `queued`: it is kept until it listens. `duplicate`: its key has come before.
    PAYLOAD-JSON is '-' for standard input.
    """

    async def use(client: Client) -> Delivery:
        return await (await find_readable(client, id)).send(message, payload, key=key)

    delivery = run(store, use)
    if delivery is Delivery.CLOSED:
        raise click.ClickException(f"instance {id!r} has ended; the message was not stored")
    click.echo(delivery.value)


@click.command()
@instance_argument
@click.option(
    "--timeout", callback=duration, metavar="DURATION", help="How long to wait: 90s, 15m, 12h. Default: for ever."
)
@store_options()
def result(id: str, timeout: float | None, store: Store) -> None:
    """Wait for the end of an instance, and print its output as JSON.

    Any other end is an error. A timeout leaves the instance alone.
    """

    async def use(client: Client) -> Any:
        handle = find(client, id)
        try:
            return await handle.result(timeout)
        except TimeoutError:
            # However short it was: what has ended by now has ended.
            if (await handle.info()).status in _UNDER_WAY:
                raise
            return await handle.result()

    try:
        output = run(store, use)
    except TimeoutError:
        waited = span(timeout) if timeout else "no time at all"
        raise click.ClickException(f"instance {id!r} has not ended in {waited}; it goes on") from None
    click.echo(in_json(output))


def _operate(store: Store, id: str, act: Callable[[Handle[Any]], Awaitable[None]]) -> None:
    """Do something to an instance, and print the status that it has then."""

    async def use(client: Client) -> Status:
        handle = await find_readable(client, id)
        await act(handle)
        return (await handle.info()).status

    click.echo(run(store, use).value)


@click.command()
@instance_argument
@click.option("--rollback", is_flag=True, help="Undo first what it has done.")
@store_options()
def cancel(id: str, rollback: bool, store: Store) -> None:
    """End an instance, whatever it does, and print its status."""

    _operate(store, id, lambda handle: handle.cancel(rollback=rollback))


@click.command()
@instance_argument
@store_options()
def recover(id: str, store: Store) -> None:
    """Have an instance run again after it failed or got stuck, and print its status."""

    _operate(store, id, lambda handle: handle.recover())


@click.command("restart-from")
@instance_argument
@click.argument("path", required=False)
@store_options()
def restart_from(id: str, path: str | None, store: Store) -> None:
    """Have an instance forget part of its history and run again, and print its status.

    What is at PATH is forgotten, and all that ended after it; without a PATH, everything. The PATH of a line of `show`
    is made of the names down to it: both/pack/packed. A run in progress is given up. Whatever the instance's status is.
    """

    _operate(store, id, lambda handle: handle.restart_from(path))


@click.command()
@click.option("--older-than", callback=duration, required=True, metavar="DURATION", help="Since the end: 12h, 30d.")
@click.option("--status", "statuses", type=click.Choice(_ENDS), multiple=True, help="Only those; can be given again.")
@store_options()
def prune(older_than: float, statuses: tuple[str, ...], store: Store) -> None:
    """Forget the instances that have ended longer ago than that, and print how many they were."""

    async def use(client: Client) -> int:
        return await client.prune(older_than=older_than, statuses=statuses or _ENDS)

    click.echo(run(store, use))
