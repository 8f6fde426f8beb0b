"""One cell in the memory of a worker: when it takes messages, waits, and goes."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import anyio

from workflow_sdk.changes.claim import Claim
from workflow_sdk.errors import LeaseLostError, StorageError
from workflow_sdk.instance.clock import Activity
from workflow_sdk.instance.host import Waiting
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.machines.emitting import OtherManifestError
from workflow_sdk.machines.held import HeldCell, Left
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.surroundings import Surroundings
from workflow_sdk.operations.calling import come_what_may
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import INBOX, InstanceKeys
from workflow_sdk.rows.status import Status
from workflow_sdk.worker.residents import RuntimeHost

PAGE: Final = 32
"""How many rows are read at once, most of them messages."""


class CellRun:
    """Takes the messages of one cell, one by one: each transition is one commit."""

    def __init__(
        self, machine: Machine[Any], keys: InstanceKeys, claimed: Claim, around: Surroundings, host: RuntimeHost
    ) -> None:
        self._held = HeldCell(machine, keys, claimed, around)
        self._driver = around.driver
        self._fenced = around.fenced
        self._keys = keys
        self._host = host
        self._queue: deque[InboxMessage] = deque()
        self._last = b""
        """Where the messages begin that were not read yet."""
        self._stamp: bytes | None = claimed.stamp
        """The inbox stamp, as it was before messages were read the last time."""
        self._news = anyio.Event()
        """Set when messages may have come, or the cell is to go."""
        # The claim may have read all that there is. A signal that comes from now on is not forgotten.
        self._has_news = claimed.rows is None
        if claimed.rows is not None:
            self._take_in(claimed.rows.between(*keys.range(INBOX)))
        self._is_idle = False
        self._is_leaving = False
        self._is_abandoned = False
        self._is_released = False

    # As its worker knows it.

    @property
    def instance_id(self) -> str:
        """The id of the instance that the cell is."""
        return self._keys.instance_id

    @property
    def messages(self) -> None:
        """Messages are always read from the store."""
        return

    @property
    def next_time(self) -> float | None:
        """A cell has no timers of its own: those that it asks for are effects."""
        return None

    @property
    def waiting(self) -> Waiting:
        """What has the timers of the instance."""
        return self

    @property
    def ended(self) -> InstanceRows | None:
        """The rows of the instance, if it has ended or is stuck."""
        about = self._held.about
        return about if about.status.is_terminal or about.status is Status.STUCK else None

    def look(self, *, lease: bool = True) -> None:
        """Have it read its messages, and find out whether the cell is still ours."""
        self._has_news = True
        self.fire()

    def evict(self) -> None:
        """Release the cell once what is under way has ended."""
        self._is_leaving = True
        self._news.set()

    def abandon(self) -> None:
        """End it: what has come is left to others."""
        self._is_abandoned = True
        self._news.set()

    def fire(self) -> None:
        """Go on, if there is something to do and a slot to do it in."""
        if self._is_idle and self._has_news and self._host.may_go_on(self):
            self._go_on()

    def _go_on(self) -> None:
        self._is_idle = False
        self._host.rests(self, False)
        self._news.set()

    def activity(self) -> Activity:
        """Whether something is under way."""
        return Activity.NONE if self._is_idle else Activity.CODE

    # Its life.

    async def go(self) -> None:
        """Take messages until the cell ends, is stuck, is to go, or is not ours any more."""
        try:
            await self._held.load()
            await self._live()
        except LeaseLostError:
            self._is_released = True
            raise
        except OtherManifestError:
            self._fenced()
        finally:
            if not self._is_released:
                cancelled = await come_what_may(self._give_back)
                if cancelled is not None:
                    raise cancelled
        if not self._is_released:
            # Its worker, which still has it, is to claim it again.
            raise StorageError(f"cell {self.instance_id!r} could not be released")

    async def _give_back(self) -> None:
        self._is_released = await self._held.give_back()

    async def _live(self) -> None:
        while not self._is_abandoned and not self._is_released:
            if not self._queue and self._has_news:
                await self._read()
            if self._held.is_empty and not self._queue and not self._has_news:
                # What had come for a cell that was deleted was no event after all, or there was none.
                self._is_released = await self._held.delete(self._stamp)
                self._has_news = not self._is_released
            elif self._is_leaving:
                await self._leave()
            elif self._queue:
                await self._take()
            elif not self._held.waits:
                await self._held.settle_down()
            elif not self._has_news:
                await self._rest()

    async def _read(self) -> None:
        keys = self._keys
        self._has_news = False
        begin, end = keys.range(INBOX)
        # One read finds messages, lease and stamp as they are at one moment: only few rows lie between them.
        rows = await self._driver.scan(self._last or begin, keys.stamp + b"\x00", limit=PAGE)
        messages = [row for row in rows if row[0] < end]
        beside = dict(rows[len(messages) :])
        if len(rows) == PAGE:
            self._has_news = True
        elif beside.get(keys.lease) != self._held.lease.pack():
            raise LeaseLostError(f"another worker has taken over cell {self.instance_id!r}")
        else:
            self._stamp = beside.get(keys.stamp)
        self._take_in(messages)

    def _take_in(self, messages: list[tuple[bytes, bytes]]) -> None:
        start = len(self._keys.space) + len(INBOX)
        self._queue.extend(InboxMessage.unpack(key[start:], raw) for key, raw in messages)
        if messages:
            self._last = messages[-1][0] + b"\x00"

    async def _rest(self) -> None:
        """Wait in memory until there is something to do."""
        self._is_idle = True
        self._news = anyio.Event()
        self._host.rests(self, True)
        if not self._has_news and not self._is_leaving and not self._is_abandoned:
            await self._news.wait()
        if self._is_idle:
            self._go_on()

    async def _take(self) -> None:
        is_last = len(self._queue) == 1 and not self._has_news
        left = await self._held.take(self._queue[0], self._stamp, is_last=is_last)
        self._queue.popleft()
        self._is_released = left is Left.OVER
        if not self._is_released and self._host.crowded and not self._is_leaving:
            # Others wait for a slot: they take their next messages first.
            turn = anyio.Event()
            self._host.queue(self, turn.set)
            await turn.wait()

    async def _leave(self) -> None:
        if self._queue:
            self._is_abandoned = True  # it is given back as due
            return
        self._is_released = await self._held.release(self._stamp)
        self._has_news = not self._is_released
