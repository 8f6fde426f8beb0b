"""An order is killed in the middle of a payment, goes on in a new process, waits without one, and ends.

    make demo
    python examples/demo.py --no-pauses

Every step writes into a ledger, a text file that the workflow knows nothing of: when it starts, and when it is done. In
the end the ledger and the history are compared. The exit code tells whether every claim holds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from workflow_sdk import (
    Break,
    Context,
    Continue,
    History,
    Status,
    open_driver,
    read_history,
    run_workflow,
    send_message,
    workflow,
)

INSTANCE = "order-1001"
ITEMS = ["teapot", "two cups", "a pound of tea"]
KILLED = "charge the card"

# Set by the process that starts a worker. It is no part of the order: a workflow that
# knows of its own crash would prove nothing.
PACE = float(os.environ.get("DEMO_PACE", "1"))
LEDGER = Path(os.environ.get("DEMO_LEDGER", os.devnull))
DIES_IN = os.environ.get("DEMO_DIES_IN", "")
STORE = os.environ.get("DEMO_STORE", "memory://")


# The workflow ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    id: str
    items: list[str]
    cents: int


@dataclass(frozen=True)
class Fulfilled:
    charge: str
    courier: str
    items_packed: int
    signed_by: str


def enter(event: str, what: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{os.getpid()}\t{event}\t{what}\n")


async def effect(what: str, result: str, seconds: float = 0.5) -> str:
    """An effect outside the program: it can't be taken back, and a crash can interrupt it."""
    enter("started", what)
    print(f"{what} ...", flush=True)
    await asyncio.sleep(seconds * PACE)
    if what == DIES_IN:
        await label_is_recorded()
        print(f"SIGKILL in the middle of: {what}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    enter("finished", what)
    return result


async def label_is_recorded() -> None:
    """Wait until the branch beside the payment is recorded, so that each performance is the same."""
    async with aclosing(await open_driver(STORE)) as driver:
        while "label-12" not in [entry.value for entry in await read_history(driver, INSTANCE)]:  # noqa: ASYNC110  # the commit of another branch has no event here
            await asyncio.sleep(0.02)


async def payment(ctx: Context) -> str:
    return await ctx.step(KILLED, effect, KILLED, "charge-77", 1.0)


async def label(ctx: Context) -> str:
    return await ctx.step("print the label", effect, "print the label", "label-12", 0.2)


async def express(ctx: Context) -> str:
    return await ctx.step("ask the express courier", effect, "ask the express courier", "express", 600.0 / PACE)


async def patience(ctx: Context) -> str:
    await ctx.sleep("one second", 1.0 * PACE + 0.1)
    return "the usual courier"


async def pack(ctx: Context, packed: int) -> Continue[int] | Break[int]:
    if packed == len(ITEMS):
        return Break(packed)
    await ctx.step("pack", effect, f"pack {ITEMS[packed]}", "packed", 0.4)
    return Continue(packed + 1)


@workflow
async def fulfil(ctx: Context, order: Order) -> Fulfilled:
    await ctx.step("check the stock", effect, "check the stock", "all there")
    prepared = await ctx.join("prepare", {"payment": payment, "label": label})
    courier = await ctx.race("courier", {"express": express, "patience": patience})
    packed = await ctx.loop("items", pack, 0)
    signed_by = await ctx.listen("delivered", type=str)
    await ctx.step("send the receipt", effect, "send the receipt", "sent")
    return Fulfilled(prepared["payment"], courier.value, packed, signed_by)


async def work() -> None:
    """Run the order as far as it goes. Each of the three processes does this."""
    order = Order(INSTANCE, ITEMS, 4990)
    async with aclosing(await open_driver(STORE)) as driver:
        result = await run_workflow(fulfil, order, driver=driver, instance_id=INSTANCE)
    waiting = f" for {', '.join(result.waiting_for)}" if result.waiting_for else ""
    print(f"the order is {result.status}{waiting}", flush=True)


# The stage ------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A line of the ledger."""

    process: int
    event: str
    what: str


@dataclass(frozen=True)
class Stage:
    """The terminal on which a performance is shown."""

    console: Console
    folder: Path
    pace: float

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/demo.db"

    def pause(self, seconds: float = 1.0) -> None:
        time.sleep(seconds * self.pace)

    def say(self, text: str) -> None:
        self.console.print()
        self.console.print(text)
        self.pause()

    def ledger(self) -> list[Line]:
        rows = (line.split("\t") for line in (self.folder / "ledger.txt").read_text().splitlines())
        return [Line(int(process), event, what) for process, event, what in rows]

    async def worker(self, number: int, *, dies_in: str = "") -> int:
        """Run the order in a process of its own, show what it says, and return its exit code."""
        told = {
            "DEMO_STORE": self.store,
            "DEMO_LEDGER": str(self.folder / "ledger.txt"),
            "DEMO_PACE": str(self.pace),
            "DEMO_DIES_IN": dies_in,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--work", env=os.environ | told, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        colour = ("", "magenta", "cyan", "green")[number]
        async for line in process.stdout:
            self.console.print(Text.assemble((f"  process {number} │ ", colour), line.decode().rstrip()))
        return await process.wait()

    async def history(self) -> History:
        async with aclosing(await open_driver(self.store)) as driver:
            return await read_history(driver, INSTANCE)

    async def deliver(self) -> None:
        async with aclosing(await open_driver(self.store)) as driver:
            await send_message(driver, INSTANCE, "delivered", "the neighbour")


def finished_steps(history: History) -> list[str]:
    """Return the names of the steps that the history has as finished."""
    return [entry.name for entry in history if entry.kind == "step" and entry.status == "completed"]


async def perform(stage: Stage) -> bool:
    """Play the three acts, show what is left, and tell whether every claim holds."""
    stage.console.print(Rule("One order, three processes"))
    stage.say("[bold]1.[/] A process starts the order. It will be killed while it charges the card.")
    killed = await stage.worker(1, dies_in=KILLED)
    recorded = finished_steps(await stage.history())
    stage.say(f"   [red]Killed.[/] The store has {len(recorded)} finished steps; the payment is not among them.")

    stage.say("[bold]2.[/] A new process starts the same program. What is recorded is not done again.")
    second = await stage.worker(2)
    stage.say("   It waits for a message, and no process is left: it is rows in a store.")

    stage.say("[bold]3.[/] The delivery is signed for. A third process takes the order to its end.")
    await stage.deliver()
    third = await stage.worker(3)

    history, ledger = await stage.history(), stage.ledger()
    stage.say("[bold]What is on record[/]")
    stage.console.print(Panel.fit(Text(str(history)), border_style="dim"))
    stage.say("[bold]What happened in the world[/] (the ledger)")
    stage.console.print(table(ledger))
    return verdict(stage, (killed, second, third), recorded, ledger, history)


def table(ledger: list[Line]) -> Table:
    order = {process: number for number, process in enumerate(dict.fromkeys(line.process for line in ledger), 1)}
    shown = Table("side effect", "started in process", "finished in process", border_style="dim")
    for what in dict.fromkeys(line.what for line in ledger):
        cells = [
            ", ".join(str(order[line.process]) for line in ledger if (line.event, line.what) == (event, what))
            for event in ("started", "finished")
        ]
        style = "red" if "," in cells[0] else "yellow" if not cells[1] else ""
        shown.add_row(what, *(cell or "never" for cell in cells), style=style)
    return shown


def verdict(
    stage: Stage, codes: tuple[int, int, int], recorded: list[str], ledger: list[Line], history: History
) -> bool:
    """Compare the ledger with the history."""
    started = Counter(line.what for line in ledger if line.event == "started")
    finished = Counter(line.what for line in ledger if line.event == "finished")
    claims = {
        "the first process was killed, the others ended well": codes == (-signal.SIGKILL, 0, 0),
        "the order is completed": history.status == Status.COMPLETED,
        "nothing that was on record at the crash was started again": all(started[what] == 1 for what in recorded),
        f"only {KILLED!r}, killed in mid-flight, started twice": {w for w, n in started.items() if n > 1} == {KILLED},
        "everything that was finished, finished once": set(finished.values()) == {1},
        "the courier who lost the race was stopped": finished["ask the express courier"] == 0,
        "every finished effect is a finished step on record": len(finished_steps(history)) == len(finished),
    }
    stage.console.print()
    for claim, holds in claims.items():
        stage.console.print(Text.assemble(("  ✓ ", "green") if holds else ("  ✗ ", "bold red"), claim))
    stage.say(
        "A step that was cut short starts again: whether the card had been charged, no\n"
        "engine can know. Give the payment service a key that stays the same, such as\n"
        "the order's id, and it will not charge twice either."
    )
    return all(claims.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-pauses", action="store_true", help="as fast as it goes")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        asyncio.run(work())
        return 0
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Console(highlight=False), Path(folder), 0.01 if options.no_pauses else 1.0)
        return 0 if asyncio.run(perform(stage)) else 1


if __name__ == "__main__":
    sys.exit(main())
