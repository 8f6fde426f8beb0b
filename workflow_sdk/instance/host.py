"""Who runs an execution: a runtime, which has many; or one run that stands alone.

A host keeps the time, tells an execution that messages have come, and does what must be done beside it. An execution
has no task of its own for that: it tells its host what changed.
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
        """Which instance it runs."""
        ...

    @property
    def next_time(self) -> float | None:
        """When its first timer is due."""
        ...

    def fire(self) -> None:
        """Wake the branches whose time has come, or for whom there may be a message."""
        ...


class Watching(Protocol):
    """What reads the messages of an execution that come while it waits."""

    async def watch(self) -> None:
        """Return once a message may have come, and was read."""
        ...


class Parked(Waiting, Protocol):
    """The branches of an execution, as its host knows them."""

    @property
    def arrivals(self) -> Watching:
        """What reads the messages that come."""
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
        """Nobody wakes its branches any more: it is over."""
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
        """Whether it goes on."""
        ...

    @property
    def parking(self) -> Parked:
        """Its branches."""
        ...

    @property
    def outside(self) -> Reaching:
        """What it does to others."""
        ...

    def activity(self) -> Activity:
        """What is under way."""
        ...

    async def beat(self, worker: WorkerKeys, heartbeat: bytes) -> None:
        """Say that its worker lives, as long as the lease is held."""
        ...


class Near(Protocol):
    """A runtime in this process, which is told of what concerns its instances."""

    def is_worker(self, worker: str) -> bool:
        """Whether that is the worker here."""
        ...

    def message_came(self, id: str) -> None:
        """A message was stored for an instance that the worker here has."""
        ...

    def is_due(self, id: str) -> None:
        """An instance is to be run by whoever is free."""
        ...


class Host(Protocol):
    """Who runs executions."""

    answers: dict[bytes, Callable[[bytes], None]]
    """Who in this process waits for which answer, by its key."""
    threads: Threads
    """In which plain functions run."""
    here: Near | None
    """The runtime whose instances need no signal; None where there is none."""
    beats: bool
    """It has a heartbeat of its own, for all that it runs, and is told of messages."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the tasks of the runs are being cancelled with whoever has started them, by asyncio itself."""
        ...

    @property
    def crowded(self) -> bool:
        """Whether others wait for their turn."""
        ...

    def run(self, guest: Guest, root: Root) -> Awaitable[None]:
        """Run an execution to its end."""
        ...

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something done beside what is running."""
        ...

    def waits_changed(self, guest: Waiting) -> None:
        """It waits for something else: a timer that may be its first, or a message."""
        ...

    def rests(self, guest: Waiting, idle: bool) -> None:
        """It waits in memory now, or goes on."""
        ...

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """The code has named this workflow as that of a child."""
        ...

    def may_go_on(self, guest: Waiting) -> bool:
        """Whether one that waits in memory may go on now. If not, it is fired again when it may."""
        ...

    def evict(self, guest: Parked) -> None:
        """Somebody has asked for it to be evicted, and the store says so."""
        ...

    def queue(self, guest: Waiting, go_on: Callable[[], None]) -> None:
        """It lets others go first; `go_on` is called when it is its turn again."""
        ...
