"""The commands about instances: start, find, look at, tell, end and forget them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypedDict, Unpack

import click
from rich.text import Text

from workflow_sdk import Client, Delivery, Handle, InstanceInfo, Page, Status
from workflow_sdk.cli.listing import Listed, limit_option, print_pages
from workflow_sdk.cli.options import Store, duration, instance_argument, json_value, run, store_options
from workflow_sdk.cli.output import STYLES, age, error_text, facts, in_json, print_line, safe, span, utc_time
from workflow_sdk.cli.tree import Picture, draw, find, look, wait_text

_STATUSES = [status.value for status in Status]
_UNDER_WAY = {status for status in Status if not status.is_terminal and status is not Status.STUCK}
_ENDS = [status.value for status in Status if status.is_terminal]


class _Only(TypedDict):
    """Which instances are listed."""

    status: str | None
    workflow: str | None
    reference: str | None


async def find_readable(client: Client, id: str) -> Handle[Any]:
    """The handle of an instance, after a value of the instance could be read.

    Without the right codec, this would write what the workers of the instance can't read. So nothing is written.
    """
    handle = find(client, id)
    await handle.info()
    return handle


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
@click.option("--reference", metavar="REF", help="Only those with this business reference.")
@limit_option
@click.option("--json", "as_json", is_flag=True, help="Everything but the history, as JSON: a line for each.")
@store_options()
def list_(limit: int, as_json: bool, store: Store, **only: Unpack[_Only]) -> None:
    """List instances, oldest first.

    Over a pipe, each is a line with tabs: id, workflow, status, created, changed, wakes, and what it waits for or why
    it failed.
    """

    def read(client: Client, limit: int, cursor: str | None) -> Awaitable[Page[InstanceInfo]]:
        return client.list(**only, limit=limit, cursor=cursor)

    print_pages(store, limit, as_json, _LISTED, read)


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


_LISTED = Listed(["ID", "WORKFLOW", "STATUS", "AGE", ""], ["WORKFLOW", ""], _cells, _row)


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
    return in_json(facts(picture.info) | recorded, indent=2)


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
            # Even after the shortest timeout, an instance that has ended by now has a result.
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
    """Call `act` with the handle of an instance, and print the status that it has then."""

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
