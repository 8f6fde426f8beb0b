"""Random machines: tables that say what comes of which event in which stage. All that they begin has an end."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from workflow_sdk.machines import (
    EffectReceipt,
    EffectRejected,
    Machine,
    MachineContext,
    Manifest,
    Transition,
    effect,
    event,
    machine,
    route,
    timer,
)

__all__ = ["KEYS", "Go", "Work", "random_event", "random_manifest", "targets_of", "work"]

KEYS = "abc"
STAGES = 3
KINDS = 4
RECEIPT, REJECTED, TIMER = 4, 5, 6
"""The kinds of what comes from effects."""


@event("random/Go@1")
@dataclass(frozen=True)
class Go:
    """Something that cells are told."""

    key: str
    kind: int
    far: int
    """How much may follow from it."""
    tag: str
    """No other event has this one."""


@dataclass(frozen=True)
class Work:
    """What is to be done: how it ends, and how long it takes."""

    ends: str
    pause: int


@dataclass(frozen=True)
class Tally:
    """How far a cell is."""

    stage: int
    far: int
    log: tuple[str, ...]


@dataclass(frozen=True)
class Move:
    """What comes of an event."""

    does: str
    to: int
    tells: tuple[tuple[str, int], ...] = ()
    asks: tuple[Work, ...] = ()
    waits: tuple[int, ...] = ()


work = effect("random/work@1", params=Work, receipt=int)
Table = dict[tuple[int, int], Move]


def random_manifest(seed: int) -> Manifest:
    """Two machines that are told the same events: one has a cell for every key, the other has one only."""
    chance = Random(f"machines {seed}")
    hears = chance.random() < 0.7
    one, two = (_machine_of(name, _table(chance), hears, key) for name, key in (("one@1", str), ("two@1", None)))
    return Manifest([one, two], [route(Go, one, "key"), route(Go, two)])


def random_event(chance: Random, number: int) -> Go:
    """An event from outside."""
    return Go(chance.choice(KEYS), chance.randrange(KINDS), chance.randint(0, 2), f"event {number}")


def targets_of(go: Go) -> list[str]:
    """The cells that it comes to."""
    return [f"one@1/{go.key}", "two@1"]


def _table(chance: Random) -> Table:
    return {(stage, kind): _move(chance) for stage in range(STAGES) for kind in range(TIMER + 1)}


def _move(chance: Random) -> Move:
    does = chance.choices(["go", "done", "delete", "refuse"], [40, 1, 3, 0.5])[0]
    tells = tuple((chance.choice(KEYS), chance.randrange(KINDS)) for _ in range(chance.choice([0, 0, 1])))
    ends = ("ok", "ok", "error", "misfit", "late")
    asks = tuple(Work(chance.choice(ends), chance.randint(0, 2)) for _ in range(chance.choice([0, 1, 2])))
    waits = tuple(chance.choice([0, 1, 30]) for _ in range(chance.choice([0, 0, 1])))
    return Move(does, chance.randrange(STAGES), tells, asks, waits)


def _machine_of(name: str, table: Table, hears: bool, key: Any) -> Machine[Any]:
    heard: Any = Go | EffectReceipt | EffectRejected if hears else Go | EffectReceipt

    @machine(name, state=Tally, event=heard, key=key, effects=[work, timer])
    def moves(state: Tally | None, event: Any, ctx: MachineContext) -> Transition[Tally]:
        stage, log = (0, ()) if state is None else (state.stage, state.log)
        # What follows from a receipt is nothing but another stage.
        far = event.far if isinstance(event, Go) else 0
        move = table[stage, _kind(event)]
        if move.does == "refuse":
            raise ValueError("as the table says")
        tag = f"{name} {ctx.key} {ctx.sequence}"
        tells = [Go(at, kind, far - 1, f"{tag} {number}") for number, (at, kind) in enumerate(move.tells)]
        asks = [*(work(one) for one in move.asks), *(timer(after=after) for after in move.waits)]
        noted = f"{_kind(event)} {ctx.uuid().hex[:4]} {ctx.now().timestamp():.6f}"
        after = None if move.does == "delete" else Tally(move.to, far, (*log[-4:], noted))
        return Transition(after, tells if far else [], asks if far else [], done=move.does == "done")

    return moves


def _kind(event: Any) -> int:
    if isinstance(event, Go):
        return event.kind
    if isinstance(event, EffectRejected):
        return REJECTED
    return TIMER if event.effect == "timer" else RECEIPT
