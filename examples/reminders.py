"""Pattern C: deadlines and backoff as state, driven by timers: an invoice that reminds, and gives up in the end.

What is tried how often, and when the next time is, stands in the state, where everybody can see it. A timer is an
effect that settles by itself. The days of this example pass in a moment: it runs on a virtual clock.

python examples/reminders.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from workflow_sdk import Runtime
from workflow_sdk.machines import (
    EffectReceipt,
    Intent,
    MachineContext,
    Manifest,
    Transition,
    effect,
    executor,
    machine,
    route,
    timer,
)
from workflow_sdk.testing import VirtualClock

REMINDERS = 3


@dataclass(frozen=True)
class InvoiceSent:
    number: int
    due: datetime


@dataclass(frozen=True)
class InvoicePaid:
    number: int


@dataclass(frozen=True)
class Letter:
    number: int
    text: str


@dataclass(frozen=True)
class Invoice:
    number: int
    stage: str
    reminders: int = 0


letter = effect("post/letter@1", params=Letter, receipt=None)


@machine(
    "books/invoice@1", state=Invoice, event=InvoiceSent | InvoicePaid | EffectReceipt, key=int, effects=[letter, timer]
)
def invoice(state: Invoice | None, event: Any, ctx: MachineContext) -> Transition[Invoice]:
    match state, event:
        case None, InvoiceSent(number, due):
            return Transition(Invoice(number, "open"), effects=[timer(at=due).tagged("due")])
        case Invoice(), InvoicePaid():
            return Transition(replace(state, stage="paid"), done=True)
        case Invoice(reminders=sent), EffectReceipt(issuer="due") if sent == REMINDERS:
            return Transition(replace(state, stage="handed to a lawyer"), done=True)
        case Invoice(reminders=sent), EffectReceipt(issuer="due"):
            # Twice as much time after each reminder: one day, two days, four days.
            again = timer(after=timedelta(days=2**sent)).tagged("due")
            text = f"reminder {sent + 1} of invoice {state.number}"
            return Transition(
                replace(state, reminders=sent + 1), effects=[letter(number=state.number, text=text), again]
            )
        case _:
            return Transition(state)  # a letter that was posted, say


manifest = Manifest(
    machines=[invoice],
    routes=[route(InvoiceSent, invoice, key_field="number"), route(InvoicePaid, invoice, key_field="number")],
)


async def main(store: str = "memory://") -> None:
    clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))

    @executor(letter)
    async def post(params: Letter, intent: Intent) -> None:
        print(f"  {datetime.fromtimestamp(clock.time(), UTC):%d %B}: {params.text}")

    async with Runtime(store, machines=manifest, executors=[post], clock=clock) as runtime:
        await runtime.emit(InvoiceSent(1, datetime(2030, 1, 15, tzinfo=UTC)))
        end = await runtime.handle(invoice, invoice.instance_id(1)).result()
        print(f"invoice 1: {end.stage}, after {end.reminders} reminders")

        await runtime.emit(InvoiceSent(2, datetime(2030, 2, 15, tzinfo=UTC)))
        await runtime.emit(InvoicePaid(2))
        end = await runtime.handle(invoice, invoice.instance_id(2)).result()
        print(f"invoice 2: {end.stage}, after {end.reminders} reminders")


if __name__ == "__main__":
    asyncio.run(main())
