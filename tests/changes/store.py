"""A store for changes that needs no event loop: whoever runs a change decides when each of its calls goes on."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterable, Mapping
from types import coroutine
from typing import Any, TypeVar

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import Change
from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Set
from workflow_sdk.errors import ConflictError

T = TypeVar("T")


@coroutine
def _turn() -> Generator[None, None, None]:
    """Wait for the next turn."""
    yield


class Store:
    """A driver. Every call takes one turn."""

    def __init__(self, rows: Mapping[bytes, bytes] | None = None) -> None:
        self.rows: dict[bytes, bytes] = dict(rows or {})
        self.calls: int = 0
        self._appended = 0

    async def get(self, key: bytes) -> bytes | None:
        await self._call()
        return self.rows.get(key)

    async def scan(
        self, begin: bytes, end: bytes, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        await self._call()
        found = sorted((row for row in self.rows.items() if begin <= row[0] < end), reverse=reverse)
        return found[:limit]

    async def commit(self, batch: Batch) -> None:
        await self._call()
        for key, expected in batch.checks:
            if self.rows.get(key) != expected:
                raise ConflictError("a check did not hold")
        for write in batch.writes:
            if isinstance(write, Set):
                self.rows[write.key] = write.value
            elif isinstance(write, Append):
                self._appended += 1
                self.rows[write.prefix + b"\x33" + self._appended.to_bytes(12, "big")] = write.value
            elif isinstance(write, Clear):
                self.rows.pop(write.key, None)
            else:
                assert isinstance(write, ClearRange)
                for key in [key for key in self.rows if write.begin <= key < write.end]:
                    del self.rows[key]

    async def changed(self, key: bytes, since: bytes | None) -> None:
        raise AssertionError("no change waits")

    async def aclose(self) -> None:
        pass

    async def _call(self) -> None:
        await _turn()
        self.calls += 1


Outcome = tuple[str, object]
"""`done` and a value, or the name of what was raised."""


def make(store: Store, change: Change[T]) -> T:
    """Make a change on its own."""
    running = _until_done(store, change)
    try:
        while True:
            running.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value


class Insisting(Change[T]):
    """One that comes to None where it has only prepared what it is to do: it is made again then."""


def insisting(change: Change[T]) -> Insisting[T]:
    """The same change, to be made until it is done."""
    return Insisting(change.begin)


async def _until_done(store: Store, change: Change[T]) -> T:
    value = await apply(store, change)
    while value is None and isinstance(change, Insisting):
        value = await apply(store, change)
    return value


def make_together(store: Store, changes: Iterable[Change[Any]], order: Iterable[int]) -> list[Outcome]:
    """Make changes side by side. `order` says which of those that go on has the next turn; then each to its end."""
    running: dict[int, Coroutine[Any, Any, Any]] = {
        number: _until_done(store, change) for number, change in enumerate(changes)
    }
    outcomes: dict[int, Outcome] = {}
    turns = iter(order)
    while running:
        turn = next(turns, 0)
        number = sorted(running)[turn % len(running)]
        try:
            running[number].send(None)
        except StopIteration as stop:
            outcomes[number] = ("done", stop.value)
            del running[number]
        except Exception as error:  # noqa: BLE001  # it is an outcome like others
            outcomes[number] = (type(error).__name__, str(error))
            del running[number]
    return [outcomes[number] for number in sorted(outcomes)]
