"""What operations ask of the execution that runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeVar

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.entries import Entry, token_of
from workflow_sdk.core.inbox import Fit, InboxMessage
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.outside import Ending
from workflow_sdk.core.tasks import TaskRow
from workflow_sdk.core.world import World
from workflow_sdk.definitions import Workflow
from workflow_sdk.operations.bell import Bell
from workflow_sdk.operations.handlers import KnownHandlers

__all__ = ["Effect", "Engine", "Facts", "Start", "TimeLimit", "Unwound", "Wait", "Watch"]


T = TypeVar("T")


class Unwound(BaseException):
    """Unwinds author's code that shields itself from cancellation, where it is over: in its run, or in a lost race."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change while an instance runs."""

    instance_id: str
    workflow_name: str
    workflow_version: int
    created_at: float
    lenient: bool
    seed: bytes
    """Of the instance's uuids and random numbers."""
    generation: int = 1
    """How often it has begun: it may start over."""
    restarts: int = 0
    """How often it was restarted after something was undone."""


@dataclass(eq=False, slots=True)
class Wait:
    """What a parked branch waits for."""

    location: bytes
    kind: str
    """`timer`, `retry`, `message`, `child`, `task` or `thread`."""
    name: str
    path: str
    until: float | None = None
    messages: tuple[str | bytes, ...] = ()
    """Their names; for a child or a task, the token of the wait."""
    count: int = 1
    entry: Entry | None = None
    """Of the operation that waits."""
    fit: Fit | None = None
    """Which of the messages it can take; None: all."""
    bell: Bell = field(default_factory=Bell)
    parked: bool = False
    fired: bool = False

    @property
    def at(self) -> bytes:
        """The token of the wait; empty where nobody can know it yet."""
        return token_of(self.location, self.entry) if self.entry is not None and self.entry.since else b""


class Effect(Protocol):
    """What an operation does outside of its instance, and the record of it."""

    location: bytes
    is_done: bool
    """Whether it is in the store."""

    def rows(self, version: int, outcome: str) -> list[tuple[bytes, bytes]]:
        """The record: given how many commits have changed the instance with this one, and what came of the effect."""
        ...

    def stored(self) -> None:
        """Both are in the store."""
        ...

    def is_wanted(self) -> bool:
        """Whether the branch that asked for it goes on."""
        ...


@dataclass(frozen=True, slots=True)
class Start:
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
    """Whether its end is awaited, at the location."""


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
    """Is told of what a run calls."""

    dry: bool
    """Nothing is called: whatever comes to a call waits there."""

    def calls(self, path: str, generation: int) -> None:
        """The code of an operation is about to be called, or its effect to be made."""
        ...


