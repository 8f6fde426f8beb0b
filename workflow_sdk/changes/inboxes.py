"""Changes of an inbox that deliver nothing: discarding, setting aside, and the limit for all inboxes."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from workflow_sdk.changes.change import Steps, change, get, read
from workflow_sdk.changes.instances import find
from workflow_sdk.changes.tasks import reopen
from workflow_sdk.driver import Clear, Set
from workflow_sdk.errors import InstanceNotFoundError
from workflow_sdk.journal.inbox import Answer, AnswerKind, InboxMessage, SetAside, counted, is_answer
from workflow_sdk.rows.entries import read_token
from workflow_sdk.rows.instance import CountRow, WaitRow
from workflow_sdk.rows.keys import ASIDE, INBOX, INBOX_MAX, InstanceKeys, waits_of


@change
def discard(keys: InstanceKeys, id: bytes, encode: Callable[[str], bytes]) -> Steps[bool]:
    """Remove a message from the inbox, set aside or not; False if it is not there."""
    if not (yield from find(keys)).about:
        raise InstanceNotFoundError(f"there is no instance {keys.instance_id!r}")
    # Every commit that takes a message out of the inbox checks its row: so a message is taken, set aside or discarded
    # only once.
    queued, aside = keys.space + INBOX + id, keys.space + ASIDE + id
    if (raw := (yield from get(queued))) is not None:
        message = InboxMessage.unpack(id, raw)
        if not message.is_counted:
            return False  # the end of a child or a task, which no sender has sent
        yield Clear(queued)
        yield from _count_less(keys)
        if message.reply_to is not None and (yield from get(message.reply_to)) is not None:
            text = f"message {message.name!r} to {keys.instance_id!r} was discarded"
            yield Set(message.reply_to, Answer(encode(text), AnswerKind.DISCARDED).pack())
        return True
    if (yield from get(aside)) is None:
        return False
    yield Clear(aside)
    yield from _count_less(keys)
    return True


def _count_less(keys: InstanceKeys) -> Steps[None]:
    """Count one message less as sent to the instance."""
    if (sent := (yield from get(keys.sent(0)))) is not None:
        yield Set(keys.sent(0), CountRow(counted(sent) - 1).pack())


@change
def set_aside(
    keys: InstanceKeys,
    message: InboxMessage,
    row: SetAside,
    answer: bytes | None,
    task: str | None,
    now: float,
    *,
    in_memory: bool,
) -> Steps[bool]:
    """Set a message of the inbox aside; False if somebody has discarded it.

    `answer`: the answer to its sender, if that waits for one; with `in_memory`, it is given in this process and not
    stored. `task`: the task that is opened again, since the message is its result.
    """
    if (yield from get(keys.space + INBOX + message.id)) is None:
        return False
    yield Clear(keys.space + INBOX + message.id)
    yield Set(keys.space + ASIDE + message.id, row.pack())
    if task is not None:
        yield from reopen(task, now)
    yield from _promise_less(keys, message)
    if message.reply_to is not None and answer is not None:
        if in_memory:
            yield Clear(message.reply_to)
        elif (asked := (yield from get(message.reply_to))) is not None and not is_answer(asked):
            yield Set(message.reply_to, answer)
    return True


def _promise_less(keys: InstanceKeys, message: InboxMessage) -> Steps[None]:
    """Let the wait that a message was addressed to accept another one, since this message did not fit."""
    if message.only_for is None:
        return
    _, location = read_token(message.only_for)
    key = keys.space + waits_of(message.name) + location
    row = yield from read(WaitRow, key)
    if row is not None:
        yield Set(key, replace(row, promised=max(0, row.promised - 1)).pack())


@change
def limit_inboxes(most: int) -> Steps[None]:
    """Store how many messages an inbox has room for. Every sender obeys it."""
    yield Set(INBOX_MAX, CountRow(most).pack())
