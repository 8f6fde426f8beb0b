"""A list of many: a table for a terminal, lines with tabs over a pipe, JSON for programs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import click
from rich.text import Text

from workflow_sdk import Client, Page
from workflow_sdk.cli.options import Store, run
from workflow_sdk.cli.output import console, facts, in_json, is_terminal, table

T = TypeVar("T")

PAGE_MAX = 1000

limit_option: Callable[[Callable[..., object]], Callable[..., object]] = click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="So many at most."
)


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """How the items of a list are shown."""

    columns: Sequence[str]
    shrinks: Sequence[str]
    """The columns that shrink first where a terminal is too narrow."""
    cells: Callable[[T], Sequence[Text]]
    """An item in a table."""
    row: Callable[[T], Sequence[str]]
    """An item over a pipe."""
    left_out: str = ""
    """The field that JSON does not have."""


def print_all(items: Iterable[T], as_json: bool, listed: Listed[T]) -> None:
    """Print all items."""
    if is_terminal() and not as_json:
        console().print(table(listed.columns, map(listed.cells, items), shrinks=listed.shrinks))
        return
    for item in items:
        click.echo(in_json(facts(item, without=listed.left_out)) if as_json else "\t".join(listed.row(item)))


def print_pages(
    store: Store,
    limit: int,
    as_json: bool,
    listed: Listed[T],
    read: Callable[[Client, int, str | None], Awaitable[Page[T]]],
) -> None:
    """Print the items that `read` finds page by page, at most `limit` of them, and say if there are more.

    `read` is given a client, how many items it may return, and the cursor of the page before.
    """
    is_table = is_terminal() and not as_json
    rows: list[T] = []

    async def use(client: Client) -> bool:
        """Print them, a page at a time except in a table, and return whether there are more."""
        left, cursor = limit, None
        while True:
            page = await read(client, min(left + 1, PAGE_MAX), cursor)
            if is_table:
                rows.extend(page.items[:left])
            else:
                print_all(page.items[:left], as_json, listed)
            if len(page.items) > left:
                return True
            left -= len(page.items)
            cursor = page.cursor
            if cursor is None:
                return False

    has_more = run(store, use)
    if is_table:
        print_all(rows, as_json, listed)
    if has_more:
        click.echo(f"there are more than {'this one' if limit == 1 else f'these {limit}'}; see --limit", err=True)
