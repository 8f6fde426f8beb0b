"""Parking: branches wait in memory, and when every branch is parked the instance is idle.

The last branch to park has that recorded. Then the instance waits in memory for a timer or a message; or it is released
in the same commit, and leaves the memory.
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
    """The instance can't be released: there is a message that its run does not know."""


class RunParking:
    """Parks and wakes the branches of one run, and releases the instance when it is idle."""

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
        """Made when other instances wait for slots. Mostly none does, and there may be thousands of these objects."""
        self.idle_result: tuple[Status, float | None, list[str]] | None = None
        """Set when an idle instance was released: its status, when it is due, and the messages that it waits for."""
        self.busy: int = 0
        """How many tasks of the engine itself are at work, though every branch may be parked."""
        self._is_idle = False
        """Whether the instance waits in memory, and that is recorded, or just being recorded."""
        self._settling = False
        self._leaving = False
        """Whether the instance is being released: no branch is woken until that has succeeded or failed."""
        self._held = False
        """Whether a branch was kept from going on, so that the instance has something to do as soon as it is loaded."""
        self._arrivals: Arrivals | None = None
        session.life.branches = self

    @property
    def arrivals(self) -> Arrivals:
        """The part that reads the messages which come. Made when first needed: there may be thousands of instances."""
        if self._arrivals is None:
            self._arrivals = Arrivals(self._session, self._messages, self)
        return self._arrivals

    # As the host knows it.

    @property
    def instance_id(self) -> str:
        """The id of the instance."""
        return self._session.journal.keys.instance_id

    @property
    def next_time(self) -> float | None:
        """When the first timer of the branches is due; None if no timer is to be waited for."""
        # While no branch is woken, timers do not count: the host would come back at once, again and again.
        return None if self._session.life.halted or self._leaving else self.waits.next_time

    @property
    def listens(self) -> bool:
        """Whether a message is awaited."""
        return self.waits.listens

    @property
    def is_idle(self) -> bool:
        """Whether the instance waits in memory, and that is recorded, or just being recorded."""
        return self._is_idle

    @property
    def stamp(self) -> bytes | None:
        """The value of the inbox stamp when messages were last read. If it is another now, there are more."""
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
        """Let other instances, which wait for slots, go first if the turn of this one is over."""
        if self._turns is None:
            self._turns = Turns(self._session.host, self, self.waits)
        if self._turns.is_over:
            await self._turns.let_others_go()
            if self._session.life.halted or self._session.life.is_over:
                await self._session.life.never()

    def _look_for_turn(self) -> None:
        """Note that one branch less is active: those that are left may all be ready to let others go first."""
        if self._turns is not None:
            self._turns.look()

    async def park(self, wait: Wait) -> None:
        """Record that the branch waits, and return once what it waits for may be there."""
        life, waits = self._session.life, self.waits
        if life.halted:
            await life.never()
        waits.add(wait)
        try:
            self._session.host.waits_changed(self)
            if waits.active > 1:
                # Other branches go on, so the wait is written now. Otherwise every branch is parked, and the commit
                # that records this takes the wait along.
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
                    # The branch was cancelled, so `_wake` has not counted it as active again.
                    waits.active += 1
                    self._leave_idle()
            if life.halted or life.is_over:
                await life.never()
        finally:
            waits.remove(wait)
            if wait.messages:
                self._leave_to_others(wait)

    def _leave_to_others(self, wait: Wait) -> None:
        """Look for other takers, since a branch that does not wait any more may have left messages that came for it."""
        if len(self._session.journal.inbox):
            self.fire()
        if self._messages.reader.has_passed(wait.messages) and any(map(self.waits.awaits, wait.messages)):
            # Not all messages are in memory, and the store may have more of this name for other branches.
            self.arrivals.signal(lease=False)

    async def hold(self) -> None:
        """Park a branch that may not go on now, since the instance is evicted or nothing may be called."""
        self._held = True
        self.rest()
        try:
            await anyio.sleep_forever()
        finally:
            # Cancelled, since a race was decided meanwhile: the race counts each branch off when it ends.
            self.waits.active += 1

    def rest(self) -> None:
        """Count one branch less as active."""
        self.waits.active -= 1
        self._look_for_turn()
        if self.waits.active == 0 and not self._is_idle and not self._session.life.halted:
            self._session.host.spawn(self._settle)

    def fire(self) -> None:
        """Wake the branches whose time has come, or for which there may be a message."""
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
        """Note that a branch goes on: from the next commit on, the instance is not recorded as waiting."""
        if self._is_idle:
            self._is_idle = False
            if self._turns is not None:
                self._turns.begin()
            self._session.host.rests(self, idle=False)
        if self._head.status is not Status.ROLLING_BACK:
            self._head.become(Status.RUNNING)

    def let_all_go(self) -> None:
        """Wake every branch, since the run is over: each then finds that it can't go on."""
        self.waits.let_all_go()
        if self._turns is not None:
            self._turns.go_on()

    # Every branch is parked.

    async def _settle(self) -> None:
        """Record that every branch is parked, unless one goes on at once."""
        if self._settling:
            # The call that is under way looks again, in its loop, after each `await`.
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
        """Record that every branch is parked; in mode "yield", release the instance in the same commit."""
        if not self._held:
            self._session.life.get_past_deaths()
        if self._head.status is not Status.ROLLING_BACK and not self._held:
            self._head.become(Status.WAITING if self.waits.is_told else Status.SLEEPING)
        self._state.show()
        if self._session.life.halted:
            return
        if self._mode == "live":
            # Set before the commit: a branch that is woken during it has the instance stored as running by the next
            # one.
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
        # A branch that was kept from going on has something to do, so the instance is due at once.
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
            # The instance was not released after all: undo what was prepared for the commit.
            self._head.due(None)
            self._leave_idle()
            self._leaving = False
            self._session.host.waits_changed(self)

    @change
    def _park(self, stamp: bytes | None) -> Steps[None]:
        """Release the instance; raise `_MessageCame` if the inbox stamp has changed since messages were last read.

        A commit that adds a message checks the lease, this one checks the stamp: so one of the two sees the other.
        """
        if (yield Assume(self._session.journal.keys.stamp, stamp)) != stamp:
            raise _MessageCame
        yield self._head.let_go()


