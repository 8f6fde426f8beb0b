"""Waiting: branches park in memory, and when every branch is parked the instance is idle.

The last branch to park has that recorded. Then the instance waits in memory for the first thing to happen, or it is put
away in the same commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import monotonic
from typing import Literal, NoReturn

import anyio

from workflow_sdk.changes.change import Assume, Steps, change
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.status import Status
from workflow_sdk.core.times import due_at_once
from workflow_sdk.driver import ConflictError
from workflow_sdk.execution.clock import Clock
from workflow_sdk.execution.flushing import Flusher
from workflow_sdk.execution.host import Host
from workflow_sdk.execution.mail import Mail
from workflow_sdk.execution.standing import Standing
from workflow_sdk.execution.waiting import Waits
from workflow_sdk.operations.engine import Facts, Wait

__all__ = ["Idling", "Mode"]

Mode = Literal["yield", "live"]

TURN_SECONDS = 0.005
"""How long an instance goes on while others are ready and there is no room for them."""


GATHER_SECONDS = 0.05
"""How long the branches of an instance that is to let others go first wait for each other."""
APART_SECONDS = 0.5
"""How long they go on if they did not meet: one of them may be in a long step."""


class _MailCame(Exception):
    """An instance can't be parked: there is a message that its run does not know."""