class Engine(Protocol):
    """One instance, being run."""

    journal: Journal
    codec: Codec
    known: KnownHandlers
    """The functions that rows may name."""
    facts: Facts
    walking: bool
    """Nothing is done, and nothing recorded: the code is walked over its history, to find compensations."""
    draining: bool
    """Nothing new is begun."""
    active: int
    """How many branches are not parked."""

    @property
    def watched(self) -> Watch | None:
        """A test that is told of what is called."""
        ...

    def now(self) -> float:
        """Seconds since 1970."""
        ...

    def chance(self) -> float:
        """A number from 0 to 1, another one each time: for jitter."""
        ...

    def time_limit(self, seconds: float) -> AbstractContextManager[TimeLimit]:
        """Cancel what runs inside once it has taken this long."""
        ...

    async def thread_for(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Awaitable[Any]]:
        """Have a worker thread for a plain function, which has to wait for one if there are too many.

        What this returns runs it there, and has to be called. A cancelled call does not wait for the function.
        """
        ...

    async def flush(self, *, stay: bool = False) -> None:
        """Return once everything changed so far is in the store. Does not return if it can't be stored.

        Others may go first then, unless it is to `stay`.
        """
        ...

    @property
    def wary(self) -> object:
        """Whether workers have died under the instance: then what is executed is noted before."""
        ...

    async def note_try(self, location: bytes, path: str) -> None:
        """The code of an operation is about to be called: returns once that is stored."""
        ...

    def survived(self, location: bytes) -> None:
        """It was called, and this worker is alive."""
        ...

    @property
    def transacts(self) -> bool:
        """Whether the store lets authors write in its transactions."""
        ...

    async def transact(
        self, fn: Callable[[Any], T], rows: Callable[[T], list[tuple[bytes, bytes]]], goes_on: Callable[[], bool]
    ) -> None:
        """Call `fn` with a transaction of the store, and store in the same one the rows that become of its value.

        Raises what `fn` or `rows` did, or StorageLimitError; does not return if nothing can be stored, or if the branch
        does not go on when its turn comes.
        """
        ...

    async def post(self, target: str, message: str, payload: bytes, effect: Effect) -> None:
        """Send a message to an instance. InstanceNotFoundError, if there is none."""
        ...

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """The code names this workflow as that of a child."""
        ...

    async def begin(self, start: Start, effect: Effect) -> Ending | None:
        """Start an instance; how it ended, if it has long been started. AlreadyExistsError, if it is another one."""
        ...

    async def expire(self, effect: Effect) -> bool:
        """Record that no message has come in time; False if one has come that is not known yet."""
        ...

    def open_task(self, row: TaskRow, location: bytes) -> None:
        """Put a task on the list, with the next commit, which fixes the token of the wait at the location."""
        ...

    async def expire_task(self, id: str, effect: Effect) -> bool:
        """Take a task off the list, since its time is over; False if somebody has done it."""
        ...

    def abandon_outside(self, location: bytes, *, rollback: bool = False) -> list[bytes]:
        """Children and tasks at and under a location are not waited for any more: errands, written with the rest."""
        ...

    async def run_errands(self, errands: list[bytes]) -> None:
        """Run what `abandon_outside` gave, once it is stored."""
        ...

    @property
    def world(self) -> World | None:
        """What the world may see, if anything of it was ever assigned."""
        ...

    def see_world(self) -> World:
        """The same, to be assigned."""
        ...

    async def park(self, wait: Wait) -> None:
        """Return once what the branch waits for may be there; it is stored before that the branch waits."""
        ...

    async def answer(self, key: bytes, raw: bytes) -> None:
        """Give an answer to whoever waits for it under this key; it is stored that it was given when this returns."""
        ...

    def will_listen(self, messages: tuple[str, ...], type: object) -> None:
        """A branch begins to listen to messages, and takes those that are of this type."""
        ...

    def lacks_mail(self, messages: tuple[str | bytes, ...], found: list[InboxMessage], count: int) -> bool:
        """Whether the store may have messages that are to be taken instead of those found, or with them."""
        ...

    async def read_mail(self, messages: tuple[str | bytes, ...]) -> None:
        """Read some more of the messages with these names."""
        ...

    async def set_aside(self, fit: Fit) -> bool:
        """Set aside what a wait has refused, while no other branch is active; whether there was any."""
        ...

    async def reopen_task(self, id: str, name: str, message: InboxMessage, result: bytes, reason: str) -> None:
        """Set the result of a task aside, which is not what was asked for; the task is open again."""
        ...

    def messages_came_back(self) -> None:
        """Messages are in the inbox again, for which others may be waiting."""
        ...

    async def refresh_inbox(self) -> None:
        """Take in the messages that the store has by now."""
        ...

    def rest(self) -> None:
        """One branch less is active."""
        ...

    async def branch_values(self, location: bytes) -> dict[bytes, Entry]:
        """The entries of the branches of a join or map, read from the store."""
        ...

    async def keep_for_rollback(self, location: bytes) -> None:
        """Set aside the history under a location that is about to be cleared, for finding its compensations."""
        ...

    def remember_handler(self, location: bytes, handler: Callable[..., Any], hint: object) -> None:
        """Keep the function that undoes the step at a location, as long as this run lasts."""
        ...

    @property
    def halted(self) -> bool:
        """Whether the run is over: nothing may be done any more."""
        ...

    @property
    def is_broken(self) -> bool:
        """Whether a commit has failed: nothing is written any more."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the run or the branch has been cancelled, and not only by code of the author's own."""
        ...

    def slip(self, error: Exception) -> Exception:
        """An author's mistake: the instance becomes stuck. Returns the error, to be raised where it was made."""
        ...

    def diverged(self, error: Exception) -> None:
        """The code does not fit its history: the instance becomes stuck."""
        ...

    def unreadable(self, error: Exception) -> None:
        """The codecs of this worker can't read what is stored: the run is over, and others may go on with it."""
        ...

    def walk_scope(self) -> AbstractContextManager[object]:
        """While walking: where `never` unwinds to."""
        ...

    async def never(self) -> NoReturn:
        """Wait to be cancelled: the run is over, or this branch is."""
        ...
