"""The inbox of one instance in memory, in order of arrival; and the taken messages that may be given back."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from heapq import merge
from itertools import chain, islice
from typing import ClassVar, TypeGuard

from msgspec import Struct
from sortedcontainers import SortedDict

from workflow_sdk.journal.unwritten import Unwritten
from workflow_sdk.rows.instance import CountRow, InstanceRows
from workflow_sdk.rows.keys import INBOX, TAKINGS
from workflow_sdk.rows.location import check_location, pack_segment, subtree
from workflow_sdk.rows.wire import Moment, Row

WAITING = b"\x00"
"""The first byte of an answer's row while there is no answer, once the sender has written to it again. Before that,
the row is empty."""


class AnswerKind(StrEnum):
    """How a message to which an answer was wanted was settled."""

    ANSWERED = "answered"
    UNFIT = "unfit"
    """No wait could take the message, and it was set aside."""
    DISCARDED = "discarded"
    """Somebody removed the message from the inbox."""


def still_waiting(chance: bytes) -> bytes:
    """The value of an answer's row while the sender waits. Other bytes each time show that the sender is alive."""
    return WAITING + chance


def is_answer(raw: bytes | None) -> TypeGuard[bytes]:
    """Whether a row holds an answer. It holds none while the sender waits, and is gone once nobody waits any more."""
    return raw is not None and raw != b"" and not raw.startswith(WAITING)


class Answer(Row, frozen=True):
    """An answer, or why there is none."""

    WHAT: ClassVar[str] = "an answer"

    value: bytes
    """The encoded answer; if there is none, the encoded text that says why."""
    kind: AnswerKind = AnswerKind.ANSWERED


INBOX_MAX_DEFAULT = 10_000
SENT_ROWS = 32


def counted(raw: bytes | None) -> int:
    """The number in a row that counts; 0 if there is no such row."""
    return 0 if raw is None else CountRow.unpack(raw).count


def messages_in(rows: InstanceRows, sent: Mapping[bytes, bytes]) -> int:
    """How many messages the inbox of an instance holds, by its rows and the rows in which senders count."""
    return max(0, sum(map(counted, sent.values())) + (rows.handed or 0) - rows.tally.taken)


class _MessageRow(Row, frozen=True):
    """A message as it is stored: without its id, which is the end of its key."""

    WHAT: ClassVar[str] = "a message"

    name: str
    payload: bytes
    sent_at: Moment
    reply_to: bytes | None = None
    only_for: bytes | None = None
    ended: bytes | None = None
    """Set instead of a name if this is the end of a child or a task: the token of the wait for that."""


class InboxMessage(Struct, frozen=True):
    """A message in the inbox. Its id is the end of its key: ids sort in the order of arrival."""

    id: bytes
    name: str | bytes
    """The name of the message; for the end of a child or a task, the token of the wait for that."""
    payload: bytes
    sent_at: float
    reply_to: bytes | None = None
    only_for: bytes | None = None
    """The token of the one wait that may take the message; None if any may."""

    def __lt__(self, other: InboxMessage) -> bool:
        return self.id < other.id

    @property
    def is_counted(self) -> bool:
        """Whether the message counts against the limit of the inbox. The ends of children and tasks do not."""
        return isinstance(self.name, str)

    def pack(self) -> bytes:
        # Commits check this value against the stored one, in which a time is always a float.
        name, ended = (self.name, None) if isinstance(self.name, str) else ("", self.name)
        return _MessageRow(name, self.payload, float(self.sent_at), self.reply_to, self.only_for, ended).pack()

    @classmethod
    def unpack(cls, id: bytes, raw: bytes) -> InboxMessage:
        row = _MessageRow.unpack(raw)
        if row.only_for is not None:
            check_location(row.only_for)
        if row.ended is not None:
            check_location(row.ended)
        return cls(
            id, row.name if row.ended is None else row.ended, row.payload, row.sent_at, row.reply_to, row.only_for
        )


