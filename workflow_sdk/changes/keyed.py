"""The keys of messages, each of which is delivered once.

A key is remembered for a week, and as long as it is one of the last 10,000 of its instance, whichever is longer: so
neither a clock that is wrong nor a flood of other messages has a message delivered twice that is sent again soon. With
each new key, some are forgotten for which both are over.
"""

from __future__ import annotations

from typing import ClassVar

from workflow_sdk.changes.change import Get, Retries, Steps, get, scan
from workflow_sdk.core.keys import DELIVERED, KEYS_IN_ORDER, InstanceKeys
from workflow_sdk.core.tuples import pack
from workflow_sdk.core.wire import Row
from workflow_sdk.driver import Append, Clear, Set

__all__ = ["KEYS_KEPT", "KEYS_SECONDS", "is_used", "unpack_key", "use_key"]

KEYS_KEPT = 10_000
KEYS_SECONDS = 7 * 24 * 3600.0
AT_ONCE = 4
"""So many are forgotten with one that is new."""


class _KeyRow(Row, frozen=True):
    """A key that was used."""

    WHAT: ClassVar[str] = "the key of a message"

    key: str
    at: float
    number: int


def is_used(keys: InstanceKeys, key: str) -> Steps[bool]:
    """Whether a key was used before."""
    return (yield from get(_row(keys, key))) is not None


def use_key(keys: InstanceKeys, key: str, now: float) -> Steps[None]:
    """Remember a key that was not used before."""
    begin, end = keys.range(KEYS_IN_ORDER)
    newest = yield from scan(begin, end, limit=1, reverse=True)
    # Of two that come at once both may have the same number: then more than 10,000 are kept.
    number = unpack_key(newest[0][1])[2] + 1 if newest else 1
    yield [Set(_row(keys, key), b""), Append(keys.space + KEYS_IN_ORDER, _KeyRow(key, now, number).pack())]
    # After a conflict nothing is forgotten: others are at it.
    if number > KEYS_KEPT and not (yield Retries()):
        for place, raw in (yield from scan(begin, end, limit=AT_ONCE)):
            old, at, its_number = unpack_key(raw)
            # A time that is far ahead is of a clock that was wrong.
            if number - its_number < KEYS_KEPT or abs(now - at) < KEYS_SECONDS:
                break
            yield Get(place)
            yield [Clear(place), Clear(_row(keys, old))]


def _row(keys: InstanceKeys, key: str) -> bytes:
    return keys.space + DELIVERED + pack((key,))


def unpack_key(raw: bytes) -> tuple[str, float, int]:
    """A key, when it was used, and its number."""
    row = _KeyRow.unpack(raw)
    return row.key, row.at, row.number
