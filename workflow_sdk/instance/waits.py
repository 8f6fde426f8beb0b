"""The waits of an instance's parked branches, and the turns that instances take if there are too few slots."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from time import monotonic

import anyio

from workflow_sdk.instance.host import Host, Waiting
from workflow_sdk.instance.inbox_reader import InboxReader
from workflow_sdk.journal.inbox import Fit, InboxMessage
from workflow_sdk.journal.journal import Journal
from workflow_sdk.operations.types import GRAPH_MESSAGE, Wait
from workflow_sdk.rows.instance import WaitRow

_STALE_TIMERS = 64
# Shared by all runs, and never written to.
_NONE_REFUSES: dict[Wait, None] = {}


class Waits:
    """The waits of one run. Adding and ending one costs the same, however many there are."""

    __slots__ = ("_by_message", "_count", "_journal", "_timers", "_waiting", "active", "denied", "refusing", "unbegun")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.active: int = 1
        """How many branches are active: they run, and are not parked."""
        self.unbegun: int = 0
        """How many of the active branches have not begun: nobody knows yet what they will wait for."""
        self.denied: int = 0
        """How many steps of graphs wait to be allowed."""
        self._by_message: dict[str | bytes, Wait | dict[Wait, None]] = {}
        """The waits for each message. Mostly there is one, and a table for several would take more memory than that."""
        self._timers: list[tuple[float, int, Wait]] = []
        self._count = 0
        self._waiting = 0
        self.refusing: dict[Wait, None] = _NONE_REFUSES
        """The waits that have refused a message which did not fit, and that wait for another one."""

    def others_take(self, message: InboxMessage, fit: Fit) -> bool:
        """Whether another wait than the one with this fit can take the message."""
        return any(
            wait.fit is None or (wait.fit is not fit and wait.fit.takes(message))
            for wait in self._waits_for(message.name)
        )

    def add(self, wait: Wait) -> None:
        """Begin a wait of a branch. The next commit stores it, so that everybody can see it."""
        self._waiting += 1
        about = WaitRow(wait.kind, wait.who.name, wait.who.path, wait.until, wait.count, 0, wait.since)
        self._journal.begin_wait(wait.who.location, wait.messages, about, wait.entry)
        for name in wait.messages:
            others = self._by_message.get(name)
            if others is None:
                self._by_message[name] = wait
            elif isinstance(others, Wait):
                self._by_message[name] = {others: None, wait: None}
            else:
                others[wait] = None
        if wait.until is not None:
            self._count += 1
            heappush(self._timers, (wait.until, self._count, wait))

    def remove(self, wait: Wait) -> None:
        """End a wait of a branch."""
        wait.fired = True
        self._waiting -= 1
        if wait in self.refusing:
            del self.refusing[wait]
        self._journal.end_wait(wait.who.location, wait.messages)
        for name in wait.messages:
            waits = self._by_message[name]
            if isinstance(waits, dict):
                del waits[wait]
            if waits is wait or not waits:
                del self._by_message[name]
        if len(self._timers) > 2 * self._waiting + _STALE_TIMERS:
            # Waits that ended early leave their timers behind.
            self._timers = [timer for timer in self._timers if not timer[2].fired]
            heapify(self._timers)

    def show(self, wait: Wait) -> None:
        """Store the wait of a branch that waits for its own worker, such as for a thread. The branch stays active."""
        about = WaitRow(wait.kind, wait.who.name, wait.who.path, wait.until, wait.count, 0)
        self._journal.begin_wait(wait.who.location, wait.messages, about, wait.entry)

    def hide(self, wait: Wait) -> None:
        """End a wait that `show` has begun."""
        self._journal.end_wait(wait.who.location, wait.messages)

    def let_all_go(self) -> None:
        """Wake every branch, since the run is over: each then finds that it can't go on."""
        # Every wait is in at least one of these two: it is for a message or a time.
        for name in self._by_message:
            for wait in self._waits_for(name):
                wait.wakeup.wake()
        for _, _, wait in self._timers:
            wait.wakeup.wake()

    @property
    def next_time(self) -> float | None:
        """When the first timer is due; None if there is none."""
        while self._timers and self._timers[0][2].fired:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    @property
    def messages(self) -> list[str]:
        """The names of the messages that are awaited."""
        return sorted(name for name in self._by_message if isinstance(name, str) and name != GRAPH_MESSAGE)

    @property
    def listens(self) -> bool:
        """Whether any message is awaited."""
        return bool(self._by_message)

    @property
    def is_told(self) -> bool:
        """Whether somebody has to tell the instance something, for all of it to go on: time alone is not enough."""
        return self.denied > 0 or len(self._by_message) > (GRAPH_MESSAGE in self._by_message)

    def needed(self, message: str) -> int:
        """How many messages with this name are awaited; for the empty name, how many names are awaited."""
        return sum(wait.count for wait in self._waits_for(message)) if message else len(self._by_message)

    def waiting_in_vain(self, reader: InboxReader) -> list[str]:
        """The names of awaited messages of which too few are in memory, though the store may have more."""
        return [
            name
            for name in sorted(name for name in self._by_message if isinstance(name, str))
            if reader.has_passed((name,)) and any(map(self._lacks, self._waits_for(name)))
        ]

    def _lacks(self, wait: Wait) -> bool:
        found = self._journal.inbox.find(wait.messages, wait.count, wait.at, wait.fit)
        return not wait.fired and len(found) < wait.count

    def awaits(self, message: str | bytes) -> bool:
        """Whether the message is awaited."""
        return message in self._by_message

    def due(self, now: float) -> list[Wait]:
        """Remove the timers whose time has come, and return their waits."""
        found: list[Wait] = []
        while (time := self.next_time) is not None and time <= now:
            found.append(heappop(self._timers)[2])
        return found

    def _waits_for(self, name: str | bytes) -> Iterable[Wait]:
        found = self._by_message.get(name, ())
        return (found,) if isinstance(found, Wait) else found

    def served(self) -> list[Wait]:
        """The waits for which there are messages in memory. Each message counts for one wait only."""
        inbox = self._journal.inbox
        found: list[Wait] = []
        for name in inbox.names():
            left = inbox.count(name)
            for wait in self._waits_for(name):
                if left <= 0:
                    break
                if wait.fired:
                    # It was woken already, and its messages are still here until its branch runs and takes them.
                    left -= wait.count
                elif len(inbox.find(wait.messages, wait.count, wait.at, wait.fit)) >= wait.count:
                    left -= wait.count
                    found.append(wait)
                elif wait.fit is not None and wait.fit.refused:
                    if self.refusing is _NONE_REFUSES:
                        self.refusing = {}
                    self.refusing[wait] = None
        return found


