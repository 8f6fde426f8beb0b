"""One program, run by the engine to its end, whatever trouble there is on the way; and what is to be seen then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import anyio.lowlevel

from tests.laws.model.engine import Interpreter
from tests.laws.model.invariants import CheckedDriver
from tests.laws.model.messages import BAD
from tests.laws.model.plain import MARGIN, Expected, Row
from tests.laws.model.programs import Cancel, NewMessage, Program
from tests.leftovers import check_nothing_left
from tests.patience import PATIENCE
from workflow_sdk import (
    Batch,
    Client,
    ConflictError,
    Delivery,
    Driver,
    HistoryEntry,
    LeaseLostError,
    RunResult,
    Runtime,
    Status,
    StorageError,
    WorkflowFailedError,
    WorkflowStuckError,
    read_history,
    run_workflow,
    send_message,
)
from workflow_sdk.client import handle as control
from workflow_sdk.instance.execution import Mode
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.rows.keys import INBOX, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock
from workflow_sdk.values import Codec

__all__ = ["Fault", "Trial"]

ID = "i"
RUNS_MAX = 1000
FAULTS_IN_A_ROW = 4
"""With one more, a worker may have died five times in a row without a commit: then the instance is stuck."""
QUIET = 5.0
"""No step waits for the clock here, so that quiet ones only wait for the machine."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong in one run: at its commit of that number; in a fight, after so many turns of the event loop."""

    kind: Literal["none", "crash before", "crash after", "fail", "conflict", "slow", "fight", "email"]
    at: int = 1

    def over(self, driver: Driver, send: Callable[[], Awaitable[None]]) -> Driver:
        """The store as that run finds it."""
        match self.kind:
            case "crash before":
                return FaultyDriver(driver, crash_before=self.at, latency=1e-9)
            case "crash after":
                return FaultyDriver(driver, crash_after=self.at, latency=1e-9)
            case "fail":
                return FaultyDriver(driver, fail_at={self.at}, latency=1e-9)
            case "conflict":
                return FaultyDriver(driver, conflict_at={self.at}, latency=1e-9)
            case "slow" | "fight":
                return FaultyDriver(driver, latency=1e-4, seed=self.at)
            case "email":
                return MessagingDriver(driver, self.at, send)
            case "none":
                return driver


NO_FAULT = Fault("none")
NOISE = "noise"
FLOOD = 8


class MessagingDriver(FaultyDriver):
    """Before some of its commits, a message comes."""

    def __init__(self, driver: Driver, number: int, send: Callable[[], Awaitable[None]]) -> None:
        super().__init__(driver)
        self._every = number + 1
        self._send = send

    async def commit(self, batch: Batch, /) -> None:
        if self.commits % self._every == self._every - 1:
            await self._send()
        await super().commit(batch)


