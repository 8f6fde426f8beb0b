"""Delivering a message to an instance, whether a worker has it or nobody does.

One commit appends the message and changes the inbox stamp. It also sets a signal for the worker that has the instance,
or makes the instance due if nobody has it.

The danger is that at the same moment the instance is released, by a commit that knows nothing of the message: then
nobody would wake it. So the commit of a message checks the lease and, if there is none, the head: if the instance was
released, claimed or ended since they were read, the change is made again. The other way round, a commit that releases a
waiting instance checks the stamp. Nothing else of the instance is checked. So messages reach an instance that commits
all the time, and senders conflict only in the row that counts their messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from workflow_sdk.changes.change import (
    Assume,
    Draw,
    Get,
    Hold,
    Retries,
    Scan,
    Signal,
    Steps,
    Writing,
    change,
    get,
    look,
    scan,
)
from workflow_sdk.changes.instances import Snapshot, find, make_due, parse
from workflow_sdk.changes.waits import awaits_end, wait_for_token, wait_for_version
from workflow_sdk.changes.workers import no_worker, tell_owner, time_of_workers
from workflow_sdk.driver import Append, Clear, Set
from workflow_sdk.errors import InboxFullError, InstanceNotFoundError
from workflow_sdk.journal.inbox import (
    INBOX_MAX_DEFAULT,
    SENT_ROWS,
    InboxMessage,
    counted,
    is_answer,
    messages_in,
    still_waiting,
)
from workflow_sdk.rows.instance import CountRow, InstanceRows
from workflow_sdk.rows.keys import DELIVERED, FIELDS, INBOX, INBOX_MAX, KEYS_IN_ORDER, Field, InstanceKeys, waits_of
from workflow_sdk.rows.location import pack, subtree
from workflow_sdk.rows.outside import Ending, wait_of
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import Row

KEYS_KEPT = 10_000
KEYS_SECONDS = 7 * 24 * 3600.0
AT_ONCE = 4
"""How many old keys are deleted when a new one is stored, at most."""


class _KeyRow(Row, frozen=True):
    """An idempotency key of a message that was delivered."""

    WHAT: ClassVar[str] = "the key of a message"

    key: str
    at: float
    number: int


def is_used(space: bytes, key: str) -> Steps[bool]:
    """Whether an idempotency key was used before, in the space of an instance or in another one."""
    return (yield from get(_row(space, key))) is not None


def use_key(space: bytes, key: str, now: float) -> Steps[None]:
    """Store an idempotency key that was not used before, and delete some that are old."""
    begin, end = subtree(space + KEYS_IN_ORDER)
    newest = yield from scan(begin, end, limit=1, reverse=True)
    # Two keys that are stored at the same time may get the same number. Then a few more than `KEYS_KEPT` are kept.
    number = unpack_key(newest[0][1])[2] + 1 if newest else 1
    yield [Set(_row(space, key), b""), Append(space + KEYS_IN_ORDER, _KeyRow(key, now, number).pack())]
    # After a conflict no keys are deleted: other senders are deleting them, and would conflict with this one again.
    if number > KEYS_KEPT and not (yield Retries()):
        for place, raw in (yield from scan(begin, end, limit=AT_ONCE)):
            old, at, its_number = unpack_key(raw)
            # `abs`: a time that is far ahead comes from a clock that was wrong, and such a key is old, too.
            if number - its_number < KEYS_KEPT or abs(now - at) < KEYS_SECONDS:
                break
            yield Get(place)
            yield [Clear(place), Clear(_row(space, old))]


def _row(space: bytes, key: str) -> bytes:
    return space + DELIVERED + pack((key,))


def unpack_key(raw: bytes) -> tuple[str, float, int]:
    """An idempotency key, when it was used, and its number."""
    row = _KeyRow.unpack(raw)
    return row.key, row.at, row.number


@change
def go_on_waiting(key: bytes) -> Steps[bytes | None]:
    """Change the row of an awaited answer, to show that somebody still waits; return its new value.

    None if there is an answer already, or the row is gone.
    """
    raw = yield from get(key)
    if raw is None or is_answer(raw):
        return None
    number: int = yield Draw(1 << 64)
    row = still_waiting(number.to_bytes(8, "big"))
    yield Set(key, row)
    return row


@change
def forget_row(key: bytes, raw: bytes) -> Steps[bool]:
    """Clear a row if it holds `raw`; return whether it did."""
    if (yield from get(key)) != raw:
        return False
    yield Clear(key)
    return True


class Delivery(StrEnum):
    """What became of a message."""

    ACCEPTED = "accepted"
    """The instance waits for this message."""
    QUEUED = "queued"
    """The message is kept until the instance listens."""
    STALE = "stale"
    """The wait that the message was for is over. Nothing was stored."""
    DUPLICATE = "duplicate"
    """A message with the same key has come before. Nothing was stored."""
    CLOSED = "closed"
    """The instance has ended. Nothing was stored."""


class NewMessage(Struct, frozen=True):
    """A message to be sent."""

    message: str | bytes
    payload: bytes
    key: str | None = None
    """The idempotency key: of several messages with the same key, one is delivered."""
    token: str | None = None
    """The token of the one wait that may take the message, as `info().waits` shows it."""
    expected_version: int | None = None
    """The version of the instance that the message answers."""
    reply_to: bytes | None = None
    needs_room: bool = True
    """Whether it is refused if the inbox is full."""
    is_event: bool = False
    """Whether it is an event, or a receipt. To a cell nothing else is sent: by its name it could pass for a receipt."""

    @property
    def is_plain(self) -> bool:
        """Whether the message can be delivered without conditions: it has no key, no token and no version."""
        return self.key is None and self.token is None and self.expected_version is None


class Posted(Struct):
    """What became of a message, and which worker is to be told."""

    delivery: Delivery
    worker: str | None = None
    """The worker that has the instance."""
    count: Set | None = None
    """The write by which the message was counted."""

    @property
    def is_stored(self) -> bool:
        """Whether the message was stored."""
        return self.delivery in (Delivery.ACCEPTED, Delivery.QUEUED)


@change
def deliver(
    keys: InstanceKeys,
    new: NewMessage,
    now: float,
    is_here: Callable[[str], bool] = no_worker,
    found: Snapshot | None = None,
) -> Steps[Posted]:
    """Deliver a message. InstanceNotFoundError if there is no such instance; InboxFullError if there is no room.

    `is_here`: tells whether a worker is in this process; such a worker gets no signal, since it is told in memory.
    `found`: the instance, if the change has read it already.
    """
    if found is None:
        found = parse(keys, (yield Scan(*keys.range(FIELDS))))
    about = found.about
    if not about:
        raise InstanceNotFoundError(f"there is no instance {keys.instance_id!r} to send {new.message!r} to")
    if about.status.is_terminal:
        return Posted(Delivery.CLOSED)
    if not new.is_event and about.birth.is_cell:
        raise InstanceNotFoundError(
            f"instance {keys.instance_id!r} is a cell of machine {about.head.workflow!r}, and takes no messages: "
            "`client.emit` sends it events"
        )
    # While a worker has the instance, its head may change: the worker checks the inbox stamp when it releases it.
    yield Hold((keys.lease,) if found.lease is not None else (keys.lease, keys.field(Field.HEAD)))
    only_for = None if new.token is None else wait_of(about.birth.seed, keys.instance_id, new.token)
    if not new.is_plain and (refused := (yield from _refusal(found, new, only_for, now))) is not None:
        return Posted(refused)
    return (yield from _post(found, new, only_for, now, is_here))


@change
def deliver_after(
    keys: InstanceKeys, new: NewMessage, now: float, seen: Snapshot, is_here: Callable[[str], bool] = no_worker
) -> Steps[Posted | None]:
    """Deliver a message to an instance that is still as it was seen; None if anything has come or happened since.

    So a sender can decide by what is stored, the messages that nobody has taken yet among it.
    """
    found = parse(keys, (yield Scan(*keys.range(FIELDS))))
    if (found.stamp, found.lease, found.about.head) != (seen.stamp, seen.lease, seen.about.head):
        return None
    # Every message changes the stamp, and who claims, ends or releases the instance changes its head.
    yield Hold((keys.stamp, keys.field(Field.HEAD)))
    return (yield from deliver(keys, new, now, is_here, found))


def _post(
    found: Snapshot, new: NewMessage, only_for: bytes | None, now: float, is_here: Callable[[str], bool]
) -> Steps[Posted]:
    """Append a message to the inbox, count it, and have the instance look at its inbox."""
    keys, lease = found.keys, found.lease
    count = (yield from _count(found, new)) if isinstance(new.message, str) else None
    is_awaited = yield Scan(*subtree(keys.space + waits_of(new.message)), 1)
    # The writes come last, since a read after a write has to be merged with it.
    yield [*put(keys, new, now, only_for), *([] if count is None else [count]), *_wake(found, now, is_here)]
    accepted = is_awaited or (new.token is not None and found.status is not Status.STUCK)
    worker = None if lease is None else lease.worker
    return Posted(Delivery.ACCEPTED if accepted else Delivery.QUEUED, worker, count)


def _wake(found: Snapshot, now: float, is_here: Callable[[str], bool]) -> list[Writing]:
    """The writes that have an instance look at its inbox: a signal to its worker, or an alarm, unless it is stuck."""
    lease, about = found.lease, found.about
    if lease is not None:
        return [] if is_here(lease.worker) else tell_owner(lease, found.keys.instance_id)
    return [] if about.status is Status.STUCK else make_due(found.keys, about.head, now)


def _refusal(found: Snapshot, new: NewMessage, only_for: bytes | None, now: float) -> Steps[Delivery | None]:
    """Why a message is not to be delivered; None if it is. Then the commit succeeds only if that is still so.

    The key is stored last, so that only keys of messages that are delivered are stored.
    """
    if new.key is not None and (yield from is_used(found.keys.space, new.key)):
        return Delivery.DUPLICATE
    if not (yield from _is_open(found, new, only_for, now)):
        return Delivery.STALE
    if new.key is not None:
        yield from use_key(found.keys.space, new.key, now)
    return None


def _is_open(found: Snapshot, new: NewMessage, only_for: bytes | None, now: float) -> Steps[bool]:
    """Whether the wait with the token of a message, or one for the version that it answers, is still open."""
    if new.token is None and new.expected_version is None:
        return True
    # Deadlines are compared with the clocks of the workers: that of a sender may be wrong.
    by = yield from time_of_workers(now)
    if new.token is None:
        assert new.expected_version is not None, "one of the two is given"
        return (yield from wait_for_version(found, new.message, new.expected_version, by))
    if only_for is None:
        return False
    return (yield from wait_for_token(found, new.message, only_for, new.expected_version, by))


def _count(found: Snapshot, new: NewMessage) -> Steps[Set]:
    """The write that counts one more message; InboxFullError if there is no room for it."""
    keys = found.keys
    # Senders begin with the first row. After a conflict with another sender, a random other row is likely to be free.
    row = keys.sent((1 + (yield Draw(SENT_ROWS - 1))) if (yield Retries()) else 0)
    before = counted((yield Get(row)))
    if new.needs_room and (count := messages_in(found.about, found.sent)):
        check_room(keys.instance_id, count, (yield from inbox_max()))
    return Set(row, CountRow(before + 1).pack())


@change
def inbox_max() -> Steps[int]:
    """Read how many messages an inbox has room for."""
    raw = yield from look(INBOX_MAX)
    return INBOX_MAX_DEFAULT if raw is None else counted(raw)


def check_room(instance_id: str, count: int, most: int) -> None:
    """Raise InboxFullError if there is no room for one more message."""
    if count >= most:
        raise InboxFullError(
            f"instance {instance_id!r} has {count:,} messages that it has not taken, and the limit is {most:,} "
            "(Runtime(inbox_max=)); `handle.inbox()` shows them, `handle.discard` takes one out"
        )


def put(keys: InstanceKeys, new: NewMessage, now: float, only_for: bytes | None = None) -> list[Writing]:
    """The writes that put a message into an inbox. `only_for`: the token of the one wait that may take it."""
    row = InboxMessage(b"", new.message, new.payload, now, new.reply_to, only_for)
    writes: list[Writing] = [Append(keys.space + INBOX, row.pack()), Signal(keys.stamp)]
    return writes if new.reply_to is None else [*writes, Set(new.reply_to, b"")]


@change
def hand_over(keys: InstanceKeys, lease: bytes, before: int | None, new: NewMessage, now: float) -> Steps[int | None]:
    """Deliver a message to an instance in the memory of this process, without a read; return how many were so far.

    `before`: how many were delivered in this way before, as far as is known. If that is wrong, or the instance is not
    here any more, nothing is written, and None is returned.
    """
    # While the lease holds, the instance has not ended, and its run checks the inbox stamp before it is released.
    if (yield Assume(keys.lease, lease)) != lease:
        return None
    # Only the process with the lease writes this row, so the count in memory is right unless a commit was in doubt.
    row, raw = keys.field(Field.HANDED), None if before is None else CountRow(before).pack()
    if (yield Assume(row, raw)) != raw:
        return None
    count = (before or 0) + 1
    yield Set(row, CountRow(count).pack())
    yield put(keys, new, now)
    return count


# The commit that ends an instance also tells the instances that wait for its end.


def ending_of(about: InstanceRows) -> Ending:
    """How an instance ended, from its rows after the end."""
    return Ending(about.status, about.result.output, about.result.error)


def purge_time(about: InstanceRows, now: float) -> float | None:
    """When an instance that ends now is to be deleted; None if it is kept for ever."""
    retention = about.birth.retention
    return None if retention is None else now + retention


def tell_watchers(
    instance_id: str,
    ending: Ending,
    watchers: Iterable[tuple[str, bytes]],
    now: float,
    is_here: Callable[[str], bool] = no_worker,
) -> Steps[list[str]]:
    """Send the end of an instance to those that wait for it; return those that have to be told in this process."""
    here: list[str] = []
    for id, token in watchers:
        # The wait may have ended meanwhile.
        if not (yield from awaits_end(id, instance_id, token)):
            continue
        keys = InstanceKeys(id)
        found = yield from find(keys)
        if not found.about:
            continue
        posted = yield from deliver(keys, NewMessage(token, ending.pack()), now, is_here, found)
        if posted.worker is not None and is_here(posted.worker):
            here.append(id)
    return here
