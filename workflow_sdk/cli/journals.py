"""The commands about the journals of machines."""

from __future__ import annotations

import click
from rich.text import Text

from workflow_sdk import Client
from workflow_sdk.cli.options import command
from workflow_sdk.cli.output import Listed, age, in_json, print_all, utc_time
from workflow_sdk.machines import JournalEntry

_json_option = click.option("--json", "as_json", is_flag=True, help="Everything, as JSON: a line for each.")


def _cells(entry: JournalEntry) -> list[str | Text]:
    return [in_json(entry.key), str(entry.sequence), entry.schema, age(entry.at), in_json(entry.value)]


def _row(entry: JournalEntry) -> list[str]:
    return [
        entry.machine,
        in_json(entry.key),
        entry.kind,
        entry.schema,
        str(entry.sequence),
        utc_time(entry.at),
        entry.intent_id or "",
        in_json(entry.value),
    ]


_ENTRIES = Listed(["KEY", "SEQUENCE", "EVENT", "AGE", ""], ["EVENT", ""], _cells, _row, left_out="recorded")


@command()
@click.argument("machine")
@click.option("--limit", type=click.IntRange(1, 10_000), default=10, show_default=True, help="So many at most.")
@_json_option
async def tail(client: Client, machine: str, limit: int, as_json: bool) -> None:
    """Print what the cells of MACHINE have taken last, from its journal.

    Over a pipe, each is a line with tabs: machine, key, kind, schema, sequence, when, intent and value.
    """
    page = await client.journal(machine, limit=limit, newest_first=True)
    print_all(reversed(page.items), as_json, _ENTRIES)


@command()
@click.argument("intent")
@_json_option
async def trace(client: Client, intent: str, as_json: bool) -> None:
    """Print what led to the effect INTENT and what came of it, from the journals, as `tail` does."""
    found = await client.trace(intent)
    if not found:
        raise click.ClickException(f"no journal has the intent {intent!r}")
    print_all(found, as_json, _ENTRIES)
