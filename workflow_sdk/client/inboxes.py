"""Reading the inbox of an instance: the messages that have come and were not taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from workflow_sdk.changes import inboxes as changes
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.instances import read_about
from workflow_sdk.client.access import Access
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, DefinitionError, InstanceNotFoundError
from workflow_sdk.journal.inbox import InboxMessage, SetAside
from workflow_sdk.rows.keys import ASIDE, INBOX, InstanceKeys
from workflow_sdk.rows.location import subtree
from workflow_sdk.rows.wire import time_of
from workflow_sdk.values import Codec

PAGE = 16
"""How many messages are read at once: few, since they may be large."""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message that has come and was not taken."""

    id: str
    name: str
    """The name of the message; if it is the result of a task, the name of the task."""
    payload: Any
    """The payload as plain data; None if the message was set aside and its payload can't be read."""
    sent_at: datetime
    reason: str | None = None
    """Why the message was set aside; None if it was not, and waits for the instance to listen."""


async def read_inbox(access: Access, instance_id: str, limit: int, after: str | None) -> list[QueuedMessage]:
    """Read the messages in an inbox, and those that were set aside, in the order in which they came."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"limit is a number of messages from 1 on, not {limit!r}")
    driver, codec, keys = access.looking, access.codec, InstanceKeys(instance_id)
    await _check_there(driver, keys)
    first = None if after is None else _id(after)
    found = await _read_part(driver, keys.space + INBOX, first, limit, partial(_queued, codec))
    found += await _read_part(driver, keys.space + ASIDE, first, limit, partial(_aside, codec))
    # A message keeps its id when it is set aside, and ids sort in the order in which the messages came.
    found.sort(key=lambda message: message.id)
    return found[:limit]


async def _read_part(
    driver: Driver,
    space: bytes,
    after: bytes | None,
    limit: int,
    unpack: Callable[[bytes, bytes], QueuedMessage | None],
) -> list[QueuedMessage]:
    """Read the messages of one part of the inbox that come after an id: at least `limit`, if there are so many."""
    found: list[QueuedMessage] = []
    begin, end = subtree(space)
    if after is not None:
        begin = space + after + b"\x00"
    while len(found) < limit:
        rows = await driver.scan(begin, end, limit=PAGE)
        messages = [unpack(key[len(space) :], raw) for key, raw in rows]
        found += [message for message in messages if message is not None]
        if len(rows) < PAGE:
            break
        begin = rows[-1][0] + b"\x00"
    return found


def _queued(codec: Codec, id: bytes, raw: bytes) -> QueuedMessage | None:
    message = InboxMessage.unpack(id, raw)
    if isinstance(message.name, bytes):
        return None  # the end of a child or a task, on its way
    payload = codec.decode(message.payload, plain=True)
    return QueuedMessage(id.hex(), message.name, payload, time_of(message.sent_at))


def _aside(codec: Codec, id: bytes, raw: bytes) -> QueuedMessage:
    message = SetAside.unpack(raw)
    try:
        payload = codec.decode(message.payload, plain=True)
    except CodecError:
        payload = None  # the message may have been set aside because nobody can read it
    reason = str(codec.decode(message.reason, str))
    return QueuedMessage(id.hex(), message.name, payload, time_of(message.sent_at), reason)


async def discard(access: Access, instance_id: str, message_id: str) -> bool:
    """Remove a message from the inbox, set aside or not; False if it is not there."""
    keys = InstanceKeys(instance_id)
    return await apply(access.driver, changes.discard(keys, _id(message_id), access.codec.encode))


async def _check_there(driver: Driver, keys: InstanceKeys) -> None:
    if not await read_about(driver, keys):
        raise InstanceNotFoundError(f"there is no instance {keys.instance_id!r}")


def _id(message_id: str) -> bytes:
    try:
        return bytes.fromhex(message_id)
    except (ValueError, TypeError):
        raise DefinitionError(
            f"the id of a message is a text, as `handle.inbox()` has it, not {message_id!r:.100}"
        ) from None
