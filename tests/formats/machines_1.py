"""The machines of which the rows in `machines_1.json` are. They are not changed any more: what is stored names them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from workflow_sdk import Context, workflow
from workflow_sdk.machines import (
    EffectReceipt,
    EffectRejected,
    Intent,
    MachineContext,
    Manifest,
    Transition,
    effect,
    event,
    executor,
    machine,
    route,
    timer,
)


@event("formats/Said@1")
@dataclass(frozen=True)
class Said:
    """Something comes to the cell of a key."""

    key: str
    word: str
    number: int = 1


@event("formats/Told@1")
@dataclass(frozen=True)
class Told:
    """What a cell tells others."""

    word: str


@dataclass(frozen=True)
class Ask:
    """What is asked for."""

    what: str


@dataclass(frozen=True)
class Answer:
    """What is answered."""

    text: str


@dataclass(frozen=True)
class Words:
    """What a cell has heard."""

    words: list[str] = field(default_factory=list[str])


ask = effect("formats/ask@1", params=Ask, receipt=Answer)
send = effect("formats/send@1", params=Ask, receipt=Answer)


@machine(
    "formats/cell@1", state=Words, event=Said | EffectReceipt | EffectRejected, key=str, effects=[ask, send, timer]
)
def cell(state: Words | None, heard: Any, ctx: MachineContext) -> Transition[Words]:
    """Does what the word says."""
    before = state or Words()
    if isinstance(heard, EffectReceipt):
        text = heard.payload.text if heard.status == "ok" and heard.payload is not None else str(heard.payload)
        return Transition(replace(before, words=[*before.words, f"{heard.effect} {heard.status} {text}"]))
    if isinstance(heard, EffectRejected):
        return Transition(replace(before, words=[*before.words, f"rejected {heard.payload}"]))
    after = replace(before, words=[*before.words, heard.word])
    match heard.word:
        case "asks":
            return Transition(after, effects=[ask("something").tagged("the issuer")], annotations={"asked": True})
        case "sends":
            return Transition(after, effects=[send("much")])
        case "waits":
            return Transition(after, effects=[timer(after=3600)])
        case "tells":
            return Transition(after, events=[Told(f"{heard.key} tells")])
        case "ends":
            return Transition(after, done=True)
        case "goes":
            return Transition(None)
        case "errs" if not MENDED:
            raise ValueError("this can't be taken yet")
        case _:
            return Transition(after)


MENDED: list[bool] = []
"""Not empty once the code is mended."""


@machine("formats/hub@1", state=Words, event=Told, effects=[])
def hub(state: Words | None, heard: Told, ctx: MachineContext) -> Transition[Words]:
    """The one cell that all tell."""
    before = state or Words()
    return Transition(replace(before, words=[*before.words, heard.word]))


@workflow(name="formats/asks")
async def asks(ctx: Context, what: str) -> str:
    """Asks for an effect."""
    receipt = await ctx.effect("ask", ask(what).tagged("a workflow"))
    return f"{receipt.status} {receipt.payload.text} {receipt.issuer} {receipt.key}"


@executor(send)
async def sends(params: Ask, intent: Intent) -> Answer:
    """Sends something, and does not come to an end."""
    import anyio

    await intent.send({"half": 1})
    await anyio.sleep_forever()
    return Answer("never")


manifest = Manifest([cell, hub], [route(Said, cell, "key"), route(Told, hub)])
