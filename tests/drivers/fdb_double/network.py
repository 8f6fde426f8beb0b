"""The network thread, and the futures that become ready in it."""

from __future__ import annotations

import asyncio
import heapq
import sys
import traceback
from collections import deque
from collections.abc import Callable
from threading import Condition, Event, Lock, Thread, current_thread
from time import monotonic
from typing import Any

from tests.drivers.fdb_double.errors import FDBError
from tests.patience import PATIENCE

__all__ = ["Future", "Network", "Value", "failed", "network", "pass_on_error"]


class Network:
    """One thread for all, as in the binding: it is started once, and lives as long as the process."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], object]] = deque()
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = 0
        self._changed = Condition(Lock())
        self.thread: Thread | None = None

    def post(self, job: Callable[[], object], delay: float = 0.0) -> None:
        """Have `job` run in the thread, after those that were posted before and are due."""
        with self._changed:
            if self.thread is None:
                self.thread = Thread(target=self._run, name="fdb-double-network", daemon=True)
                self.thread.start()
            if delay > 0:
                self._numbers += 1
                heapq.heappush(self._later, (monotonic() + delay, self._numbers, job))
            else:
                self._jobs.append(job)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            self._next()()

    def _next(self) -> Callable[[], object]:
        with self._changed:
            while True:
                if self._later and self._later[0][0] <= monotonic():
                    return heapq.heappop(self._later)[2]
                if self._jobs:
                    return self._jobs.popleft()
                self._changed.wait(self._later[0][0] - monotonic() if self._later else None)


network = Network()

_pinned: set[Future] = set()
"""Futures with callbacks: the binding keeps them until they are ready, whoever has dropped them."""


class Future:
    """What is not there yet. Ready in the network thread, where its callbacks run, each once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ready = False
        self._result: Any = None
        self._error: FDBError | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def is_ready(self) -> bool:
        return self._ready

    def on_ready(self, callback: Callable[[Any], object]) -> None:
        """At once and in this thread if it is ready, which the documentation allows; else in the network thread."""
        with self._lock:
            if not self._ready:
                self._callbacks.append(callback)
                _pinned.add(self)
                return
        self._call(callback)

    def cancel(self) -> None:
        network.post(lambda: self.fail(1101))

    def block_until_ready(self) -> None:
        """Like the binding's, and stricter: in an event loop it is a mistake, and not just slow."""
        if self._ready:
            return
        assert current_thread() is not network.thread, "error 2025: blocked in the network thread"
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            event = Event()
            self.on_ready(lambda _: event.set())
            assert event.wait(PATIENCE), "this future is never ready"
        else:
            raise AssertionError("a future was waited for in an event loop, and was not ready")

    def wait(self) -> Any:
        self.block_until_ready()
        if self._error is not None:
            raise self._error
        return self._result

    def set(self, result: Any = None) -> None:
        """What the network thread does with it."""
        self._finish(result, None)

    def fail(self, code: int) -> None:
        """The same, with an error."""
        self._finish(None, FDBError(code))

    def _finish(self, result: Any, error: FDBError | None) -> None:
        with self._lock:
            if self._ready:
                return
            self._result, self._error = result, error
            self._ready = True
            callbacks, self._callbacks = self._callbacks, []
            _pinned.discard(self)
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except Exception:  # noqa: BLE001  # the binding's behaviour: it prints it, and goes on
            failures.append(traceback.format_exc())
            print(failures[-1], file=sys.stderr)


failures: list[str] = []
"""What callbacks have raised: nothing, in a driver that is right."""


class Value(Future):
    """The future value of a key: `value` waits for it, and `wait` gives the future itself."""

    @property
    def value(self) -> bytes | None:
        self.block_until_ready()
        if self._error is not None:
            raise self._error
        found: bytes | None = self._result
        return found

    def wait(self) -> Any:
        _ = self.value
        return self

    def present(self) -> bool:
        return self.value is not None


def failed(code: int) -> Future:
    """A future that fails soon."""
    future = Future()
    network.post(lambda: future.fail(code))
    return future


def pass_on_error(read: Future, watch: Future) -> None:
    """Let the second fail with the error of the first."""
    try:
        read.wait()
    except FDBError as error:
        watch.fail(error.code)
