"""What operations ask of the run that they are part of.

There are two kinds of runs. An `Engine` goes on with an instance: it does what is new and replays what is recorded. A
`Reader` only replays: it walks through the code, and ends where the record ends. Scopes and places need no more than a
reader; a verb is given the engine when there is something to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol, TypeVar

from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import CodecError
from workflow_sdk.journal.inbox import Fit, InboxMessage
from workflow_sdk.journal.journal import Journal
from workflow_sdk.journal.public_state import PublicState
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.operations.types import Effect, Facts, Start, TimeLimit, Wait
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.outside import Ending, TaskRow
from workflow_sdk.values import Codec

T = TypeVar("T")


class Life(Protocol):
    """Whether a run goes on, and what ends it."""

    halted: bool
    """The run is over: nothing may be done any more."""
    draining: bool
    """No new operation begins."""
    are_told: bool
    """Somebody is to be told of each call before it is made."""

    @property
    def is_broken(self) -> bool:
        """Whether a commit has failed: nothing is written any more."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the run or the branch has been cancelled, and not only by code of the author's own."""
        ...

    def mistake(self, error: Exception) -> BaseException:
        """The author made a mistake: the instance becomes stuck. Returns the error, to be raised where it was made.

        After that the run is over, and what is to be raised unwinds the code: a loop that catches every exception would
        else go on for ever, without a turn for anybody.
        """
        ...

    def diverged(self, error: Exception) -> None:
        """The code does not fit its history: the instance becomes stuck."""
        ...

    def misread(self, error: CodecError, what: str) -> BaseException:
        """A row can't be read as the code wants it now. Returns what to raise, which is no failure of the author's.

        What is encrypted with a key that this worker does not have is left to others; anything else is divergence.
        """
        ...

    async def never(self) -> NoReturn:
        """Wait to be cancelled: the run is over, or this branch is."""
        ...


class Time(Protocol):
    """A clock."""

    def time(self) -> float:
        """Seconds since 1970."""
        ...


class StateHolder(Protocol):
    """Where the public state of an instance is."""

    public: PublicState | None
    """The public state, if it was ever looked at or assigned."""

    def see(self) -> PublicState:
        """The public state."""
        ...


class Verb(Protocol):
    """One operation of one kind: what it does the first time, how it goes on, and what its author is given."""

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        """Do it for the first time. Returns the entry once its outcome is stored."""
        ...

    def resume(self, engine: Engine, entry: Entry) -> Awaitable[Entry]:
        """Go on with what was begun by an earlier run. Returns the entry once its outcome is stored."""
        ...

    def outcome(self, entry: Entry) -> Any:
        """The value that was recorded, or the failure, raised."""
        ...


class Composite(Verb, Protocol):
    """An operation that has scopes of its own inside."""

    async def recall(self, reader: Reader, entry: Entry) -> None:
        """Read what the outcome of a finished operation needs beside its entry."""
        ...

    async def walk(self, walker: Walker, entry: Entry) -> None:
        """Enter the recorded scopes, as far as their code has to be seen again."""
        ...


class Reader(Protocol):
    """One instance, whose code is run over its history."""

    journal: Journal
    codec: Codec
    known: KnownHandlers
    """The functions that rows may name."""

    @property
    def facts(self) -> Facts:
        """What does not change while the instance runs, until it starts over."""
        ...

    @property
    def clock(self) -> Time:
        """What tells the time."""
        ...

    @property
    def life(self) -> Life:
        """Whether the run goes on."""
        ...

    @property
    def state(self) -> StateHolder:
        """What `ctx.state`, `ctx.reference` and `ctx.progress` are."""
        ...

    @property
    def transacts(self) -> bool:
        """Whether the store lets authors write in its transactions; or nothing is called at all."""
        ...

    def begin(self, verb: Verb) -> Awaitable[Entry]:
        """Have an operation done that is not recorded."""
        ...

    def resume(self, verb: Verb, entry: Entry) -> Awaitable[Entry]:
        """Go on with an operation that has no outcome yet."""
        ...

    async def reenter(self, verb: Composite, location: bytes, entry: Entry) -> Entry:
        """Come to a recorded operation that has scopes inside, finished or not."""
        ...

    async def branch_values(self, location: bytes) -> dict[bytes, Entry]:
        """The entries of the branches of a join, race or map, read from the store."""
        ...

    async def read(self, part: bytes) -> list[tuple[bytes, bytes]]:
        """The rows of the instance's own space whose keys begin with `part`, from the store, by what follows it."""
        ...

    async def load_under(self, location: bytes) -> None:
        """Load what is recorded under a location, which was passed over when the instance was loaded."""
        ...

    def remember_handler(self, location: bytes, handler: Callable[..., Any], hint: object) -> None:
        """Keep the function that undoes the step at a location, as long as this run lasts."""
        ...

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """The code names this workflow as that of a child."""
        ...

    async def passed_over(self, location: bytes) -> None:
        """The code has no operation any more where one is recorded: nobody waits for a child or a task in it."""
        ...

    async def answer(self, key: bytes, raw: bytes) -> None:
        """Give an answer to whoever waits for it under this key; it is stored that it was given when this returns."""
        ...


