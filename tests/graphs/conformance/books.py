"""Playbooks that note what they run; and runs of graphs that are killed at each of their commits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from tests.graphs.running import Body, Noting
from tests.laws.counting_driver import fresh_world
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Client, CriticalError, Driver, History, InstanceInfo, InstanceNotFoundError, RunResult
from workflow_sdk.graphs import Graph, GraphResult
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

__all__ = ["Book", "Death", "admit", "admit_if", "deaths", "failing", "raises", "rule", "to", "waits"]


def to(step: str, when: str | None = None, **args: Any) -> dict[str, Any]:
    """An arc."""
    return {"step": step} | ({} if when is None else {"when": f"{{{{ {when} }}}}"}) | ({"args": args} if args else {})


def rule(when: str | None, **then: Any) -> dict[str, Any]:
    """A rule: with a condition, or the one that holds if no other does."""
    return {"else": {"then": then}} if when is None else {"when": f"{{{{ {when} }}}}", "then": then}


def admit(*rules: dict[str, Any]) -> dict[str, Any]:
    """The `spec` of a step that may start as rules say."""
    return {"policy": {"admit": {"rules": list(rules)}}}


def admit_if(when: str) -> dict[str, Any]:
    """The `spec` of a step that may start if something is true."""
    return admit(rule(when, allow=True), rule(None, allow=False))


class Book(Noting):
    """A playbook under construction, whose tasks note that they ran, and with which arguments."""

    def __init__(self, workload: dict[str, Any] | None = None, **executor: Any) -> None:
        super().__init__()
        self.functions: dict[str, Any] = {}
        self.data: dict[str, Any] = {
            "metadata": {"name": "g"},
            "executor": {"spec": executor},
            "workload": workload or {},
            "workflow": [],
        }

    def tool(self, name: str, value: Any = None, *rules: Any, fails: Any = None, does: Body | None = None) -> Any:
        """A task that calls a function of that name."""
        self.functions[name] = self.body(name, value, fails, does)
        spec = {"spec": {"policy": {"rules": list(rules)}}} if rules else {}
        return {"kind": "python", "name": name, "fn": name, **spec}

    def then(self, name: str, *arcs: dict[str, Any], mode: str | None = None, **fields: Any) -> None:
        """Add a step: with its `tool`, or with a task of its name, or (`tool=None`) without any."""
        tool = fields.pop("tool") if "tool" in fields else self.tool(name, fields.pop("value", None))
        made: dict[str, Any] = {"step": name, **({} if tool is None else {"tool": tool}), **fields}
        if arcs:
            made["next"] = {**({} if mode is None else {"spec": {"mode": mode}}), "arcs": list(arcs)}
        self.data["workflow"].append(made)

    def made(self) -> Graph:
        """The graph that it describes."""
        return Graph.from_playbook(self.data, self.functions)


def waits(name: str) -> Body:
    """A body that waits for a message, and gives its payload."""
    return lambda ctx, args: ctx.listen(name)


def failing(*errors: Exception) -> Body:
    """A body that fails in these ways, one after the other, and then gives what it was given."""
    left = list(errors)

    async def body(ctx: Any, args: Any) -> Any:
        if left:
            raise left.pop(0)
        return args

    return body


async def raises(ctx: Any, args: Any) -> Any:
    """A body that fails for good."""
    raise CriticalError("no")


# Killed.


@dataclass
class Death:
    """A run that was killed, and went on in another process."""

    before: list[str]
    """What had begun until then."""
    recorded: History | None
    """What was recorded until then."""
    info: InstanceInfo | None
    """What was shown of it then."""
    after: list[str]
    """What began when it went on."""
    result: GraphResult
    history: History

    @property
    def over(self) -> set[str]:
        """The paths of what was recorded as ended when it was killed."""
        ended = ("completed", "failed")
        return {entry.path for entry in self.recorded or () if entry.status.value in ended}

    @property
    def again(self) -> list[str]:
        """What was run once more, although its end was recorded. No step may have fired twice."""
        over = {path.split("/")[1] for path in self.over if path.count("/") == 2}
        return [name for name in self.after if name in over]


async def deaths(
    make: Callable[[], Noting], workload: Any = None, script: Sequence[tuple[str, Any]] = ()
) -> AsyncGenerator[Death]:
    """Run a graph, made anew each time, and kill it before and after each of its commits.

    The messages of the script are sent once each, when it waits for one.
    """
    for side in ("crash_before", "crash_after"):
        for number in range(1, 200):
            g, left = make(), list(script)
            graph = g.made() if isinstance(g, Book) else g.graph
            async with fresh_world(Path()) as world:
                faulty = FaultyDriver(world.driver, **{side: number})
                try:
                    await _go_on(world, graph, workload, left, faulty)
                except* SimulatedCrash:
                    before, (recorded, info) = list(g.ran), await _recorded(world)
                    g.ran.clear()
                else:
                    assert number > 2, "it has commits at which it can be killed"
                    break
                ended = await _go_on(world, graph, workload, left, world.driver)
                assert isinstance(ended.output, GraphResult), ended
                yield Death(before, recorded, info, list(g.ran), ended.output, await world.history())
        else:
            raise AssertionError("it never ended")


async def _go_on(
    world: World, graph: Graph, workload: Any, left: list[tuple[str, Any]], driver: Driver
) -> RunResult[GraphResult]:
    """Run it to its end, in one process after the other."""
    with anyio.fail_after(PATIENCE):
        while True:
            result = await world.once(graph, workload, driver=driver, mode="yield")
            if result.status.is_terminal:
                return result
            if result.waiting_for and left:
                await world.send(*left.pop(0))
            elif result.wake_at is not None:
                world.clock.advance(max(0.0, result.wake_at.timestamp() - world.clock.time()))
            else:
                raise AssertionError(f"it waits for nothing that comes: {result}")


async def _recorded(world: World) -> tuple[History | None, InstanceInfo | None]:
    async with Client(world.driver) as client:
        try:
            return await world.history(), await client.handle("g", "i").info()
        except InstanceNotFoundError:
            return None, None
