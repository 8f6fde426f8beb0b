"""The host of an execution: a runtime, which has many executions, or a run without a runtime, which has one.

A host wakes its executions when their timers are due or messages have come, and runs tasks for them. An execution has
no task of its own for that: it tells its host when its timers or waits change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol

from workflow_sdk.definitions import Workflow
from workflow_sdk.instance.clock import Activity
from workflow_sdk.instance.threads import Threads
from workflow_sdk.rows.keys import WorkerKeys

Root = Callable[[], Awaitable[None]]


class Waiting(Protocol):
    """An execution that may wait, as its host knows it."""

    @property
    def instance_id(self) -> str:
        """The id of the instance."""
        ...

    @property
    def next_time(self) -> float | None:
        """When the first timer of the execution is due; None if it has none."""
        ...

    def fire(self) -> None:
        """Wake the branches whose time has come, or for which there may be a message."""
        ...


class Watching(Protocol):
    """The part of an execution that reads the messages which come while it waits."""

    async def watch(self) -> None:
        """Return once a message may have come and the new messages were read."""
        ...


class Parked(Waiting, Protocol):
    """The branches of an execution, as its host knows them."""

    @property
    def arrivals(self) -> Watching:
        """The part that reads the messages which come while branches wait."""
        ...

    def evict(self) -> None:
        """Begin nothing new, and release the instance once what is under way has ended."""
        ...

    def give_back(self) -> None:
        """Release the instance at once. What is under way is cancelled, and runs again later."""
        ...

    @property
    def listens(self) -> bool:
        """Whether a message is awaited."""
        ...


class Living(Protocol):
    """Whether an execution goes on, as its host knows it."""

    async def run(self, root: Root) -> None:
        """Run `root` to its end, or until the instance is released or stopped."""
        ...

    def abandon(self) -> None:
        """End the execution: the host does not wake its branches any more."""
        ...


class Reaching(Protocol):
    """What an execution does to others, as its host knows it."""

    @property
    def children(self) -> Iterable[str]:
        """The instances that it waits for."""
        ...


class Guest(Protocol):
    """An execution, as the host knows it that is to run it."""

    @property
    def life(self) -> Living:
        """The part that knows whether the execution goes on."""
        ...

    @property
    def parking(self) -> Parked:
        """The part that knows the branches."""
        ...

    @property
    def outside(self) -> Reaching:
        """The part that acts on other instances."""
        ...

    def activity(self) -> Activity:
        """What is under way: code, a thread or nothing."""
        ...

    async def beat(self, worker: WorkerKeys, heartbeat: bytes) -> None:
        """Write the heartbeat of the worker, if the worker still has the lease of the instance."""
        ...


class Near(Protocol):
    """A runtime in this process. Whoever changes one of its instances tells it so directly."""

    def is_worker(self, worker: str) -> bool:
        """Whether this is the id of the worker in this process."""
        ...

    def message_came(self, id: str) -> None:
        """Note that a message was stored for an instance that the worker in this process has."""
        ...

    def is_due(self, id: str) -> None:
        """Note that an instance was made due, so that any worker may run it."""
        ...


class Host(Protocol):
    """Runs executions."""

    answers: dict[bytes, Callable[[bytes], None]]
    """The callbacks of those in this process who wait for an answer, by the key of the answer."""
    threads: Threads
    """The threads in which plain functions run."""
    here: Near | None
    """The runtime in this process, whose instances need no signals; None if there is none."""
    machines: Any
    """What the machines of the runtime do for workflows; None if it has none."""
    beats: bool
    """Whether the worker of this host has one heartbeat for all its runs, and reads signals."""

    @property
    def is_cancelled(self) -> bool:
        """Whether asyncio itself, and no cancel scope, is cancelling the tasks of the runs."""
        ...

    @property
    def crowded(self) -> bool:
        """Whether other instances wait for a slot."""
        ...

    def run(self, guest: Guest, root: Root) -> Awaitable[None]:
        """Run an execution to its end."""
        ...

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a function in a task beside the executions."""
        ...

    def waits_changed(self, guest: Waiting) -> None:
        """Note that the waits of an execution have changed: it may have another first timer, or await a message."""
        ...

    def rests(self, guest: Waiting, idle: bool) -> None:
        """Note that an execution is idle now and waits in memory, or that it goes on."""
        ...

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """Note a workflow that the author's code has named as that of a child."""
        ...

    def may_go_on(self, guest: Waiting) -> bool:
        """Whether an idle execution may go on now. If not, the host calls its `fire` again once it may."""
        ...

    def evict(self, guest: Parked) -> None:
        """Note that the run has found a request to evict its instance in the store."""
        ...

    def queue(self, guest: Waiting, go_on: Callable[[], None]) -> None:
        """Give up the slot of an execution, so that others run first; `go_on` is called when it has one again."""
        ...