class Walker(Reader, Protocol):
    """A reader that walks through the scopes of finished operations as well."""

    def walk_scope(self) -> AbstractContextManager[object]:
        """A scope that ends where its record ends."""
        ...


class Active(Protocol):
    """How many branches of a run are not parked."""

    active: int
    unbegun: int
    """How many of them have not had their first turn."""
    denied: int
    """How many steps of graphs wait to be allowed."""


class Parking(Protocol):
    """The branches of a run: which of them run, and which wait."""

    @property
    def waits(self) -> Active:
        """How many are not parked."""
        ...

    async def park(self, wait: Wait) -> None:
        """Return once what the branch waits for may be there; it is stored before that the branch waits."""
        ...

    async def flush(self, *, stay: bool = False) -> None:
        """Return once everything changed so far is in the store. Does not return if it can't be stored.

        Others may go first then, unless it is to `stay`.
        """
        ...

    def rest(self) -> None:
        """One branch less is active."""
        ...

    def fire(self) -> None:
        """Wake the branches whose time has come, or for whom there may be a message."""
        ...


class Messages(Protocol):
    """The messages of the instance, as far as they were read."""

    def will_listen(self, messages: tuple[str, ...], type: object) -> None:
        """A branch begins to listen to messages, and takes those that are of this type."""
        ...

    def lacks(self, messages: tuple[str | bytes, ...], found: list[InboxMessage], count: int) -> bool:
        """Whether the store may have messages that are to be taken instead of those found, or with them."""
        ...

    async def read_on(self, messages: tuple[str | bytes, ...]) -> None:
        """Read some more of the messages with these names."""
        ...

    async def refresh(self) -> None:
        """Read the messages that the store has by now."""
        ...

    async def set_aside(self, fit: Fit) -> bool:
        """Set aside what a wait has refused and no other wait takes; whether there was any."""
        ...

    async def reopen_task(self, id: str, name: str, message: InboxMessage, result: bytes, reason: str) -> None:
        """Set the result of a task aside, which is not what was asked for; the task is open again."""
        ...


class Outside(Protocol):
    """What an instance does to others."""

    async def post(self, target: str, message: str, payload: bytes, effect: Effect) -> None:
        """Send a message to an instance. InstanceNotFoundError, if there is none."""
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

    def abandon(self, location: bytes, *, rollback: bool = False) -> list[bytes]:
        """Children and tasks at and under a location are not waited for any more: cleanups, written with the rest."""
        ...

    async def clean_up(self, cleanups: list[bytes]) -> None:
        """Run what `abandon` gave, once it is stored."""
        ...


class Calls(Protocol):
    """Calling the functions of the author."""

    async def tell(self, path: str, location: bytes | None = None) -> None:
        """The code of an operation is about to be called, or its effect to be made; it may wait here for ever.

        With a location, that is stored before, if workers have died under the instance.
        """
        ...

    def survived(self, location: bytes) -> None:
        """It was called, and this worker is alive."""
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

    async def transact(
        self, fn: Callable[[Any], T], rows: Callable[[T], list[tuple[bytes, bytes]]], goes_on: Callable[[], bool]
    ) -> None:
        """Call `fn` with a transaction of the store, and store in the same one the rows that become of its value.

        Raises what `fn` or `rows` did, or StorageLimitError; does not return if nothing can be stored, or if the branch
        does not go on when its turn comes.
        """
        ...


class Engine(Reader, Protocol):
    """One instance, being run: its parts, each of which does one thing."""

    @property
    def parking(self) -> Parking:
        """The branches that run and wait."""
        ...

    @property
    def messages(self) -> Messages:
        """What was sent to the instance."""
        ...

    @property
    def outside(self) -> Outside:
        """What it does to others."""
        ...

    @property
    def calls(self) -> Calls:
        """Calling the author's functions."""
        ...

    async def archive(self, location: bytes) -> None:
        """Keep the history under a location that is about to be cleared, for finding its compensations."""
        ...
