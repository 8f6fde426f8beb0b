"""The commands about schedules: list, pause, resume and delete them. They are made by programs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import click
from rich.text import Text

from workflow_sdk import Client, Schedule, Schedules
from workflow_sdk.cli.app import run
from workflow_sdk.cli.options import Store, store_options
from workflow_sdk.cli.output import console, in_json, is_terminal, local_time, safe, span, table, utc_time

__all__ = ["delete_schedule", "pause_schedule", "resume_schedule", "schedules"]

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

    found = run(store, use)
    if is_terminal() and not as_json:
        columns = ["ID", "WORKFLOW", "TICKS", "NEXT", "LAST", "WAITING"]
        console().print(table(columns, map(_cells, found), shrinks=["WORKFLOW", "TICKS"]))
        return
    for schedule in found:
        click.echo(in_json(_facts(schedule)) if as_json else "\t".join(_row(schedule)))


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


def _facts(schedule: Schedule) -> dict[str, object]:
    return {field.name: getattr(schedule, field.name) for field in fields(schedule)}


def _operate(store: Store, act: Callable[[Schedules], Awaitable[Any]]) -> None:
    async def use(client: Client) -> None:
        await act(client.schedules)

    run(store, use)


@click.command("pause-schedule")
@_id_argument
@store_options()
def pause_schedule(id: str, store: Store) -> None:
    """Have a schedule start nothing until it is resumed."""

    _operate(store, lambda schedules: schedules.pause(id))
    click.echo("paused")


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

    _operate(store, lambda schedules: schedules.delete(id))
    click.echo("deleted")
