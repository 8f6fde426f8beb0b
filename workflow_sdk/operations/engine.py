"""What operations ask of the run that they are part of.

There are two kinds of runs. An `Engine` goes on with an instance: it does what is new and replays what is recorded. A
`Reader` only replays: it walks through the code, and ends where the record ends. Scopes and places need no more than a
reader; a verb is given the engine when there is something to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol, TypeVar

from workflow_sdk.changes.change import Steps
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

Ask = Callable[[bytes], Steps[str]]
"""A part of a change that asks for an effect, given the token of the wait for its answer; its value is the id."""


class Life(Protocol):
    """The life of a run: whether it goes on, and what ends it."""

    halted: bool
    """Whether the run is over: no operation may do anything more."""
    draining: bool
    """Whether no new operation may begin, since the instance is being evicted."""
    are_told: bool
    """Whether somebody is to be told of each call before it is made."""

    @property
    def is_broken(self) -> bool:
        """Whether a commit has failed: nothing is written any more."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the run or the branch has been cancelled from outside the author's code."""
        ...

    def mistake(self, error: Exception) -> BaseException:
        """Have the instance become stuck because of a mistake of the author; return the error to raise.

        After that the run is over, and what is to be raised unwinds the code: a loop that catches every exception would
        else go on for ever, without a turn for anybody.
        """
        ...

    def diverged(self, error: Exception) -> None:
        """Have the instance become stuck, since the code does not fit its history."""
        ...

    def misread(self, error: CodecError, what: str) -> BaseException:
        """A row can't be read as the code wants it now. Returns what to raise, which is no failure of the author's.

        What is encrypted with a key that this worker does not have is left to others; anything else is divergence.
        """
        ...

    async def never(self) -> NoReturn:
        """Wait to be cancelled, since the run is over, or this branch is."""
        ...


class Time(Protocol):
    """A clock."""

    def time(self) -> float:
        """Seconds since 1970."""
        ...


class StateHolder(Protocol):
    """Gives access to the public state of an instance."""

    public: PublicState | None
    """The public state; None if this run has neither read nor assigned it."""

    def see(self) -> PublicState:
        """The public state."""
        ...


class Verb(Protocol):
    """One operation of one kind: what it does the first time, how it goes on, and what its author is given."""

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        """Do the operation for the first time; return the entry once its outcome is stored."""
        ...

    def resume(self, engine: Engine, entry: Entry) -> Awaitable[Entry]:
        """Go on with an operation that an earlier run began; return the entry once its outcome is stored."""
        ...

    def outcome(self, entry: Entry) -> Any:
        """Return the recorded value, or raise the recorded failure."""
        ...


class Composite(Verb, Protocol):
    """An operation that has scopes of its own inside."""

    async def recall(self, reader: Reader, entry: Entry) -> None:
        """Read what the outcome of a finished operation needs beside its entry."""
        ...

    async def walk(self, walker: Walker, entry: Entry) -> None:
        """Enter the recorded scopes, as far as their code has to be seen again."""
        ...


class Stored(Protocol):
    """What of the history of an instance is in the store and not in memory."""

    async def branch_values(self, location: bytes) -> dict[bytes, Entry]:
        """The entries of the branches of a join, race or map, read from the store."""
        ...

    async def read(self, part: bytes) -> list[tuple[bytes, bytes]]:
        """The rows of the instance's own space whose keys begin with `part`, from the store, by what follows it."""
        ...

    async def shared(self, key: bytes) -> bytes | None:
        """A row that all instances share."""
        ...

    async def load_under(self, location: bytes) -> None:
        """Load what is recorded under a location, which was passed over when the instance was loaded."""
        ...

    async def archive(self, location: bytes) -> None:
        """Copy the history under a location into the archive before it is cleared: handlers may be found in it."""
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
        """Whether the store lets authors write in its transactions, or this is a dry run, which calls nothing."""
        ...

    @property
    def stored(self) -> Stored:
        """What of the history is in the store and not in memory."""
        ...

    def begin(self, verb: Verb) -> Awaitable[Entry]:
        """Do an operation that has no entry yet."""
        ...

    def resume(self, verb: Verb, entry: Entry) -> Awaitable[Entry]:
        """Go on with an operation that has no outcome yet."""
        ...

    async def reenter(self, verb: Composite, location: bytes, entry: Entry) -> Entry:
        """Come to a recorded operation that has scopes inside, finished or not."""
        ...

    def remember_handler(self, location: bytes, handler: Callable[..., Any], hint: object) -> None:
        """Keep the function that undoes the step at a location, as long as this run lasts."""
        ...

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """The code names this workflow as that of a child."""
        ...

    async def passed_over(self, location: bytes) -> None:
        """End the children and tasks of a recorded operation that the code does not have any more."""
        ...

    async def answer(self, key: bytes, raw: bytes, is_asked: bool | None = None) -> None:
        """Give an answer to the sender that waits for it under this key. When this returns, that is stored."""
        ...


