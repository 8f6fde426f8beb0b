"""Machines that the tests of cells use, and how these wait for what shows in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from tests.runtime.polling import until
from workflow_sdk import Client, InstanceNotFoundError, Runtime
from workflow_sdk.machines import (
    Cell,
    EffectReceipt,
    EffectRejected,
    Executor,
    Intent,
    Machine,
    MachineContext,
    Manifest,
    Request,
    Transition,
    effect,
    event,
    executor,
    machine,
    route,
    timer,
)

__all__ = [
    "Answer",
    "Ask",
    "Asked",
    "Did",
    "Do",
    "Say",
    "ask",
    "cell_or_none",
    "host",
    "manifest_of",
    "tells",
    "told",
    "until_cell",
    "until_count",
    "until_gone",
    "until_words",
    "word_of",
]


@event("test/Do@1")
@dataclass(frozen=True)
class Do:
    """Has the cell of a key do what the test says under this word."""

    key: str
    word: str = ""


@event("test/Say@1")
@dataclass(frozen=True)
class Say:
    """What cells tell each other."""

    key: str
    word: str = ""


@dataclass(frozen=True)
class Ask:
    """What is asked."""

    what: str = ""


@dataclass(frozen=True)
class Answer:
    """What is answered."""

    text: str


ask = effect("ask@1", params=Ask, receipt=Answer)

Words = list[str]
Did = Callable[[Words, Any, MachineContext], Any]


def word_of(event: Any) -> str:
    """What a cell notes of an event."""
    if isinstance(event, EffectRejected):
        return f"rejected {event.effect}"
    if isinstance(event, EffectReceipt):
        said = event.payload.text if isinstance(event.payload, Answer) else event.payload
        return f"{event.status} {event.effect}: {said}"
    return str(event.word)


def told(
    did: Did | None = None,
    *,
    event: Any = Do | Say | EffectReceipt | EffectRejected,
    name: str = "told@1",
    effects: Sequence[Any] = (ask, timer),
    key: Any = str,
    **options: Any,
) -> Machine[Any]:
    """A machine that notes the word of each event; `did` says what else it does.

    `did` gives a transition, or the effect that is to be asked for, or anything that is refused, or nothing.
    """

    def notes(state: Words | None, event: Any, ctx: MachineContext) -> Any:
        return Transition([*(state or []), word_of(event)])

    def does(state: Words | None, event: Any, ctx: MachineContext) -> Any:
        assert did is not None, "else it only notes"
        words = [*(state or []), word_of(event)]
        found = did(words, event, ctx)
        if found is None:
            return Transition(words)
        return Transition(words, effects=[found]) if isinstance(found, Request) else found

    # Two functions: to a store, one of them is the mended code of the other.
    made = machine(name, state=list[str], event=event, key=key, effects=effects, **options)
    return made(notes if did is None else does)


def manifest_of(*machines: Machine[Any], effects: Sequence[Any] = ()) -> Manifest:
    """Machines, with routes for all of their events."""
    routes = [
        route(arm.hint, one, key_field="key" if one.is_keyed else None) for one in machines for arm in one.arms.values()
    ]
    return Manifest(machines=machines, routes=routes, effects=effects)


@dataclass
class Asked:
    """An executor that notes what it was asked."""

    intents: list[Intent] = field(default_factory=list[Intent])
    params: list[Any] = field(default_factory=list[Any])
    began: anyio.Event = field(default_factory=anyio.Event)
    """Set by the first call."""

    @property
    def ids(self) -> list[str]:
        """The ids of the intents, in the order in which they came."""
        return [one.id for one in self.intents]

    def note(self, params: Any, intent: Intent) -> None:
        """A call has come."""
        self.intents.append(intent)
        self.params.append(params)
        self.began.set()

    def by(self, answers: Callable[[Any, Intent], Any] | None = None, *, of: Any = ask, **options: Any) -> Executor:
        """An executor that notes its calls and answers as it is told; by default, with what it was asked."""

        async def answer(params: Any, intent: Intent) -> Any:
            self.note(params, intent)
            found = Answer(params.what) if answers is None else answers(params, intent)
            return await found if isinstance(found, Awaitable) else found

        return executor(of, **options)(answer)

    def waiting(self, go_on: anyio.Event, **options: Any) -> Executor:
        """An executor that answers once it is told to."""

        async def wait(params: Any, intent: Intent) -> Answer:
            await go_on.wait()
            return Answer(params.what)

        return self.by(wait, **options)


class Still:
    """A clock that stands still: no timer is ever due on it."""

    def __init__(self, at: float = 1_700_000_000.123) -> None:
        self.at = at

    def time(self) -> float:
        """Always the same time."""
        return self.at


def tells(text: str) -> Callable[[Any, Intent], Answer]:
    """What an executor answers."""
    return lambda params, intent: Answer(text)


def host(driver: Any, *machines: Machine[Any], executors: Sequence[Executor] = (), **options: Any) -> Runtime:
    """A runtime of machines."""
    return Runtime(driver, machines=manifest_of(*machines), executors=executors, **options)


async def cell_or_none(client: Client, machine: Machine[Any], key: Any = None) -> Cell[Any] | None:
    """A cell, if it is there."""
    try:
        return await client.cell(machine, key)
    except InstanceNotFoundError:
        return None


async def until_cell(client: Client, machine: Machine[Any], key: Any, holds: Callable[[Cell[Any]], bool]) -> Cell[Any]:
    """Return a cell once it is as it should be."""
    found: list[Cell[Any]] = []

    async def is_so() -> bool:
        cell = await cell_or_none(client, machine, key)
        found[:] = [] if cell is None else [cell]
        return cell is not None and holds(cell)

    try:
        await until(is_so)
    except TimeoutError:
        raise AssertionError(f"the cell {key!r} is {found}") from None
    return found[0]


async def until_words(client: Client, machine: Machine[Any], key: Any, *words: str) -> Cell[Any]:
    """Return a cell once it has noted so many words; they are these."""
    cell = await until_cell(client, machine, key, lambda cell: cell.state is not None and len(cell.state) >= len(words))
    assert cell.state == [*words]
    return cell


async def until_gone(client: Client, machine: Machine[Any], key: Any) -> None:
    """Return once there is no such cell."""

    async def is_so() -> bool:
        return await cell_or_none(client, machine, key) is None

    await until(is_so)


async def until_count(client: Client, machine: Machine[Any], key: Any, count: int) -> Cell[Any]:
    """Return a cell once it has noted so many words."""
    return await until_cell(client, machine, key, lambda cell: cell.state is not None and len(cell.state) == count)
