"""Runtimes, cancelled: while they are opened, while they run and are closed, and calls in the process of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from tests.laws.cancelling.reaching import WORKFLOWS, all_run, answers
from tests.laws.cancelling.running import Stages, asks, child, order, peer, waits
from tests.laws.cancelling.stage import Case, Stage
from workflow_sdk import Client, Runtime, Status

__all__ = ["HOSTING"]


def _runtime(stage: Stage) -> Runtime:
    Stages.now = stage
    return Runtime(stage.driver, workflows=WORKFLOWS, grace=0.5)


async def _opened(stage: Stage) -> None:
    stage.kept["runtime"] = await stage.opened.enter_async_context(_runtime(stage))


async def _opened_with_waiting(stage: Stage) -> None:
    await _opened(stage)
    handle = await stage.kept["runtime"].start(waits, id="i")
    await stage.until("i", Status.WAITING)
    assert handle.id == "i"


async def _opened_with_answers(stage: Stage) -> None:
    await _opened(stage)
    await stage.kept["runtime"].start(answers, id="i")
    await stage.until("i", Status.WAITING)


def _in(call: Callable[[Client], Awaitable[object]]) -> Callable[[Stage], Awaitable[object]]:
    async def made(stage: Stage) -> object:
        return await call(stage.kept["runtime"])

    return made


async def _whole_life(stage: Stage) -> object:
    async with _runtime(stage) as runtime:
        return await runtime.run(child, "x", id="i")


async def _with_work(stage: Stage) -> object:
    """It is closed in the middle of everything."""
    async with _runtime(stage) as runtime:
        await runtime.start(peer, id="peer")
        await runtime.start(order, id="i")
        await runtime.start(asks, id="j")
        await stage.until("i", Status.WAITING)
        await runtime.handle(order, "i").send("go", "gone", key="k")
    return None


async def _serves(stage: Stage) -> object:
    async with _runtime(stage) as runtime:
        with anyio.move_on_after(0.05):
            await runtime.serve()
    return None


async def _closed(stage: Stage) -> None:
    """Nothing is left of it; others go on at once."""
    assert stage.outcome.error is None, stage.outcome.error
    await stage.no_worker()
    for id in ("i", "j", "peer"):
        if await stage.status(id) is not None:
            await stage.is_free(id)
    if await stage.status("i") not in (None, Status.COMPLETED):
        async with stage.client() as client:
            (info,) = [info for info in (await client.list()).items if info.id == "i"]
            if info.workflow == "order":
                await client.handle(order, "i").send("go", "gone", key="k")
            if info.workflow == "waits":
                await client.handle(waits, "i").send("go", "gone", key="k")
        await all_run(stage, "i", Status.COMPLETED)
        if info.workflow == "order":
            await all_run(stage, "peer", Status.COMPLETED)
            await all_run(stage, "later", Status.COMPLETED)
    again = {name: times for name, times in stage.done.items() if times > 1}
    assert sum(again.values()) - len(again) <= 4, f"done again: {again}"
    await stage.no_worker()
    await stage.nothing_left()


async def _closed_after(stage: Stage) -> None:
    """What was called is done or not; and the runtime goes on."""
    assert stage.outcome.error is None, stage.outcome.error
    runtime = stage.kept["runtime"]
    assert await runtime.run(child, "y", id="another") == "y"
    if await stage.status("i") is None:
        await runtime.start(waits, id="i")
    (info,) = [info for info in (await runtime.list()).items if info.id == "i"]
    if info.workflow == "waits":
        await runtime.handle(waits, "i").send("go", "gone", key="k")
        assert await runtime.handle(waits, "i").result() == "gone"
    if info.workflow == "answers":
        if not info.status.is_terminal:
            await runtime.handle(answers, "i").send("question", "x")
        await runtime.handle(answers, "i").result()
    await runtime.handle(info.workflow, "i").result()
    assert await stage.parts(11, 12) == []
    await stage.opened.aclose()
    assert stage.done["charge"] <= 2
    await stage.no_worker()
    await stage.nothing_left()


HOSTING = [
    Case("runtime", _whole_life, _closed),
    Case("runtime with work", _with_work, _closed),
    Case("runtime.serve", _serves, _closed),
    Case("runtime.start", _in(lambda runtime: runtime.start(waits, id="i")), _closed_after, _opened),
    Case("runtime.run", _in(lambda runtime: runtime.run(child, "x", id="i")), _closed_after, _opened),
    Case(
        "handle.send here",
        _in(lambda runtime: runtime.handle(waits, "i").send("go", "gone", key="k")),
        _closed_after,
        _opened_with_waiting,
    ),
    Case(
        "handle.ask here",
        _in(lambda runtime: runtime.handle(answers, "i").ask("question", "x")),
        _closed_after,
        _opened_with_answers,
    ),
    Case(
        "handle.evict here",
        _in(lambda runtime: runtime.handle(waits, "i").evict()),
        _closed_after,
        _opened_with_waiting,
    ),
    Case(
        "handle.wake here", _in(lambda runtime: runtime.handle(waits, "i").wake()), _closed_after, _opened_with_waiting
    ),
    Case(
        "handle.restart_from here",
        _in(lambda runtime: runtime.handle(waits, "i").restart_from()),
        _closed_after,
        _opened_with_waiting,
    ),
]