class Arrivals:
    """Reads the messages that come while the branches of one run wait, and wakes the branches that they are for."""

    __slots__ = ("_checks", "_is_reading", "_messages", "_parking", "_session")

    def __init__(self, session: Session, messages: RunMessages, parking: RunParking) -> None:
        self._session = session
        self._messages = messages
        self._parking = parking
        self._is_reading = False
        """Whether a task is reading messages now."""
        self._checks = False
        """Whether the lease is to be read with the messages."""

    async def take_in(self) -> bool:
        """Read the messages that have kept the instance from being released; False if the run is over by then."""
        await self._messages.read_all()
        if self._messages.reader.lease != self._session.lease:
            self._session.life.storage_failed(ConflictError("the lease is lost"))
        return not self._session.life.halted

    def signal(self, *, lease: bool = True) -> None:
        """Have messages read, since one may have come; with `lease`, the instance may also have been taken over."""
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
        """Read new messages; and also the lease, if the instance may have been taken over or is to be evicted."""
        life, reader = self._session.life, self._messages.reader
        checked, self._checks = self._checks, False
        await self._messages.read_all(with_lease=checked)
        if not checked or life.halted:
            return
        if reader.lease != self._session.lease:
            # Another worker has the instance, and may have taken the messages already. A commit that is in flight now
            # will be refused; wait for that first, so that the run does not end in the middle of it.
            await self._session.flusher.until_landed()
            life.storage_failed(ConflictError("the lease is lost"))
        if reader.evicted == self._session.lease and not life.halted:
            self._session.journal.write_outside(self._session.journal.keys.evicted, None)
            self._session.host.evict(self._parking)

    async def _sort(self) -> bool:
        """Wake the branches for which there are messages; return whether to look once more."""
        self._parking.fire()
        return not self._session.life.halted and await self._messages.sort()

    async def watch(self) -> None:
        """Return once a message may have come and the new messages were read."""
        if await self._messages.watch():
            self._messages.reader.has_come = self._checks = True
            await self._take_messages()
