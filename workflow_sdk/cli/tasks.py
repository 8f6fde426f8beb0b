"""The commands about tasks: what people are to do, and that somebody has done it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypedDict, Unpack

import click
from rich.text import Text

from workflow_sdk import Client, Page, Task
from workflow_sdk.cli.listing import Listed, limit_option, print_pages
from workflow_sdk.cli.options import Store, json_value, run, store_options
from workflow_sdk.cli.output import age, in_json, local_time, safe, utc_time, value_text

_task_argument = click.argument("id", metavar="ID")


class _Only(TypedDict):
    """Which tasks are listed."""

    assignee: str | None
    role: str | None
    reference: str | None
    instance: str | None


@click.command()
@click.option("--assignee", metavar="NAME", help="Only those that were assigned to NAME.")
@click.option("--role", metavar="ROLE", help="Only those for this role.")
@click.option("--reference", metavar="REF", help="Only those of instances with this business reference.")
@click.option("--instance", metavar="ID", help="Only those of this instance.")
@limit_option
@click.option("--json", "as_json", is_flag=True, help="Everything but the log, as JSON: a line for each.")
@store_options()
def tasks(limit: int, as_json: bool, store: Store, **only: Unpack[_Only]) -> None:
    """List the open tasks of people, oldest first.

    Over a pipe, each is a line with tabs: id, name, instance, assignee, roles, reference, created, until, payload.
    """

    def read(client: Client, limit: int, cursor: str | None) -> Awaitable[Page[Task]]:
        return client.tasks.list(**only, limit=limit, cursor=cursor)

    print_pages(store, limit, as_json, _LISTED, read)


def _cells(task: Task) -> list[Text]:
    whose = task.assignee if task.assignee is not None else " or ".join(task.roles)
    return [
        Text(task.id),
        Text(safe(task.name)),
        Text(safe(task.instance)),
        Text(safe(whose)),
        Text(age(task.created_at)),
        Text("" if task.until is None else local_time(task.until)),
        Text("" if task.payload is None else value_text(task.payload)),
    ]


def _row(task: Task) -> list[str]:
    whose = [safe(task.assignee or ""), ",".join(map(safe, task.roles)), safe(task.reference or "")]
    times = [utc_time(task.created_at), utc_time(task.until)]
    return [task.id, safe(task.name), safe(task.instance), *whose, *times, in_json(task.payload)]


_LISTED = Listed(
    ["ID", "TASK", "INSTANCE", "FOR", "AGE", "UNTIL", ""], ["TASK", "INSTANCE", "FOR", ""], _cells, _row, left_out="log"
)


def _change(store: Store, id: str, act: Callable[[Client], Awaitable[None]], said: str) -> None:
    async def use(client: Client) -> None:
        # Without the right codec, this would write what the workers can't read. Reading the task first finds that out.
        await client.tasks.get(id)
        await act(client)

    run(store, use)
    click.echo(said)


@click.command("complete-task")
@_task_argument
@click.argument("result", callback=json_value, metavar="[RESULT-JSON]", required=False)
@click.option("--by", metavar="NAME", required=True, help="Who has done it.")
@click.option("--role", "roles", metavar="ROLE", multiple=True, help="One that NAME has; can be given again.")
@store_options()
def complete(id: str, result: Any, by: str, roles: tuple[str, ...], store: Store) -> None:
    """Complete a task: its instance goes on with the result.

    A task that is over, or that is for other roles, is an error; nothing is changed then. RESULT-JSON is '-' for
    standard input.
    """

    _change(store, id, lambda client: client.tasks.complete(id, result, by=by, roles=roles), "completed")


@click.command("assign-task")
@_task_argument
@click.argument("to", metavar="NAME")
@click.option("--by", metavar="NAME", help="Who does so.")
@store_options()
def assign(id: str, to: str, by: str | None, store: Store) -> None:
    """Give a task to NAME, whoever had it."""

    _change(store, id, lambda client: client.tasks.assign(id, to, by=by), "assigned")


@click.command("release-task")
@_task_argument
@click.option("--by", metavar="NAME", help="Who does so.")
@store_options()
def release(id: str, by: str | None, store: Store) -> None:
    """Take a task from whoever has it: it is anyone's."""

    _change(store, id, lambda client: client.tasks.release(id, by=by), "released")
