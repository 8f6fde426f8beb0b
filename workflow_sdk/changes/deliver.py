"""Delivering a message to an instance, whoever has it.

One commit appends the message, changes the nudge, and tells whoever has the instance, or makes it due if nobody does.
It holds only if that is still so: a message falls neither before nor after a parking that does not know of it. Whoever
has the instance sees the nudge before it lets go, so that nothing more has to be checked: a busy instance can be
reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from workflow_sdk.changes.change import Assume, Draw, Get, Hold, Retries, Scan, Signal, Steps, Writing, change, look
from workflow_sdk.changes.instances import make_due
from workflow_sdk.changes.keyed import is_used, use_key
from workflow_sdk.changes.snapshot import Snapshot, parse
from workflow_sdk.changes.waits import wait_for_token, wait_for_version
from workflow_sdk.changes.workers import tell_owner, time_of_workers
from workflow_sdk.core.inbox import InboxMessage
from workflow_sdk.core.instance import CountRow
from workflow_sdk.core.keys import FIELDS, INBOX, INBOX_MAX, Field, InstanceKeys, waits_of
from workflow_sdk.core.limits import INBOX_MAX_DEFAULT, SENT_ROWS, counted, messages_in
from workflow_sdk.core.location import subtree
from workflow_sdk.core.status import Status
from workflow_sdk.core.tokens import wait_of
from workflow_sdk.driver import Append, Set
from workflow_sdk.errors import InboxFullError, InstanceNotFoundError

__all__ = ["Delivery", "Letter", "Posted", "check_room", "deliver", "hand_over", "inbox_max", "put"]


class Delivery(StrEnum):
    """What became of a message."""

    ACCEPTED = "accepted"
    """The instance waits for it."""
    QUEUED = "queued"
    """It is kept until the instance listens."""
    STALE = "stale"
    """The wait that it was for is over. Nothing was stored."""
    DUPLICATE = "duplicate"
    """A message with the same key has come before. Nothing was stored."""
    CLOSED = "closed"
    """The instance has ended. Nothing was stored."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to be sent."""

    message: str | bytes
    payload: bytes
    key: str | None = None
    """The same key is delivered once."""
    token: str | None = None
    """The one wait that it is for, as `info().waits` shows it."""
    expected_version: int | None = None
    """The state of the instance that it answers."""
    reply_to: bytes | None = None


@dataclass(slots=True)
class Posted:
    """What became of a letter, and who is to be told."""

    delivery: Delivery
    worker: str | None = None
    """Who has the instance."""
    count: Set | None = None
    """The row that counts the message."""

    @property
    def is_stored(self) -> bool:
        """Whether the instance has the message."""
        return self.delivery in (Delivery.ACCEPTED, Delivery.QUEUED)


def _nobody(worker: str) -> bool:
    return False


@change
def deliver(
    keys: InstanceKeys,
    letter: Letter,
    now: float,
    is_here: Callable[[str], bool] = _nobody,
    found: Snapshot | None = None,
) -> Steps[Posted]:
    """Deliver a letter. `is_here` tells of a worker whether it is told in memory, and needs no row that tells it.

    `found`: the instance, if the change has found it already. InstanceNotFoundError, if there is none; InboxFullError,
    if there is no room for the message.
    """
    if found is None:
        found = parse(keys, (yield Scan(*keys.range(FIELDS))))
    about, lease = found.about, found.lease
    if not about:
        raise InstanceNotFoundError(f"there is no instance {keys.instance_id!r} to send {letter.message!r} to")
    if about.status.is_terminal:
        return Posted(Delivery.CLOSED)
    yield Hold((keys.lease,) if lease is not None else (keys.lease, keys.field(Field.HEAD)))
    only_for = None
    if letter.key is not None or letter.token is not None or letter.expected_version is not None:
        only_for = None if letter.token is None else wait_of(about.birth.seed, keys.instance_id, letter.token)
        refused = yield from _refusal(found, letter, only_for, now)
        if refused is not None:
            return Posted(refused)
    count = (yield from _count(found)) if isinstance(letter.message, str) else None
    is_awaited = yield Scan(*subtree(keys.space + waits_of(letter.message)), 1)
    # What is read after something was written takes longer: so this comes last.
    yield [*put(keys, letter, now, only_for), *([] if count is None else [count]), *_wake(found, now, is_here)]
    accepted = is_awaited or (letter.token is not None and about.status is not Status.STUCK)
    worker = None if lease is None else lease.worker
    return Posted(Delivery.ACCEPTED if accepted else Delivery.QUEUED, worker, count)


