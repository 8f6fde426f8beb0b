"""Running machines once for every commit that they make, and killing their process there."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final, cast
from uuid import uuid4

import anyio
from msgspec.structs import replace

from workflow_sdk import Runtime, Workflow
from workflow_sdk.changes.workers import Heartbeat
from workflow_sdk.client.watching import wait_idly
from workflow_sdk.driver import Batch, Driver, open_driver
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.machines import Executor, Machine, Manifest, route
from workflow_sdk.machines.rows import cell_status
from workflow_sdk.machines.stepping import event_data
from workflow_sdk.rows.keys import WorkerKeys
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.wire import shown
from workflow_sdk.testing._cells_report import (
    CellCrashReport,
    CellCrashRun,
    CellEnding,
    CellsEnding,
    differences_of_cells,
)
from workflow_sdk.testing._cells_seen import ALL, Found, Ledger, Space
from workflow_sdk.testing._elsewhere import machines_elsewhere, rewritten
from workflow_sdk.testing.clock import VirtualClock
from workflow_sdk.testing.crash_report import Side
from workflow_sdk.testing.drivers import FaultyDriver, SimulatedCrash
from workflow_sdk.values import Codec, Wrappers

MOMENT: Final = 1 / 1024
"""How long it takes at least from one event to the next, in seconds; no sum of these is rounded."""
LOOKS_MAX: Final = 64
HORIZON: Final = timedelta(days=400)
TIMERS_MAX: Final = 10_000
"""How many timers may come after the last event."""


@dataclass(frozen=True)
class Coming:
    """An event that is sent."""

    event: Any
    delay: float | None
    """Seconds after the event before it; None: as soon as all is still."""


@dataclass(eq=False)
class CellStage:
    """What all runs share."""

    driver: Driver
    manifest: Manifest
    events: Sequence[Coming]
    executors: Sequence[Executor]
    reset: Callable[[], Awaitable[None] | None] | None
    codec: Wrappers | None
    horizon: float
    """Seconds after the last event: timers that are due later are not let come."""
    process: int = 0
    """The number of the process in which transitions are taken."""

    async def everywhere(self, numbers: Callable[[int], list[int]]) -> CellCrashReport:
        """A run without a crash, another one, and one for each commit and side. `numbers`: which, of so many."""
        machines = list(self.manifest.machines.values())
        with rewritten(machines), machines_elsewhere(machines, lambda: self.process):
            return await self._everywhere(numbers)

    async def _everywhere(self, numbers: Callable[[int], list[int]]) -> CellCrashReport:
        name = ", ".join(self.manifest.machines)
        clean, ledger, faulty = await self._without_a_crash()
        again, _, _ = await self._without_a_crash(process=1)
        problems = (*ledger.problems, *differences_of_cells(clean, again))
        runs: list[CellCrashRun] = []
        if not problems:
            for number in numbers(faulty.commits):
                runs += [await self._with_a_crash(number, side, clean) for side in ("before", "after")]
        stored = {number: tuple(words) for number, words in ledger.stored.items()}
        report = CellCrashReport(name, faulty.commits, clean, tuple(runs), problems, stored)
        if not report.ok:
            raise AssertionError(str(report))
        return report

    async def _without_a_crash(self, *, process: int = 0) -> tuple[CellsEnding, Ledger, FaultyDriver]:
        self.process = process
        async with _Play(self) as play:
            faulty = FaultyDriver(play.space)
            play.space.number = lambda: faulty.commits
            await play.go_on(faulty)
            return await play.ending(), play.ledger, faulty

    async def _with_a_crash(self, number: int, side: Side, clean: CellsEnding) -> CellCrashRun:
        self.process = 0
        crashes = {"crash_before": number} if side == "before" else {"crash_after": number}
        async with _Play(self) as play:
            faulty = FaultyDriver(play.space, **crashes)
            try:
                with _quietly():
                    await play.go_on(faulty)
            except* SimulatedCrash:
                await play.let_leases_end()
            self.process, ledger = 1, play.ledger
            before, ledger.called = set(ledger.called), []
            await play.go_on(play.space)
            ending = await play.ending()
            again = tuple(sorted(ledger.recorded.get(id, id) for id in before & set(ledger.called)))
            problems = (*dict.fromkeys(ledger.problems), *differences_of_cells(clean, ending))
            return CellCrashRun(number, side, faulty.crashed, again, problems, ending)


class _Play:
    """One run from the beginning over its crash to the end, in a part of the store that it leaves empty."""

    def __init__(self, stage: CellStage) -> None:
        self._stage = stage
        self.ledger = Ledger()
        self.space = Space(stage.driver, f"crash-everywhere-{uuid4().hex[:8]}/".encode(), self.ledger)
        self._clock = VirtualClock()
        self._seen = self._clock.oversee(self.space)
        """The same part of the store: the clock stands still while it is read."""
        self._begun = 0
        """How many events were sent, or may have been."""
        self._sent_at = self._clock.time()

    async def __aenter__(self) -> _Play:
        reset = self._stage.reset
        if reset is not None:
            done = reset()
            if isawaitable(done):
                await done
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.space.forget()

    async def go_on(self, driver: Driver) -> None:
        """Run the machines in a new process: send all events, those again that were sent before, to the end."""
        stage = self._stage
        executors = [_watched(one, self.ledger) for one in stage.executors]
        async with Runtime(
            driver, machines=stage.manifest, executors=executors, clock=self._clock, codec=stage.codec
        ) as runtime:
            for number, coming in enumerate(stage.events):
                if number >= self._begun:
                    await self._until(coming)
                    self._begun, self._sent_at = number + 1, self._clock.time()
                await runtime.emit(coming.event, id=f"event {number}")
            await self._to_the_end()

    async def _until(self, coming: Coming) -> None:
        if coming.delay is None:
            if self._begun:
                await self._until_still()
        else:
            await wait_idly(self._clock, anyio.Event(), self._sent_at + coming.delay)

    async def _to_the_end(self) -> None:
        for _ in range(TIMERS_MAX):
            due = min((await self._until_still()).timers, default=None)
            if due is None or due > self._sent_at + self._stage.horizon:
                return
            await wait_idly(self._clock, anyio.Event(), due)
        raise AssertionError(
            f"{TIMERS_MAX:,} timers have come after the last event, and there are more: with `horizon=`, those that "
            "are due later are left"
        )

    async def _until_still(self) -> Found:
        """Wait until nothing is under way; return what is stored then."""
        effects, found = [one.effect.name for one in self._stage.executors], Found()
        for look in range(LOOKS_MAX):
            # The clock comes to that time as soon as nobody on it has anything to do.
            await wait_idly(self._clock, anyio.Event(), self._clock.time() + min(MOMENT * 2**look, 3600))
            found = Found.among(await self._seen.scan(*ALL))
            if found.is_still(effects, self._clock.time()):
                return found
        raise AssertionError("the machines are never still: " + _under_way(found))

    async def let_leases_end(self) -> None:
        """Have workers that are dead count as dead at once. So no time passes, and what depends on it is the same."""
        batch = Batch()
        for key, raw in await self.space.scan(*WorkerKeys.heartbeats()):
            batch.set(key, replace(Heartbeat.unpack(raw), ttl=0.0).pack())
        await self.space.commit(batch)

    async def ending(self) -> CellsEnding:
        """What the machines have come to."""
        codec, found = Codec(wrapper=self._stage.codec), Found.among(await self.space.scan(*ALL))
        cells: dict[str, CellEnding] = {}
        for id, head in found.heads.items():
            row = found.cells.get(id)
            state = codec.unseal(found.states[id]) if id in found.states else None
            sequence, revision = (0, 0) if row is None else (row.sequence, row.revision)
            pending = tuple(sorted(found.pending[id]))
            cells[id] = CellEnding(cell_status(head.status), state, sequence, revision, pending, found.queued[id])
        ledger = self.ledger
        settled = {id: ledger.recorded.get(id, "") for id in ledger.settled}
        left = {id: row.effect for id, row in found.intents.items()}
        return CellsEnding(cells, found.counts, settled, left, dict(found.shapes))


def _under_way(found: Found) -> str:
    cells = [f"cell {id} has {number} messages" for id, number in found.queued.items()]
    return ", ".join([*cells, *(f"{row.effect} is not settled" for row in found.intents.values())]) or "cells are due"


def _watched(one: Executor, ledger: Ledger) -> Executor:
    """An executor that notes its calls."""
    if iscoroutinefunction(one.fn):

        @wraps(one.fn)
        async def waits(params: Any, intent: Any) -> Any:
            ledger.calls(intent.id, intent.effect)
            return await one.fn(params, intent)

        return Executor(one.effect, waits, one.options)

    @wraps(one.fn)
    def plain(params: Any, intent: Any) -> Any:
        ledger.calls(intent.id, intent.effect)
        return one.fn(params, intent)

    return Executor(one.effect, plain, one.options)


class _Deaths(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        return error is None or not _is_death(error)


def _is_death(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).subgroup(SimulatedCrash) is not None
    return isinstance(error, SimulatedCrash)


@contextmanager
def _quietly() -> Generator[None]:
    """A death on purpose is no news."""
    loggers, silence = [logging.getLogger(f"workflow_sdk.{name}") for name in ("runtime", "machines")], _Deaths()
    for one in loggers:
        one.addFilter(silence)
    try:
        yield
    finally:
        for one in loggers:
            one.removeFilter(silence)


# What is given to `crash_everywhere`.


def check_for_machines(script: object, *others: Iterable[object]) -> None:
    """DefinitionError, if something is given that machines have not."""
    if script is not None or any([*each] for each in others):
        raise DefinitionError("crash_everywhere(machine, events) has no script, workflows or handlers")


def check_for_workflows(given: object, manifest: object, executors: Iterable[object]) -> None:
    """DefinitionError, if it is no workflow, or something is given that only machines have."""
    if not isinstance(given, Workflow):
        raise DefinitionError(
            f"crash_everywhere takes a function decorated with @workflow, or a machine, not {shown(given)}"
        )
    if manifest is not None or [*executors]:
        raise DefinitionError("crash_everywhere takes manifest= and executors= for machines only")


async def crash_machines(
    given: Machine[Any] | Manifest,
    events: object,
    manifest: Manifest | None,
    executors: Iterable[Executor],
    horizon: Duration,
    store: str | Driver,
    reset: Callable[[], Awaitable[None] | None] | None,
    codec: Wrappers | None,
    numbers: Callable[[int], list[int]],
) -> CellCrashReport:
    """Kill machines at every commit, in a real Runtime on virtual time; a new one goes on with what is stored.

    The events are sent one after the other, each as soon as nothing is under way, or, as `(seconds, event)`, that long
    after the one before. After a crash, those are sent again that may have been sent, with the same ids. Timers that
    are due by `horizon` after the last event are let come. All runs end with the same cells, the same effects settled
    and the same rows left in the store; no effect begins before it is recorded, or runs again once it is settled. A
    machine without keys needs no manifest. `numbers`: at which commits, of so many.
    """
    found = _manifest_of(given, manifest)
    coming = _events_of(events, found)
    driver = await open_driver(store) if isinstance(store, str) else store
    try:
        stage = CellStage(driver, found, coming, list(executors), reset, codec, seconds(horizon, "horizon"))
        return await stage.everywhere(numbers)
    finally:
        if isinstance(store, str):
            await driver.aclose()


def _manifest_of(given: Machine[Any] | Manifest, manifest: Manifest | None) -> Manifest:
    if manifest is not None and not isinstance(manifest, Manifest):
        raise DefinitionError(f"crash_everywhere(manifest=...) takes a Manifest, not {shown(manifest)}")
    if isinstance(given, Manifest):
        if manifest not in (None, given):
            raise DefinitionError("crash_everywhere takes one manifest, and was given two")
        return given
    found = manifest or _manifest_without_routes(given)
    if found.machines.get(given.name) is not given:
        raise DefinitionError(f"machine {given.name!r} is not in the manifest of crash_everywhere")
    return found


def _manifest_without_routes(given: Machine[Any]) -> Manifest:
    if given.is_keyed:
        raise DefinitionError(
            f"machine {given.name!r} has a cell for every key, and where in an event the key stands is said by "
            "routes: crash_everywhere(machine, events, manifest=Manifest(machines=[...], routes=[...]))"
        )
    return Manifest([given], [route(arm.hint, given) for arm in given.arms.values()])


def _events_of(given: object, manifest: Manifest) -> list[Coming]:
    """The events, each with its delay; DefinitionError, if they are none."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise DefinitionError(f"crash_everywhere(machine, events) takes a list of events, not {shown(given)}")
    found: list[Coming] = []
    for one in cast("Sequence[object]", given):
        delay, event = _delayed(one)
        try:
            targets = manifest.targets(event_data(event))
        except CodecError as error:
            raise DefinitionError(f"the event {shown(event)} can't be sent: {error}") from error
        if not targets:
            raise DefinitionError(f"the event {shown(event)} has no route")
        found.append(Coming(event, delay))
    return found


def _delayed(given: object) -> tuple[float | None, Any]:
    if type(given) is not tuple:
        return None, given
    pair = cast("Sequence[Any]", given)
    if len(pair) != 2:
        raise DefinitionError(f"an event with a delay is (seconds, event), not {shown(pair)}")
    delay = seconds(pair[0], "the delay of an event")
    if delay < 0:
        raise DefinitionError(f"the delay of an event is not negative, got {shown(pair[0])}")
    return delay, pair[1]
