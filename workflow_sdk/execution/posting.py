"""Reaching another instance with the batch of a commit: a message for it, or the instance itself.

One commit appends a message, changes the nudge, and tells whoever has the instance, or makes it due if nobody does. It
checks who that is: so a message falls neither before nor after a putting away that does not know of it. Whoever has the
instance sees the nudge before it lets go, so that nothing more has to be checked then: a busy instance can be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import randrange
from secrets import token_bytes

from msgspec.structs import replace

from workflow_sdk.core.entries import Entry, ListenData, read_token
from workflow_sdk.core.inbox import InboxMessage
from workflow_sdk.core.instance import CountRow, InstanceRows, WaitRow
from workflow_sdk.core.keys import HISTORY, INBOX, INBOX_MAX, Field, InstanceKeys, waits_of
from workflow_sdk.core.limits import INBOX_MAX_DEFAULT, SENT_ROWS, counted, messages_in
from workflow_sdk.core.location import pack_segment, subtree
from workflow_sdk.core.status import EntryStatus, Status
from workflow_sdk.core.times import DUE_AT_ONCE_MAX, due_at_once
from workflow_sdk.core.tokens import wait_of
from workflow_sdk.driver import Batch, Driver
from workflow_sdk.errors import InboxFullError
from workflow_sdk.execution.heartbeats import time_of_workers
from workflow_sdk.execution.keyed import use_key
from workflow_sdk.execution.lease import put_new, tell_owner
from workflow_sdk.execution.snapshot import Snapshot

__all__ = [
    "Delivery",
    "Letter",
    "Posted",
    "check_room",
    "create",
    "make_due",
    "make_due_at",
    "post",
    "put",
    "read_inbox_max",
]

PAGE = 64
"""Messages may be large, so that not many are read at once."""


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


@dataclass(frozen=True, slots=True)
class Posted:
    """What becomes of a letter with the commit, and whether the worker here has to be told of it."""

    delivery: Delivery
    is_here: bool = False
    count: tuple[bytes, bytes] | None = None
    """The row that counts it."""

    @property
    def is_stored(self) -> bool:
        """Whether there is anything to commit."""
        return self.delivery in (Delivery.ACCEPTED, Delivery.QUEUED)


def _nobody(worker: str) -> bool:
    return False


async def post(
    driver: Driver,
    batch: Batch,
    keys: InstanceKeys,
    found: Snapshot,
    letter: Letter,
    now: float,
    is_here: Callable[[str], bool] = _nobody,
    *,
    again: bool = False,
) -> Posted:
    """Put a letter for an instance that there is into a batch. `is_here`: workers that need no letter themselves.

    InboxFullError, if there is no room for it. `again`: the store has spoken of a conflict before.
    """
    about, lease = found.about, found.lease
    status = about.status
    if status.is_terminal:
        return Posted(Delivery.CLOSED)
    batch.check(keys.lease, None if lease is None else lease.pack())
    if lease is None:
        batch.check(keys.field(Field.HEAD), about.raw[Field.HEAD])
    wait = None if letter.token is None else wait_of(about.birth.seed, keys.instance_id, letter.token)
    by = now
    if letter.token is not None or letter.expected_version is not None:
        # Whether a wait is over is not for the clock of a sender to say.
        by = await time_of_workers(driver, now)
    refused = await _check_letter(driver, keys, about, letter, wait, batch, by, again=again)
    if refused is not None:
        return Posted(refused)
    count = await _count(driver, batch, keys, found, again=again) if isinstance(letter.message, str) else None
    waits = await driver.scan(*subtree(keys.space + waits_of(letter.message)), limit=1)
    put(batch, keys, letter, now, wait)
    ours = lease is not None and is_here(lease.worker)
    if lease is not None:
        if not ours:
            tell_owner(batch, lease, keys.instance_id)
    elif status is not Status.STUCK:
        make_due(batch, keys, about, now)
    accepted = waits or (letter.token is not None and status is not Status.STUCK)
    return Posted(Delivery.ACCEPTED if accepted else Delivery.QUEUED, ours, count)


async def _count(
    driver: Driver, batch: Batch, keys: InstanceKeys, found: Snapshot, *, again: bool
) -> tuple[bytes, bytes]:
    """Count a message that is sent; InboxFullError if it is one too many."""
    count = messages_in(found.about, found.sent)
    # Other senders use the first row, too: after a conflict with one of them, another row is likely to be free.
    row = keys.sent(randrange(1, SENT_ROWS) if again else 0)
    before = counted(found.sent.get(row))
    if count:
        check_room(keys.instance_id, count, await read_inbox_max(driver))
    batch.check(row, found.sent.get(row))
    after = CountRow(before + 1).pack()
    batch.set(row, after)
    return row, after


async def read_inbox_max(driver: Driver) -> int:
    """How many messages an inbox has room for."""
    raw = await driver.get(INBOX_MAX)
    return INBOX_MAX_DEFAULT if raw is None else counted(raw)


def check_room(instance_id: str, count: int, most: int) -> None:
    """InboxFullError, if there is no room for one more message."""
    if count >= most:
        raise InboxFullError(
            f"instance {instance_id!r} has {count:,} messages that it has not taken, and the limit is {most:,} "
            "(Runtime(inbox_max=)); `handle.inbox()` shows them, `handle.discard` takes one out"
        )


def put(batch: Batch, keys: InstanceKeys, letter: Letter, now: float, only_for: bytes | None = None) -> None:
    """Put a letter into the inbox, for any wait or for one only."""
    row = InboxMessage(b"", letter.message, letter.payload, now, letter.reply_to, only_for)
    batch.append(keys.space + INBOX, row.pack())
    batch.set(keys.nudge, token_bytes(16))
    if letter.reply_to is not None:
        batch.set(letter.reply_to, b"")


async def _check_letter(
    driver: Driver,
    keys: InstanceKeys,
    about: InstanceRows,
    letter: Letter,
    wait: bytes | None,
    batch: Batch,
    now: float,
    *,
    again: bool,
) -> Delivery | None:
    """Hold the batch to what the letter asks for; what is refused already is said."""
    if letter.key is not None and not await use_key(driver, batch, keys, letter.key, now, again=again):
        return Delivery.DUPLICATE
    if letter.token is not None:
        return Delivery.STALE if wait is None else await _check_token(driver, keys, about, letter, wait, batch, now)
    if letter.expected_version is not None:
        return await _check_version(driver, keys, about, letter, letter.expected_version, batch, now)
    return None


async def _check_token(
    driver: Driver,
    keys: InstanceKeys,
    about: InstanceRows,
    letter: Letter,
    token: bytes,
    batch: Batch,
    now: float,
) -> Delivery | None:
    since, location = read_token(token)
    if letter.expected_version not in (None, since):
        if letter.expected_version != about.tally.commits:
            return Delivery.STALE
        batch.check(keys.field(Field.TALLY), about.raw.get(Field.TALLY))
    wait = keys.space + waits_of(letter.message) + location
    value = await driver.get(wait)
    if value is None:
        return await _check_unparked(driver, keys, letter, since, location, batch, now)
    row = WaitRow.unpack(value)
    if row.since != since or row.promised >= row.takes or _is_over(row.until, now):
        return Delivery.STALE
    batch.check(wait, value)
    batch.set(wait, replace(row, promised=row.promised + 1).pack())
    return None


async def _check_unparked(
    driver: Driver, keys: InstanceKeys, letter: Letter, since: int, location: bytes, batch: Batch, now: float
) -> Delivery | None:
    """While its code is run again, or stuck, a wait is not over; but only its entry says so."""
    # Changes with every message: so those that are there are counted to the last.
    nudge = await driver.get(keys.nudge)
    key = keys.space + HISTORY + location
    raw = await driver.get(key)
    data = None if raw is None else _listens(raw, letter.message, since, now)
    if data is None:
        return Delivery.STALE
    token = pack_segment(since) + location
    begin, end = keys.range(INBOX)
    promised = 0
    while rows := await driver.scan(begin, end, limit=PAGE):
        promised += sum(InboxMessage.unpack(b"", row).only_for == token for _, row in rows)
        begin = rows[-1][0] + b"\x00"
    if promised >= data.count:
        return Delivery.STALE
    batch.check(key, raw)
    batch.check(keys.nudge, nudge)
    return None


def _listens(raw: bytes, message: str | bytes, since: int, now: float) -> ListenData | None:
    """What an entry listens to, if it has listened to the message since then, and does still."""
    entry = Entry.unpack(raw)
    data = entry.data
    if entry.status is not EntryStatus.WAITING or entry.since != since or not isinstance(data, ListenData):
        return None
    return None if message not in data.names or _is_over(data.until, now) else data


def _is_over(until: float | None, now: float) -> bool:
    return until is not None and until <= now


async def _check_version(
    driver: Driver,
    keys: InstanceKeys,
    about: InstanceRows,
    letter: Letter,
    version: int,
    batch: Batch,
    now: float,
) -> Delivery | None:
    """A state of the instance is answered by one message only; and one that a wait began with, while that waits."""
    if version != about.tally.commits:
        rows = await driver.scan(*subtree(keys.space + waits_of(letter.message)))
        waits: list[tuple[bytes, bytes, WaitRow]] = [(key, raw, WaitRow.unpack(raw)) for key, raw in rows]
        found = next(((key, raw) for key, raw, row in waits if row.since == version), None)
        if found is None and about.status is Status.RUNNING:
            # It is run again, and has not come to all of its waits yet.
            entries = await driver.scan(*keys.range(HISTORY))
            found = next((row for row in entries if _listens(row[1], letter.message, version, now)), None)
        if found is None:
            return Delivery.STALE
        batch.check(*found)
    else:
        batch.check(keys.field(Field.TALLY), about.raw.get(Field.TALLY))
    if about.answered >= version:
        return Delivery.STALE
    batch.check(keys.field(Field.ANSWERED), about.raw.get(Field.ANSWERED))
    batch.set(keys.field(Field.ANSWERED), CountRow(version).pack())
    return None


def make_due(batch: Batch, keys: InstanceKeys, about: InstanceRows, now: float) -> None:
    """Have whoever is free run the instance at once. Nobody has it."""
    make_due_at(batch, keys, about, due_at_once(now))


def make_due_at(batch: Batch, keys: InstanceKeys, about: InstanceRows, alarm: float) -> None:
    """Have whoever is free run the instance once the time of the alarm has come. Nobody has it."""
    head = about.head
    if head.alarm is not None:
        if head.alarm < DUE_AT_ONCE_MAX:
            return
        batch.clear(keys.alarm(head.alarm))
    batch.set(keys.field(Field.HEAD), replace(head, alarm=alarm).pack())
    batch.set(keys.alarm(alarm), b"")
    batch.set(keys.due_bell, token_bytes(8))


def create(batch: Batch, keys: InstanceKeys, rows: InstanceRows) -> None:
    """Put a new instance into a batch, to be run by whoever is free once its alarm is due."""
    alarm = rows.head.alarm
    assert alarm is not None, "somebody is to run it"
    batch.set(keys.alarm(alarm), b"")
    batch.set(keys.due_bell, token_bytes(8))
    put_new(batch, keys, rows)
