"""The commands about cells of machines. The store knows the machines: their code is not needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from workflow_sdk import Client, InstanceNotFoundError, Page
from workflow_sdk.cli.options import command, json_value
from workflow_sdk.cli.output import STYLES, Listed, facts, in_json, print_pages, safe, utc_time, value_text

if TYPE_CHECKING:  # who looks at no cell is not to load them
    from workflow_sdk.machines import Cell, Intent


@dataclass(frozen=True)
class _Shown:
    """A cell, as it is shown."""

    key: Any
    status: str
    revision: int
    last_sequence: int
    inflight: list[dict[str, Any]]
    state: Any


def _shown(cell: Cell[Any]) -> _Shown:
    inflight = [_intent(one) for one in cell.inflight.values()]
    return _Shown(cell.key, cell.status.value, cell.revision, cell.last_sequence, inflight, cell.state)


def _intent(one: Intent) -> dict[str, Any]:
    about: Mapping[str, object] = facts(one)
    return {name: about[name] for name in ("id", "effect", "params", "issuer", "sequence", "attempt", "recorded_at")}


def _key(cell: _Shown) -> str:
    return cell.key if isinstance(cell.key, str) else "" if cell.key is None else value_text(cell.key)


def _cells(cell: _Shown) -> list[str | Text]:
    status = Text(cell.status, STYLES[cell.status])
    return [_key(cell), status, str(cell.revision), str(len(cell.inflight)), value_text(cell.state)]


def _row(cell: _Shown) -> list[str]:
    return [_key(cell), cell.status, str(cell.revision), str(len(cell.inflight)), value_text(cell.state)]


_LISTED = Listed(["KEY", "STATUS", "REVISION", "IN FLIGHT", "STATE"], ["KEY", "STATE"], _cells, _row)


@command()
@click.argument("machine")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="So many at most.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON: a line for each.")
async def cells(client: Client, machine: str, limit: int, as_json: bool) -> None:
    """List the cells of a machine, oldest first.

    Over a pipe, each is a line with tabs: key, status, transitions, effects in flight, and the state as JSON.
    """

    async def read(**page: Any) -> Page[_Shown]:
        found = await client.cells(machine, **page)
        return Page([_shown(cell) for cell in found.items], found.cursor)

    await print_pages(read, limit, as_json, _LISTED)


@command()
@click.argument("machine")
@click.argument("key", required=False)
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON, in one line.")
async def cell(client: Client, machine: str, key: str | None, as_json: bool) -> None:
    """Show the cell of a machine under KEY: its state, and the effects in flight.

    KEY is a text as it is, or any other key as JSON. A machine without keys has one cell, without a KEY.
    """
    found = _shown(await _find(client, machine, key))
    if as_json:
        click.echo(in_json(facts(found)))
        return
    click.echo(f"{safe(_key(found) or machine)}  {found.status}  {found.revision} transitions")
    click.echo(in_json(found.state, indent=2))
    for one in found.inflight:
        times = f"attempt {one['attempt']}, since {utc_time(one['recorded_at'])}"
        click.echo(f"{safe(one['id'])}  {safe(one['effect'])}  {value_text(one['params'])}  {times}")


@command()
@click.argument("schema")
@click.argument("event", callback=json_value, metavar="JSON")
@click.option("--id", "event_id", help="Send it once, however often this is called with the same id.")
async def emit(client: Client, schema: str, event: Any, event_id: str | None) -> None:
    """Send an event to the cells that the active manifest routes it to; print what became of each.

    SCHEMA is the name of the event, such as shop/OrderCreated@1, and JSON its fields, or '-' for standard input. The
    store knows what it looks like.
    """
    from workflow_sdk.machines import PlainEvent

    for delivery in await client.emit(PlainEvent(schema, event), id=event_id):
        click.echo(delivery.value)


async def _find(client: Client, machine: str, key: str | None) -> Cell[Any]:
    try:
        return await client.cell(machine, key)
    except InstanceNotFoundError:
        try:
            other = json.loads(key or "")
        except ValueError:
            other = None
        if other is None or isinstance(other, str):
            raise
    return await client.cell(machine, other)
