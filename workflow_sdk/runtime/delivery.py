"""Sending a message to an instance, from any process.

One commit appends the message, changes the nudge, and tells whoever has the instance, or makes it due if nobody does.
It checks who that is: so a message falls neither before nor after a putting away that does not know of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from secrets import token_bytes

from workflow_sdk.core.codec import Codec, Wrapper
from workflow_sdk.core.fields import unpack_wait
from workflow_sdk.core.inbox import InboxMessage
from workflow_sdk.core.keys import DELIVERED, INBOX, Field, InstanceKeys, waits_of
from workflow_sdk.core.location import subtree
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.status import Status
from workflow_sdk.core.tuples import pack
from workflow_sdk.core.wire import pack_record, unpack_record
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import CodecError, DefinitionError, InstanceNotFoundError
from workflow_sdk.execution.clock import Clock
from workflow_sdk.execution.lease import tell_owner
from workflow_sdk.execution.snapshot import read_standing
from workflow_sdk.runtime.access import Here, Resident

__all__ = ["Delivery", "Letter", "deliver", "make_due", "send_message"]


BASELESS_MAX = 3
"""How often a store may speak of a conflict where none is to be seen."""


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

    message: str
    payload: bytes
    key: str | None = None
    """The same key is delivered once."""
    token: str | None = None
    """The one wait that it is for."""
    expected_version: int | None = None
    reply_to: bytes | None = None


async def send_message(
    driver: Driver,
    instance_id: str,
    message: str,
    payload: object = None,
    *,
    clock: Clock | None = None,
    codec: Wrapper | None = None,
) -> Delivery:
    """Put a message into the inbox of an instance, and wake whoever runs it, in one commit."""
    letter = Letter(message, encode_payload(Codec(wrapper=codec), instance_id, message, payload))
    return await deliver(driver, instance_id, letter, time.time() if clock is None else clock.time())


def encode_payload(codec: Codec, instance_id: str, message: str, payload: object) -> bytes:
    """The payload as bytes; the error says of which message."""
    if (problem := name_problem(message)) is not None:
        raise DefinitionError(f"a message can't be called {message!r}: {problem}")
    try:
        return codec.encode(payload)
    except CodecError as error:
        raise type(error)(f"the payload of message {message!r} to {instance_id!r}: {error}") from None


async def deliver(driver: Driver, instance_id: str, letter: Letter, now: float, here: Here | None = None) -> Delivery:
    """Deliver a letter, whoever has the instance. If that is a worker `here`, it is told without a detour."""
    keys = InstanceKeys(instance_id)
    if here is not None and (there := here.resident(instance_id)) is not None:
        done = await _hand_over(driver, keys, letter, now, there)
        if done is not None:
            here.message_came(instance_id)
            return done
    baseless = 0
    while True:
        standing = await read_standing(driver, keys)
        fields, lease = standing.fields, standing.lease
        if Field.STATUS not in fields:
            raise InstanceNotFoundError(f"there is no instance {instance_id!r} to send {letter.message!r} to")
        if Status(unpack_record(fields[Field.STATUS])[0]).is_terminal:
            return Delivery.CLOSED
        batch = Batch()
        batch.check(keys.lease, lease)
        # It counts the writes of the status: what tells one `waiting` from the next.
        batch.check(keys.field(Field.VERSION), fields[Field.VERSION])
        batch.check(keys.field(Field.ALARM), fields.get(Field.ALARM))
        refused = await _check_letter(driver, keys, fields, letter, batch)
        if refused is not None:
            return refused
        waits = await driver.scan(*subtree(keys.space + waits_of(letter.message)), limit=1)
        _put(batch, keys, letter, now)
        ours = lease is not None and here is not None and here.is_worker(str(unpack_record(lease)[0]))
        if lease is not None:
            if not ours:
                tell_owner(batch, lease, instance_id)
        elif Status(unpack_record(fields[Field.STATUS])[0]) is not Status.STUCK:
            make_due(batch, keys, fields, now)
        try:
            await driver.commit(batch)
        except ConflictError:
            # Others may have moved it there and back while we look.
            baseless += not await _has_moved_on(driver, batch)
            if baseless > BASELESS_MAX:
                raise
            continue
        if ours and here is not None:
            here.message_came(instance_id)
        return Delivery.ACCEPTED if waits else Delivery.QUEUED


async def _hand_over(
    driver: Driver, keys: InstanceKeys, letter: Letter, now: float, there: Resident
) -> Delivery | None:
    """Deliver a letter to an instance that is in memory here, without a look at the store; None if that can't be."""
    if letter.key is not None or letter.token is not None or letter.expected_version is not None:
        return None
    accepted = there.awaits(letter.message)
    batch = Batch()
    # While this holds, it has not ended, and will see the nudge before it goes away.
    batch.check(keys.lease, there.lease)
    _put(batch, keys, letter, now)
    try:
        await driver.commit(batch)
    except ConflictError:
        return None
    return Delivery.ACCEPTED if accepted else Delivery.QUEUED


def _put(batch: Batch, keys: InstanceKeys, letter: Letter, now: float) -> None:
    only_for = None if letter.token is None else bytes.fromhex(letter.token)
    row = InboxMessage(b"", letter.message, letter.payload, now, letter.reply_to, only_for)
    batch.append(keys.space + INBOX, row.pack())
    batch.set(keys.nudge, token_bytes(16))
    if letter.reply_to is not None:
        batch.set(letter.reply_to, b"")


async def _has_moved_on(driver: Driver, batch: Batch) -> bool:
    """After a conflict: whether there was one, so that it is worth looking again."""
    for key, expected in batch.checks:
        if await driver.get(key) != expected:
            return True
    return False


async def _check_letter(
    driver: Driver, keys: InstanceKeys, fields: dict[Field, bytes], letter: Letter, batch: Batch
) -> Delivery | None:
    """Hold the batch to what the letter asks for; what is refused already is said."""
    if letter.key is not None:
        delivered = keys.space + DELIVERED + pack((letter.key,))
        if await driver.get(delivered) is not None:
            return Delivery.DUPLICATE
        batch.check(delivered, None)
        batch.set(delivered, b"")
    if letter.token is not None:
        try:
            wait = keys.space + waits_of(letter.message) + bytes.fromhex(letter.token)
        except ValueError:
            return Delivery.STALE
        value = await driver.get(wait)
        if value is None:
            return Delivery.STALE
        row = unpack_wait(value)
        if row.promised >= row.takes:
            return Delivery.STALE
        batch.check(wait, value)
        batch.set(wait, pack_record(row._replace(promised=row.promised + 1)))
    version = int(unpack_record(fields[Field.VERSION])[3])
    if letter.expected_version is not None and letter.expected_version != version:
        return Delivery.STALE
    return None


def make_due(batch: Batch, keys: InstanceKeys, fields: dict[Field, bytes], now: float) -> None:
    """Have whoever is free run the instance at once. Nobody has it."""
    if Field.ALARM in fields:
        alarm = float(unpack_record(fields[Field.ALARM])[0])
        if alarm <= now:
            return
        batch.clear(keys.alarm(alarm))
    batch.set(keys.field(Field.ALARM), pack_record([now]))
    batch.set(keys.alarm(now), b"")
    batch.set(keys.due_bell, token_bytes(8))