class TakingRow(Row, frozen=True):
    """A message that was taken inside a race that is still open: it is given back if its branch loses."""

    WHAT: ClassVar[str] = "a message that was taken"

    id: bytes
    message: bytes
    """As it was stored in the inbox."""


class SetAside(Row, frozen=True):
    """A message that fits no wait, and is kept so that people can see it in the inbox."""

    WHAT: ClassVar[str] = "a message that was set aside"

    name: str
    """The name of the message; if it is the result of a task, the name of the task."""
    payload: bytes
    sent_at: Moment
    reason: bytes
    """Why it was set aside: a text, encoded like other values."""


# Shared by all, and never written to: most instances have no message.
_NO_NAMES: dict[str | bytes, list[InboxMessage]] = {}
_NO_IDS: set[bytes] = set()
_NONE_REFUSED: dict[bytes, tuple[InboxMessage, str]] = {}

FITTING_MAX = 64
UNREAD = "it can't be read here"
"""The reason given for a message that was encoded with a codec which this worker does not have."""


class Fit:
    """Tells which messages fit one wait. To find out, a message has to be decoded, so the answers are kept."""

    __slots__ = ("_fitting", "_problem", "_unread", "refused")

    def __init__(self, problem: Callable[[InboxMessage], str | None]) -> None:
        self._problem = problem
        self._fitting: set[bytes] = _NO_IDS
        self._unread: set[bytes] = _NO_IDS
        """The ids of messages that only another worker may be able to read: they are left in the inbox for it."""
        self.refused: dict[bytes, tuple[InboxMessage, str]] = _NONE_REFUSED
        """Messages that do not fit, by id, each with the reason."""

    def takes(self, message: InboxMessage) -> bool:
        """Whether the wait can take the message."""
        return self.reason(message) is None

    def reason(self, message: InboxMessage) -> str | None:
        """Why the wait can't take the message, or None if it can."""
        if message.id in self._fitting:
            return None
        known = self.refused.get(message.id)
        if known is not None:
            return known[1]
        if message.id in self._unread:
            return UNREAD
        reason = self._problem(message)
        if reason is UNREAD:
            self._unread = self._unread | {message.id}
            return UNREAD
        if reason is not None:
            if self.refused is _NONE_REFUSED:
                self.refused = {}
            self.refused[message.id] = (message, reason)
            return reason
        if self._fitting is _NO_IDS or len(self._fitting) >= FITTING_MAX:
            self._fitting = set()
        self._fitting.add(message.id)
        return None


class Inbox:
    """The messages of one instance, by name."""

    __slots__ = ("_addressed", "_by_name", "_ids", "weight")

    def __init__(self) -> None:
        self._by_name: dict[str | bytes, list[InboxMessage]] = _NO_NAMES
        self._ids: set[bytes] = _NO_IDS
        self._addressed = 0
        """How many messages are addressed to one wait only."""
        self.weight: int = 0
        """How many bytes the payloads have together."""

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, message: InboxMessage) -> bool:
        """Add a message in its place in the order; False if it is there already."""
        if self._ids is _NO_IDS:
            self._ids, self._by_name = set(), {}
        if message.id in self._ids:
            return False
        self._ids.add(message.id)
        self._addressed += message.only_for is not None
        self.weight += len(message.payload)
        insort(self._by_name.setdefault(message.name, []), message)
        return True

    def names(self) -> list[str | bytes]:
        """The names of the messages that are there."""
        return list(self._by_name)

    def count(self, name: str | bytes) -> int:
        """How many messages have this name."""
        return len(self._by_name.get(name, ()))

    def has(self, message: InboxMessage) -> bool:
        """Whether the message is there."""
        return message.id in self._ids

    def find(
        self, names: Iterable[str | bytes], count: int = 1, at: bytes = b"", fit: Fit | None = None
    ) -> list[InboxMessage]:
        """Up to `count` messages with one of the names that the wait with this token may take, oldest first.

        With `fit`, messages that do not fit are passed over.
        """
        queues = [queue for name in names if (queue := self._by_name.get(name))]
        if not queues:
            return []
        messages = self._in_turn(queues, at)
        return list(islice(messages if fit is None else filter(fit.takes, messages), count))

    def _in_turn(self, queues: list[list[InboxMessage]], at: bytes) -> Iterable[InboxMessage]:
        """The messages that the wait with this token may take, in the order in which it takes them."""
        if self._addressed:
            allowed = [[message for message in queue if message.only_for in (None, at)] for queue in queues]
            # Messages addressed to this wait come first, since no other wait can take them.
            return sorted(chain(*allowed), key=lambda message: (message.only_for is None, message.id))
        return queues[0] if len(queues) == 1 else merge(*queues)

    def addressed_to(self, at: bytes) -> int:
        """How many messages are addressed to the wait with this token."""
        if not self._addressed:
            return 0
        return sum(message.only_for == at for queue in self._by_name.values() for message in queue)

    def take(self, message: InboxMessage) -> None:
        """Remove a message."""
        queue = self._by_name[message.name]
        queue.remove(message)
        self._ids.discard(message.id)
        self._addressed -= message.only_for is not None
        self.weight -= len(message.payload)
        if not queue:
            del self._by_name[message.name]


