"""Forgetting many instances: what it costs, and what is left alone."""

from __future__ import annotations

import pytest

from tests.runtime.counting import Counting
from tests.runtime.parts import doubles
from workflow_sdk import Batch, Client, Driver, Status, run_workflow, workflow
from workflow_sdk.rows.keys import Field, InstanceKeys

pytestmark = pytest.mark.law(12)

COUNT = 200


async def completed(driver: Driver, count: int) -> None:
    """So many instances that have ended."""
    for number in range(count):
        await run_workflow(doubles, number, driver=driver, instance_id=f"i{number}")


async def test_many_go_with_one_commit(driver: Driver) -> None:
    await completed(driver, COUNT)
    counting = Counting(driver)
    async with Client(counting) as client:
        assert await client.prune(older_than=-10) == COUNT
        # One for each shard, and for every so many.
        assert counting.commits <= 16 + COUNT // 64
        # What it is, and its tasks; and the directory, by status.
        assert counting.gets + counting.scans <= 2 * COUNT + 4 * 16 * 3
        assert (await client.list()).items == []
        assert await client.prune(older_than=-10) == 0


async def test_one_that_moves_on_meanwhile_stays(driver: Driver) -> None:
    await completed(driver, 30)

    class Disturbed(Counting):
        """Before the first commit, somebody has an instance run again."""

        async def commit(self, batch: Batch, /) -> None:
            if not self.commits:
                async with Client(self.driver) as other:
                    for number in range(30):
                        await other.handle(doubles, f"i{number}").restart_from()
                        break
            await super().commit(batch)

    async with Client(Disturbed(driver)) as client:
        assert await client.prune(older_than=-10) == 29
        (left,) = (await client.list()).items
        assert (left.id, left.status) == ("i0", Status.RUNNING)


@pytest.mark.leaves("a row that is damaged")
async def test_one_that_cannot_be_read_is_in_nobodys_way(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    """It is neither listed nor forgotten, and that is said."""
    await completed(driver, 10)
    batch = Batch()
    batch.set(InstanceKeys("i3").field(Field.HEAD), b"\xff")
    await driver.commit(batch)
    async with Client(driver) as client:
        assert len((await client.list()).items) == 9
        assert await client.prune(older_than=-10) == 9
    assert "instance i3 is not listed" in caplog.text
    assert "instance i3 is kept" in caplog.text


async def test_what_has_ended_only_now_is_kept(driver: Driver) -> None:
    @workflow
    async def fails(ctx: object) -> None:
        raise ValueError

    await completed(driver, 3)
    await run_workflow(fails, driver=driver, instance_id="failed")
    async with Client(driver) as client:
        assert await client.prune(older_than=3600) == 0
        assert await client.prune(older_than=-10, statuses=["failed"]) == 1
        assert len((await client.list()).items) == 3