def _wake(found: Snapshot, now: float, is_here: Callable[[str], bool]) -> list[Writing]:
    """Have an instance look into its inbox."""
    lease, about = found.lease, found.about
    if lease is not None:
        return [] if is_here(lease.worker) else tell_owner(lease, found.keys.instance_id)
    return [] if about.status is Status.STUCK else make_due(found.keys, about.head, now)


def _refusal(found: Snapshot, letter: Letter, only_for: bytes | None, now: float) -> Steps[Delivery | None]:
    """Hold the commit to what the letter asks for; what keeps it from being delivered, if anything does.

    If it is refused, nothing is written: a key that is used is one of a message that was delivered.
    """
    if letter.key is not None and (yield from is_used(found.keys, letter.key)):
        return Delivery.DUPLICATE
    if not (yield from _is_open(found, letter, only_for, now)):
        return Delivery.STALE
    if letter.key is not None:
        yield from use_key(found.keys, letter.key, now)
    return None


def _is_open(found: Snapshot, letter: Letter, only_for: bytes | None, now: float) -> Steps[bool]:
    """Whether what the letter answers waits still: the wait of a token, or a state of the instance."""
    if letter.token is None and letter.expected_version is None:
        return True
    # Whether a wait is over is not for the clock of a sender to say.
    by = yield from time_of_workers(now)
    if letter.token is None:
        assert letter.expected_version is not None, "one of the two is given"
        return (yield from wait_for_version(found, letter.message, letter.expected_version, by))
    if only_for is None:
        return False
    return (yield from wait_for_token(found, letter.message, only_for, letter.expected_version, by))


def _count(found: Snapshot) -> Steps[Set]:
    """What counts a message; InboxFullError, if it is one too many."""
    keys = found.keys
    # Other senders use the first row, too: after a conflict with one of them, another row is likely to be free.
    row = keys.sent((1 + (yield Draw(SENT_ROWS - 1))) if (yield Retries()) else 0)
    before = counted((yield Get(row)))
    if count := messages_in(found.about, found.sent):
        check_room(keys.instance_id, count, (yield from inbox_max()))
    return Set(row, CountRow(before + 1).pack())


@change
def inbox_max() -> Steps[int]:
    """How many messages an inbox has room for."""
    raw = yield from look(INBOX_MAX)
    return INBOX_MAX_DEFAULT if raw is None else counted(raw)


def check_room(instance_id: str, count: int, most: int) -> None:
    """InboxFullError, if there is no room for one more message."""
    if count >= most:
        raise InboxFullError(
            f"instance {instance_id!r} has {count:,} messages that it has not taken, and the limit is {most:,} "
            "(Runtime(inbox_max=)); `handle.inbox()` shows them, `handle.discard` takes one out"
        )


def put(keys: InstanceKeys, letter: Letter, now: float, only_for: bytes | None = None) -> list[Writing]:
    """Put a letter into the inbox, for any wait or for one only."""
    row = InboxMessage(b"", letter.message, letter.payload, now, letter.reply_to, only_for)
    writes: list[Writing] = [Append(keys.space + INBOX, row.pack()), Signal(keys.nudge)]
    return writes if letter.reply_to is None else [*writes, Set(letter.reply_to, b"")]


@change
def hand_over(keys: InstanceKeys, lease: bytes, before: int | None, letter: Letter, now: float) -> Steps[int | None]:
    """Deliver a letter to an instance that is in memory here, without a read.

    `before`: how many letters were handed over to it before, as far as is known. How many there are with this one;
    None if the instance is not here any more, or if it is not known how many there were.
    """
    # While the lease holds, the instance has not ended, and will see the nudge before it goes away.
    if (yield Assume(keys.lease, lease)) != lease:
        return None
    # No other process writes this row as long as the lease holds.
    row, raw = keys.field(Field.HANDED), None if before is None else CountRow(before).pack()
    if (yield Assume(row, raw)) != raw:
        return None
    count = (before or 0) + 1
    yield Set(row, CountRow(count).pack())
    yield put(keys, letter, now)
    return count
