"""The commands about instances, their tasks and the schedules that start them: find, start, tell, end and forget."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from rich.text import Text

from workflow_sdk import Client, Delivery, Handle, InstanceInfo, Schedule, Status, Task, Tasks
from workflow_sdk.cli.options import command, duration, find, id_argument, json_value
from workflow_sdk.cli.output import (
    STYLES,
    Listed,
    age,
    error_text,
    in_json,
    local_time,
    print_all,
    print_pages,
    safe,
    span,
    utc_time,
    value_text,
    wait_text,
)

_STATUSES = [status.value for status in Status]
_ENDS = [status.value for status in Status if status.is_terminal]

_limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="So many at most."
)


async def _find_readable(client: Client, id: str) -> Handle[Any]:
    """The handle of an instance, after a value of the instance could be read.

    Without the right codec, this would write what the workers of the instance can't read. So nothing is written.
    """
    handle = find(client, id)
    await handle.info()
    return handle


async def _print_status(handle: Handle[Any]) -> None:
    click.echo((await handle.info()).status.value)


@command(creates=True)
@click.argument("name")
@click.argument("input", callback=json_value, metavar="[INPUT-JSON]", required=False)
@click.option("--id", help="Of the instance. Starting it twice is starting it once.")
async def start(client: Client, name: str, input: Any, id: str | None) -> None:
    """Start an instance of the workflow NAME, and print its id.

    INPUT-JSON is '-' for standard input.
    """
    click.echo(safe((await client.start(name, input, id=id)).id))


@command("list")
@click.option("--status", type=click.Choice(_STATUSES), help="Only those.")
@click.option("--workflow", metavar="NAME", help="Only those of this workflow.")
@click.option("--reference", metavar="REF", help="Only those with this business reference.")
@_limit_option
@click.option("--json", "as_json", is_flag=True, help="Everything but the history, as JSON: a line for each.")
async def list_(client: Client, limit: int, as_json: bool, **only: Any) -> None:
    """List instances, oldest first.

    Over a pipe, each is a line with tabs: id, workflow, status, created, changed, wakes, and what it waits for or why
    it failed.
    """
    await print_pages(partial(client.list, **only), limit, as_json, _INSTANCES)


def _instance_cells(info: InstanceInfo) -> list[str | Text]:
    status = info.status.value
    note = "" if info.status.is_terminal else wait_text(info.waits)
    note = note if info.error is None else error_text(info.error)
    return [info.id, info.workflow, Text(status, STYLES[status]), age(info.created_at), note]


def _instance_row(info: InstanceInfo) -> list[str]:
    times = [utc_time(when) for when in (info.created_at, info.updated_at, info.wake_at)]
    awaited = ",".join(sorted({wait.message for wait in info.waits if wait.message is not None}))
    return [
        info.id,
        info.workflow,
        info.status.value,
        *times,
        awaited if info.error is None else error_text(info.error),
    ]


_INSTANCES = Listed(["ID", "WORKFLOW", "STATUS", "AGE", ""], ["WORKFLOW", ""], _instance_cells, _instance_row)


@command()
@id_argument
@click.argument("message")
@click.argument("payload", callback=json_value, metavar="[PAYLOAD-JSON]", required=False)
@click.option("--key", help="The same key is delivered once.")
async def send(client: Client, id: str, message: str, payload: Any, key: str | None) -> None:
    """Send a MESSAGE to an instance, and print what became of it.

    `accepted`: it waits for it. `queued`: it is kept until it listens. `duplicate`: its key has come before.
    PAYLOAD-JSON is '-' for standard input.
    """
    delivery = await (await _find_readable(client, id)).send(message, payload, key=key)
    if delivery is Delivery.CLOSED:
        raise click.ClickException(f"instance {id!r} has ended; the message was not stored")
    click.echo(delivery.value)


@command()
@id_argument
@click.option(
    "--timeout", callback=duration, metavar="DURATION", help="How long to wait: 90s, 15m, 12h. Default: for ever."
)
async def result(client: Client, id: str, timeout: float | None) -> None:
    """Wait for the end of an instance, and print its output as JSON.

    Any other end is an error. A timeout leaves the instance alone.
    """
    handle = find(client, id)
    try:
        output = await handle.result(timeout)
    except TimeoutError:
        # Even after the shortest timeout, an instance that has ended by now has a result.
        status = (await handle.info()).status
        if not status.is_terminal and status is not Status.STUCK:
            waited = span(timeout) if timeout else "no time at all"
            raise click.ClickException(f"instance {id!r} has not ended in {waited}; it goes on") from None
        output = await handle.result()
    click.echo(in_json(output))


@command()
@id_argument
@click.option("--rollback", is_flag=True, help="Undo first what it has done.")
async def cancel(client: Client, id: str, rollback: bool) -> None:
    """End an instance, whatever it does, and print its status."""
    handle = await _find_readable(client, id)
    await handle.cancel(rollback=rollback)
    await _print_status(handle)


@command()
@id_argument
async def recover(client: Client, id: str) -> None:
    """Have an instance run again after it failed or got stuck, and print its status."""
    handle = await _find_readable(client, id)
    await handle.recover()
    await _print_status(handle)


@command("restart-from")
@id_argument
@click.argument("path", required=False)
async def restart_from(client: Client, id: str, path: str | None) -> None:
    """Have an instance forget part of its history and run again, and print its status.

    What is at PATH is forgotten, and all that ended after it; without a PATH, everything. The PATH of a line of `show`
    is made of the names down to it: both/pack/packed. A run in progress is given up. Whatever the instance's status is.
    """
    handle = await _find_readable(client, id)
    await handle.restart_from(path)
    await _print_status(handle)


@command()
@click.option("--older-than", callback=duration, required=True, metavar="DURATION", help="Since the end: 12h, 30d.")
@click.option("--status", "statuses", type=click.Choice(_ENDS), multiple=True, help="Only those; can be given again.")
async def prune(client: Client, older_than: float, statuses: tuple[str, ...]) -> None:
    """Forget the instances that have ended longer ago than that, and print how many they were."""
    click.echo(await client.prune(older_than=older_than, statuses=statuses or _ENDS))


# -- Tasks: what people are to do, and that somebody has done it ------------------------------------------------------


@command()
@click.option("--assignee", metavar="NAME", help="Only those that were assigned to NAME.")
@click.option("--role", metavar="ROLE", help="Only those for this role.")
@click.option("--reference", metavar="REF", help="Only those of instances with this business reference.")
@click.option("--instance", metavar="ID", help="Only those of this instance.")
@_limit_option
@click.option("--json", "as_json", is_flag=True, help="Everything but the log, as JSON: a line for each.")
async def tasks(client: Client, limit: int, as_json: bool, **only: Any) -> None:
    """List the open tasks of people, oldest first.

    Over a pipe, each is a line with tabs: id, name, instance, assignee, roles, reference, created, until, payload.
    """
    await print_pages(partial(client.tasks.list, **only), limit, as_json, _TASKS)


def _task_cells(task: Task) -> list[str | Text]:
    whose = task.assignee if task.assignee is not None else " or ".join(task.roles)
    payload = "" if task.payload is None else value_text(task.payload)
    return [task.id, task.name, task.instance, whose, age(task.created_at), local_time(task.until), payload]


def _task_row(task: Task) -> list[str]:
    whose = [task.assignee or "", ",".join(task.roles), task.reference or ""]
    times = [utc_time(task.created_at), utc_time(task.until)]
    return [task.id, task.name, task.instance, *whose, *times, in_json(task.payload)]


_TASKS = Listed(
    columns=["ID", "TASK", "INSTANCE", "FOR", "AGE", "UNTIL", ""],
    shrinks=["TASK", "INSTANCE", "FOR", ""],
    cells=_task_cells,
    row=_task_row,
    left_out="log",
)


async def _tasks_with(client: Client, id: str) -> Tasks:
    """The tasks of the store, after this one could be read: a change without the right codec could not be read."""
    await client.tasks.get(id)
    return client.tasks


@command("complete-task")
@id_argument
@click.argument("result", callback=json_value, metavar="[RESULT-JSON]", required=False)
@click.option("--by", metavar="NAME", required=True, help="Who has done it.")
@click.option("--role", "roles", metavar="ROLE", multiple=True, help="One that NAME has; can be given again.")
async def complete(client: Client, id: str, result: Any, by: str, roles: tuple[str, ...]) -> None:
    """Complete a task: its instance goes on with the result.

    A task that is over, or that is for other roles, is an error; nothing is changed then. RESULT-JSON is '-' for
    standard input.
    """
    await (await _tasks_with(client, id)).complete(id, result, by=by, roles=roles)
    click.echo("completed")


@command("assign-task")
@id_argument
@click.argument("to", metavar="NAME")
@click.option("--by", metavar="NAME", help="Who does so.")
async def assign(client: Client, id: str, to: str, by: str | None) -> None:
    """Give a task to NAME, whoever had it."""
    await (await _tasks_with(client, id)).assign(id, to, by=by)
    click.echo("assigned")


@command("release-task")
@id_argument
@click.option("--by", metavar="NAME", help="Who does so.")
async def release(client: Client, id: str, by: str | None) -> None:
    """Take a task from whoever has it: it is anyone's."""
    await (await _tasks_with(client, id)).release(id, by=by)
    click.echo("released")


