"""The types that operations and the run around them exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from secrets import token_bytes
from typing import Any, Literal, Protocol, TypedDict, TypeVar

import anyio
import anyio.lowlevel
from msgspec import Struct, field

from workflow_sdk.definitions import Workflow
from workflow_sdk.journal.inbox import Fit
from workflow_sdk.rows.entries import Entry, token_of
from workflow_sdk.rows.retry import Duration

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Coro = Coroutine[Any, Any, T]
"""The awaitable that each verb of `ctx` returns."""

GRAPH_MESSAGE = "~graph"
"""The name of the messages by which a graph is changed from outside. A graph always listens to them, unseen."""

OnCancel = Literal["cancel", "abandon"]


Names = str | Sequence[str] | None
"""The names of messages."""


class Until(TypedDict, total=False):
    """How long something is waited for."""

    timeout: Duration | None
    until: datetime | None


class Request(Until, total=False):
    """What a person is asked for."""

    payload: object
    assignee: str | None
    roles: Sequence[str]


class Pruning(TypedDict, total=False):
    """When a loop stores its state, and how many turns it keeps."""

    commit_interval: int
    history_keep: int | None


class Childhood(TypedDict, total=False):
    """How a child is started."""

    id: str | None
    on_cancel: OnCancel


class Addressee(Protocol):
    """Anything with the id of an instance, such as a handle: messages can be sent to it."""

    id: str


class Nested(Protocol[T_co]):
    """A graph, which can be run as an operation."""

    def start_in(self, scope: Any, name: str, workload: Any) -> Coro[T_co]:
        """Register it as an operation of a scope; its coroutine runs it."""
        ...


class Seat(Protocol):
    """What the code of a firing can do to its graph."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The context of the graph, as the firing sees it."""
        ...

    @property
    def limits(self) -> Any:
        """What was used of the limits when the firing began, or has submitted last."""
        ...

    def patch(self, values: Mapping[str, Any]) -> None:
        """Change the context: for the firing at once, for others when it ends."""
        ...

    def submit(self, scope: Any, nodes: Any) -> Coro[Any]:
        """Add steps to the graph."""
        ...

    def pass_by(self, location: bytes) -> None:
        """A replay does not enter a scope, or not from its beginning: what it has changed is changed again."""
        ...

    def keep(self, location: bytes) -> None:
        """A scope of the code is over: what it has changed is stored with its end."""
        ...

    def keep_turn(self, loop: bytes, turn: bytes) -> None:
        """A turn of a loop begins: what earlier turns have changed is stored, so that it can begin again."""
        ...

    def drop(self, locations: Sequence[bytes]) -> None:
        """Scopes of the code have lost a race: what they have changed is as it was."""
        ...

    def keep_begun(self) -> None:
        """Keep what the code was called with, whatever becomes of the firing: it has handlers without a name."""
        ...


class Wakeup:
    """Wakes one waiting task, once. It takes a fifth of the memory of an event, and there may be thousands."""

    __slots__ = ("_has_come", "_waiter")

    def __init__(self) -> None:
        self._has_come = False
        self._waiter: asyncio.Future[None] | anyio.Event | None = None

    def wake(self) -> None:
        """Wake the task that waits, now or when it begins to wait."""
        self._has_come = True
        waiter = self._waiter
        if isinstance(waiter, anyio.Event):
            waiter.set()
        elif waiter is not None and not waiter.done():
            waiter.set_result(None)

    def wait(self) -> Awaitable[None]:
        """To be awaited at once: returns once it was woken. No frame of its own, where that can be."""
        if self._has_come:
            return anyio.lowlevel.checkpoint()
        try:
            waiter = self._waiter = asyncio.get_running_loop().create_future()
        except RuntimeError:
            event = self._waiter = anyio.Event()
            return event.wait()
        return waiter


class Unwound(BaseException):
    """Unwinds author's code that shields itself from cancellation, after the end of its run or in a lost race."""


