"""Waiting: branches park in memory, and when every branch is parked the instance is idle.

The last branch to park has that recorded. Then the instance waits in memory for the first thing to happen, or it is
released in the same commit, and leaves the memory.
"""

from __future__ import annotations

from typing import Literal

import anyio

from workflow_sdk.changes.change import Assume, Steps, change
from workflow_sdk.driver import ConflictError
from workflow_sdk.instance.messages import RunMessages
from workflow_sdk.instance.session import HeadWriter, RunState, Session
from workflow_sdk.instance.waits import Turns, Waits
from workflow_sdk.operations.types import Wait
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import due_at_once

Mode = Literal["yield", "live"]


class _MessageCame(Exception):
    """An instance can't be parked: there is a message that its run does not know."""


class RunParking:
    """The branches of one run: which of them run, and which wait."""

    __slots__ = (
        "_arrivals",
        "_head",
        "_held",
        "_is_idle",
        "_leaving",
        "_messages",
        "_mode",
        "_session",
        "_settling",
        "_state",
        "_turns",
        "busy",
        "idle_result",
        "waits",
    )

    def __init__(self, session: Session, messages: RunMessages, head: HeadWriter, state: RunState, mode: Mode) -> None:
        self._session = session
        self._messages = messages
        self._head = head
        self._state = state
        self._mode: Mode = mode
        self.waits: Waits = messages.waits
        self._turns: Turns | None = None
        """Made when others wait for their turn: mostly nobody does, and there may be thousands of instances."""
        self.idle_result: tuple[Status, float | None, list[str]] | None = None
        """How the instance was released while it waits: its status, when it is due, and for which messages."""
        self.busy: int = 0
        """What the engine itself does while every branch is parked."""
        self._is_idle = False
        """It waits in memory, and the store says so."""
        self._settling = False
        self._leaving = False
        """It is being released: nobody is woken until that is decided."""
        self._held = False
        """A branch was kept from going on."""
        self._arrivals: Arrivals | None = None
        session.life.branches = self

    @property
    def arrivals(self) -> Arrivals:
        """What reads the messages that come. Made with the first: there may be thousands of instances."""
        if self._arrivals is None:
            self._arrivals = Arrivals(self._session, self._messages, self)
        return self._arrivals

    # As the host knows it.

    @property
    def instance_id(self) -> str:
        """Which instance it is."""
        return self._session.journal.keys.instance_id

    @property
    def next_time(self) -> float | None:
        """When its first timer is due."""
        # What nobody is woken for is nothing to wait for: the time that is over would be over again and again.
        return None if self._session.life.halted or self._leaving else self.waits.next_time

    @property
    def listens(self) -> bool:
        """Whether a message is awaited."""
        return self.waits.listens

    @property
    def is_idle(self) -> bool:
        """Whether it waits in memory, and the store says so."""
        return self._is_idle

    @property
    def stamp(self) -> bytes | None:
        """What the inbox stamp was when messages were read last: another one means that there are more."""
        return self._messages.reader.stamp

    def evict(self) -> None:
        """Begin nothing new, and release the instance once what is under way has ended."""
        self._mode = "yield"
        self._session.life.draining = True
        self._is_idle = False
        if self._turns is not None:
            self._turns.go_on()
        if self.waits.active == 0:
            self._session.host.spawn(self._settle)

    def give_back(self) -> None:
        """Release the instance at once. What is under way is cancelled, and runs again later."""
        self._session.life.stop()

    # Branches that go on, and branches that wait.

    async def flush(self, *, stay: bool = False) -> None:
        """Return once everything changed so far is in the store. Does not return if it can't be stored."""
        if self._state.public is not None:
            self._state.show()
            if self._session.life.halted:
                await self._session.life.never()
        if not await self._session.flusher.flush(alone=self.waits.active == 1):
            await self._session.life.never()
        if self._session.host.crowded and not stay and not self._session.life.draining:
            await self._let_others_go()

    async def _let_others_go(self) -> None:
        """Others wait for their turn: if this instance has had its own, it steps back until it has the next."""
        if self._turns is None:
            self._turns = Turns(self._session.host, self, self.waits)
        if self._turns.is_over:
            await self._turns.let_others_go()
            if self._session.life.halted or self._session.life.is_over:
                await self._session.life.never()

    def _look_for_turn(self) -> None:
        """One branch less is active: maybe all that are left are ready to step back."""
        if self._turns is not None:
            self._turns.look()

    async def park(self, wait: Wait) -> None:
        """Return once what the branch waits for may be there; it is stored before that the branch waits."""
        life, waits = self._session.life, self.waits
        if life.halted:
            await life.never()
        waits.add(wait)
        try:
            self._session.host.waits_changed(self)
            if waits.active > 1:
                # Siblings go on. Else the commit that records the instance as idle takes our changes along.
                await self.flush()
                if wait.fired:
                    return
            wait.parked = True
            waits.active -= 1
            try:
                if waits.active == 0:
                    await self._settle()
                else:
                    self._look_for_turn()
                await wait.wakeup.wait()
            finally:
                if not wait.fired:
                    # Cancelled: nobody has counted it as running again.
                    waits.active += 1
                    self._leave_idle()
            if life.halted or life.is_over:
                await life.never()
        finally:
            waits.remove(wait)
            if wait.messages:
                self._leave_to_others(wait)

    def _leave_to_others(self, wait: Wait) -> None:
        """A branch waits for messages no more: it may have been woken for one that it has left to others."""
        if len(self._session.journal.inbox):
            self.fire()
        if self._messages.reader.has_passed(wait.messages) and any(map(self.waits.awaits, wait.messages)):
            # There may be more of what it has taken, for others.
            self.arrivals.signal(lease=False)

    async def hold(self) -> None:
        """Park a branch that may not go on now: the instance is evicted, or nothing is to be called."""
        self._held = True
        self.rest()
        try:
            await anyio.sleep_forever()
        finally:
            # Of a race that was decided meanwhile: whoever ran this branch counts it off.
            self.waits.active += 1

    def rest(self) -> None:
        """One branch less is active."""
        self.waits.active -= 1
        self._look_for_turn()
        if self.waits.active == 0 and not self._is_idle and not self._session.life.halted:
            self._session.host.spawn(self._settle)

    def fire(self) -> None:
        """Wake the branches whose time has come, or for whom there may be a message."""
        if self._session.life.halted or self._leaving or (self._turns is not None and self._turns.steps_back):
            return
        served = self.waits.served() if len(self._session.journal.inbox) else []
        now = self._session.clock.time()
        due = self.waits.next_time
        is_due = due is not None and due <= now
        if not (served or is_due) or (self._is_idle and not self._session.host.may_go_on(self)):
            return
        for wait in [*self.waits.due(now), *served]:
            self._wake(wait)

    def _wake(self, wait: Wait) -> None:
        if wait.fired:
            return
        wait.fired = True
        if wait.parked:
            self.waits.active += 1
        wait.wakeup.wake()
        self._leave_idle()

    def _leave_idle(self) -> None:
        """Something goes on: with the next commit, the instance is not stored as waiting any more."""
        if self._is_idle:
            self._is_idle = False
            if self._turns is not None:
                self._turns.begin()
            self._session.host.rests(self, idle=False)
        if self._head.status is not Status.ROLLING_BACK:
            self._head.become(Status.RUNNING)

    def let_all_go(self) -> None:
        """The run is over: whoever waits is woken, and finds that there is nothing to go on with."""
        self.waits.let_all_go()
        if self._turns is not None:
            self._turns.go_on()

    # Every branch is parked.

    async def _settle(self) -> None:
        """Every branch is parked: have that recorded, unless something goes on at once."""
        if self._settling:
            # Whoever is at it looks again when it has done so.
            return
        self._settling = True
        self.busy += 1
        try:
            while self.waits.active == 0 and not self._is_idle and not self._session.life.halted:
                self.fire()
                if self.waits.active == 0 and not await self._messages.sort():
                    await self._become_idle()
        finally:
            self._settling = False
            self.busy -= 1
            if self._session.life.halted:
                self._session.life.stop()

    async def _become_idle(self) -> None:
        """Record that every branch is parked; in yield mode, release the instance in the same commit."""
        if not self._held:
            self._session.life.get_past_deaths()
        if self._head.status is not Status.ROLLING_BACK and not self._held:
            self._head.become(Status.WAITING if self.waits.is_told else Status.SLEEPING)
        self._state.show()
        if self._session.life.halted:
            return
        if self._mode == "live":
            self._is_idle = True
            self._session.host.rests(self, idle=True)
            await self._session.flusher.commit()
            return
        self._leaving = True
        try:
            await self._release()
        finally:
            self._leaving = False

    async def _release(self) -> None:
        # What was kept from going on is due at once.
        now = self._session.clock.time()
        when = now if self._held else self.waits.next_time
        self._head.due(due_at_once(now) if self._held else when)

        def released(_: object) -> None:
            self.idle_result = (self._head.status, when, self.waits.messages)
            self._session.life.went_away()

        error = await self._session.flusher.try_commit(self._park(self.stamp), released)
        if error is None:
            return
        if not isinstance(error, _MessageCame):
            self._session.life.storage_failed(error)
        elif await self.arrivals.take_in():
            # It is not released after all, and what goes on now must not be stored as waiting.
            self._head.due(None)
            self._leave_idle()
            self._leaving = False
            self._session.host.waits_changed(self)

    @change
    def _park(self, stamp: bytes | None) -> Steps[None]:
        """Release the instance, unless a message has come that is not known here: each changes the inbox stamp."""
        if (yield Assume(self._session.journal.keys.stamp, stamp)) != stamp:
            raise _MessageCame
        yield self._head.let_go()


