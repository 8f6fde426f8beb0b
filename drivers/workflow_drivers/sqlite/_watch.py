"""Who waits for which key: the part of `changed` that needs neither the event loop nor the file."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterable
from itertools import chain

from workflow_sdk.driver import Append, Set, Waiters, Write


class Waiter:
    """One call of `changed`: the value that it has seen, and the future that ends it, with an error or without."""

    __slots__ = ("error", "future", "since")

    def __init__(self, since: bytes | None, future: Future[None]) -> None:
        self.since = since
        self.future = future
        self.error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        """End the wait, with this error if there is one."""
        if not self.future.done():
            self.error = error
            self.future.set_result(None)


def notice(waiters: Waiters[Waiter], values: Iterable[tuple[bytes, bytes | None]]) -> bool:
    """End the wait of those who have seen another value of a key, and return whether there were any."""
    found = False
    for key, value in values:
        for waiter in waiters.by_key.get(key, ()):
            if waiter.since != value and not waiter.future.done():
                waiter.end()
                found = True
    return found


def notice_writes(waiters: Waiters[Waiter], writes: Iterable[Write]) -> None:
    """Do the same for writes that were committed just now. Appends are left to the poll, which knows their keys."""
    if not waiters.touched(writes):  # as after most commits
        return
    values: dict[bytes, bytes | None] = {}
    for write in writes:
        if type(write) is not Append:
            value = write.value if type(write) is Set else None
            values.update(dict.fromkeys(waiters.touched([write]), value))
    notice(waiters, values.items())


def end_all(waiters: Waiters[Waiter], error: Exception) -> None:
    """End every wait with an error."""
    for waiter in chain.from_iterable(waiters.by_key.values()):
        waiter.end(error)
