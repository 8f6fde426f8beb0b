"""Changes of the rows in which answers to messages are awaited."""

from __future__ import annotations

from workflow_sdk.changes.change import Draw, Steps, change, get
from workflow_sdk.core.answers import is_answer, still_waiting
from workflow_sdk.driver import Clear, Set

__all__ = ["forget_row", "go_on_waiting"]


@change
def go_on_waiting(key: bytes) -> Steps[bytes | None]:
    """Say that somebody waits for an answer: what its row holds then. None, if it is answered, or gone."""
    raw = yield from get(key)
    if raw is None or is_answer(raw):
        return None
    number: int = yield Draw(1 << 64)
    row = still_waiting(number.to_bytes(8, "big"))
    yield Set(key, row)
    return row


@change
def forget_row(key: bytes, raw: bytes) -> Steps[bool]:
    """Clear a row if it holds this; whether it did."""
    if (yield from get(key)) != raw:
        return False
    yield Clear(key)
    return True
