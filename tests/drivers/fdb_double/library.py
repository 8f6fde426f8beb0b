"""A program: the driver on the real binding, whose C library is replaced by one that answers everything with nothing.

It shows that the driver calls the binding's own Python as it is: signatures, futures, callbacks, options. Run by
itself, since an API version is chosen once in a process. It prints the calls that reached the library.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio

from workflow_sdk.driver import Batch, open_driver

__all__: list[str] = []


class Function:
    """A function of the library, which takes its types as ctypes' do."""

    def __init__(self, name: str, library: Library) -> None:
        self.name, self.library = name, library
        self.argtypes: Any = None
        self.restype: Any = None
        self.errcheck: Any = None

    def __call__(self, *args: Any) -> int:
        return self.library.call(self.name, args)


class Library:
    """Every future becomes ready in a thread of its own, when it is asked for a callback; watches when cancelled."""

    def __init__(self, max_api_version: int) -> None:
        self.max_api_version = max_api_version
        self._functions: dict[str, Function] = {}
        self._futures = 100
        self._ready: set[int] = set()
        self._watches: dict[int, Callable[[int], None] | None] = {}
        self.calls: list[str] = []
        self.keys: list[bytes] = []

    def __getattr__(self, name: str) -> Function:
        if self.max_api_version < 740 and name == "fdb_transaction_get_range_split_points_with_limit":
            raise AttributeError(name)  # it came later
        return self._functions.setdefault(name, Function(name, self))

    def call(self, name: str, args: tuple[Any, ...]) -> int:
        self.calls.append(name)
        if name == "fdb_get_max_api_version":
            return self.max_api_version
        if name == "fdb_select_api_version_impl" and args[1] > self.max_api_version:
            return 2203
        if name in ("fdb_create_database", "fdb_database_create_transaction"):
            args[1]._obj.value = 1
        elif name == "fdb_future_is_ready":
            return int(args[0] in self._ready)
        elif name == "fdb_future_set_callback" and args[0] in self._watches:
            self._watches[args[0]] = args[1]
        elif name == "fdb_future_set_callback":
            threading.Thread(target=self._become_ready, args=args[:2]).start()
        elif name == "fdb_future_cancel" and (callback := self._watches.pop(args[0], None)):
            threading.Thread(target=self._become_ready, args=(args[0], callback)).start()
        elif name in ("fdb_future_get_value", "fdb_future_get_keyvalue_array"):
            pass  # what the pointers point to is zero: absent, no rows, no more
        elif name == "fdb_transaction_atomic_op":
            self.keys.append(args[1])
            assert args[-1] == 14, "set_versionstamped_key"
        elif name.startswith("fdb_transaction_") and name.removeprefix("fdb_transaction_") in FUTURES:
            self._futures += 1
            if name == "fdb_transaction_watch":
                self._watches[self._futures] = None
            return self._futures
        return 0

    def _become_ready(self, future: int, callback: Callable[[int], None]) -> None:
        self._ready.add(future)
        callback(future)


FUTURES = ("get", "get_range", "commit", "on_error", "watch", "get_read_version")


async def use_it() -> None:
    driver = await open_driver("fdb:///nowhere/fdb.cluster?prefix=p&automatic_idempotency=yes&timeout=5")
    assert await driver.get(b"k") is None
    assert await driver.scan(b"", b"\xff", limit=3, reverse=True) == []
    batch = Batch()
    batch.check(b"k", None)
    batch.clear_range(b"a", b"b")
    batch.clear(b"c")
    batch.set(b"k", b"v")
    batch.set(b"large", bytes(250_000))
    batch.append(b"q", b"v")
    await driver.commit(batch)
    await driver.changed(b"k", b"other")
    with anyio.move_on_after(0.05):
        await driver.changed(b"k", None)
    await driver.aclose()


def main() -> None:
    library = Library(int(sys.argv[2]))
    ctypes.CDLL = lambda *_args, **_options: library  # type: ignore[misc,assignment]
    anyio.run(use_it, backend=sys.argv[1])
    (key,) = library.keys
    assert key == b"\x02p\x00\x15\x01q\x33" + bytes(12) + (7).to_bytes(4, "little"), key
    print(*sorted(set(library.calls)))


if __name__ == "__main__":
    main()