TURN_SECONDS = 0.005
"""How long an instance goes on while other instances wait for slots."""
GATHER_SECONDS = 0.05
"""How long the branches of an instance wait for each other, so that all of them let others go first."""
APART_SECONDS = 0.5
"""How long the branches go on if they did not all come in that time: one of them may be in a long step."""


class Turns:
    """The turns of one run. All its branches have to wait before the instance can give up its slot."""

    __slots__ = ("_branches", "_gathered", "_host", "_since", "_turn", "_waits", "steps_back")

    def __init__(self, host: Host, branches: Waiting, waits: Waits) -> None:
        self._host = host
        self._branches = branches
        self._waits = waits
        self._turn: anyio.Event | None = None
        """While branches let others go first: set when it is the turn of this instance again."""
        self._gathered = 0
        """How many branches wait in `let_others_go`."""
        self.steps_back: bool = False
        """Whether all active branches wait there, and the instance has given up its slot."""
        self._since = monotonic()
        """When the turn of this instance began."""

    def begin(self) -> None:
        """Begin the turn of the instance, which goes on after a wait."""
        self._since = monotonic()

    @property
    def is_over(self) -> bool:
        """Whether other instances wait for slots, and the turn of this one is over."""
        return self._host.crowded and monotonic() - self._since > TURN_SECONDS

    async def let_others_go(self) -> None:
        """Have the calling branch wait until it is the turn of this instance again.

        If the other active branches do not come here soon, it goes on, and the instance keeps its slot.
        """
        turn = self._turn
        if turn is None:
            turn = self._turn = anyio.Event()
        self._gathered += 1
        try:
            self.look()
            with anyio.move_on_after(GATHER_SECONDS):
                await turn.wait()
            if self.steps_back:
                await turn.wait()
        finally:
            if not turn.is_set():
                self._gathered -= 1
                self._since = monotonic() + APART_SECONDS

    def look(self) -> None:
        """Give up the slot of the instance if all its active branches wait in `let_others_go`."""
        if self._gathered and self._gathered == self._waits.active and not self.steps_back:
            self.steps_back = True
            self._host.queue(self._branches, self.go_on)

    def go_on(self) -> None:
        """Wake the branches, since it is the turn of this instance again, or the run is over."""
        self._since = monotonic()
        self.steps_back = False
        self._gathered = 0
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.set()
            self._branches.fire()
