"""Sending a message to an instance, from any process."""

from __future__ import annotations

import time

from workflow_sdk.core.codec import Codec, Wrapper
from workflow_sdk.core.keys import Field, InstanceKeys
from workflow_sdk.core.names import name_problem
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import CodecError, DefinitionError, InstanceNotFoundError
from workflow_sdk.execution.clock import Clock, overseen
from workflow_sdk.execution.posting import Delivery, Letter, Posted, post, put
from workflow_sdk.execution.snapshot import read_standing
from workflow_sdk.runtime.access import Here, Resident

__all__ = ["Delivery", "Letter", "deliver", "encode_payload", "has_moved_on", "send_message"]


BASELESS_MAX = 3
"""How often a store may speak of a conflict where none is to be seen."""


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
    if clock is None:
        return await deliver(driver, instance_id, letter, time.time())
    return await deliver(overseen(driver, clock), instance_id, letter, clock.time())


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
        try:
            done = await _hand_over(driver, keys, letter, now, there)
        except BaseException:
            here.message_came(instance_id)  # it may be stored all the same
            raise
        if done is not None:
            here.message_came(instance_id)
            return done
    baseless = 0
    while True:
        found = await read_standing(driver, keys)
        if Field.STATUS not in found.fields:
            raise InstanceNotFoundError(f"there is no instance {instance_id!r} to send {letter.message!r} to")
        batch = Batch()
        posted = await post(driver, batch, keys, found, letter, now, here.is_worker if here else lambda _: False)
        if not posted.is_stored:
            return posted.delivery
        try:
            await driver.commit(batch)
        except ConflictError:
            # Others may have moved it there and back while we look.
            baseless += not await has_moved_on(driver, batch)
            if baseless > BASELESS_MAX:
                raise
            continue
        except BaseException:
            _tell(here, posted, instance_id)  # it may be stored all the same
            raise
        _tell(here, posted, instance_id)
        return posted.delivery


def _tell(here: Here | None, posted: Posted, instance_id: str) -> None:
    """Have the instance look into its inbox, if it is for this process to tell it."""
    if here is None:
        return
    if posted.is_here:
        here.message_came(instance_id)
    else:
        here.is_due(instance_id)


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
    put(batch, keys, letter, now)
    try:
        await driver.commit(batch)
    except ConflictError:
        return None
    return Delivery.ACCEPTED if accepted else Delivery.QUEUED


async def has_moved_on(driver: Driver, batch: Batch) -> bool:
    """After a conflict: whether there was one, so that it is worth looking again."""
    for key, expected in batch.checks:
        if await driver.get(key) != expected:
            return True
    return False
