"""Sending a message to an instance, from any process."""

from __future__ import annotations

import time
from enum import StrEnum
from uuid import uuid4

from workflow_sdk.core.codec import Codec, Wrapper
from workflow_sdk.core.inbox import InboxMessage
from workflow_sdk.core.keys import INBOX, Field, InstanceKeys, waits_of
from workflow_sdk.core.location import subtree
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.status import Status
from workflow_sdk.core.wire import unpack_record
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import CodecError, DefinitionError, InstanceNotFoundError
from workflow_sdk.execution.clock import Clock

__all__ = ["Delivery", "send_message"]


class Delivery(StrEnum):
    """What became of a message."""

    ACCEPTED = "accepted"
    """The instance waits for it."""
    QUEUED = "queued"
    """It is kept until the instance listens."""
    STALE = "stale"
    DUPLICATE = "duplicate"
    CLOSED = "closed"
    """The instance has ended. Nothing was stored."""


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
    if (problem := name_problem(message)) is not None:
        raise DefinitionError(f"a message can't be called {message!r}: {problem}")
    try:
        raw = Codec(wrapper=codec).encode(payload)
    except CodecError as error:
        raise type(error)(f"the payload of message {message!r} to {instance_id!r}: {error}") from None
    keys = InstanceKeys(instance_id)
    sent_at = time.time() if clock is None else clock.now()
    row = InboxMessage(b"", message, raw, sent_at).pack()
    while True:
        # Read before the status, and changed with it: what tells one `waiting` from the next.
        version = await driver.get(keys.field(Field.VERSION))
        status = await driver.get(keys.field(Field.STATUS))
        if status is None:
            raise InstanceNotFoundError(f"there is no instance {instance_id!r} to send {message!r} to")
        if Status(unpack_record(status)[0]).is_terminal:
            return Delivery.CLOSED
        awaited = await driver.scan(*subtree(keys.space + waits_of(message)), limit=1)
        batch = Batch()
        batch.check(keys.field(Field.STATUS), status)
        batch.append(keys.space + INBOX, row)
        batch.set(keys.nudge, uuid4().bytes)
        try:
            await driver.commit(batch)
        except ConflictError:
            if await driver.get(keys.field(Field.VERSION)) == version:
                raise
            continue
        return Delivery.ACCEPTED if awaited else Delivery.QUEUED