class Walker(Reader, Protocol):
    """A reader that walks through the scopes of finished operations as well."""

    def walk_scope(self) -> AbstractContextManager[object]:
        """A cancel scope that ends the code inside where its record ends."""
        ...


class Active(Protocol):
    """Counts the branches of a run that are not parked."""

    active: int
    unbegun: int
    """How many of the active branches have not begun."""
    denied: int
    """How many steps of graphs wait to be allowed."""


class Parking(Protocol):
    """Parks and wakes the branches of a run."""

    @property
    def waits(self) -> Active:
        """The count of branches that are not parked."""
        ...

    async def park(self, wait: Wait) -> None:
        """Record that the branch waits, and return once what it waits for may be there."""
        ...

    async def flush(self, *, stay: bool = False) -> None:
        """Return once everything changed so far is in the store. Does not return if it can't be stored.

        Others may go first then, unless it is to `stay`.
        """
        ...

    def rest(self) -> None:
        """Count one branch less as active."""
        ...

    def fire(self) -> None:
        """Wake the branches whose time has come, or for which there may be a message."""
        ...


class Messages(Protocol):
    """The messages of the instance, as far as they were read."""

    def will_listen(self, messages: tuple[str, ...], type: object) -> None:
        """Note that a branch begins to listen to messages, and takes those that fit this type."""
        ...

    def lacks(self, messages: tuple[str | bytes, ...], found: list[InboxMessage], count: int) -> bool:
        """Whether the store may have messages that are to be taken before those found, or together with them."""
        ...

    async def read_on(self, messages: tuple[str | bytes, ...]) -> None:
        """Read some more of the messages with these names."""
        ...

    async def refresh(self) -> None:
        """Read the messages that the store has by now."""
        ...

    async def set_aside(self, fit: Fit) -> bool:
        """Set aside messages that a wait has refused and no other wait takes; return whether there were any."""
        ...

    async def reopen_task(self, id: str, name: str, message: InboxMessage, result: bytes, reason: str) -> None:
        """Set aside the result of a task, which does not fit its wait, and open the task again."""
        ...


class Outside(Protocol):
    """Makes the effects of an instance on others."""

    async def post(self, target: str, message: str, payload: bytes, effect: Effect) -> None:
        """Send a message to an instance. InstanceNotFoundError if there is none."""
        ...

    async def begin(self, start: Start, effect: Effect) -> Ending | None:
        """Start an instance; if it is there and has ended, return how. AlreadyExistsError if it is another one."""
        ...

    async def expire(self, effect: Effect) -> bool:
        """Record that no message has come in time; False if one has come that is not known yet."""
        ...

    def open_task(self, row: TaskRow, location: bytes) -> None:
        """Put a task on the list, with the next commit, which fixes the token of the wait at the location."""
        ...

    async def expire_task(self, id: str, effect: Effect) -> bool:
        """End a task whose time is over; False if somebody has completed it."""
        ...

    @property
    def machines(self) -> Any:
        """What the machines of this runtime do for workflows; None, if it has none."""
        ...

    async def ask(self, ask: Ask, effect: Effect, asked: Callable[[], None]) -> None:
        """Ask for an effect in the commit that records the wait for its answer; `asked` is called once it is stored."""
        ...

    def abandon(self, location: bytes, *, rollback: bool = False) -> list[bytes]:
        """Stop waiting for children and tasks at and under a location; return cleanups that the next commit writes."""
        ...

    async def clean_up(self, cleanups: list[bytes]) -> None:
        """Run the cleanups that `abandon` has returned, once they are stored."""
        ...


class Calling(Protocol):
    """What has the threads and the time that calls of an author's functions take."""

    def time_limit(self, seconds: float) -> AbstractContextManager[TimeLimit]:
        """Cancel the block once it has taken this long."""
        ...

    async def thread_for(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Awaitable[Any]]:
        """Have a worker thread for a plain function, which has to wait for one if there are too many.

        What this returns runs it there, and has to be called. A cancelled call does not wait for the function.
        """
        ...


class Calls(Calling, Protocol):
    """Calling the functions of the author."""

    async def tell(self, path: str, location: bytes | None = None) -> None:
        """The code of an operation is about to be called, or its effect to be made; it may wait here for ever.

        With a location, that is stored before, if workers have died under the instance.
        """
        ...

    def survived(self, location: bytes) -> None:
        """Note that the code of an operation was called and this worker is still alive."""
        ...

    def chance(self) -> float:
        """A random number from 0 to 1, for jitter."""
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
