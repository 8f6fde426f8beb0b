"""Sending a message to an instance, from any process."""

from __future__ import annotations

import time

from workflow_sdk.changes import deliver as changes
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.deliver import Delivery, Letter, Posted, check_room
from workflow_sdk.core.codec import Codec, Wrappers
from workflow_sdk.core.keys import Field, InstanceKeys
from workflow_sdk.core.limits import counted
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.shown import shown
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.execution.clock import TimeSource, overseen
from workflow_sdk.runtime.access import Here, Resident

__all__ = ["Delivery", "Letter", "deliver", "encode_payload", "send_message"]


async def send_message(
    driver: Driver,
    instance_id: str,
    message: str,
    payload: object = None,
    *,
    clock: TimeSource | None = None,
    codec: Wrappers | None = None,
) -> Delivery:
    """Put a message into the inbox of an instance, and wake whoever runs it, in one commit."""
    letter = Letter(message, encode_payload(Codec(wrapper=codec), instance_id, message, payload))
    if clock is None:
        return await deliver(driver, instance_id, letter, time.time())
    return await deliver(overseen(driver, clock), instance_id, letter, clock.time())


def encode_payload(codec: Codec, instance_id: str, message: str, payload: object) -> bytes:
    """The payload as bytes; the error says of which message."""
    if (problem := name_problem(message)) is not None:
        raise DefinitionError(f"a message can't be called {shown(message)}: {problem}")
    try:
        return codec.encode(payload)
    except CodecError as error:
        raise type(error)(f"the payload of message {message!r} to {instance_id!r}: {error}") from None


async def deliver(driver: Driver, instance_id: str, letter: Letter, now: float, here: Here | None = None) -> Delivery:
    """Deliver a letter, whoever has the instance. If that is a worker `here`, it is told without a detour."""
    keys = InstanceKeys(instance_id)
    if here is None:
        return (await apply(driver, changes.deliver(keys, letter, now))).delivery
    if (there := here.resident(instance_id)) is not None:
        try:
            done = await _hand_over(driver, keys, letter, now, there, here.inbox_max)
        except BaseException:
            here.message_came(instance_id)  # it may be stored all the same
            raise
        if done is not None:
            here.message_came(instance_id)
            return done

    def tell(posted: Posted) -> None:
        if posted.worker is None or not here.is_worker(posted.worker):
            here.is_due(instance_id)
        else:
            here.message_came(instance_id)

    posted = await apply(driver, changes.deliver(keys, letter, now, here.is_worker), tell)
    if posted.count is not None and (there := here.resident(instance_id)) is not None:
        there.mail.sent.update([posted.count])
    return posted.delivery


async def _hand_over(
    driver: Driver, keys: InstanceKeys, letter: Letter, now: float, there: Resident, most: int
) -> Delivery | None:
    """Deliver a letter to an instance that is in memory here, without a look at the store; None if that can't be."""
    if letter.key is not None or letter.token is not None or letter.expected_version is not None:
        return None
    if there.message_count:
        # Other processes may have sent something that is not known here yet.
        there.mail.sent = dict(await driver.scan(keys.nudge + b"\x00", keys.nudge + b"\xff"))
        check_room(keys.instance_id, there.message_count, most)
    before = there.handed
    accepted = there.awaits(letter.message)
    # The next one who hands over goes on from there at once.
    there.handed = (before or 0) + 1
    try:
        count = await apply(driver, changes.hand_over(keys, there.lease, before, letter, now))
    except BaseException:
        there.handed = None  # nobody knows: it is counted in another row from now on
        raise
    if count is None:
        raw = await driver.get(keys.field(Field.HANDED))
        there.handed = None if raw is None else counted(raw)
        return None
    return Delivery.ACCEPTED if accepted else Delivery.QUEUED