class Facts(Struct, frozen=True):
    """What does not change while an instance runs."""

    instance_id: str
    workflow_name: str
    workflow_version: int
    created_at: float
    lenient: bool
    seed: bytes
    """The bytes from which the ids and random numbers of the instance are made."""
    generation: int = 1
    """How often the instance has begun, since it may start over."""
    restarts: int = 0
    """How often the instance was restarted after something was undone."""


class Waiter(Protocol):
    """An operation that waits."""

    @property
    def location(self) -> bytes:
        """The location of its entry."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def path(self) -> str:
        """Its path."""
        ...


class Wait(Struct, eq=False):
    """What a parked branch waits for: a time, messages, or both."""

    who: Waiter
    kind: str
    """`timer`, `retry`, `message`, `child`, `task`, `effect` or `thread`; `graph` for what a graph may be told."""
    until: float | None = None
    messages: tuple[str | bytes, ...] = ()
    """Their names; for a child, a task or an effect, the token of the wait."""
    count: int = 1
    entry: Entry | None = None
    """The operation that waits."""
    fit: Fit | None = None
    """Tells which messages fit the wait; None if all do."""
    since: int = 0
    """The version of the instance that began to wait, if neither the entry nor the next commit tells."""
    wakeup: Wakeup = field(default_factory=Wakeup)
    parked: bool = False
    fired: bool = False

    @property
    def at(self) -> bytes:
        """The token of the wait; empty as long as the wait is not stored, and nobody can know its token."""
        return token_of(self.who.location, self.entry) if self.entry is not None and self.entry.since else b""

    def anew(self) -> Wait:
        """Make the same wait anew, to be parked once more."""
        return Wait(self.who, self.kind, self.until, self.messages, self.count, self.entry, self.fit, self.since)


class Effect(Protocol):
    """What an operation does outside of its instance, and the record of it."""

    location: bytes
    is_done: bool
    """Whether the effect and its record are stored."""

    def rows(self, version: int, outcome: str) -> list[tuple[bytes, bytes]]:
        """The record: given how many commits have changed the instance with this one, and what came of the effect."""
        ...

    def stored(self) -> None:
        """Note that the effect and its record are stored."""
        ...

    def is_wanted(self) -> bool:
        """Whether the branch that asked for it goes on."""
        ...


class Start(Struct, frozen=True):
    """An instance to be started."""

    workflow: Workflow[Any, Any] | str
    input: bytes
    id: str
    is_given: bool
    """Whether the author has named it: then one that exists will do, if it is the same. If not, and it is taken, the
    next of the same name with a number is.
    """
    location: bytes = b""
    is_watched: bool = False
    """Whether the operation at the location waits for its end."""


class TimeLimit(Protocol):
    """What an attempt with a timeout runs in."""

    @property
    def cancelled_caught(self) -> bool:
        """Whether what ran inside was ended because the time was up."""
        ...

    @property
    def cancel_called(self) -> bool:
        """Whether the time is up."""
        ...


class Watch(Protocol):
    """A test that sees what a run calls."""

    dry: bool
    """Whether nothing is called: code that comes to a call waits there for ever."""

    def calls(self, path: str, generation: int) -> None:
        """The code of an operation is about to be called, or its effect to be made."""
        ...


class Probe(Watch, Protocol):
    """Is told of what runs do. A run asks for it once, when it begins.

    `calls` is given the path of an operation whose code is called; for the handler that undoes it, `undo` and the path.
    """

    @property
    def seed(self) -> bytes | None:
        """The seed of the uuids and random numbers of instances that are created; None for one by chance."""
        ...


probe: ContextVar[Probe | None] = ContextVar("workflow_sdk_probe", default=None)
"""The probe of the runs that are begun in this context."""


def new_seed() -> bytes:
    """Make the seed of a new instance, from which its ids and random numbers are made."""
    watched = probe.get()
    return (watched.seed if watched is not None else None) or token_bytes(16)
