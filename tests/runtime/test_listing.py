"""Lists of instances: filters, pages, pruning."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Rows, doubles, naps
from workflow_sdk import Client, Context, DefinitionError, Driver, Runtime, Status, run_workflow, workflow
from workflow_sdk.testing import VirtualClock


@workflow
async def fails(ctx: Context) -> None:
    """Fails."""
    raise ValueError("no")


async def ids(client: Client, **filters: Any) -> list[str]:
    """What is listed, in order, over all pages."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await client.list(cursor=cursor, **filters)
        found += [info.id for info in page.items]
        assert len(page.items) <= filters.get("limit", 100)
        cursor = page.cursor
        if cursor is None:
            return found


async def fill(driver: Driver, clock: VirtualClock) -> None:
    """Seven instances, a minute apart."""
    for number in range(3):
        await run_workflow(doubles, number, driver=driver, instance_id=f"double-{number}", clock=clock)
        clock.advance(60)
        await run_workflow(naps, 7200, driver=driver, instance_id=f"nap-{number}", clock=clock)
        clock.advance(60)
    await run_workflow(fails, driver=driver, instance_id="fail", clock=clock)


async def test_filters(driver: Driver) -> None:
    clock = VirtualClock()
    await fill(driver, clock)
    everything = ["double-0", "nap-0", "double-1", "nap-1", "double-2", "nap-2", "fail"]
    async with Client(driver, clock=clock) as client:
        assert await ids(client) == everything
        assert await ids(client, workflow=doubles) == await ids(client, workflow="doubles") == everything[:6:2]
        assert await ids(client, status=Status.SLEEPING) == await ids(client, status="sleeping") == everything[1:6:2]
        assert await ids(client, workflow=naps, status="completed") == []
        assert await ids(client, workflow=doubles, status="completed") == everything[:6:2]
        assert await ids(client, workflow="unheard of") == []
        after = clock.now() - timedelta(seconds=150)
        assert await ids(client, created_after=after) == ["double-2", "nap-2", "fail"]
        assert await ids(client, created_after=after, status="completed", limit=1) == ["double-2"]
        assert await ids(client, created_after=clock.now() - timedelta(seconds=60)) == ["fail"], "after, not at"


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
async def test_pages(driver: Driver, limit: int) -> None:
    clock = VirtualClock()
    await fill(driver, clock)
    async with Client(driver, clock=clock) as client:
        assert await ids(client, limit=limit) == await ids(client)
        assert await ids(client, workflow=naps, limit=limit) == ["nap-0", "nap-1", "nap-2"]
        assert await ids(client, workflow=doubles, status="completed", limit=limit) == [
            *("double-0", "double-1", "double-2"),
        ]


async def test_a_page_survives_what_happens_meanwhile(driver: Driver) -> None:
    clock = VirtualClock()
    await fill(driver, clock)
    async with Client(driver, clock=clock) as client:
        first = await client.list(limit=3)
        await client.delete("double-1")
        await client.delete("double-2")
        rest = await client.list(limit=3, cursor=first.cursor)
        assert [info.id for info in rest.items] == ["nap-1", "nap-2", "fail"]


@pytest.mark.parametrize(
    "filters",
    [
        {"limit": 0},
        {"limit": 1001},
        {"cursor": "x"},
        {"cursor": "00"},
        {"created_after": datetime(2030, 1, 1)},  # noqa: DTZ001  # that is the mistake
    ],
)
async def test_bad_filters(driver: Driver, filters: dict[str, Any]) -> None:
    async with Client(driver) as client:
        with pytest.raises(DefinitionError):
            await client.list(**filters)


async def test_a_cursor_belongs_to_its_filters(driver: Driver) -> None:
    clock = VirtualClock()
    await fill(driver, clock)
    async with Client(driver, clock=clock) as client:
        page = await client.list(limit=1)
        with pytest.raises(DefinitionError, match="not of a list with these filters"):
            await client.list(workflow=naps, cursor=page.cursor)


async def test_times_far_away(driver: Driver) -> None:
    clock = VirtualClock()
    await fill(driver, clock)
    async with Client(driver, clock=clock) as client:
        assert await ids(client, created_after=datetime(9999, 12, 31, tzinfo=UTC)) == []
        assert len(await ids(client, created_after=datetime(1970, 1, 1, tzinfo=UTC))) == 7


async def test_pruning(driver: Driver) -> None:
    clock = VirtualClock()
    await fill(driver, clock)
    async with Client(driver, clock=clock) as client:
        assert await client.prune(older_than=timedelta(hours=1)) == 0
        assert await client.prune(older_than=180) == 2, "those that ended more than three minutes ago"
        assert await ids(client) == ["nap-0", "nap-1", "double-2", "nap-2", "fail"]
        assert await client.prune(older_than=-1, statuses=["failed"]) == 1
        with pytest.raises(DefinitionError, match="not sleeping ones"):
            await client.prune(older_than=0, statuses=[Status.SLEEPING])
        assert await client.prune(older_than=-1) == 1
        assert await ids(client) == ["nap-0", "nap-1", "nap-2"]
    rows = await Rows.of(driver)
    assert [rows.of_instance(id) for id in ("double-0", "fail")] == [[], []]


async def test_pruning_many_pages(driver: Driver) -> None:
    async with Runtime(driver, workflows=[doubles]) as runtime:
        handles = [await runtime.start(doubles, number) for number in range(230)]
        for handle in handles:
            await handle.result(timeout=PATIENCE)
        assert await runtime.prune(older_than=0) == 230
        assert await ids(runtime) == []


async def test_a_page_is_a_sequence(driver: Driver) -> None:
    async with Client(driver) as client:
        for id in "abc":
            await client.start("unknown", id=id)
        page = await client.list()
        assert len(page) == 3
        assert [info.id for info in page] == [info.id for info in page.items]
        assert page[0] == page.items[0]
