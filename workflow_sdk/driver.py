"""The contract between the engine and a store: an ordered map of bytes with four verbs.

A driver knows nothing of workflows. Any object with the five methods is one; the suite in
`workflow_sdk.testing.contract` proves it. Drivers are found by the scheme of their URL, through the entry-point group
`workflow_sdk.drivers`: the entry point is an async function that takes the URL and returns the open driver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar, cast, runtime_checkable

from workflow_sdk.errors import ConflictError, DefinitionError, StorageError, StorageLimitError

__all__ = [
    "BATCH_BYTES_MAX",
    "KEY_BYTES_MAX",
    "VALUE_BYTES_MAX",
    "Append",
    "Batch",
    "Clear",
    "ClearRange",
    "ConflictError",
    "Driver",
    "Set",
    "Sibling",
    "StorageError",
    "StorageLimitError",
    "Transacting",
    "Write",
    "check_limits",
    "is_driver",
    "open_driver",
    "sibling_of",
    "transacting",
]


class ProcessDied(BaseException):
    """As far as the store can tell, the process has died: nothing lives on that was under way. Tests raise it."""


ENTRY_POINT_GROUP = "workflow_sdk.drivers"

# The same in every driver that comes with us, so that what works in tests works in production.
KEY_BYTES_MAX = 10_000
VALUE_BYTES_MAX = 10_000_000
BATCH_BYTES_MAX = 100_000_000
"""All keys, values and expected values of one batch together. Their number has no limit."""
APPENDED_BYTES = 13
"""What `append` adds to its prefix in the drivers that come with us."""
APPENDED_BYTES_MAX = 64
"""What it may add in any."""


class Set(NamedTuple):
    """Store `value` under `key`."""

    key: bytes
    value: bytes


class Append(NamedTuple):
    """Store `value` under a new key: `prefix` and up to 64 bytes, of which the first is not 0xFF.

    It sorts after every key that was ever appended there. The drivers that come with us add 0x33 and 12 bytes, which is
    how `fdb.tuple` writes a versionstamp.
    """

    prefix: bytes
    value: bytes


class Clear(NamedTuple):
    """Forget `key`."""

    key: bytes


class ClearRange(NamedTuple):
    """Forget every key from `begin`, up to `end` and without it."""

    begin: bytes
    end: bytes


Write: TypeAlias = Set | Append | Clear | ClearRange


class Batch:
    """Checks, and the writes to be made if all of them hold. Writes take effect in the order they were added."""

    __slots__ = ("checks", "writes")

    def __init__(self) -> None:
        self.checks: list[tuple[bytes, bytes | None]] = []
        self.writes: list[Write] = []

    def check(self, key: bytes, expected: bytes | None) -> None:
        """Hold the commit to `key` having the value `expected` (None: no value) when it is applied."""
        self.checks.append((key, expected))

    def set(self, key: bytes, value: bytes) -> None:
        """Store `value` under `key`."""
        self.writes.append(Set(key, value))

    def append(self, prefix: bytes, value: bytes) -> None:
        """Store `value` under a new key that sorts after every key committed under `prefix` before."""
        self.writes.append(Append(prefix, value))

    def clear(self, key: bytes) -> None:
        """Forget `key`."""
        self.writes.append(Clear(key))

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Forget every key from `begin`, up to `end` and without it."""
        self.writes.append(ClearRange(begin, end))

    def __bool__(self) -> bool:
        return bool(self.checks or self.writes)


_BYTES: Final = frozenset({bytes})


def check_limits(batch: Batch) -> int:
    """The size of `batch` in bytes. StorageLimitError, which names the limit, if it or a part of it is too large.

    Anything but `bytes` is a TypeError here, before a store could have taken half of the batch.
    """
    total = 0
    for key, expected in batch.checks:
        if type(key) is not bytes or not (expected is None or type(expected) is bytes):
            raise TypeError(f"keys and values are bytes, not {key!r:.80} and {expected!r:.80}")
        if len(key) > KEY_BYTES_MAX:
            raise _too_large("key", len(key), KEY_BYTES_MAX)
        total += len(key) if expected is None else len(key) + len(expected)
    # Every commit goes through here: small writes are looked at all in one go.
    parts = [*chain.from_iterable(batch.writes)]
    if _BYTES.issuperset(map(type, parts)) and (size := sum(map(len, parts))) + APPENDED_BYTES <= KEY_BYTES_MAX:
        return total + size
    for write in batch.writes:
        total += _checked_size(write)
    if total > BATCH_BYTES_MAX:
        raise _too_large("batch", total, BATCH_BYTES_MAX)
    return total