# -- Schedules, which are made by programs ----------------------------------------------------------------------------


@command()
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON: a line for each.")
async def schedules(client: Client, as_json: bool) -> None:
    """List schedules, by their ids.

    Over a pipe, each is a line with tabs: id, workflow, when it ticks, `paused` or the next tick, the last tick, the
    instance of that, and how many ticks wait.
    """
    print_all(await client.schedules.list(), as_json, _SCHEDULES)


def _ticks(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {span(schedule.every.total_seconds())}"
    return f"{schedule.cron} {schedule.timezone}"


def _schedule_cells(schedule: Schedule) -> list[str | Text]:
    next_at = Text("paused", "yellow") if schedule.paused else local_time(schedule.next_at)
    last_at, waiting = local_time(schedule.last_at), str(len(schedule.waiting) or "")
    return [schedule.id, schedule.workflow, _ticks(schedule), next_at, last_at, waiting]


def _schedule_row(schedule: Schedule) -> list[str]:
    next_at = "paused" if schedule.paused else utc_time(schedule.next_at)
    last = [utc_time(schedule.last_at), schedule.last_instance or ""]
    return [schedule.id, schedule.workflow, _ticks(schedule), next_at, *last, str(len(schedule.waiting))]


_SCHEDULES = Listed(
    columns=["ID", "WORKFLOW", "TICKS", "NEXT", "LAST", "WAITING"],
    shrinks=["WORKFLOW", "TICKS"],
    cells=_schedule_cells,
    row=_schedule_row,
)


@command("pause-schedule")
@id_argument
async def pause_schedule(client: Client, id: str) -> None:
    """Have a schedule start nothing until it is resumed."""
    await client.schedules.pause(id)
    click.echo("paused")


@command("resume-schedule")
@id_argument
async def resume_schedule(client: Client, id: str) -> None:
    """Have a schedule go on, and print when it ticks next. What came while it was paused is left out."""
    click.echo(utc_time((await client.schedules.resume(id)).next_at))


@command("delete-schedule")
@id_argument
async def delete_schedule(client: Client, id: str) -> None:
    """Forget a schedule. What it has started stays."""
    await client.schedules.delete(id)
    click.echo("deleted")
