"""The contract between the engine and a store, which is an ordered map from bytes to bytes.

A driver knows nothing of workflows. Any object with the five methods of `Driver` is one, and the suite in
`workflow_sdk.testing.contract` proves it. Drivers are found by the scheme of their URL, through the entry-point group
`workflow_sdk.drivers`: the entry point is an async function that takes the URL and returns the open driver.

Below the contract is what the drivers that come with us share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from importlib.metadata import entry_points
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar, cast, runtime_checkable
from urllib.parse import parse_qsl

from anyio.lowlevel import current_token
from sortedcontainers import SortedDict

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
    """Tests raise it where the process is to die: nothing that was under way goes on, and nothing is cleaned up."""


ENTRY_POINT_GROUP = "workflow_sdk.drivers"

# The same in every driver that comes with us, so that what works in tests works in production.
KEY_BYTES_MAX = 10_000
VALUE_BYTES_MAX = 10_000_000
BATCH_BYTES_MAX = 100_000_000
"""The limit of all keys, values and expected values of a batch together. Their number has no limit."""
APPENDED_BYTES = 13
"""How much `append` adds to its prefix in the drivers that come with us."""
APPENDED_BYTES_MAX = 64
"""How much it may add in any driver."""


class Set(NamedTuple):
    """Store `value` under `key`."""

    key: bytes
    value: bytes


class Append(NamedTuple):
    """Store `value` under a new key: `prefix` and up to 64 bytes, of which the first is not 0xFF.

    The key sorts after every key that was ever appended there. The drivers that come with us add 0x33 and 12 bytes,
    which is how `fdb.tuple` writes a versionstamp.
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
    """Checks, and the writes that are made if all checks hold. Writes take effect in the order they were added."""

    __slots__ = ("checks", "writes")

    def __init__(self) -> None:
        self.checks: list[tuple[bytes, bytes | None]] = []
        self.writes: list[Write] = []

    def check(self, key: bytes, expected: bytes | None) -> None:
        """Have the commit fail unless `key` has the value `expected` (None: no value) when the batch is applied."""
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
    """The size of `batch` in bytes. Raises StorageLimitError, which names the limit, if a part or all is too large.

    Anything but `bytes` is a TypeError here, before a store could have written half of the batch.
    """
    total = 0
    for key, expected in batch.checks:
        if type(key) is not bytes or not (expected is None or type(expected) is bytes):
            raise TypeError(f"keys and values are bytes, not {key!r:.80} and {expected!r:.80}")
        if len(key) > KEY_BYTES_MAX:
            raise _too_large("key", len(key), KEY_BYTES_MAX)
        total += len(key) if expected is None else len(key) + len(expected)
    # Every commit goes through here, so the writes are looked at one by one only if together they are larger than a key
    # may be. With less than that, no part can be too large.
    parts = [*chain.from_iterable(batch.writes)]
    if _BYTES.issuperset(map(type, parts)) and (size := sum(map(len, parts))) + APPENDED_BYTES <= KEY_BYTES_MAX:
        return total + size
    total += sum(map(_checked_size, batch.writes))
    if total > BATCH_BYTES_MAX:
        raise _too_large("batch", total, BATCH_BYTES_MAX)
    return total


def _checked_size(write: Write) -> int:
    """The size of one write in bytes, if it is within the limits."""
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
        """Close the store. Calling this twice is fine."""
        ...


T = TypeVar("T")


def is_driver(value: object) -> TypeGuard[Driver]:
    """Whether `value` has the five methods.

    `isinstance(value, Driver)` does not see methods that a wrapper hands on by `__getattr__`, from Python 3.12 on.
    """
    return all(callable(getattr(value, name, None)) for name in ("get", "scan", "commit", "changed", "aclose"))


class Transacting(Protocol):
    """A driver that lets authors write in the transaction of a batch. No driver has to be one."""

    async def transact(self, fn: Callable[[Any], T], finish: Callable[[T], Batch], /) -> None:
        """Call `fn` with a transaction of the store; apply in the same one the batch that `finish` makes of its value.

        `fn` runs in a worker thread, `finish` in the event loop. If they raise, so does this, and nothing is written.
        If the store has to try again, both are called again, and only the writes of the last try are made. If a check
        of the batch does not hold, this raises ConflictError, and nothing is written. If it is cancelled, it still
        returns only when it is decided whether the writes are made.
        """
        ...


def transacting(driver: object) -> Transacting | None:
    """The driver, if it has `transact`; a driver that wraps another has it if that one does."""
    return cast("Transacting", driver) if callable(getattr(driver, "transact", None)) else None


class Sibling(Protocol):
    """A driver that can be opened once more, for another thread. No driver has to be one.

    A worker needs it to renew its heartbeat, from a thread, while its event loop is blocked.
    """

    async def sibling(self) -> Driver:
        """Another handle of the same store, for the event loop of the calling thread, which also closes it.

        The event loop in which the driver was opened may be blocked meanwhile.
        """
        ...


def sibling_of(driver: object) -> Sibling | None:
    """The driver, if it has `sibling`; a driver that wraps another has it if that one does."""
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


# What the drivers that come with us share.

WaiterT = TypeVar("WaiterT")


class Waiters(Generic[WaiterT]):
    """The callers of `changed` that wait, by the key they wait for."""

    def __init__(self) -> None:
        self.by_key: SortedDict[bytes, list[WaiterT]] = SortedDict()
        """Sorted, so that a range which is cleared finds the keys in it. No list is empty."""

    def __bool__(self) -> bool:
        return bool(self.by_key)

    def add(self, key: bytes, waiter: WaiterT) -> None:
        """Have `waiter` be found by its key until it is discarded."""
        self.by_key.setdefault(key, []).append(waiter)

    def discard(self, key: bytes, waiter: WaiterT) -> None:
        """Forget `waiter`."""
        waiters = self.by_key[key]
        waiters.remove(waiter)
        if not waiters:
            del self.by_key[key]

    def touched(self, writes: Iterable[Write]) -> list[bytes]:
        """The keys that somebody waits for and the writes may have changed. Of an append, only its prefix is known."""
        by_key = self.by_key
        found: list[bytes] = []
        for write in writes:
            kind = type(write)
            if kind is ClearRange:
                found += by_key.irange(write[0], write[-1], (True, False))
            elif kind is Append:
                found += by_key.irange(write[0], write[0] + b"\xff", (True, False))
            elif write[0] in by_key:
                found.append(write[0])
        return found


def unmet_check(key: bytes) -> ConflictError:
    """The error of a commit whose check of `key` did not hold."""
    return ConflictError(f"the key {key!r:.200} does not have the value that the batch was to find")


def url_options(url: str, known: Collection[str]) -> dict[str, str]:
    """The options after the `?` of a URL. Raises DefinitionError if one is unknown, or given twice."""
    options = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    names = [name for name, _ in options]
    for name in names:
        if name not in known:
            raise DefinitionError(f"unknown option {name!r} in {url!r}; there are: {', '.join(known)}")
        if names.count(name) > 1:
            raise DefinitionError(f"the option {name!r} is there twice in {url!r}")
    return dict(options)


class _AsyncioLoop(Protocol):
    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...


class _TrioToken(Protocol):
    def run_sync_soon(self, callback: Callable[[], object], /) -> object: ...


def caller_from_threads() -> Callable[[Callable[[], object]], object]:
    """What other threads call to have a function run soon in the event loop of this one. They do not wait for it."""
    native = current_token().native_token
    if hasattr(native, "run_sync_soon"):
        return cast("_TrioToken", native).run_sync_soon
    return cast("_AsyncioLoop", native).call_soon_threadsafe
