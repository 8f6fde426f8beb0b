"""Running a workflow once for every commit that it makes, and killing it there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from inspect import isawaitable
from math import ulp
from typing import Any, TypeAlias
from uuid import uuid4

from workflow_sdk.changes.snapshot import read_about
from workflow_sdk.core.codec import Wrappers
from workflow_sdk.core.history import History
from workflow_sdk.core.inbox import InboxMessage
from workflow_sdk.core.keys import INBOX, Field, InstanceKeys
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Status
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver, open_driver
from workflow_sdk.errors import DefinitionError, InstanceNotFoundError
from workflow_sdk.execution.calling import run_workflow
from workflow_sdk.execution.execution import Mode
from workflow_sdk.execution.probe import probe
from workflow_sdk.operations.handlers import Handler, KnownHandlers
from workflow_sdk.runtime.client import Client
from workflow_sdk.runtime.delivery import send_message
from workflow_sdk.runtime.info import InstanceInfo
from workflow_sdk.runtime.reading import read_history
from workflow_sdk.testing._elsewhere import elsewhere, rewritten
from workflow_sdk.testing._family import Family, by_name
from workflow_sdk.testing.clock import VirtualClock
from workflow_sdk.testing.crash_report import CrashReport, CrashRun, Ending, Side, differences, is_over
from workflow_sdk.testing.faulty import FaultyDriver, SimulatedCrash

__all__ = ["Script", "crash_everywhere"]

Script: TypeAlias = Sequence["str | tuple[str, Any]"]
"""Messages: a name, or a name and a payload. The next is sent whenever the instance waits for a message; if it is the
name of an open task of the instance, that is completed with the payload."""

START = datetime(2030, 1, 1, tzinfo=UTC)
SEED = bytes(range(16))
RUNS_MAX = 10_000
RUNS_MAX_AT_ONCE = 10
"""So many runs in a row may change nothing, neither what is stored nor the time."""
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
    """Is told of every call of the code of a step, transaction or handler."""

    dry = False
    seed: bytes | None = SEED

    def __init__(self) -> None:
        self.called: list[tuple[int, str]] = []
        """In which generation of the instance, and the path."""

    def calls(self, path: str, generation: int) -> None:
        """A call is about to be made."""
        self.called.append((generation, path))


class _Stage:
    """Where all runs are made: the same instance, again and again."""

    def __init__(
        self,
        driver: Driver,
        workflow: Workflow[Any, Any],
        input: Any,
        script: list[tuple[str, Any]],
        reset: Callable[[], Awaitable[None] | None] | None,
        codec: Wrappers | None,
        workflows: dict[str, Workflow[Any, Any]],
        handlers: KnownHandlers,
    ) -> None:
        self.driver = driver
        self.workflow = workflow
        self.input = input
        self.script = script
        self.reset = reset
        self.codec = codec
        self.workflows = workflows
        self.handlers = handlers
        self.id = f"crash-everywhere-{uuid4().hex[:8]}"
        self.keys = InstanceKeys(self.id)

    async def everywhere(self, commits_max: int | None) -> CrashReport:
        """A run without a crash, and one for each commit and side."""
        with rewritten(list(self.workflows.values())):
            return await self._everywhere(commits_max)

    async def _everywhere(self, commits_max: int | None) -> CrashReport:
        clean, commits = await self._without_a_crash()
        # Once more, in another process; and where that is all it needs, without being put away in between.
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
        """Whether it comes to its end by itself."""
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
    """One run, with its crash and its end; nothing of it is left afterwards."""

    def __init__(self, stage: _Stage, faulty: FaultyDriver, process: int = 0) -> None:
        self._stage = stage
        self._process = process
        """Every time it is run, it is in another one."""
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
        stage = self._stage
        before: tuple[float, bytes | None] | None = None
        at_once = 0
        for _ in range(RUNS_MAX):
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
            if await self._family.go_on(driver, self._watching_other):
                continue
            is_over = result.status.is_terminal or result.status is Status.STUCK
            others = await self._family.wake_at()
            own = None if result.wake_at is None else result.wake_at.timestamp()
            times = [time for time in (others, own) if time is not None]
            if not is_over and self._sent < len(stage.script) and (result.waiting_for or await self._is_asked()):
                await self._send_next()
            elif not times or (is_over and others is None):
                return
            elif min(times) >= LATEST:
                break
            else:
                self._advance_to(min(times))
                state = self._clock.time(), await stage.driver.get(stage.keys.field(Field.TALLY))
                at_once = at_once + 1 if state == before else 0
                before = state
                if at_once == RUNS_MAX_AT_ONCE:
                    when = self._clock.now().isoformat()
                    raise AssertionError(
                        f"{stage.workflow.name} has no end: it is due at {when}, and stays so however often it is run"
                    )
        raise AssertionError(f"{stage.workflow.name} has no end: it still waits in the year {self._clock.now().year}")

    def die(self) -> None:
        """What comes next is in another process."""
        self._process += 1

    def _advance_to(self, when: float) -> None:
        """Let the time come, to the last bit: the sum of two floats may be a little less than what it should be."""
        while (now := self._clock.time()) < when:
            self._clock.advance(max(when - now, ulp(when)))

    async def _is_asked(self) -> bool:
        """Whether the next of the script is the name of a task that it waits for."""
        async with Client(self._stage.driver, clock=self._clock, codec=self._stage.codec) as client:
            tasks = (await client.tasks.list(instance=self._stage.id)).items
        return self._stage.script[self._sent][0] in [task.name for task in tasks]

    async def _send_next(self) -> None:
        """Do the task that is next in the script, if it waits for one of this name; else send the message."""
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
            info: InstanceInfo = await client.handle(stage.workflow.name, stage.id).info()
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