def _checked_size(write: Write) -> int:
    """The size of one write."""
    for part in write:
        if type(part) is not bytes:
            raise TypeError(f"keys and values are bytes, not {part!r:.80}")
    kind = type(write)
    # The ends of a range are not stored, and one past the longest key is a sensible end.
    if kind is not ClearRange:
        size = len(write[0]) + APPENDED_BYTES if kind is Append else len(write[0])
        if size > KEY_BYTES_MAX:
            raise _too_large("key", size, KEY_BYTES_MAX)
        if kind is not Clear and len(write[-1]) > VALUE_BYTES_MAX:
            raise _too_large("value", len(write[-1]), VALUE_BYTES_MAX)
    return sum(map(len, write))


def _too_large(what: str, size: int, limit: int) -> StorageLimitError:
    return StorageLimitError(f"a {what} of {size:,} bytes is over the limit of {limit:,} bytes; nothing was written")


@runtime_checkable
class Driver(Protocol):
    """An ordered byte store.

    Cancelling any await leaves the driver usable; a cancelled commit either happened or did not, whole.
    """

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None."""
        ...

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it, in byte order or its reverse, of one consistent state."""
        ...

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch, whole and durably, or raise: ConflictError if a check did not hold."""
        ...

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value of `key` differs from `since`, whichever process changed it."""
        ...

    async def aclose(self) -> None:
        """Let go of everything. Calling it twice is fine."""
        ...


T = TypeVar("T")


def is_driver(value: object) -> TypeGuard[Driver]:
    """Whether it has the five methods. A driver that wraps another may hand them on with `__getattr__`.

    `isinstance(value, Driver)` does not find those from Python 3.12 on.
    """
    return all(callable(getattr(value, name, None)) for name in ("get", "scan", "commit", "changed", "aclose"))


class Transacting(Protocol):
    """A driver that lets others write in the transaction of a batch. No driver has to."""

    async def transact(self, fn: Callable[[Any], T], finish: Callable[[T], Batch], /) -> None:
        """Call `fn` with the store's own transaction, and apply in the same one the batch that `finish` makes of it.

        `fn` runs in a worker thread, `finish` in the event loop. If they raise, so does this, and nothing is written.
        Where the store has to try again, both are called again; only what the last try wrote is there in the end.
        ConflictError, if a check of the batch does not hold: then nothing is written either. Cancelled, it is decided
        when this returns.
        """
        ...


def transacting(driver: object) -> Transacting | None:
    """The driver, if it lets others write in its transactions; for one that wraps another, if that one does."""
    return cast("Transacting", driver) if callable(getattr(driver, "transact", None)) else None


class Sibling(Protocol):
    """A driver that can be opened once more, for another thread. No driver has to.

    With it, a worker whose event loop is blocked goes on saying that it lives.
    """

    async def sibling(self) -> Driver:
        """Another handle of the same store, for the event loop of the thread that asks. It is closed by itself.

        This is called in that thread, while the loop in which the driver was opened may be blocked.
        """
        ...


def sibling_of(driver: object) -> Sibling | None:
    """The driver, if it can be opened once more; for one that wraps another, if that one can."""
    return cast("Sibling", driver) if callable(getattr(driver, "sibling", None)) else None


async def open_driver(url: str) -> Driver:
    """Open the store that `url` names: `sqlite:///app.db`, `memory://`, or what an installed driver offers."""
    scheme, colon, _ = url.partition("://")
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if not colon or scheme not in found:
        known = ", ".join(sorted(f"{name}://" for name in found))
        raise DefinitionError(f"no driver for the store {url!r}; installed drivers open: {known}")
    opener = cast("Callable[[str], Awaitable[Driver]]", found[scheme].load())
    return await opener(url)
