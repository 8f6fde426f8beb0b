"""Running a workflow once for every commit that it makes, and killing it there."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from inspect import isawaitable
from math import ulp
from typing import Any, overload
from uuid import uuid4

from workflow_sdk import (
    Client,
    History,
    InstanceInfo,
    RunResult,
    Status,
    Workflow,
    read_history,
    run_workflow,
    send_message,
)
from workflow_sdk.changes.instances import read_about
from workflow_sdk.driver import Driver, open_driver
from workflow_sdk.errors import InstanceNotFoundError, InstanceStateError
from workflow_sdk.instance.cleanups import run_cleanups_left
from workflow_sdk.machines import Executor, Machine, Manifest
from workflow_sdk.operations.handlers import Handler, KnownHandlers
from workflow_sdk.operations.types import probe
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.rows.retry import Duration
from workflow_sdk.testing._cells import HORIZON, check_for_machines, check_for_workflows, crash_machines
from workflow_sdk.testing._cells_report import CellCrashReport
from workflow_sdk.testing._elsewhere import elsewhere, rewritten
from workflow_sdk.testing._script import (
    Script,
    Witness,
    as_message,
    flows_by_name,
    is_told_to_graph,
    messages_of,
    spread,
)
from workflow_sdk.testing.clock import VirtualClock
from workflow_sdk.testing.crash_report import CrashReport, CrashRun, Ending, Side, differences, is_over
from workflow_sdk.testing.drivers import FaultyDriver, SimulatedCrash
from workflow_sdk.values import Codec, Wrappers

__all__ = ["Script", "crash_everywhere"]

START = datetime(2030, 1, 1, tzinfo=UTC)
RUNS_MAX = 10_000
RUNS_MAX_AT_ONCE = 10
"""How many runs in a row may change nothing, neither what is stored nor the time."""
LATEST = datetime(5000, 1, 1, tzinfo=UTC).timestamp()


@overload
async def crash_everywhere(
    workflow: Machine[Any] | Manifest,
    input: Sequence[Any],
    *,
    manifest: Manifest | None = None,
    executors: Iterable[Executor] = (),
    horizon: Duration = HORIZON,
    store: str | Driver = "memory://",
    reset: Callable[[], Awaitable[None] | None] | None = None,
    commits_max: int | None = None,
    codec: Wrappers | None = None,
) -> CellCrashReport: ...
@overload
async def crash_everywhere(
    workflow: Workflow[Any, Any],
    input: Any = None,
    *,
    script: Script | None = None,
    store: str | Driver = "memory://",
    reset: Callable[[], Awaitable[None] | None] | None = None,
    commits_max: int | None = None,
    codec: Wrappers | None = None,
    workflows: Iterable[Workflow[Any, Any]] = (),
    handlers: Iterable[Handler] = (),
) -> CrashReport: ...
async def crash_everywhere(
    workflow: Workflow[Any, Any] | Manifest,
    input: Any = None,
    *,
    script: Script | None = None,
    store: str | Driver = "memory://",
    reset: Callable[[], Awaitable[None] | None] | None = None,
    commits_max: int | None = None,
    codec: Wrappers | None = None,
    workflows: Iterable[Workflow[Any, Any]] = (),
    handlers: Iterable[Handler] = (),
    manifest: Manifest | None = None,
    executors: Iterable[Executor] = (),
    horizon: Duration = HORIZON,
) -> CrashReport | CellCrashReport:
    """Kill the workflow at every commit, just before and just after; show that it ends like a run without a crash.

    It is run once for every commit and side, and each time restarted after the crash. The same are: the status, the
    output or the error, everything that is recorded, what is left of the messages of `script`. No step whose outcome
    was committed runs again. AssertionError, with the report as its text, if a run differs.

    Every run is as if in another process: between operations, sets have another order, and it is another time. For
    that, the functions of the workflow's module are compiled anew from their source, as far as that is at hand.

    What steps do has to come to the same every time; `reset` is called before each run, to bring fakes back to where
    they began. Time is virtual. Of many commits, `commits_max` are taken, evenly spread. `workflows` are those of
    children and successors, which are killed as well; `handlers` those that a Runtime is given. For machines:
    `crash_everywhere(machine, events, manifest=..., executors=[...])`, see `crash_machines`.
    """
    numbers = partial(spread, most=commits_max)
    if isinstance(workflow, (Machine, Manifest)):
        check_for_machines(script, workflows, handlers)
        return await crash_machines(workflow, input, manifest, executors, horizon, store, reset, codec, numbers)
    check_for_workflows(workflow, manifest, executors)
    driver = await open_driver(store) if isinstance(store, str) else store
    try:
        flows = flows_by_name(workflow, workflows)
        known = KnownHandlers(flows.values(), handlers)
        stage = _Stage(driver, workflow, input, messages_of(script), reset, codec, flows, known)
        with rewritten(list(flows.values())):
            return await stage.everywhere(numbers)
    finally:
        if isinstance(store, str):
            await driver.aclose()


@dataclass(eq=False)
class _Stage:
    """What all runs share: they run the same instance, the hero, in the same store, again and again."""

    driver: Driver
    workflow: Workflow[Any, Any]
    input: Any
    script: list[tuple[str, Any]]
    reset: Callable[[], Awaitable[None] | None] | None
    codec: Wrappers | None
    workflows: dict[str, Workflow[Any, Any]]
    """Those of the hero and of the others: children, successors, and instances that are sent messages."""
    handlers: KnownHandlers
    id: str = field(default_factory=lambda: f"crash-everywhere-{uuid4().hex[:8]}")

    async def everywhere(self, numbers: Callable[[int], list[int]]) -> CrashReport:
        """A run without a crash, and one for each commit and side."""
        clean, commits = await self._without_a_crash()
        # Once more, in another process. If nothing else is needed to the end, it also stays in memory all the time.
        is_alone = clean.info.status.is_terminal and not self.script and len(self.workflows) == 1
        again, _ = await self._without_a_crash(resident=is_alone, process=1)
        problems = differences(clean, again)
        runs: list[CrashRun] = []
        if not problems and clean.info.status is not Status.STUCK:
            for number in numbers(commits):
                runs += [await self._with_a_crash(number, side, clean) for side in ("before", "after")]
        report = CrashReport(self.workflow.name, commits, clean, tuple(runs), tuple(problems), again)
        if not report.ok:
            raise AssertionError(str(report))
        return report

    async def _without_a_crash(self, *, resident: bool = False, process: int = 0) -> tuple[Ending, int]:
        faulty = FaultyDriver(self.driver)
        async with _Play(self, process) as play:
            await play.go_on(faulty, resident=resident)
            return await play.ending(), faulty.commits

    async def _with_a_crash(self, number: int, side: Side, clean: Ending) -> CrashRun:
        crashes = {"crash_before": number} if side == "before" else {"crash_after": number}
        faulty = FaultyDriver(self.driver, **crashes)
        async with _Play(self) as play:
            try:
                await play.go_on(faulty)
            except* SimulatedCrash:
                play.process += 1
            then, generation = await self.history(), await self._generation()
            before = play.witness.called
            play.witness = Witness()
            await play.go_on(self.driver)
            ending = await play.ending()
            after = play.witness.called
            repeated = [
                f"{path} ran again, although its outcome was committed"
                for began, path in after
                if began < generation or (began == generation and is_over(path, then))
            ]
            twice = tuple(call[1] for call in dict.fromkeys(after) if call in before)
            problems = (*dict.fromkeys(repeated), *differences(clean, ending))
            return CrashRun(number, side, faulty.crashed, then, twice, problems, ending)

    async def history(self) -> History | None:
        try:
            return await read_history(self.driver, self.id, codec=self.codec)
        except InstanceNotFoundError:
            return None

    async def _generation(self) -> int:
        """How often the hero has begun."""
        about = await read_about(self.driver, InstanceKeys(self.id))
        return about.birth.generation if about else 1


class _Play:
    """One run from the beginning over its crash to the end. It leaves nothing in the store."""

    def __init__(self, stage: _Stage, process: int = 0) -> None:
        self._stage = stage
        self.process = process
        """The number of the process in which the hero is run, which is a new one every time."""
        self.witness = Witness()
        """Of what the hero calls."""
        self._clock = VirtualClock(START)
        self._sent = 0
        self._strangers: set[str] = set()
        """Who was in the store before the play."""

    async def __aenter__(self) -> _Play:
        reset = self._stage.reset
        if reset is not None:
            done = reset()
            if isawaitable(done):
                await done
        self._strangers = {info.id for info in await self._others()}
        return self

    async def __aexit__(self, *_: object) -> None:
        others = await self._others()
        async with self._client() as client:
            for info in others:
                with suppress(InstanceNotFoundError, InstanceStateError):
                    await _delete(client, info.workflow, info.id)
            with suppress(InstanceNotFoundError):
                await _delete(client, self._stage.workflow.name, self._stage.id)

    def _client(self) -> Client:
        return Client(self._stage.driver, clock=self._clock, codec=self._stage.codec)

    async def go_on(self, driver: Driver, *, resident: bool = False) -> None:
        """Run until the end, or until nothing more comes that it waits for."""
        stage, tally = self._stage, InstanceKeys(self._stage.id).field(Field.TALLY)
        states: deque[tuple[float, bytes | None]] = deque(maxlen=RUNS_MAX_AT_ONCE + 1)
        for _ in range(RUNS_MAX):
            result = await self._run(driver, stage.workflow, stage.id, self.witness, stage.input, resident=resident)
            self.process += 1
            if await self._run_others(driver):
                continue
            if await self._takes_next(result):
                await self._send_next(result)
                continue
            when = await self._wake_at(result)
            if when is None:
                return
            if when >= LATEST:
                break
            self._advance_to(when)
            states.append((self._clock.time(), await stage.driver.get(tally)))
            if len(states) == states.maxlen and len(set(states)) == 1:
                due = self._clock.now().isoformat()
                raise self._endless(f"it is due at {due}, and stays so however often it is run")
        raise self._endless(f"it still waits in the year {self._clock.now().year}")

    def _endless(self, why: str) -> AssertionError:
        return AssertionError(f"{self._stage.workflow.name} has no end: {why}")

    async def _run(
        self,
        driver: Driver,
        workflow: Workflow[Any, Any],
        id: str,
        witness: Witness,
        input: Any = None,
        *,
        resident: bool = False,
    ) -> RunResult[Any]:
        """Run an instance once, as far as it goes."""
        stage = self._stage
        token = probe.set(witness)
        try:
            with elsewhere(self.process):
                return await run_workflow(
                    workflow,
                    input,
                    driver=driver,
                    instance_id=id,
                    mode="live" if resident else "yield",
                    clock=self._clock,
                    codec=stage.codec,
                    handlers=stage.handlers,
                )
        finally:
            probe.reset(token)

    async def _run_others(self, driver: Driver) -> bool:
        """Run each of the others as far as it goes; whether that changed anything."""
        before = await self._others()
        if before:
            # As the workers of any runtime would do.
            await run_cleanups_left(driver, Codec(wrapper=self._stage.codec), self._clock.time)
        for info in filter(self._goes_on, before):
            await self._run(driver, self._stage.workflows[info.workflow], info.id, Witness())
        after = await self._others()
        return [(info.id, info.version) for info in before] != [(info.id, info.version) for info in after]

    def _goes_on(self, info: InstanceInfo) -> bool:
        """Whether an instance has not ended, and its workflow is one of the play: nobody runs the others."""
        return info.workflow in self._stage.workflows and not _has_ended(info.status)

    async def _others(self) -> list[InstanceInfo]:
        """All but the hero that were not in the store before the play, the oldest first."""
        found: list[InstanceInfo] = []
        if len(self._stage.workflows) == 1:
            return found
        cursor: str | None = None
        async with self._client() as client:
            while True:
                page = await client.list(limit=1000, cursor=cursor)
                found += [info for info in page.items if info.id not in self._strangers and info.id != self._stage.id]
                cursor = page.cursor
                if cursor is None:
                    return found

    async def _takes_next(self, result: RunResult[Any]) -> bool:
        """Whether the script has something more, and the hero waits for it."""
        stage = self._stage
        if _has_ended(result.status) or self._sent == len(stage.script):
            return False
        name, _ = stage.script[self._sent]
        if result.waiting_for or is_told_to_graph(stage.workflow, name, result):
            return True
        async with self._client() as client:
            tasks = (await client.tasks.list(instance=stage.id)).items
        return name in [task.name for task in tasks]

    async def _send_next(self, result: RunResult[Any]) -> None:
        """Complete the task that the next item of the script names; if there is none, send the message."""
        stage = self._stage
        name, payload = stage.script[self._sent]
        self._sent += 1
        async with self._client() as client:
            for task in (await client.tasks.list(instance=stage.id)).items:
                if task.name == name:
                    await client.tasks.complete(task.id, payload, by="script", roles=task.roles)
                    return
        if is_told_to_graph(stage.workflow, name, result):
            name, payload = as_message(stage.workflow, stage.handlers, name, payload)
        await send_message(stage.driver, stage.id, name, payload, clock=self._clock, codec=stage.codec)

    async def _wake_at(self, result: RunResult[Any]) -> float | None:
        """When somebody has to be run again; None if nobody has to."""
        others = [info.wake_at for info in await self._others() if self._goes_on(info)]
        times = [wake_at.timestamp() for wake_at in others if wake_at is not None]
        if result.wake_at is not None and (times or not _has_ended(result.status)):
            times.append(result.wake_at.timestamp())
        return min(times, default=None)

    def _advance_to(self, when: float) -> None:
        """Advance the clock to this time. The sum of two floats may fall short of it, hence the loop."""
        while (now := self._clock.time()) < when:
            self._clock.advance(max(when - now, ulp(when)))

    async def ending(self) -> Ending:
        """How it ended, and everything that is recorded of it."""
        stage = self._stage
        async with self._client() as client:
            handle = client.handle(stage.workflow.name, stage.id)
            info = await handle.info()
            inbox = await handle.inbox(limit=1_000_000)
        history = await stage.history()
        assert history is not None, "it was run"
        others = [
            (other.id.replace(stage.id, "~", 1), other.status.value, repr(other.output))
            for other in sorted(await self._others(), key=lambda other: other.id)
        ]
        names = tuple(message.name for message in inbox if message.reason is None)
        return Ending(info, history, names, self._sent, tuple(others))


async def _delete(client: Client, workflow: str, id: str) -> None:
    handle = client.handle(workflow, id)
    if not (await handle.info()).status.is_terminal:
        await handle.cancel()
    await client.delete(id)


def _has_ended(status: Status) -> bool:
    return status.is_terminal or status is Status.STUCK