# Shared by all, and never written to.
_NOTHING_TAKEN: SortedDict[bytes, InboxMessage] = SortedDict()


class Takings:
    """The messages that one instance takes out of its inbox. Those taken in a race that is still open may come back."""

    __slots__ = ("_inbox", "_space", "_unwritten", "rows")

    def __init__(self, space: bytes, unwritten: Unwritten, inbox: Inbox) -> None:
        self._space = space
        self._unwritten = unwritten
        self._inbox = inbox
        self.rows: SortedDict[bytes, InboxMessage] = _NOTHING_TAKEN
        """Messages taken inside races that are still open, by their key in the instance's space."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, message: InboxMessage) -> None:
        """Take a message out of the inbox, in the same commit as the entry that takes it."""
        self._inbox.take(message)
        if message.is_counted:
            self._unwritten.taken += 1
        key = self._space + INBOX + message.id
        if self._unwritten.rows.get(key) is None:
            # The commit checks that nobody has discarded the message. Not if it was given back since the last commit:
            # then it is not in the store yet.
            self._unwritten.check(key, message.pack())
        self._unwritten.write(INBOX + message.id, None)

    def keep(self, location: bytes, number: int, message: InboxMessage) -> None:
        """Note a message that was taken inside a race that is still open, to give it back if its branch loses."""
        key = TAKINGS + location + pack_segment(number)
        self._remember(key, message)
        self._unwritten.write(key, TakingRow(message.id, message.pack()).pack())

    def load(self, key: bytes, raw: bytes) -> None:
        """Take in a row of the store."""
        row = TakingRow.unpack(raw)
        self._remember(key, InboxMessage.unpack(row.id, row.message))

    def _remember(self, key: bytes, message: InboxMessage) -> None:
        if self.rows is _NOTHING_TAKEN:
            self.rows = SortedDict()
        self.rows[key] = message

    def settle(self, location: bytes, *, give_back: bool) -> None:
        """Give the messages that were taken under a location back to the inbox, or have them taken for good."""
        begin, end = subtree(TAKINGS + location)
        for key in list(self.rows.irange(begin, end)):
            message = self.rows.pop(key)
            self._unwritten.write(key, None)
            if give_back:
                self._unwritten.write(INBOX + message.id, message.pack())
                # If it was taken since the last commit, it is still in the store, and nothing is to be checked.
                self._unwritten.uncheck(self._space + INBOX + message.id)
                self._unwritten.taken -= message.is_counted
                self._inbox.add(message)

    def settle_turns(self, first: bytes, end: bytes) -> None:
        """Have messages that were taken in deleted turns of a loop taken for good.

        The turns are those from the location `first`, up to `end` and without it.
        """
        keys = list(self.rows.irange(TAKINGS + first, TAKINGS + end, inclusive=(True, False)))
        for key in keys:
            del self.rows[key]
        if keys:
            self._unwritten.clear((self._space + TAKINGS + first, self._space + TAKINGS + end))
