"""Finding out whether a wait is still open. If it is, the change checks that it stays open until the commit."""

from __future__ import annotations

from msgspec.structs import replace

from workflow_sdk.changes.change import Get, Hold, Steps, get, look, scan
from workflow_sdk.changes.instances import Snapshot
from workflow_sdk.driver import Set
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.rows.entries import Entry, ListenData, read_token
from workflow_sdk.rows.instance import CountRow, WaitRow
from workflow_sdk.rows.keys import HISTORY, INBOX, OUTSIDE, Field, InstanceKeys, waits_of
from workflow_sdk.rows.location import subtree
from workflow_sdk.rows.outside import Hanging
from workflow_sdk.rows.status import EntryStatus, Status

PAGE = 64
"""How many messages are read at once: few, since they may be large."""


def wait_for_token(found: Snapshot, message: str | bytes, token: bytes, version: int | None, now: float) -> Steps[bool]:
    """Promise a message to the wait with this token; False if the wait is over, or has enough messages promised."""
    keys = found.keys
    since, location = read_token(token)
    if version not in (None, since):
        if version != found.about.tally.commits:
            return False
        yield Get(keys.field(Field.TALLY))
    wait = keys.space + waits_of(message) + location
    value = yield from get(wait)
    if value is None:
        return (yield from _wait_of_entry(found, message, token, now))
    row = WaitRow.unpack(value)
    if row.since != since or row.promised >= row.takes or _is_over(row.until, now):
        return False
    yield Set(wait, replace(row, promised=row.promised + 1).pack())
    return True


def _wait_of_entry(found: Snapshot, message: str | bytes, token: bytes, now: float) -> Steps[bool]:
    """Whether a wait without a row is open. Its instance is stuck, or is run again and has not come to the wait yet."""
    keys = found.keys
    since, location = read_token(token)
    raw = yield from get(keys.space + HISTORY + location)
    data = None if raw is None else _listens(raw, message, since, now)
    if data is None:
        return False
    begin, end = keys.range(INBOX)
    promised = 0
    while rows := (yield from scan(begin, end, limit=PAGE)):
        promised += sum(InboxMessage.unpack(b"", row).only_for == token for _, row in rows)
        begin = rows[-1][0] + b"\x00"
    is_open = promised < data.count
    if is_open:
        # The stamp changes with every message. The check makes sure that no message came while they were counted.
        yield Hold((keys.stamp,))
    return is_open


def wait_for_version(found: Snapshot, message: str | bytes, version: int, now: float) -> Steps[bool]:
    """Note that a version of the instance is answered; False if it was answered before, or is too old.

    A version is not too old if it is the version now, or if a wait for such a message began with it and is still open.
    """
    keys, about = found.keys, found.about
    if version == about.tally.commits:
        yield Get(keys.field(Field.TALLY))
    else:
        rows = yield from scan(*subtree(keys.space + waits_of(message)))
        place = next((key for key, raw in rows if WaitRow.unpack(raw).since == version), None)
        if place is None and about.status is Status.RUNNING:
            # The instance is run again, and has not come to all of its waits yet, which therefore have no rows.
            entries = yield from scan(*keys.range(HISTORY))
            place = next((key for key, raw in entries if _listens(raw, message, version, now)), None)
        if place is None:
            return False
        yield Get(place)
    if about.answered >= version:
        return False
    yield Get(keys.field(Field.ANSWERED))
    yield Set(keys.field(Field.ANSWERED), CountRow(version).pack())
    return True


def _listens(raw: bytes, message: str | bytes, since: int, now: float) -> ListenData | None:
    """The data of an entry that began to listen to this message with this version and still does; None otherwise."""
    entry = Entry.unpack(raw)
    data = entry.data
    if entry.status is not EntryStatus.WAITING or entry.since != since or not isinstance(data, ListenData):
        return None
    return None if message not in data.names or _is_over(data.until, now) else data


def _is_over(until: float | None, now: float) -> bool:
    return until is not None and until <= now


# Waits for the end of an instance.


def hanging_key(watcher: str, token: bytes) -> bytes:
    """The key of the row that an instance has as long as it waits, with this token, for the end of another one."""
    return InstanceKeys(watcher).space + OUTSIDE + read_token(token)[1]


def _is_wait(raw: bytes | None, instance_id: str, token: bytes) -> bool:
    hanging = None if raw is None else Hanging.unpack(raw)
    return hanging is not None and (hanging.id, hanging.since) == (instance_id, read_token(token)[0])


def awaits_end(watcher: str, instance_id: str, token: bytes) -> Steps[bool]:
    """Whether an instance waits for the end of another one. The commit succeeds only if that stays so."""
    return _is_wait((yield from get(hanging_key(watcher, token))), instance_id, token)


def is_awaited(watcher: str, instance_id: str, token: bytes) -> Steps[bool]:
    """Whether an instance waits for the end of another one now. That may change before the commit is applied."""
    return _is_wait((yield from look(hanging_key(watcher, token))), instance_id, token)