class Trial:
    """One program on one store."""

    def __init__(self, program: Program, driver: Driver, mode: Mode, *, checked: bool = True) -> None:
        self.program = program if mode == "yield" else program.all_early()
        self.mode: Mode = mode
        self.clock = VirtualClock(quiet=QUIET)
        self.begin = self.clock.time()
        self.interpreter = Interpreter(program.body, self.clock)
        self.world = self.interpreter.world
        self.settled: dict[str, int] = {}
        """How often a step had been called when its outcome was stored."""
        self.checked = CheckedDriver(driver, self.settle, dense="Loop(" not in repr(program)) if checked else None
        self.driver: Driver = self.checked or driver
        self.faults: list[Fault] = []
        self.had: list[Fault] = []
        self.held: list[NewMessage] = []
        self.unwanted = 0
        self.refused: set[int] = set()
        """The payloads of the messages that came when it had ended."""
        self.result: RunResult[Any] | None = None

    def settle(self, path: str) -> None:
        self.settled[path] = self.world.calls[path]
        self.world.recorded(path)

    # Running.

    async def start(self) -> None:
        """Have the instance there, with what was sent to it before its first run."""
        early = [note for note in self.program.notes if note.at == 0]
        if self.faults and self.faults[0].kind == "email" and self.mode == "yield":
            # They come while it runs for the first time.
            self.held, early = early, []
        if not early and self.program.cancel is None and len(self.program.body) % 2:
            return  # the first run creates it
        async with Client(self.driver, clock=self.clock) as client:
            await client.start(self.interpreter.workflow, id=ID)
        for note in early:
            await self.send(note)

    async def run(self, faults: list[Fault]) -> RunResult[Any]:
        """Run it to its end, or until it is stuck or waits for what nobody sends."""
        self.faults = list(faults)
        return await self.drive()

    async def drive(self) -> RunResult[Any]:
        await self.start()
        coming = self.coming()
        for _ in range(RUNS_MAX):
            if coming and coming[0][0] <= self.clock.time() - self.begin:
                await self.send(coming.pop(0)[1])
                continue
            result = await self.once()
            if self.held:
                while self.held:
                    await self.send_next()
                continue
            if result is None:
                continue
            if result.status.is_terminal or result.status is Status.STUCK:
                self.result = result
                return result
            times = [coming[0][0] + self.begin] if coming else []
            if result.wake_at is not None:
                times.append(result.wake_at.timestamp())
            assert times, f"it waits for {result.waiting_for}, and for no time"
            self.clock.advance(max(0.0, min(times) - self.clock.time()))
        raise AssertionError(f"no end after {RUNS_MAX} runs")

    def coming(self) -> list[tuple[float, Any]]:
        """What comes from outside, in order of time."""
        found: list[tuple[float, Any]] = [(float(note.at), note) for note in self.program.notes if note.at]
        if self.program.cancel is not None:
            found.append((float(self.program.cancel.at), self.program.cancel))
        return sorted(found, key=lambda item: item[0])

    async def send(self, what: Any) -> None:
        if isinstance(what, Cancel):
            await control.cancel(self.driver, ID, Codec(), self.clock.time(), rollback=what.rollback)
        elif await send_message(self.driver, ID, what.name, what.payload, clock=self.clock) is Delivery.CLOSED:
            self.refused.add(what.payload)

    async def send_next(self) -> None:
        """One of the messages that were held back; or some that nobody wants, or that nobody can take."""
        if self.held:
            await self.send(self.held.pop(0))
            return
        self.unwanted += 1
        if self.unwanted % 3 == 0:
            for _ in range(FLOOD):
                await send_message(self.driver, ID, NOISE, clock=self.clock)
        else:
            pool = f"m:{self.unwanted % 2}"
            await send_message(self.driver, ID, pool, "of another type", clock=self.clock)

    async def once(self) -> RunResult[Any] | None:
        """One run, with the next of the faults; None if it came to nothing."""
        fault = NO_FAULT
        if self.faults and len(self.had) % (FAULTS_IN_A_ROW + 1) < FAULTS_IN_A_ROW:
            fault = self.faults.pop(0)
        self.had.append(fault)
        if fault.kind != "fight":
            return await self.one(fault)
        found: list[RunResult[Any] | None] = []

        async def fight(turns: int) -> None:
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            found.append(await self.one(fault))

        async with anyio.create_task_group() as group:
            group.start_soon(fight, 0)
            group.start_soon(fight, fault.at)
        results = [result for result in found if result is not None]
        return results[-1] if results else None

    async def one(self, fault: Fault) -> RunResult[Any] | None:
        result: RunResult[Any] | None = None
        # Of two that fight, each has records of its own in memory.
        self.world.riding = set() if self.checked is not None and fault.kind != "fight" else None
        try:
            result = await run_workflow(
                self.interpreter.workflow,
                driver=fault.over(self.driver, self.send_next),
                instance_id=ID,
                mode=self.mode,
                clock=self.clock,
            )
        except* (SimulatedCrash, StorageError, ConflictError, LeaseLostError):
            assert fault.kind != "none", "a run without trouble has failed"
        return result

    async def serve(self, pauses: list[int]) -> None:
        """Have two runtimes run it to its end, and evict it now and then: after so many turns of the event loop."""
        await self.start()
        flow = self.interpreter.workflow
        async with (
            Runtime(self.driver, workflows=[flow], clock=self.clock) as first,
            Runtime(self.driver, workflows=[flow], clock=self.clock) as second,
        ):
            handle = await first.start(flow, id=ID)

            async def evict() -> None:
                for number, pause in enumerate(pauses):
                    for _ in range(pause):
                        await anyio.lowlevel.checkpoint()
                    await (first, second)[number % 2].handle(flow, ID).evict()

            async with anyio.create_task_group() as group:
                group.start_soon(evict)
                with suppress(WorkflowFailedError, WorkflowStuckError):
                    await handle.result(timeout=PATIENCE)
                group.cancel_scope.cancel()
        self.result = await run_workflow(flow, driver=self.driver, instance_id=ID, clock=self.clock)

    # What is to be seen at the end.

    @property
    def was_clean(self) -> bool:
        """Whether nothing went wrong."""
        return all(fault.kind in ("none", "slow", "email") for fault in self.had)

    async def check(self, right: Expected) -> None:
        """It has come to what the model says."""
        if self.checked is not None:
            for error in self.checked.broken:
                raise error
        result = self.result
        assert result is not None
        assert result.status == right.status, (result.status, right.status, result.error)
        history = await read_history(self.driver, ID)
        undone = list(dict.fromkeys(self.world.undone))
        if right.status == "completed":
            assert result.output == right.output
            assert repr(result.output) == repr(right.output)
        elif self.program.cancel is None and right.status in ("failed", "rolled_back"):
            assert right.failure is not None
            assert result.error is not None
            assert result.error.type.rpartition(".")[2] == right.failure[0]
        open_paths = sorted(item.path for item in right.earned)
        assert sorted(item.path for item in history.compensations) == open_paths
        if right.status == "stuck":
            assert result.error is not None
            assert "the rollback of step" in result.error.message
            (last,) = [item.path for item in history.compensations if item.progress == "exhausted"]
            assert last in right.stops_at()
            right.check_prefix([*undone, last])
        elif right.status == "rolled_back" or (self.program.cancel is not None and self.program.cancel.rollback):
            assert sorted(undone) == open_paths
            right.check_order(undone)
        else:
            assert undone == []
        if self.was_clean:
            assert len(undone) == len(self.world.undone)
        if self.program.cancel is not None:
            return
        self.check_rows({entry.path: entry for entry in history}, right.rows)
        assert await self.unread() == [payload for payload in right.unread if payload not in self.refused]
        late = await self.late(right)
        assert abs(late) < MARGIN, f"it ended {late} seconds late"
        if not any(fault.kind == "fight" for fault in self.had):
            assert {path: self.world.calls[path] for path in self.settled} == self.settled
        await check_nothing_left(self.driver if self.checked is None else self.checked.driver)

    async def late(self, right: Expected) -> float:
        """By how much it ended too late. The clock itself may have gone on: nobody waits for it any more."""
        async with Client(self.driver, clock=self.clock) as client:
            info = await client.handle(self.interpreter.workflow, ID).info()
        return info.updated_at.timestamp() - self.begin - right.at

    def check_rows(self, found: dict[str, HistoryEntry], right: dict[str, Row]) -> None:
        assert found.keys() == right.keys(), (found.keys() - right.keys(), right.keys() - found.keys())
        for path, row in right.items():
            entry = found[path]
            error = None if entry.error is None else entry.error.type.rpartition(".")[2]
            seen = (entry.kind, entry.status, plain(entry.value), error)
            assert seen == (row.kind, row.status, plain(row.value), row.error), path
            if self.was_clean or not row.attempts_vary:
                assert entry.attempts == row.attempts, path

    async def unread(self) -> list[int]:
        """The payloads of the messages in the inbox, without the noise and those of another type."""
        rows = await self.driver.scan(*InstanceKeys(ID).range(INBOX))
        messages = [InboxMessage.unpack(key, raw) for key, raw in rows]
        good = [message for message in messages if message.name != NOISE and message.payload != BAD]
        return [Codec().decode(message.payload) for message in good]


def plain(value: Any) -> Any:
    """A value as it is in the record, where lists and tuples look alike."""
    match value:
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case _:
            return value