class Idling(ABC):
    """The part of an execution that waits."""

    __slots__ = (
        "_busy",
        "_gathered",
        "_held",
        "_in_line",
        "_is_idle",
        "_is_over",
        "_leaving",
        "_settling",
        "_since",
        "_turn",
        "_waits",
        "active",
        "clock",
        "draining",
        "facts",
        "flusher",
        "host",
        "idle_result",
        "is_away",
        "journal",
        "lease",
        "mail",
        "mode",
        "standing",
    )

    def __init__(
        self,
        *,
        journal: Journal,
        clock: Clock,
        facts: Facts,
        lease: bytes,
        mode: Mode,
        host: Host,
        mail: Mail,
        standing: Standing,
        flusher: Flusher,
    ) -> None:
        self.journal: Journal = journal
        self.clock: Clock = clock
        self.facts: Facts = facts
        self.lease: bytes = lease
        self.mode: Mode = mode
        self.host: Host = host
        self.mail: Mail = mail
        self.standing: Standing = standing
        self.flusher: Flusher = flusher
        self.draining: bool = False
        """Nothing new is begun: the instance is put away as soon as what is under way has ended."""
        self.active: int = 1
        self.is_away: bool = False
        """The instance was put away."""
        self.idle_result: tuple[Status, float | None, list[str]] | None = None
        """How the instance was put away."""
        self._waits = Waits(journal)
        mail.needed = self._waits.needed
        self._is_idle = False
        self._settling = False
        self._leaving = False
        """It is being put away: nobody is woken until that is decided."""
        self._busy = 0
        """What the engine itself does while every branch is parked."""
        self._turn: anyio.Event | None = None
        """Set when it is the turn of this instance again, while it lets others go first."""
        self._gathered = 0
        """How many branches are ready to let others go first."""
        self._in_line = False
        """All of them are, and it has given up its turn."""
        self._since = monotonic()
        """When its turn began."""
        self._held = False
        """A branch was kept from going on."""
        self._is_over = False
        """Nobody wakes the branches any more."""

    @property
    @abstractmethod
    def halted(self) -> bool:
        """Whether the run is over: nothing may be done any more."""

    @abstractmethod
    async def flush(self, *, stay: bool = False) -> None:
        """Return once everything changed so far is in the store."""

    @abstractmethod
    async def never(self) -> NoReturn:
        """Wait to be cancelled: the run is over, or this branch is."""
        raise NotImplementedError

    @abstractmethod
    def storage_failed(self, error: Exception) -> None:
        """The store failed, or the lease is lost."""

    @abstractmethod
    def show(self) -> None:
        """Have the world see what was assigned, with the next commit."""

    @abstractmethod
    async def sort_mail(self) -> bool:
        """Set aside what no wait can take, or read on what was passed over; whether there was anything to do."""

    @abstractmethod
    async def read_mail(self, messages: tuple[str | bytes, ...]) -> None:
        """Read some more of the messages with these names."""

    @abstractmethod
    def poke(self, *, lease: bool = True) -> None:
        """A message may have come."""

    @abstractmethod
    def get_past_deaths(self) -> None:
        """Whatever workers have died of, the instance has got past it."""

    @abstractmethod
    def _stop(self) -> None:
        """End the run."""

    def now(self) -> float:
        return self.clock.time()

    @property
    def instance_id(self) -> str:
        return self.facts.instance_id

    @property
    def next_time(self) -> float | None:
        # What nobody is woken for is nothing to wait for: the time that is over would be over again and again.
        return None if self.halted or self._leaving else self._waits.next_time

    @property
    def listens(self) -> bool:
        return self._waits.listens

    def awaits(self, message: str | bytes) -> bool:
        """Whether a branch waits for the message."""
        return self._waits.awaits(message)

    @property
    def is_idle(self) -> bool:
        """Whether it waits in memory, and the store says so."""
        return self._is_idle

    async def park(self, wait: Wait) -> None:
        if self.halted:
            await self.never()
        if wait.messages and self.mail.lacks(wait.messages, [], wait.count):
            await self.read_mail(wait.messages)
            return
        self._waits.add(wait)
        try:
            self.host.waits_changed(self)
            if self.active > 1:
                # Siblings go on. Else the commit that records the instance as idle takes our changes along.
                await self.flush()
                if wait.fired:
                    return
            wait.parked = True
            self.active -= 1
            try:
                if self.active == 0:
                    await self._settle()
                else:
                    self._all_gathered()
                await wait.bell.until_rung()
            finally:
                if not wait.fired:
                    self.active += 1
                    self._leave_idle()
            if self.halted or self._is_over:
                await self.never()
        finally:
            self._waits.remove(wait)
            if wait.messages and len(self.journal.inbox):
                # It may have been woken for a message that it has left to others.
                self.fire()
            if self.mail.has_passed(wait.messages) and any(map(self._waits.awaits, wait.messages)):
                # There may be more of what it has taken, for others.
                self.poke(lease=False)

    def rest(self) -> None:
        self.active -= 1
        self._all_gathered()
        if self.active == 0 and not self._is_idle and not self.halted:
            self.host.spawn(self._settle)

    def fire(self) -> None:
        """Wake the branches whose time has come, or for whom there may be a message."""
        if self.halted or self._leaving or self._in_line:
            return
        served = self._waits.served() if len(self.journal.inbox) else ()
        now = self.now()
        due = self._waits.next_time
        if not served and (due is None or due > now):
            return
        if self._is_idle and not self.host.may_go_on(self):
            return
        for wait in self._waits.due(now):
            self._wake(wait)
        for wait in served:
            self._wake(wait)

    def _wake(self, wait: Wait) -> None:
        if wait.fired:
            return
        wait.fired = True
        if wait.parked:
            self.active += 1
        wait.bell.ring()
        self._leave_idle()

    def _leave_idle(self) -> None:
        """Something goes on: with the next commit, the instance is not stored as waiting any more."""
        if self._is_idle:
            self._is_idle = False
            self._since = monotonic()
            self.host.rests(self, idle=False)
        if self.standing.status is not Status.ROLLING_BACK:
            self.standing.become(Status.RUNNING)

    async def _settle(self) -> None:
        """Every branch is parked: have that recorded, unless something goes on at once."""
        if self._settling:
            # Whoever is at it looks again when it has done so.
            return
        self._settling = True
        self._busy += 1
        try:
            while self.active == 0 and not self._is_idle and not self.halted:
                self.fire()
                if self.active == 0 and not await self.sort_mail():
                    await self._become_idle()
        finally:
            self._settling = False
            self._busy -= 1
            if self.halted:
                self._stop()

    async def _become_idle(self) -> None:
        """Record that every branch is parked; in yield mode, put the instance away in the same commit."""
        if not self._held:
            self.get_past_deaths()
        if self.standing.status is not Status.ROLLING_BACK and not self._held:
            self.standing.become(Status.WAITING if self._waits.listens else Status.SLEEPING)
        self.show()
        if self.halted:
            return
        if self.mode == "live":
            self._is_idle = True
            self.host.rests(self, idle=True)
            await self.flusher.commit()
            return
        self._leaving = True
        try:
            await self._go_away()
        finally:
            self._leaving = False

    async def _go_away(self) -> None:
        # What was kept from going on is due at once.
        when = self.clock.time() if self._held else self._waits.next_time
        self.standing.due(due_at_once(self.clock.time()) if self._held else when)

        def gone(_: object) -> None:
            self.idle_result = (self.standing.status, when, self._waits.messages)
            self.is_away = True

        error = await self.flusher.try_commit(self._park(self.mail.nudge), gone)
        if error is None:
            return
        if not isinstance(error, _MailCame):
            self.storage_failed(error)
        elif await self._take_in_mail():
            # It is not put away after all, and what goes on now must not be stored as waiting.
            self.standing.due(None)
            self._leave_idle()
            self._leaving = False
            self.host.waits_changed(self)

    async def _take_in_mail(self) -> bool:
        """Take in the message that has kept the instance from being put away; False if that can't be."""
        try:
            await self.mail.refresh(standing=True)
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
            return False
        if self.mail.lease != self.lease:
            self.storage_failed(ConflictError("the lease is lost"))
        return not self.halted

    @change
    def _park(self, nudge: bytes | None) -> Steps[None]:
        """Give the instance back, unless a message has come that is not known here: each changes the nudge."""
        if (yield Assume(self.journal.keys.nudge, nudge)) != nudge:
            raise _MailCame
        yield self.standing.let_go()

    async def _let_others_go(self) -> None:
        """Others are ready, and this instance has had its turn: it waits for the next.

        That takes every branch: while one is in a step, the instance runs. If they don't meet soon, it goes on.
        """
        if self.draining:
            return
        turn = self._turn
        if turn is None:
            turn = self._turn = anyio.Event()
        self._gathered += 1
        try:
            self._all_gathered()
            with anyio.move_on_after(GATHER_SECONDS):
                await turn.wait()
            if self._in_line:
                await turn.wait()
        finally:
            if not turn.is_set():
                self._gathered -= 1
                self._since = monotonic() + APART_SECONDS
        if self.halted or self._is_over:
            await self.never()

    def _all_gathered(self) -> None:
        if self._gathered and self._gathered == self.active and not self._in_line:
            self._in_line = True
            self.host.queue(self, self._my_turn)

    def _my_turn(self) -> None:
        self._since = monotonic()
        self._in_line = False
        self._gathered = 0
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.set()
            self.fire()

    def put_away(self) -> None:
        """Begin nothing new, and put the instance away once what is under way has ended."""
        self.mode = "yield"
        self.draining = True
        self._is_idle = False
        self._my_turn()
        if self.active == 0:
            self.host.spawn(self._settle)
