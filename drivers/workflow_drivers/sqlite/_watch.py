"""Who waits for which key: the part of `changed` that needs neither the event loop nor the file."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterable

from sortedcontainers import SortedDict

from workflow_sdk.driver import Append, ClearRange, Set, Write


class Waiter:
    """One call of `changed`: what it has seen, and the future that ends it, with an error or without."""

    __slots__ = ("error", "future", "key", "since")

    def __init__(self, key: bytes, since: bytes | None, future: Future[None]) -> None:
        self.key = key
        self.since = since
        self.future = future
        self.error: Exception | None = None


class Watch:
    """The waiters by key, sorted so that a cleared range finds the ones in it."""

    def __init__(self) -> None:
        self._by_key: SortedDict[bytes, list[Waiter]] = SortedDict()

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def add(self, waiter: Waiter) -> None:
        """Let `waiter` be found until it is discarded."""
        self._by_key.setdefault(waiter.key, []).append(waiter)

    def discard(self, waiter: Waiter) -> None:
        """Forget `waiter`."""
        waiters = self._by_key[waiter.key]
        waiters.remove(waiter)
        if not waiters:
            del self._by_key[waiter.key]

    def keys(self) -> list[bytes]:
        """Every key that someone waits for."""
        return list(self._by_key)

    def notice(self, values: Iterable[tuple[bytes, bytes | None]]) -> bool:
        """End the wait of those whose key has another value than they have seen; whether there were any."""
        found = False
        for key, value in values:
            for waiter in self._by_key.get(key, ()):
                if waiter.since != value and not waiter.future.done():
                    waiter.future.set_result(None)
                    found = True
        return found

    def notice_writes(self, writes: Iterable[Write]) -> None:
        """The same for writes that have just been committed. Appends are not seen: their keys are not known here."""
        values: dict[bytes, bytes | None] = {}
        for write in writes:
            if type(write) is ClearRange:
                values.update(dict.fromkeys(self._by_key.irange(write.begin, write.end, (True, False))))
            elif type(write) is not Append and write[0] in self._by_key:
                values[write[0]] = write.value if type(write) is Set else None
        self.notice(values.items())

    def fail(self, error: Exception) -> None:
        """End every wait with `error`."""
        for waiters in self._by_key.values():
            for waiter in waiters:
                if not waiter.future.done():
                    waiter.error = error
                    waiter.future.set_result(None)
