"""How `graphs_1.json`, `graphs_1.txt` and `graphs_1.database` were made: once, by hand, never by the tests.

    python -m tests.formats.make_graphs_1

What is written today in another way gets files of its own, beside these.
"""

from __future__ import annotations

from tests.formats.files import write
from tests.formats.graphs_1 import MENDED, ended, half_way, late, surrounded, waits
from workflow_sdk import Client, Driver, run_workflow, send_message
from workflow_sdk.graphs import node
from workflow_sdk.testing import VirtualClock

INSTANCES = ("half way", "succeeded", "failed", "surrounded")


async def on_the_way(driver: Driver, clock: VirtualClock) -> None:
    """An instance of which firings are under way in every way there is."""

    async def go_on() -> None:
        await run_workflow(half_way, {"order": "o-1"}, driver=driver, instance_id="half way", mode="yield", clock=clock)

    await go_on()
    async with Client(driver, clock=clock) as client:
        handle = client.handle(half_way, "half way")
        await handle.patch(outside=[1, b"two"])
        batch = [node("from outside", late, args={"n": 7}), node("outside too", waits)]
        assert await client.submit("half way", batch)
    await send_message(driver, "half way", "work", 20, clock=clock)
    clock.advance(5)
    await go_on()


async def others(driver: Driver, clock: VirtualClock) -> None:
    """Instances that have ended, and a graph among other operations."""
    for id, workload in (("succeeded", 1), ("failed", -1)):
        await run_workflow(ended, workload, driver=driver, instance_id=id, mode="yield", clock=clock)
    await run_workflow(surrounded, driver=driver, instance_id="surrounded", mode="yield", clock=clock)


if __name__ == "__main__":
    MENDED.clear()
    write("graphs_1", on_the_way, others, INSTANCES)
