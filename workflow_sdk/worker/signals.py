"""Reading the signals to a worker: each names an instance that is to look for messages, or is to be evicted."""

from __future__ import annotations

import logging
from collections.abc import Callable

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import write
from workflow_sdk.changes.workers import SignalRow, forget_signals
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError
from workflow_sdk.rows.keys import WorkerKeys
from workflow_sdk.rows.location import subtree
from workflow_sdk.worker.residents import Residents

_log = logging.getLogger("workflow_sdk.runtime")

KEPT_MAX = 1000
"""How many signals may stay in the store after they were read. If there are more, the next heartbeat is not awaited."""


class Signals:
    """Reads the signals to one worker, and passes them on to its instances.

    Signals sort in the order of their commits: a new one sorts after the last one that was read. So signals that were
    read need not be deleted at once, which would cost a commit for each message. The next heartbeat deletes them.
    """

    def __init__(self, worker: WorkerKeys, residents: Residents, missed: Callable[[str, bool], None]) -> None:
        self._worker = worker
        self._residents = residents
        self._missed = missed
        """Told of a signal for an instance that is not in memory, and whether that is to be evicted."""
        self.last: bytes | None = None
        """The key of the last signal that was read."""
        self.kept: int = 0
        """How many signals that were read are still in the store."""

    async def listen(self, driver: Driver) -> None:
        """Pass on all new signals; if there are none, return once there may be one."""
        begin, end = subtree(self._worker.signals)
        with self._residents.looks():
            # The stamp is read before the signals: a signal that comes between the two reads changes the stamp again.
            stamp = await driver.get(self._worker.stamp)
            found = await driver.scan(begin if self.last is None else self.last + b"\x00", end)
            for key, raw in found:
                self._tell(raw)
                self.last = key
                self.kept += 1
            if self.last is not None and self.kept > KEPT_MAX:
                kept = self.kept
                await apply(driver, write([forget_signals(self._worker, self.last)]))
                self.kept -= kept
        if not found:
            await driver.changed(self._worker.stamp, stamp)

    def _tell(self, raw: bytes) -> None:
        try:
            signal = SignalRow.unpack(raw)
        except CodecError as error:
            # The signal was for some instance of this worker, and nobody knows for which.
            _log.error("a signal to this worker can't be read; every instance in memory looks for messages: %s", error)
            self._residents.look_again()
            return
        run = self._residents.runs.get(signal.id)
        if run is None:
            self._missed(signal.id, signal.evicts)
        elif signal.evicts:
            self._residents.evict_one(signal.id)
        else:
            run.look()
