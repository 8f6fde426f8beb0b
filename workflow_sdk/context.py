"""The `ctx` of a workflow. Each method hands on to the module in `operations/` that does the work."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast, overload
from uuid import UUID

from workflow_sdk.definitions import StepOverrides, TransactOverrides, Workflow
from workflow_sdk.operations.attempt import Failure, Success, start_attempt
from workflow_sdk.operations.child import Begin, start_child, start_continue
from workflow_sdk.operations.effect import Asks, start_asking
from workflow_sdk.operations.join import start_join, start_map
from workflow_sdk.operations.listen import NO_DEFAULT, Listening, Message, Want, start_listen
from workflow_sdk.operations.loop import Break, Continue, LoopSettings, start_loop
from workflow_sdk.operations.public_state import assigning, public_state, state_of
from workflow_sdk.operations.race import RaceResult, start_race
from workflow_sdk.operations.rollback import start_checkpoint
from workflow_sdk.operations.scope import Scope, ScopeLog, awaited, draw_uuid, random_of, seat_of
from workflow_sdk.operations.send import start_send
from workflow_sdk.operations.step import start_step
from workflow_sdk.operations.task import Asked, TaskResult, start_task
from workflow_sdk.operations.transact import start_transact
from workflow_sdk.operations.types import Addressee, Childhood, Coro, Names, Nested, OnCancel, Pruning, Request, Until
from workflow_sdk.operations.version import start_removed, start_version
from workflow_sdk.operations.waiting import start_sleep, start_sleep_until
from workflow_sdk.rows.retry import Duration
from workflow_sdk.verdicts import Verdict

T = TypeVar("T")
D = TypeVar("D")
S = TypeVar("S")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741  # the item of a map
Ts = TypeVarTuple("Ts")


class Context:
    """What a workflow, a branch, a turn of a loop or an attempt calls for everything that is to be durable."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    # Steps.

    @overload
    def step(
        self, name: str, fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, **options: Unpack[StepOverrides]
    ) -> Coro[T]: ...
    @overload
    def step(self, name: str, fn: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[StepOverrides]) -> Coro[T]: ...
    @overload
    def step(self, fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, **options: Unpack[StepOverrides]) -> Coro[T]: ...
    @overload
    def step(self, fn: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[StepOverrides]) -> Coro[T]: ...
    # An implementation with plain *args is not one of a TypeVarTuple's for either checker.
    def step(self, *call: Any, **options: Unpack[StepOverrides]) -> Coro[Any]:  # type: ignore[misc]  # pyright: ignore[reportInconsistentOverload]
        """Run `fn(*args)` once, durably, and return its value; on every replay, the same value without running it.

        A failing step is retried, and ends as `StepExhaustedError`, `StepCriticalError` or `StepTimeoutError`.
        """
        return start_step(self._scope, call, options)

    def transact(
        self, name: str, fn: Callable[[Any, *Ts], T], /, *args: *Ts, **options: Unpack[TransactOverrides]
    ) -> Coro[T]:
        """Call `fn(transaction, *args)`, and commit what it writes together with its record, exactly once.

        The transaction is one of the store: in SQLite, a `sqlite3.Connection` to the file; in FoundationDB, a
        transaction whose keys lie under a prefix for authors. `fn` is a plain function. If it raises, nothing of it is
        written, and this ends as `StepExhaustedError` or `StepCriticalError`. It is retried only if `retries` is given.
        """
        return start_transact(self._scope, name, fn, args, options)

    def checkpoint(self, name: str) -> Coro[None]:
        """Mark a point of no return: steps that finished before it are not compensated any more."""
        return start_checkpoint(self._scope, name)

    # Time.

    def sleep(self, name: str, duration: Duration) -> Coro[None]:
        """Wait for this long, durably."""
        return start_sleep(self._scope, name, duration)

    def sleep_until(self, name: str, when: datetime) -> Coro[None]:
        """Wait until this time, durably; return at once if it is past."""
        return start_sleep_until(self._scope, name, when)

    def now(self) -> datetime:
        """When the last operation of this scope ended: the time, and the same in every replay."""
        return datetime.fromtimestamp(self._scope.now, UTC)

    # Messages.

    @overload
    def listen(self, name: str, messages: Names = None, *, type: type[T], **until: Unpack[Until]) -> Coro[T]: ...
    @overload
    def listen(
        self, name: str, messages: Names = None, *, type: type[T], default: D, **until: Unpack[Until]
    ) -> Coro[T | D]: ...
    @overload
    def listen(
        self, name: str, messages: Names = None, *, type: Any = Any, default: Any = NO_DEFAULT, **until: Unpack[Until]
    ) -> Coro[Any]: ...
    def listen(
        self,
        name: str,
        messages: Names = None,
        *,
        type: Any = Any,
        timeout: Duration | None = None,
        until: datetime | None = None,
        default: Any = NO_DEFAULT,
    ) -> Coro[Any]:
        """Take the next message with one of the names (default: `name`), and return its payload.

        At the deadline: `default` if given, else `ListenTimeoutError`. A message that came before it wins.
        """
        how = Listening(messages, type, timeout, until, Want.PAYLOAD, default=default)
        return start_listen(self._scope, name, how)

    @overload
    def listen_message(
        self, name: str, messages: Names = None, *, type: type[T], **until: Unpack[Until]
    ) -> Coro[Message[T]]: ...
    @overload
    def listen_message(
        self, name: str, messages: Names = None, *, type: type[T], default: D, **until: Unpack[Until]
    ) -> Coro[Message[T] | D]: ...
    @overload
    def listen_message(
        self, name: str, messages: Names = None, *, type: Any = Any, **until: Unpack[Until]
    ) -> Coro[Message[Any]]: ...
    def listen_message(
        self,
        name: str,
        messages: Names = None,
        *,
        type: Any = Any,
        timeout: Duration | None = None,
        until: datetime | None = None,
        default: Any = NO_DEFAULT,
    ) -> Coro[Any]:
        """Do as `listen` does, and return the message itself, which can be answered."""
        how = Listening(messages, type, timeout, until, Want.MESSAGE, default=default)
        return start_listen(self._scope, name, how)

    @overload
    def listen_many(
        self, name: str, messages: Names = None, *, count: int, type: type[T], **until: Unpack[Until]
    ) -> Coro[list[T]]: ...
    @overload
    def listen_many(
        self, name: str, messages: Names = None, *, count: int, type: Any = Any, **until: Unpack[Until]
    ) -> Coro[list[Any]]: ...
    def listen_many(
        self,
        name: str,
        messages: Names = None,
        *,
        count: int,
        type: Any = Any,
        timeout: Duration | None = None,
        until: datetime | None = None,
    ) -> Coro[list[Any]]:
        """Take `count` messages, and return their payloads; at the deadline, those that came until then."""
        how = Listening(messages, type, timeout, until, Want.LIST, count)
        return start_listen(self._scope, name, how)

    # Other instances, and people.

    def send(self, name: str, target: str | Addressee, message: str, payload: object = None) -> Coro[str]:
        """Send a message to another instance, exactly once, and return what became of it, as a `Delivery`.

        If there is no such instance, this is `InstanceNotFoundError`.
        """
        return start_send(self._scope, name, target, message, payload)

    @overload
    def child(self, name: str, workflow: Workflow[I, T], input: I, **how: Unpack[Childhood]) -> Coro[T]: ...
    @overload
    def child(self, name: str, workflow: Workflow[None, T], **how: Unpack[Childhood]) -> Coro[T]: ...
    @overload
    def child(self, name: str, workflow: str, input: Any = None, **how: Unpack[Childhood]) -> Coro[Any]: ...
    def child(
        self,
        name: str,
        workflow: Workflow[Any, Any] | str,
        input: Any = None,
        *,
        id: str | None = None,
        on_cancel: OnCancel = "cancel",
    ) -> Coro[Any]:
        """Start another instance, exactly once, wait for its end, and return its output.

        If it ends without an output, this is `ChildFailedError`. If this instance is cancelled, or the branch loses its
        race, the child is cancelled as well, or left alone with `on_cancel="abandon"`.
        """
        return start_child(self._scope, name, Begin(workflow, input, id), on_cancel)

    @overload
    def continue_with(self, name: str, workflow: Workflow[I, Any], input: I, *, id: str | None = None) -> Coro[str]: ...
    @overload
    def continue_with(self, name: str, workflow: Workflow[None, Any], *, id: str | None = None) -> Coro[str]: ...
    @overload
    def continue_with(self, name: str, workflow: str, input: Any = None, *, id: str | None = None) -> Coro[str]: ...
    def continue_with(
        self, name: str, workflow: Workflow[Any, Any] | str, input: Any = None, *, id: str | None = None
    ) -> Coro[str]:
        """Start another instance, exactly once, and go on without it; return its id."""
        return start_continue(self._scope, name, Begin(workflow, input, id))

    @overload
    def task(self, name: str, *, type: type[T], **request: Unpack[Request]) -> Coro[TaskResult[T]]: ...
    @overload
    def task(self, name: str, *, type: Any = Any, **request: Unpack[Request]) -> Coro[TaskResult[Any]]: ...
    def task(self, name: str, *, type: Any = Any, **request: Unpack[Request]) -> Coro[TaskResult[Any]]:
        """Ask a person to do something: a task on the list of `client.tasks`, until someone completes it.

        At the deadline it is taken off the list, and this is `ListenTimeoutError`.
        """
        return start_task(self._scope, name, Asked(type=type, **request))

    def effect(self, name: str, request: Asks[T]) -> Coro[T]:
        """Ask for an effect of the runtime's machines, such as `charge(cents=500)`, and return its receipt.

        An executor does it once that is stored. Whatever becomes of it, the receipt says so in its `status`.
        """
        return start_asking(self._scope, name, request)

    # What clients can see.

    @property
    def state(self) -> MutableMapping[str, Any]:
        """The business state of the instance. Clients see it with the next commit. It is the same in every replay."""
        return state_of(self._scope)

    @state.setter
    def state(self, values: Mapping[str, Any]) -> None:
        with assigning(self._scope):
            public_state(self._scope).replace(values)

    @property
    def reference(self) -> str | None:
        """The business reference of the instance: instances and tasks can be listed by it."""
        return public_state(self._scope).reference

    @reference.setter
    def reference(self, reference: str | None) -> None:
        with assigning(self._scope):
            public_state(self._scope).refer(reference)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Tell clients how far the instance is."""
        with assigning(self._scope):
            public_state(self._scope).advance(done, total, note)

    # Scopes.

    @overload
    def loop(self, name: str, body: Turn[S, Continue[S] | Break[T]], state: S, **how: Unpack[Pruning]) -> Coro[T]: ...
    @overload
    def loop(
        self, name: str, body: Turn[None, Continue[None] | Break[T] | None], state: None = None, **how: Unpack[Pruning]
    ) -> Coro[T]: ...
    @overload
    def loop(
        self, name: str, body: Turn[Any, Continue[Any] | Break[T] | None], state: Any = None, **how: Unpack[Pruning]
    ) -> Coro[T]: ...
    def loop(self, name: str, body: Turn[Any, Any], state: Any = None, **how: Unpack[Pruning]) -> Coro[Any]:
        """Call `body(ctx, state)` again and again, until it returns `Break(value)`; return that value.

        `Continue(state)` goes on with another state; `None` goes on too, where there is no state. The state is stored
        and history pruned every `commit_interval` turns, keeping the last `history_keep` (default: the interval).
        """

        def turn(scope: Scope, state: Any) -> Awaitable[Any]:
            return awaited(scope, body(Context(scope), state))

        return start_loop(self._scope, name, body, turn, state, LoopSettings(**how))

    def join(self, name: str, branches: Mapping[str, Part[T]], *, limit: int | None = None) -> Coro[dict[str, T]]:
        """Run all branches side by side, at most `limit` at once, and return their values by name.

        All of them finish, even if some fail. The failures are raised together, as `JoinError`.
        """
        return start_join(self._scope, name, branches, _bind, limit)

    def race(self, name: str, branches: Mapping[str, Part[T]]) -> Coro[RaceResult[T]]:
        """Run all branches side by side; the first to return wins, and the others are cancelled at once.

        A branch that fails can't win. If all fail, this is `RaceError`.
        """
        return start_race(self._scope, name, branches, _bind)

    def map(self, name: str, fn: Turn[I, T], items: Iterable[I], *, limit: int | None = None) -> Coro[list[T]]:
        """Run `fn(ctx, item)` for every item, at most `limit` at once, and return the values in order."""

        def bind(item: I) -> Callable[[Scope], Awaitable[T]]:
            return lambda scope: awaited(scope, fn(Context(scope), item))

        return cast("Coro[list[T]]", start_map(self._scope, name, fn, items, bind, limit))

    def attempt(self, name: str, fn: Callable[[Context], Awaitable[T]]) -> Coro[Success[T] | Failure]:
        """Run `fn(ctx)` as a scope of its own, and return its value or its failure as data."""
        return start_attempt(self._scope, name, fn, _bind(fn))

    # Graphs.

    def graph(self, name: str, graph: Nested[T], workload: object = None) -> Coro[T]:
        """Run a graph, and return its `GraphResult`. If it fails, this is `GraphFailedError`, with the result."""
        return graph.start_in(self._scope, name, workload)

    @property
    def vars(self) -> Mapping[str, Any]:
        """The context of the graph, as it was when this firing began, with what the firing has changed since."""
        return seat_of(self._scope, "vars").values

    def patch(self, **values: Any) -> None:
        """Change the context of the graph: at once for this firing, for others when it has succeeded."""
        seat_of(self._scope, "patch").patch(values)

    def submit(self, nodes: object) -> Coro[Verdict]:
        """Add a list of `node(...)`, or a graph, to the graph of this firing: all or none. A false verdict says why."""
        return seat_of(self._scope, "submit").submit(self._scope, nodes)

    @property
    def limits(self) -> Any:
        """What the graph has used of its limits when this firing began, or has submitted last: `used most left`."""
        return seat_of(self._scope, "limits").limits

    # Changing code.

    def version(self, name: str, latest: int) -> Coro[int]:
        """The version of the code to go on with: `latest`, or 1 if the history is older than this call. Recorded."""
        return start_version(self._scope, name, latest)

    def removed(self, name: str, kind: str) -> Coro[None]:
        """Pass over the record of an operation of this kind that was here and was taken out of the code."""
        return start_removed(self._scope, name, kind)

    # Facts.

    def uuid(self) -> UUID:
        """A new uuid, the same in every replay."""
        return draw_uuid(self._scope)

    @property
    def random(self) -> random.Random:
        """Random numbers, the same in every replay."""
        return random_of(self._scope)

    @property
    def instance_id(self) -> str:
        """The id of this instance."""
        return self._scope.engine.facts.instance_id

    @property
    def workflow_name(self) -> str:
        """The name of the workflow."""
        return self._scope.engine.facts.workflow_name

    @property
    def workflow_version(self) -> int:
        """The version of the workflow's code."""
        return self._scope.engine.facts.workflow_version

    @property
    def path(self) -> str:
        """The path of this scope in the instance, such as `outer/~0/inner`; empty at the root."""
        return self._scope.path

    @property
    def is_replaying(self) -> bool:
        """Whether this scope has recorded history that the code has not come to yet."""
        return self._scope.unvisited > 0

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent while replaying, and tells instance, workflow and path."""
        return ScopeLog(self._scope)

    def __repr__(self) -> str:
        return f"<ctx {self.instance_id} {self.path}>"


def _bind(fn: Callable[[Context], Awaitable[Any]]) -> Callable[[Scope], Awaitable[Any]]:
    return lambda scope: awaited(scope, fn(Context(scope)))


Part = Callable[[Context], Awaitable[R]]
Turn = Callable[[Context, S], Awaitable[R]]
