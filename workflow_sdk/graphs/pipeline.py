"""Tasks in order inside one firing. After each of them, its rules say how it goes on."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from workflow_sdk.context import Context
from workflow_sdk.errors import CriticalError, DefinitionError
from workflow_sdk.graphs.failures import told
from workflow_sdk.graphs.parts import Part, Work, evaluated, holds, run_part
from workflow_sdk.graphs.tasks import Policy, Task, asked_after

JUMPS_MAX: Final = 1_000
"""So often may the tasks of one firing jump: a loop of jumps that never ends is a mistake."""


class _End(Struct, frozen=True):
    """How one run of a task has ended, and which rule holds for that."""

    output: Any = None
    failure: Exception | None = None
    rule: Policy | None = None


class _Line:
    """The tasks of one firing, as they are run."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._tasks: list[Task] = work.node.details["tasks"]
        self._places = {task.label: place for place, task in enumerate(self._tasks)}
        self._at = 0
        self._output: Any = work.args
        """What the next task is given, and what the step gives in the end."""
        self._runs: dict[str, int] = {}
        """How often each task was run: no two runs have the same name."""
        self._retries: dict[tuple[int, int], int] = {}
        """How often a rule has had its task run again since that was come to last."""
        self._jumps = 0

    async def run(self) -> Any:
        """Run the tasks until there is none left, or a rule ends it."""
        ctx = self._work.ctx
        while self._at < len(self._tasks):
            task = self._tasks[self._at]
            name = self._name(task)
            end = await self._end(ctx, name, task)
            if end.failure is None:
                self._output = end.output
            if end.rule is not None and end.rule.way == "retry":
                await self._again(ctx, name, end.rule)
                continue
            self._retries.clear()
            if end.rule is not None and end.rule.way == "break":
                break
            self._at = self._next(task, end)
        return self._output

    def _name(self, task: Task) -> str:
        count = self._runs.get(task.label, 0)
        self._runs[task.label] = count + 1
        return f"{task.label}:{count}" if count else task.label

    async def _end(self, ctx: Context, name: str, task: Task) -> _End:
        """Run a task once, and ask its rules."""
        given = output = self._output
        try:
            if task.fn is not None:
                output = await run_part(ctx, self._work.seat, Part(name, task.fn, given, task.options))
        except Exception as failure:  # the rules say what becomes of it
            if isinstance(failure, DefinitionError):
                raise
            error = told(failure, self._work.seat.engine.codec)
            return _End(None, failure, await self._rule(ctx, name, task, given, error=error, event="step.failed"))
        return _End(output, None, await self._rule(ctx, name, task, given, output=output, event="step.done"))

    async def _rule(self, ctx: Context, name: str, task: Task, given: Any, **ended: Any) -> Policy | None:
        """The first rule that holds, and has a retry left if that is what it says."""
        for number, rule in asked_after(task.policy, failed="error" in ended):
            if not self._is_left(number, rule):
                continue
            asked = f"{name}:{number}"
            if rule.when is None or await holds(ctx, asked, self._work.seat, rule.when, given, **ended):
                if rule.way == "retry":
                    key = (self._at, number)
                    self._retries[key] = self._retries.get(key, 0) + 1
                if rule.patch is not None:
                    seat = self._work.seat
                    seat.patch(await evaluated(ctx, f"{asked}:patch", seat, rule.patch, given, **ended))
                return rule
        return None

    def _is_left(self, number: int, rule: Policy) -> bool:
        return rule.way != "retry" or self._retries.get((self._at, number), 0) < rule.times

    async def _again(self, ctx: Context, name: str, rule: Policy) -> None:
        """Wait until the task is due again."""
        used = max(count for (place, _), count in self._retries.items() if place == self._at)
        await ctx.sleep(f"{name}:backoff", max(0.0, rule.backoff.delay(used, ctx.random.random())))

    def _next(self, task: Task, end: _End) -> int:
        """The place of the task that is next. Raises what fails the firing."""
        rule = end.rule
        if rule is not None and rule.way == "jump":
            self._jumps += 1
            if self._jumps > JUMPS_MAX:
                raise CriticalError(
                    f"the tasks of step {self._work.node.name!r} have jumped {JUMPS_MAX:,} times, the last time from "
                    f"{task.label!r} to {rule.label!r}; end the loop by a rule, or make steps of them"
                )
            return self._places[rule.label]
        if (end.failure is not None and rule is None) or (rule is not None and rule.way == "fail"):
            raise end.failure or CriticalError(
                f"task {task.label!r} was done, and a rule of it fails the step for that"
            )
        return self._at + 1


async def run_tasks(work: Work) -> Any:
    """Run the tasks of a step in order; what the last one gives."""
    return await _Line(work).run()
