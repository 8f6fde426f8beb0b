"""Running a workflow once for every commit that it makes, and killing it there."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from inspect import isawaitable
from math import ulp
from typing import Any, TypeAlias
from uuid import uuid4

from workflow_sdk import (
    Client,
    History,
    RunResult,
    Status,
    Workflow,
    read_history,
    run_workflow,
    send_message,
)
from workflow_sdk.changes.instances import read_about
from workflow_sdk.driver import Driver, open_driver
from workflow_sdk.errors import DefinitionError, InstanceNotFoundError
from workflow_sdk.instance.execution import Mode
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.operations.handlers import Handler, KnownHandlers
from workflow_sdk.operations.types import probe
from workflow_sdk.rows.keys import INBOX, Field, InstanceKeys
from workflow_sdk.rows.wire import shown
from workflow_sdk.testing._elsewhere import elsewhere, rewritten
from workflow_sdk.testing._family import Family, by_name
from workflow_sdk.testing.clock import VirtualClock
from workflow_sdk.testing.crash_report import CrashReport, CrashRun, Ending, Side, differences, is_over
from workflow_sdk.testing.faulty import FaultyDriver, SimulatedCrash
from workflow_sdk.values import Wrappers

__all__ = ["Script", "crash_everywhere"]

Script: TypeAlias = Sequence["str | tuple[str, Any]"]
"""Messages: a name, or a name and a payload. The next is sent whenever the instance waits for a message; if it is the
name of an open task of the instance, that is completed with the payload."""

START = datetime(2030, 1, 1, tzinfo=UTC)
SEED = bytes(range(16))
RUNS_MAX = 10_000
RUNS_MAX_AT_ONCE = 10
"""How many runs in a row may change nothing, neither what is stored nor the time."""
LATEST = datetime(5000, 1, 1, tzinfo=UTC).timestamp()


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
) -> CrashReport:
    """Kill the workflow at every commit, just before and just after; show that it ends like a run without a crash.

    It is run once for every commit and side, and each time restarted after the crash. The same are: the status, the
    output or the error, everything that is recorded, what is left of the messages of `script`. No step whose outcome
    was committed runs again. AssertionError, with the report as its text, if a run differs.

    Every run is as if in another process: between operations, sets have another order, and it is another time. For
    that, the functions of the workflow's module are compiled anew from their source, as far as that is at hand.

    What steps do has to come to the same every time, as it does with fakes. `reset` is called before each run, to
    bring fakes back to where they began. Time is virtual. Of many commits, `commits_max` are taken, evenly spread.
    `workflows` are those of the children and successors: they are run beside it, killed as well, and have to end the
    same. `handlers` are those that a Runtime is given.
    """
    if not isinstance(workflow, Workflow):
        raise DefinitionError(f"crash_everywhere takes a function decorated with @workflow, not {shown(workflow)}")
    driver = await open_driver(store) if isinstance(store, str) else store
    try:
        flows = by_name(workflow, workflows)
        known = KnownHandlers(flows.values(), handlers)
        stage = _Stage(driver, workflow, input, _messages(script), reset, codec, flows, known)
        return await stage.everywhere(commits_max)
    finally:
        if isinstance(store, str):
            await driver.aclose()


def _messages(script: Script | None) -> list[tuple[str, Any]]:
    if isinstance(script, str) or not isinstance(script, Sequence | None):
        raise DefinitionError(f"a script is a list of messages, not {shown(script)}")
    return [(message, None) if isinstance(message, str) else message for message in script or ()]


class _Witness:
    """Notes every call of the code of a step, a transaction or a handler."""

    dry = False
    seed: bytes | None = SEED

    def __init__(self) -> None:
        self.called: list[tuple[int, str]] = []
        """The generation of the instance, and the path of the operation."""

    def calls(self, path: str, generation: int) -> None:
        """A call is about to be made."""
        self.called.append((generation, path))


@dataclass(eq=False)
class _Stage:
    """What all runs share: they run the same instance in the same store, again and again."""

    driver: Driver
    workflow: Workflow[Any, Any]
    input: Any
    script: list[tuple[str, Any]]
    reset: Callable[[], Awaitable[None] | None] | None
    codec: Wrappers | None
    workflows: dict[str, Workflow[Any, Any]]
    handlers: KnownHandlers
    id: str = field(default_factory=lambda: f"crash-everywhere-{uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.keys = InstanceKeys(self.id)

    async def everywhere(self, commits_max: int | None) -> CrashReport:
        """A run without a crash, and one for each commit and side."""
        with rewritten(list(self.workflows.values())):
            return await self._everywhere(commits_max)

    async def _everywhere(self, commits_max: int | None) -> CrashReport:
        clean, commits = await self._without_a_crash()
        # Once more, in another process. If nothing else is needed to the end, it also stays in memory all the time.
        again, _ = await self._without_a_crash(resident=self._is_alone(clean), process=1)
        problems = differences(clean, again)
        runs: list[CrashRun] = []
        if not problems and clean.info.status is not Status.STUCK:
            for number in _spread(commits, commits_max):
                runs += [await self._with_a_crash(number, side, clean) for side in ("before", "after")]
        report = CrashReport(self.workflow.name, commits, clean, tuple(runs), tuple(problems), again)
        if not report.ok:
            raise AssertionError(str(report))
        return report

    def _is_alone(self, clean: Ending) -> bool:
        """Whether the instance needs neither messages nor other instances to end."""
        return clean.info.status.is_terminal and not self.script and len(self.workflows) == 1

    async def _without_a_crash(self, *, resident: bool = False, process: int = 0) -> tuple[Ending, int]:
        faulty = FaultyDriver(self.driver)
        async with _Play(self, faulty, process) as play:
            await play.go_on(faulty, "live" if resident else "yield")
            return await play.ending(), faulty.commits

    async def _with_a_crash(self, number: int, side: Side, clean: Ending) -> CrashRun:
        crashes = {"crash_before": number} if side == "before" else {"crash_after": number}
        faulty = FaultyDriver(self.driver, **crashes)
        async with _Play(self, faulty) as play:
            try:
                await play.go_on(faulty)
            except* SimulatedCrash:
                play.die()
            then, generation = await self.history(), await self.generation()
            before = list(play.witness.called)
            play.witness.called.clear()
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
        """What is recorded now."""
        try:
            return await read_history(self.driver, self.id, codec=self.codec)
        except InstanceNotFoundError:
            return None

    async def generation(self) -> int:
        """How often the instance has begun."""
        about = await read_about(self.driver, self.keys)
        return about.birth.generation if about else 1


class _Play:
    """One run from the beginning over its crash to the end. It leaves nothing in the store."""

    def __init__(self, stage: _Stage, faulty: FaultyDriver, process: int = 0) -> None:
        self._stage = stage
        self._process = process
        """The number of the process in which the instance is run, which is a new one every time."""
        self._faulty = faulty
        self._clock = VirtualClock(START)
        self._sent = 0
        self.witness = _Witness()
        self._others: dict[str, _Witness] = {}
        self._family = Family(stage.driver, stage.id, stage.workflows, self._clock, stage.codec, stage.handlers)

    async def __aenter__(self) -> _Play:
        reset = self._stage.reset
        if reset is not None:
            done = reset()
            if isawaitable(done):
                await done
        await self._family.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._forget()

    async def go_on(self, driver: Driver, mode: Mode = "yield") -> None:
        """Run until the end, or until nothing more comes that it waits for."""
        states: deque[tuple[float, bytes | None]] = deque(maxlen=RUNS_MAX_AT_ONCE + 1)
        for _ in range(RUNS_MAX):
            result = await self._run(driver, mode)
            if await self._family.go_on(driver, self._watching_other):
                continue
            if await self._takes_next(result):
                await self._send_next()
                continue
            when = await self._wake_at(result)
            if when is None:
                return
            if when >= LATEST:
                break
            self._advance_to(when)
            states.append((self._clock.time(), await self._stage.driver.get(self._stage.keys.field(Field.TALLY))))
            if len(states) == states.maxlen and len(set(states)) == 1:
                due = self._clock.now().isoformat()
                raise self._endless(f"it is due at {due}, and stays so however often it is run")
        raise self._endless(f"it still waits in the year {self._clock.now().year}")

    def _endless(self, why: str) -> AssertionError:
        return AssertionError(f"{self._stage.workflow.name} has no end: {why}")

    async def _run(self, driver: Driver, mode: Mode) -> RunResult[Any]:
        """Run the instance once, as far as it goes."""
        stage = self._stage
        with _watching(self.witness), elsewhere(self._process):
            result = await run_workflow(
                stage.workflow,
                stage.input,
                driver=driver,
                instance_id=stage.id,
                mode=mode,
                clock=self._clock,
                codec=stage.codec,
                handlers=stage.handlers,
            )
        self._process += 1
        return result

    async def _takes_next(self, result: RunResult[Any]) -> bool:
        """Whether the script has something more, and the instance waits for it."""
        if _has_ended(result) or self._sent == len(self._stage.script):
            return False
        return bool(result.waiting_for) or await self._is_asked()

    async def _wake_at(self, result: RunResult[Any]) -> float | None:
        """When somebody has to be run again; None if nobody has to."""
        others = await self._family.wake_at()
        if result.wake_at is None or (_has_ended(result) and others is None):
            return others
        own = result.wake_at.timestamp()
        return own if others is None else min(own, others)

    def die(self) -> None:
        """Have what comes next run in another process."""
        self._process += 1

    def _advance_to(self, when: float) -> None:
        """Advance the clock to this time. The sum of two floats may fall short of it, hence the loop."""
        while (now := self._clock.time()) < when:
            self._clock.advance(max(when - now, ulp(when)))

    async def _is_asked(self) -> bool:
        """Whether the next item of the script is the name of a task that the instance waits for."""
        async with Client(self._stage.driver, clock=self._clock, codec=self._stage.codec) as client:
            tasks = (await client.tasks.list(instance=self._stage.id)).items
        return self._stage.script[self._sent][0] in [task.name for task in tasks]

    async def _send_next(self) -> None:
        """Complete the task that the next item of the script names; if there is none, send the message."""
        stage = self._stage
        name, payload = stage.script[self._sent]
        self._sent += 1
        async with Client(stage.driver, clock=self._clock, codec=stage.codec) as client:
            for task in (await client.tasks.list(instance=stage.id)).items:
                if task.name == name:
                    await client.tasks.complete(task.id, payload, by="script", roles=task.roles)
                    return
        await send_message(stage.driver, stage.id, name, payload, clock=self._clock, codec=stage.codec)

    @contextmanager
    def _watching_other(self, id: str) -> Generator[None]:
        with _watching(self._others.setdefault(id, _Witness())), elsewhere(self._process):
            yield

    async def ending(self) -> Ending:
        """How it ended, and everything that is recorded of it."""
        stage = self._stage
        async with Client(stage.driver, clock=self._clock, codec=stage.codec) as client:
            info = await client.handle(stage.workflow.name, stage.id).info()
        history = await stage.history()
        assert history is not None, "it was run"
        inbox = await stage.driver.scan(*stage.keys.range(INBOX))
        return Ending(
            info,
            history,
            tuple(str(InboxMessage.unpack(b"", raw).name) for _, raw in inbox),
            self._sent,
            await self._family.endings(),
        )

    async def _forget(self) -> None:
        stage = self._stage
        await self._family.forget()
        async with Client(stage.driver, clock=self._clock, codec=stage.codec) as client:
            handle = client.handle(stage.workflow.name, stage.id)
            try:
                if not (await handle.info()).status.is_terminal:
                    await handle.cancel()
            except InstanceNotFoundError:
                return
            await client.delete(stage.id)


def _has_ended(result: RunResult[Any]) -> bool:
    return result.status.is_terminal or result.status is Status.STUCK


@contextmanager
def _watching(witness: _Witness) -> Generator[None]:
    token = probe.set(witness)
    try:
        yield
    finally:
        probe.reset(token)


def _spread(commits: int, most: int | None) -> list[int]:
    """The numbers of the commits at which to crash: all, or so many of them."""
    if most is None or commits <= most:
        return list(range(1, commits + 1))
    if most <= 1:
        return [commits]
    return sorted({1 + number * (commits - 1) // (most - 1) for number in range(most)})