class Arrivals:
    """The messages that come while the branches of one run wait."""

    __slots__ = ("_checks", "_is_reading", "_messages", "_parking", "_session")

    def __init__(self, session: Session, messages: RunMessages, parking: RunParking) -> None:
        self._session = session
        self._messages = messages
        self._parking = parking
        self._is_reading = False
        """What has come is being read."""
        self._checks = False
        """Whether the lease is to be looked at with the messages."""

    async def take_in(self) -> bool:
        """Read the message that has kept the instance from being released; False if that can't be."""
        await self._messages.read_all()
        if self._messages.reader.lease != self._session.lease:
            self._session.life.storage_failed(ConflictError("the lease is lost"))
        return not self._session.life.halted

    def signal(self, *, lease: bool = True) -> None:
        """A message may have come; with `lease`, the instance may also have been taken away."""
        self._messages.reader.has_come = True
        self._checks = self._checks or lease
        if not self._is_reading and not self._session.life.halted:
            self._is_reading = True
            self._session.host.spawn(self._take_messages)

    async def _take_messages(self) -> None:
        life, reader = self._session.life, self._messages.reader
        self._parking.busy += 1
        try:
            while not life.halted and (reader.has_come or await self._sort()):
                if reader.has_come:
                    await self._read_new()
        finally:
            self._is_reading = False
            self._parking.busy -= 1

    async def _read_new(self) -> None:
        """Read what has come; and the lease, if the instance may have been taken over, or is to be evicted."""
        life, reader = self._session.life, self._messages.reader
        checked, self._checks = self._checks, False
        await self._messages.read_all(with_lease=checked)
        if not checked or life.halted:
            return
        if reader.lease != self._session.lease:
            # Whoever has taken the instance over may have taken the message, too: there would be nothing to wait
            # for. What is in flight is refused, and ends first.
            await self._session.flusher.until_landed()
            life.storage_failed(ConflictError("the lease is lost"))
        if reader.evicted == self._session.lease and not life.halted:
            self._session.journal.write_outside(self._session.journal.keys.evicted, None)
            self._session.host.evict(self._parking)

    async def _sort(self) -> bool:
        """Wake those for whom there are messages; whether there may be more for others."""
        self._parking.fire()
        return not self._session.life.halted and await self._messages.sort()

    async def watch(self) -> None:
        """Return once a message may have come, and was read."""
        if await self._messages.watch():
            self._messages.reader.has_come = self._checks = True
            await self._take_messages()
