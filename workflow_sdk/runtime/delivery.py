"""Sending a message to an instance, from any process."""

from __future__ import annotations

import time

from workflow_sdk.core.codec import Codec, Wrappers
from workflow_sdk.core.instance import CountRow
from workflow_sdk.core.keys import Field, InstanceKeys
from workflow_sdk.core.limits import counted
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.shown import shown
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import CodecError, DefinitionError, InstanceNotFoundError
from workflow_sdk.execution.clock import TimeSource, overseen
from workflow_sdk.execution.posting import Delivery, Letter, Posted, check_room, post, put
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
    if here is not None and (there := here.resident(instance_id)) is not None:
        try:
            done = await _hand_over(driver, keys, letter, now, there, here.inbox_max)
        except BaseException:
            here.message_came(instance_id)  # it may be stored all the same
            raise
        if done is not None:
            here.message_came(instance_id)
            return done
    baseless, again = 0, False
    while True:
        found = await read_standing(driver, keys)
        if not found.about:
            raise InstanceNotFoundError(f"there is no instance {instance_id!r} to send {letter.message!r} to")
        batch = Batch()
        is_worker = here.is_worker if here else _nobody
        posted = await post(driver, batch, keys, found, letter, now, is_worker, again=again)
        if not posted.is_stored:
            return posted.delivery
        try:
            await driver.commit(batch)
        except ConflictError:
            again = True
            # Others may have moved it there and back while we look.
            baseless += not await has_moved_on(driver, batch)
            if baseless > BASELESS_MAX:
                raise
            continue
        except BaseException:
            _tell(here, posted, instance_id)  # it may be stored all the same
            raise
        if (
            posted.is_here
            and posted.count is not None
            and here is not None
            and (there := here.resident(instance_id)) is not None
        ):
            there.mail.sent.update([posted.count])
        _tell(here, posted, instance_id)
        return posted.delivery


def _nobody(worker: str) -> bool:
    return False


def _tell(here: Here | None, posted: Posted, instance_id: str) -> None:
    """Have the instance look into its inbox, if it is for this process to tell it."""
    if here is None:
        return
    if posted.is_here:
        here.message_came(instance_id)
    else:
        here.is_due(instance_id)


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
    batch = Batch()
    # While this holds, it has not ended, and will see the nudge before it goes away.
    batch.check(keys.lease, there.lease)
    # No other process writes this as long as the lease holds. The next one who hands over goes on from there at once.
    there.handed = (before or 0) + 1
    batch.check(keys.field(Field.HANDED), None if before is None else CountRow(before).pack())
    batch.set(keys.field(Field.HANDED), CountRow(there.handed).pack())
    put(batch, keys, letter, now)
    try:
        await driver.commit(batch)
    except ConflictError:
        raw = await driver.get(keys.field(Field.HANDED))
        there.handed = None if raw is None else counted(raw)
        return None
    except BaseException:
        there.handed = None  # nobody knows: it is counted in another row from now on
        raise
    return Delivery.ACCEPTED if accepted else Delivery.QUEUED


async def has_moved_on(driver: Driver, batch: Batch) -> bool:
    """After a conflict: whether there was one, so that it is worth looking again."""
    for key, expected in batch.checks:
        if await driver.get(key) != expected:
            return True
    return False
