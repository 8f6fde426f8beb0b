"""How `format_1.json`, `format_1.txt` and `format_1.database` were made: once, by hand, never by the tests.

    python -m tests.formats.make_1

What is written today in another way gets files of its own, beside these.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tests.formats.files import write
from tests.formats.workflows_1 import MENDED, Order, ends, everything, unwinds
from workflow_sdk import Driver, Workflow, run_workflow, send_message
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

INSTANCES = ("half way", "rolling back", "exhausted", "completed", "failed", "stuck", "sleeping", "crashed")
ORDER = Order("o-1", [("apple", 3)])


async def half_way(driver: Driver, clock: VirtualClock) -> None:
    """An instance with every kind of operation, finished and under way."""

    async def go_on() -> None:
        await run_workflow(everything, ORDER, driver=driver, instance_id="half way", clock=clock)

    await go_on()
    for name, payload in [("early", (1, b"2")), ("pair", "only one")]:
        await send_message(driver, "half way", name, payload, clock=clock)
    for _ in range(8):
        await go_on()
        clock.advance(61)
    await send_message(driver, "half way", "bait", "a bait", clock=clock)
    await send_message(driver, "half way", "left over", {"never": "taken"}, clock=clock)
    await go_on()


async def others(driver: Driver, clock: VirtualClock) -> None:
    """Instances in other states."""

    async def run(workflow: Workflow[Any, Any], input: Any, id: str) -> None:
        await run_workflow(workflow, input, driver=driver, instance_id=id, clock=clock)

    MENDED.append("refund three of failure")
    for _ in range(2):
        await run(unwinds, None, "rolling back")
        clock.advance(0.2)
    for _ in range(4):
        await run(unwinds, None, "exhausted")
        clock.advance(60)
    for how in ("completed", "failed", "stuck", "sleeping"):
        await run(ends, how, how)
    await send_message(driver, "stuck", "number", "seven", clock=clock)
    with suppress(SimulatedCrash):
        await run_workflow(
            ends, "crashed", driver=FaultyDriver(driver, crash_after=2), instance_id="crashed", clock=clock
        )
    with suppress(SimulatedCrash):
        await run_workflow(
            ends, "crashed", driver=FaultyDriver(driver, crash_after=1), instance_id="crashed", clock=clock
        )


if __name__ == "__main__":
    write("format_1", half_way, others, INSTANCES)
