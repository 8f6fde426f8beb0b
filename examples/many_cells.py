"""A hundred thousand cells in one file, of which almost all are asleep: what sleeps costs no memory.

python examples/many_cells.py [how many]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workflow_sdk import Runtime
from workflow_sdk.machines import MachineContext, Manifest, Transition, machine, route


@dataclass(frozen=True)
class Reading:
    meter: str
    watts: int


@dataclass(frozen=True)
class Alarm:
    meter: str
    watts: int


@dataclass(frozen=True)
class Meter:
    readings: int = 0
    highest: int = 0


@machine("grid/meter@1", state=Meter, event=Reading, key=str, effects=[])
def meter(state: Meter | None, event: Reading, ctx: MachineContext) -> Transition[Meter]:
    state = state or Meter()
    highest = max(state.highest, event.watts)
    alarms = [Alarm(event.meter, event.watts)] if event.watts > 9_000 and event.watts == highest else []
    return Transition(replace(state, readings=state.readings + 1, highest=highest), events=alarms)


@machine("grid/alarms@1", state=dict[str, int], event=Alarm, effects=[])
def alarms(state: dict[str, int] | None, event: Alarm, ctx: MachineContext) -> Transition[dict[str, int]]:
    return Transition({**(state or {}), event.meter: event.watts})


grid = Manifest(machines=[meter, alarms], routes=[route(Reading, meter, key_field="meter"), route(Alarm, alarms)])

AT_ONCE = 500
RESIDENT = 1_000


async def until_still(runtime: Runtime, machine: Any) -> None:
    """Return once no cell has anything to do, and most are out of memory."""
    while True:
        pages = [await runtime.list(workflow=machine, status=status, limit=1) for status in ("pending", "running")]
        if not any(page.items for page in pages) and runtime.resident <= RESIDENT:
            return
        await asyncio.sleep(0.05)


async def main(cells: int) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'grid.db'}"
        async with Runtime(store, machines=grid, max_resident=RESIDENT) as runtime:
            for first in range(0, cells, AT_ONCE):
                numbers = range(first, min(first + AT_ONCE, cells))
                await asyncio.gather(*(runtime.emit(Reading(f"m-{number}", number % 900)) for number in numbers))
            await until_still(runtime, meter)
            print(f"{cells:,} meters have a reading, and at most {RESIDENT:,} of them are in memory")
        print(f"that took {time.monotonic() - began:.0f} s", file=sys.stderr)

        async with Runtime(store, machines=grid) as runtime:
            await runtime.emit(Reading(f"m-{cells - 1}", 9_500))
            async for _ in runtime.handle(meter, meter.instance_id(f"m-{cells - 1}")).watch():
                if (await runtime.cell(meter, f"m-{cells - 1}")).revision == 2:
                    break
            async for _ in runtime.handle(alarms, alarms.instance_id()).watch():
                if found := (await runtime.cell(alarms)).state:
                    print(f"in a new process, one of them wakes: {found}")
                    break


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
