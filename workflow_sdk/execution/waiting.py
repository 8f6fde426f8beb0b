"""What the parked branches of an instance wait for: timers in a heap, messages by name, and a row for each wait."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from workflow_sdk.core.inbox import Fit, InboxMessage
from workflow_sdk.core.instance import WaitRow
from workflow_sdk.core.journal import Journal
from workflow_sdk.execution.mail import Mail
from workflow_sdk.operations.engine import Wait

__all__ = ["Waits"]

_STALE_TIMERS = 64
TYPES_MAX = 256
"""The types of so many messages are known, those that were listened to first are forgotten."""
SEVERAL = object()

# Shared by all, and never written to.
_NO_TYPES: dict[str, object] = {}
_NONE_REFUSES: dict[Wait, None] = {}


class Waits:
    """The waits of one run. Adding and ending one costs the same, however many there are."""

    __slots__ = ("_by_message", "_count", "_journal", "_timers", "_types", "_waiting", "refusing")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._by_message: dict[str | bytes, Wait | dict[Wait, None]] = {}
        """Mostly it is one that waits for a name; a table for several takes more than the wait itself."""
        self._timers: list[tuple[float, int, Wait]] = []
        self._count = 0
        self._waiting = 0
        self._types: dict[str, object] = _NO_TYPES
        """Of the messages that this run has listened to lately, by name."""
        self.refusing: dict[Wait, None] = _NONE_REFUSES
        """The waits that have refused messages, and wait for others."""

    def will_listen(self, names: Iterable[str], type: object) -> None:
        """A branch begins to listen."""
        if self._types is _NO_TYPES:
            self._types = {}
        types = self._types
        for name in names:
            if name not in types:
                while len(types) >= TYPES_MAX:
                    del types[next(iter(types))]
                types[name] = type
            elif not _same(types[name], type):
                types[name] = SEVERAL

    def has_several_types(self, name: str | bytes) -> bool:
        """Whether this run has listened to the message with more than one type: to refuse it says little then."""
        return self._types.get(str(name)) is SEVERAL

    def others_take(self, message: InboxMessage, fit: Fit) -> bool:
        """Whether another wait than the one with this fit can take the message."""
        return any(
            wait.fit is None or (wait.fit is not fit and wait.fit.takes(message))
            for wait in self._waits_for(message.name)
        )

    def add(self, wait: Wait) -> None:
        """A branch begins to wait. It is told to the world with the next commit."""
        self._waiting += 1
        about = WaitRow(wait.kind, wait.name, wait.path, wait.until, wait.count, 0)
        self._journal.begin_wait(wait.location, wait.messages, about, wait.entry)
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
        """A branch waits no more."""
        wait.fired = True
        self._waiting -= 1
        if wait in self.refusing:
            del self.refusing[wait]
        self._journal.end_wait(wait.location, wait.messages)
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
        """A branch waits for something of the worker's: it is told to the world, and does not count as parked."""
        about = WaitRow(wait.kind, wait.name, wait.path, wait.until, wait.count, 0)
        self._journal.begin_wait(wait.location, wait.messages, about, wait.entry)

    def hide(self, wait: Wait) -> None:
        """It waits no more."""
        self._journal.end_wait(wait.location, wait.messages)

    def let_all_go(self) -> None:
        """The run is over: whoever waits is told, and finds that there is nothing to go on with."""
        # Each waits for a message or a time.
        for name in self._by_message:
            for wait in self._waits_for(name):
                wait.bell.ring()
        for _, _, wait in self._timers:
            wait.bell.ring()

    @property
    def next_time(self) -> float | None:
        """When the first timer is due."""
        while self._timers and self._timers[0][2].fired:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    @property
    def messages(self) -> list[str]:
        """The names of the messages that are awaited."""
        return sorted(name for name in self._by_message if isinstance(name, str))

    @property
    def listens(self) -> bool:
        """Whether a message is awaited."""
        return bool(self._by_message)

    def needed(self, message: str) -> int:
        """How many messages with this name are awaited; of the empty name, how many names."""
        return sum(wait.count for wait in self._waits_for(message)) if message else len(self._by_message)

    def hungry(self, mail: Mail) -> list[str]:
        """The names of messages that are awaited and were passed over, and of which there are too few in memory."""
        return [
            name for name in self.messages if mail.has_passed((name,)) and any(map(self._lacks, self._waits_for(name)))
        ]

    def _lacks(self, wait: Wait) -> bool:
        found = self._journal.inbox.find(wait.messages, wait.count, wait.at, wait.fit)
        return not wait.fired and len(found) < wait.count

    def awaits(self, message: str | bytes) -> bool:
        """Whether the message is awaited."""
        return message in self._by_message

    def due(self, now: float) -> list[Wait]:
        """The waits whose time has come."""
        found: list[Wait] = []
        while (time := self.next_time) is not None and time <= now:
            found.append(heappop(self._timers)[2])
        return found

    def _waits_for(self, name: str | bytes) -> Iterable[Wait]:
        found = self._by_message.get(name, ())
        return (found,) if isinstance(found, Wait) else found

    def served(self) -> list[Wait]:
        """The waits that there are messages for; no more of them than there are messages."""
        inbox = self._journal.inbox
        found: list[Wait] = []
        for name in inbox.names():
            left = inbox.count(name)
            for wait in self._waits_for(name):
                if left <= 0:
                    break
                if wait.fired:
                    # It was woken for a message that it has not taken yet.
                    left -= wait.count
                elif len(inbox.find(wait.messages, wait.count, wait.at, wait.fit)) >= wait.count:
                    left -= wait.count
                    found.append(wait)
                elif wait.fit is not None and wait.fit.refused:
                    if self.refusing is _NONE_REFUSES:
                        self.refusing = {}
                    self.refusing[wait] = None
        return found


def _same(one: object, other: object) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001  # what an author has put into an annotation may answer anything
        return False
