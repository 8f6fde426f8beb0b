"""The commands about schedules: list, pause, resume and delete them. They are made by programs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click
from rich.text import Text

from workflow_sdk import Client, Schedule, Schedules
from workflow_sdk.cli.listing import Listed, print_all
from workflow_sdk.cli.options import Store, run, store_options
from workflow_sdk.cli.output import local_time, safe, span, utc_time

_id_argument = click.argument("id", metavar="ID")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON: a line for each.")
@store_options()
def schedules(as_json: bool, store: Store) -> None:
    """List schedules, by their ids.

    Over a pipe, each is a line with tabs: id, workflow, when it ticks, `paused` or the next tick, the last tick, the
    instance of that, and how many ticks wait.
    """

    async def use(client: Client) -> list[Schedule]:
        return (await client.schedules.list()).items

    print_all(run(store, use), as_json, _LISTED)


def _when(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {span(schedule.every.total_seconds())}"
    return safe(f"{schedule.cron} {schedule.timezone}")


def _cells(schedule: Schedule) -> list[Text]:
    next_at = "paused" if schedule.paused else "" if schedule.next_at is None else local_time(schedule.next_at)
    return [
        Text(safe(schedule.id)),
        Text(safe(schedule.workflow)),
        Text(_when(schedule)),
        Text(next_at, "yellow" if schedule.paused else ""),
        Text("" if schedule.last_at is None else local_time(schedule.last_at)),
        Text(str(len(schedule.waiting) or "")),
    ]


def _row(schedule: Schedule) -> list[str]:
    next_at = "paused" if schedule.paused else utc_time(schedule.next_at)
    last = [utc_time(schedule.last_at), safe(schedule.last_instance or "")]
    return [safe(schedule.id), safe(schedule.workflow), _when(schedule), next_at, *last, str(len(schedule.waiting))]


_LISTED = Listed(["ID", "WORKFLOW", "TICKS", "NEXT", "LAST", "WAITING"], ["WORKFLOW", "TICKS"], _cells, _row)


def _operate(store: Store, act: Callable[[Schedules], Awaitable[Any]], said: str) -> None:
    async def use(client: Client) -> None:
        await act(client.schedules)

    run(store, use)
    click.echo(said)


@click.command("pause-schedule")
@_id_argument
@store_options()
def pause_schedule(id: str, store: Store) -> None:
    """Have a schedule start nothing until it is resumed."""

    _operate(store, lambda schedules: schedules.pause(id), "paused")


@click.command("resume-schedule")
@_id_argument
@store_options()
def resume_schedule(id: str, store: Store) -> None:
    """Have a schedule go on, and print when it ticks next. What came while it was paused is left out."""

    async def use(client: Client) -> Schedule:
        return await client.schedules.resume(id)

    click.echo(utc_time(run(store, use).next_at))


@click.command("delete-schedule")
@_id_argument
@store_options()
def delete_schedule(id: str, store: Store) -> None:
    """Forget a schedule. What it has started stays."""

    _operate(store, lambda schedules: schedules.delete(id), "deleted")
