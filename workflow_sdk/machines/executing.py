"""Running executors: for one worker, those of effects that its cells have asked for, and those that are queued."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.deliver import Delivery
from workflow_sdk.client.directory import first_time
from workflow_sdk.client.watching import Watch, wait_idly
from workflow_sdk.driver import StorageLimitError
from workflow_sdk.errors import CodecError
from workflow_sdk.instance.clock import Activity
from workflow_sdk.machines.attempts import Attempts, Calls
from workflow_sdk.machines.cell import Answer
from workflow_sdk.machines.effects import timer
from workflow_sdk.machines.emitting import OtherManifestError, Told
from workflow_sdk.machines.executor import Executor
from workflow_sdk.machines.rows import LAST_TRY, IntentRow, all_executed, queue_of, signal_key
from workflow_sdk.machines.settling import drop_queued, outlive, queue_again, settle, take_intent
from workflow_sdk.machines.surroundings import Surroundings
from workflow_sdk.rows.keys import ROOT, WorkerKeys, last_of
from workflow_sdk.rows.location import pack, subtree, unpack
from workflow_sdk.rows.wire import damaged
from workflow_sdk.worker.residents import Residents

_log = logging.getLogger("workflow_sdk.machines")

PAGE: Final = 64
"""How many queued effects are read at once."""


class Executing:
    """Runs the executors of one worker."""

    def __init__(self, around: Surroundings, executors: Iterable[Executor], residents: Residents, watch: Watch) -> None:
        self._around = around
        self._executors: Mapping[str, Executor] = {one.effect.name: one for one in executors}
        self._turns = list(self._executors)
        """The effects that there are executors for, in the order in which their queues have their turns."""
        self._residents = residents
        self._watch = watch
        self._running: dict[str, anyio.CancelScope] = {}
        self._signals: dict[str, bytes | None] = {}
        self._rung = anyio.Event()
        """Set when something may have been queued."""
        self._ended = anyio.Event()
        self._dropped = anyio.Event()
        """Set when this worker has an effect that it does not run any more."""
        self._heard: dict[str, anyio.Event] = {}
        """One event for each effect whose signal has changed, set when that is read again."""
        self._calls = Calls(around.clock, residents.host.threads, self.activity)
        self._room = around.room
        self._taking = 0
        """How many effects are being taken, and do not run yet."""
        self._on_last_try: str | None = None
        """The one effect that is taken, or runs, though one more death settles it: no other such one runs beside it."""
        self._is_stopping = False
        self._gives_back = False
        around.begin = self.begin
        around.queued = lambda effect: self._rung.set()

    # One effect.

    def begin(self, id: str, intent: IntentRow) -> None:
        """Run an effect that this worker has taken."""
        if id in self._running:
            return
        scope = self._running[id] = anyio.CancelScope()
        self._room.take(id)
        if self._gives_back:
            scope.cancel()
        self._residents.host.spawn(partial(self._serve, id, intent))

    async def _serve(self, id: str, intent: IntentRow) -> None:
        scope = self._running[id]
        answer: Answer | None = None
        try:
            with scope:
                # What is given back before it has begun does not begin.
                await checkpoint_if_cancelled()
                answer = await Attempts(self._around, self._executors[intent.effect], id, intent, self._calls).make()
            if answer is not None:
                await self._settle_somehow(id, answer, intent)
            elif scope.cancel_called:
                with anyio.CancelScope(shield=True):
                    await apply(self._around.driver, queue_again(id, self._around.worker, intent.claim))
        except Exception:  # noqa: BLE001  # the store failed: a look finds the effect, and runs it again
            self._dropped.set()
            _log.warning(
                "effect %s (intent %s) could not be settled; it is run again", intent.effect, id, exc_info=True
            )
        finally:
            del self._running[id]
            if self._room.is_short or self._on_last_try == id:
                self._rung.set()
            if self._on_last_try == id:
                self._on_last_try = None
            self._one_less(id)

    def _one_less(self, id: str) -> None:
        """Note that something has ended: it makes room, and the end of the worker may wait for it."""
        self._room.free(id)
        self._ended.set()
        self._residents.one_ended()

    async def _settle_somehow(self, id: str, answer: Answer, mine: IntentRow) -> None:
        """Settle an effect that was done. Were it run again because its answer finds no room, that would never end."""
        try:
            await self._settle(id, answer, mine)
        except (CodecError, StorageLimitError) as error:
            told = Answer("fault", f"the answer can't be stored: {error}", answer.executor)
            await self._settle(id, told, mine)

    async def _settle(self, id: str, answer: Answer, mine: IntentRow | None) -> bool:
        """Settle an effect; False if it is settled, or not ours any more."""
        around = self._around
        now = around.clock.time()
        told = await apply(around.driver, settle(id, answer, around.codec, now, around.is_here, mine))
        self._tell(told)
        return told.delivery is not Delivery.STALE

    def _tell(self, told: Told) -> None:
        """Have an instance look that was told the answer of its effect."""
        if told.posted.is_stored:
            self._around.tell(told.id, told.posted.worker)

    def activity(self) -> Activity:
        """What is under way."""
        if self._calls.in_threads:
            return Activity.THREAD
        return Activity.CODE if len(self._running) > self._calls.resting else Activity.NONE

    # The loops.

    async def listen(self, effect: str) -> None:
        """Return once an effect was queued, and was seen to be."""
        await self._around.driver.changed(signal_key(effect), self._signals.get(effect))
        self._rung.set()
        # Called again before the signal was read again, `changed` would return at once, for the same effect.
        heard = self._heard[effect] = anyio.Event()
        await heard.wait()

    async def take_what_is_queued(self) -> None:
        """Take queued effects that there are executors for, and settle due timers; return to be called again."""
        around = self._around
        self._rung = anyio.Event()
        until: float | None = None
        with self._residents.looks():
            for effect in (timer.name, *self._executors):
                self._signals[effect] = await around.driver.get(signal_key(effect))
                if effect in self._heard:
                    self._heard.pop(effect).set()
            try:
                await self._take_all()
            except OtherManifestError:
                around.fenced()
            until = await self._settle_timers()
        await around.clock.wait(self._rung, until, self.activity)

    async def _take_all(self) -> None:
        """Take what is queued, as far as there is room; the rest is left to others, or to the next look."""
        is_short = False
        for number, effect in enumerate(self._turns):
            taken, has_more = await self._take(effect)
            is_short = is_short or has_more
            if has_more and not self._room.left:
                # The next room is for the next queue, however long this one is.
                first = number + (taken > 0)
                self._turns = self._turns[first:] + self._turns[:first]
                break
            if has_more:
                self._rung.set()
        self._room.is_short = is_short

    async def _take(self, effect: str) -> tuple[int, bool]:
        """Take a page of what is queued of one effect; return how many these are, and whether there may be more."""
        begin, end = subtree(queue_of(effect))
        taken, has_more = 0, True
        while has_more and not taken:
            limit = min(PAGE, self._room.left + 1)
            rows = await self._around.driver.scan(begin, end, limit=limit)
            has_more = len(rows) == limit
            for key, mark in rows:
                if self._is_stopping:
                    return taken, False
                if not self._room.left:
                    return taken, True
                is_last_try = mark == LAST_TRY
                if not is_last_try or self._on_last_try is None:
                    await self._take_one(last_of(key), key, is_last_try=is_last_try)
                    taken += 1
            begin = rows[-1][0] + b"\x00" if rows else end
        return taken, has_more

    async def _take_one(self, id: str, place: bytes, *, is_last_try: bool) -> None:
        around = self._around
        self._taking += 1
        self._room.take(id)
        if is_last_try:
            self._on_last_try = id
        try:
            taken = await apply(around.driver, take_intent(id, around.worker, around.active))
            if taken is not None:
                self.begin(id, taken)
            else:
                await apply(around.driver, drop_queued(id, place))
        finally:
            self._taking -= 1
            if is_last_try and id not in self._running:
                self._on_last_try = None
            self._one_less(id)

    async def _settle_timers(self) -> float | None:
        """Settle the timers that are due; return when the next one is."""
        around, prefix = self._around, queue_of(timer.name)
        begin, end = subtree(prefix)
        while True:
            if self._is_stopping:
                return None  # those that are due are left to others
            now = around.clock.time()
            rows = await around.driver.scan(begin, prefix + pack((now,)) + b"\xff", limit=PAGE)
            for key, _ in rows:
                if not await self._settle(last_of(key), Answer("ok"), None):
                    await apply(around.driver, drop_queued(last_of(key), key))
            if len(rows) < PAGE:
                break
            begin = rows[-1][0] + b"\x00"
        return await first_time(around.driver, begin, end, _due_of)

    async def take_what_was_left(self, ttl: float) -> None:
        """Give back what dead workers ran, and what this one has and does not run; return to be called again."""
        around = self._around
        # Who is dead is found out beside this.
        await self._watch.until_looked()
        self._dropped = dropped = anyio.Event()
        may_die = False
        with self._residents.looks():
            before = self._room.held()
            rows = await around.driver.scan(*all_executed())
            for key, _ in rows:
                worker, id = _executed(key)
                if worker == around.worker:
                    if id not in before and id not in self._room:
                        await apply(around.driver, queue_again(id, worker))
                        self._rung.set()
                elif await self._is_dead(worker):
                    await self._outlive(id, worker)
                else:
                    may_die = may_die or not around.clock.is_alive(worker)
        # Lazily, so that a virtual clock does not jump to the next pass, unless that may find a death.
        next_pass = around.clock.monotonic() + ttl / 3
        await wait_idly(around.clock, dropped, by=next_pass if may_die else None, lazily=next_pass)

    async def _outlive(self, id: str, worker: str) -> None:
        """Have others run an effect whose worker has died, unless that has happened too often."""
        around = self._around
        told = await apply(around.driver, outlive(id, worker, around.codec, around.clock.time(), around.is_here))
        if told is None:
            self._rung.set()
        else:
            _log.error("effect with intent %s is not run any more: too many workers have died while it ran", id)
            self._tell(told)

    async def _is_dead(self, worker: str) -> bool:
        if worker in self._watch.dead:
            return True
        if self._around.clock.is_alive(worker):
            return False
        # A worker writes a heartbeat before it takes anything.
        return await self._around.driver.get(WorkerKeys(worker).heartbeat) is None

    # The end of the worker.

    @property
    def is_running(self) -> bool:
        """Whether an executor runs, or waits for its next attempt, or an effect is being taken."""
        return bool(self._running or self._taking)

    def take_nothing(self) -> None:
        """Take no effect any more."""
        self._is_stopping = True
        self._room.close()

    async def give_back(self) -> None:
        """Cancel what runs, and give it back, so that others run it."""
        self._gives_back = True
        for scope in list(self._running.values()):
            scope.cancel()
        while self.is_running:
            self._ended = anyio.Event()
            await self._ended.wait()


def _executed(key: bytes) -> tuple[str, str]:
    parts = unpack(key[len(ROOT) :])
    return str(parts[-2]), str(parts[-1])


def _due_of(key: bytes) -> float:
    parts = unpack(key[len(ROOT) :])
    if len(parts) != 5 or not isinstance(parts[3], (int, float)):
        raise damaged("the time of an effect")
    return float(parts[3])
