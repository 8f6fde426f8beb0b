"""Calls of a client and of its handles, cancelled: what they decide has happened or has not, and once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import anyio

from tests.laws.cancelling.running import Stages, asks, child, fails, order, parent, peer, waits
from tests.laws.cancelling.stage import Case, Stage
from workflow_sdk import (
    Client,
    Context,
    CriticalError,
    Delivery,
    InstanceStateError,
    Runtime,
    StaleError,
    Status,
    Workflow,
    WorkflowCancelledError,
    workflow,
)
from workflow_sdk.driver import Batch
from workflow_sdk.rows.keys import ROOT
from workflow_sdk.rows.location import pack

__all__ = ["REACHING", "WORKFLOWS", "all_run", "answers"]

ANSWERS = ROOT + pack((11,))


@workflow
async def answers(ctx: Context) -> str:
    """Answers."""
    message = await ctx.listen_message("question", type=str)
    await message.reply(message.payload.upper())
    return "answered"


@workflow
async def keeps(ctx: Context) -> str:
    """Waits for a child that waits."""
    return await ctx.child("child", waits, id="child")


@workflow
async def breaks(ctx: Context) -> str:
    """Fails, until somebody has it run again."""

    async def work() -> str:
        Stages.now.done["broken"] += 1
        if Stages.now.done["broken"] == 1:
            raise CriticalError("no")
        return "mended"

    return await ctx.step("work", work)


WORKFLOWS: list[Workflow[Any, Any]] = [answers, asks, breaks, child, fails, keeps, order, parent, peer, waits]


def _of_client(call: Callable[[Client], Awaitable[object]]) -> Callable[[Stage], Awaitable[object]]:
    """A call of a client that runs nothing."""

    async def made(stage: Stage) -> object:
        Stages.now = stage
        async with stage.client() as client:
            return await call(client)

    return made


async def _waiting(stage: Stage) -> None:
    Stages.now = stage
    await stage.run(waits, "i")


async def _asking(stage: Stage) -> None:
    Stages.now = stage
    await stage.run(asks, "i")
    async with stage.client() as client:
        ((task,)) = (await client.tasks.list()).items
    stage.kept["task"] = task.id


async def _with_child(stage: Stage) -> None:
    Stages.now = stage
    await stage.run(keeps, "i")


async def _ended(stage: Stage) -> None:
    await _waiting(stage)
    async with stage.client() as client:
        await client.handle(waits, "i").cancel()


async def _failed(stage: Stage) -> None:
    Stages.now = stage
    await stage.run(breaks, "i")


async def _answering(stage: Stage) -> None:
    Stages.now = stage
    await stage.run(answers, "i")


async def _scheduled(stage: Stage) -> None:
    async with stage.client() as client:
        await client.schedule("nightly", "waits", cron=None, every=3600)


async def _works_on(stage: Stage) -> None:
    """A runtime that runs what there is."""
    async with Runtime(stage.driver, workflows=WORKFLOWS):
        await anyio.sleep_forever()


async def all_run(stage: Stage, id: str, status: Status) -> None:
    """Run by whoever comes, it ends."""
    async with Runtime(stage.driver, workflows=WORKFLOWS) as runtime:
        for wanted in [info for info in (await runtime.list()).items if info.id == id]:
            with suppress(WorkflowCancelledError):
                await runtime.handle(wanted.workflow, id).result()
    assert await stage.status(id) is status


async def _is_whole(stage: Stage) -> None:
    """It is as if nobody had called, or had called once."""
    assert stage.outcome.error is None, stage.outcome.error
    if await stage.status("i") is not None:
        await stage.is_free("i")
    await stage.no_worker()
    await stage.nothing_left()


async def _starts_again(stage: Stage) -> None:
    assert stage.outcome.error is None
    async with stage.client() as client:
        assert len((await client.list()).items) <= 1
        await client.start(waits, id="i")
        assert len((await client.list()).items) == 1
        handle = client.handle(waits, "i")
        await handle.send("go", "gone", key="k")
    await all_run(stage, "i", Status.COMPLETED)
    assert stage.done["charge"] <= 2
    await stage.no_worker()
    await stage.nothing_left()


async def _sent_once(stage: Stage) -> None:
    async with stage.client() as client:
        again = await client.handle(waits, "i").send("go", "gone", key="k")
        assert again in (Delivery.ACCEPTED, Delivery.DUPLICATE, Delivery.QUEUED)
    assert [key for key in await stage.parts(1) if key[2] == 3].__len__() == 1, "it lies there once"
    await all_run(stage, "i", Status.COMPLETED)
    await _is_whole(stage)


async def _answered(stage: Stage) -> None:
    # Whoever gave up may leave an answer behind that was just being given: that is not for them to see.
    for key in await stage.rows():
        if key.startswith(ANSWERS):
            batch = Batch()
            batch.clear(key)
            await stage.driver.commit(batch)
    async with stage.client() as client:
        with suppress(InstanceStateError):
            await client.handle(answers, "i").send("question", "x")
    await all_run(stage, "i", Status.COMPLETED)
    await _is_whole(stage)


async def _cancelled_once(stage: Stage) -> None:
    async with stage.client() as client:
        await client.handle(waits, "i").cancel(rollback=True)
    await all_run(stage, "i", Status.CANCELLED)
    assert stage.done["undo charge"] <= 1
    await stage.nothing_left()


async def _child_cancelled(stage: Stage) -> None:
    async with stage.client() as client:
        await client.handle(keeps, "i").cancel()
    async with Runtime(stage.driver, workflows=WORKFLOWS):
        await stage.until("child", Status.CANCELLED)
    assert await stage.parts(12) == [], "a cleanup is left"
    await stage.nothing_left()


async def _completed_once(stage: Stage) -> None:
    async with stage.client() as client:
        if (await client.tasks.list()).items:
            await client.tasks.complete(stage.kept["task"], "yes", by="ann")
        try:
            await client.tasks.complete(stage.kept["task"], "no", by="ben")
        except StaleError:
            pass
        else:
            raise AssertionError("completed twice")
        log = (await client.tasks.get(stage.kept["task"])).log
        assert [change.what for change in log].count("completed") == 1
    await all_run(stage, "i", Status.COMPLETED)
    await _is_whole(stage)


async def _with_messages(stage: Stage) -> None:
    await _waiting(stage)
    async with stage.client() as client:
        await client.handle(waits, "i").send("other", "unasked")
        ((message,)) = await client.handle(waits, "i").inbox()
    stage.kept["message"] = message.id


async def _discard(stage: Stage) -> object:
    async with stage.client() as client:
        return await client.handle(waits, "i").discard(stage.kept["message"])


async def _discarded_once(stage: Stage) -> None:
    async with stage.client() as client:
        handle = client.handle(waits, "i")
        left = await handle.inbox()
        assert await handle.discard(stage.kept["message"]) == bool(left)
        assert await handle.inbox() == []
        await handle.send("go", "gone", key="k")
    await all_run(stage, "i", Status.COMPLETED)
    await _is_whole(stage)


async def _rewound(stage: Stage) -> None:
    async with stage.client() as client:
        await client.handle(waits, "i").restart_from()
        await client.handle(waits, "i").send("go", "gone", key="k")
    await all_run(stage, "i", Status.COMPLETED)
    await _is_whole(stage)


async def _recovered(stage: Stage) -> None:
    async with stage.client() as client:
        if await stage.status("i") is Status.FAILED:
            await client.handle(breaks, "i").recover()
    await all_run(stage, "i", Status.COMPLETED)
    await _is_whole(stage)


async def _deleted(stage: Stage) -> None:
    await _is_whole(stage)
    assert [key for key in await stage.rows() if b"\x02i\x00" in key] == []


async def _scheduled_once(stage: Stage) -> None:
    async with stage.client() as client:
        schedules = (await client.schedules.list()).items
        assert len(schedules) <= 1
        for schedule in schedules:
            await client.schedules.delete(schedule.id)
    await stage.nothing_left()


def _task(name: str, *args: Any, **options: Any) -> Callable[[Stage], Awaitable[object]]:
    async def call(stage: Stage) -> object:
        async with stage.client() as client:
            return await getattr(client.tasks, name)(stage.kept["task"], *args, **options)

    return call


def _handle(
    name: str, *args: Any, workflow: Workflow[Any, Any] = waits, **options: Any
) -> Callable[[Stage], Awaitable[object]]:
    async def call(stage: Stage) -> object:
        async with stage.client() as client:
            return await getattr(client.handle(workflow, "i"), name)(*args, **options)

    return call


async def _watch(client: Client) -> object:
    seen = client.handle(waits, "i").watch()
    assert isinstance(seen, AsyncGenerator), "one that is to be closed"
    async with aclosing(seen):
        return await anext(seen)


async def _until_asked(stage: Stage) -> None:
    """Whoever is asked answers; that is run here, where it waits."""
    await _works_on(stage)


async def _ends_it(stage: Stage) -> None:
    await anyio.sleep(0.01)
    async with stage.client() as client:
        await client.handle(waits, "i").send("go", "gone")
    await _works_on(stage)


REACHING = [
    Case("client.start", _of_client(lambda client: client.start(waits, id="i")), _starts_again),
    Case("client.start again", _of_client(lambda client: client.start(waits, id="i")), _starts_again, _waiting),
    Case("client.run", _of_client(lambda client: client.run(child, "x", id="i")), _is_whole, None, _works_on),
    Case("client.list", _of_client(lambda client: client.list()), _is_whole, _waiting),
    Case("client.delete", _of_client(lambda client: client.delete("i")), _deleted, _ended),
    Case("client.prune", _of_client(lambda client: client.prune(older_than=0)), _deleted, _ended),
    Case("client.schedule", _of_client(lambda client: client.schedule("nightly", waits, every=3600)), _scheduled_once),
    Case("schedules.list", _of_client(lambda client: client.schedules.list()), _scheduled_once, _scheduled),
    Case("schedules.get", _of_client(lambda client: client.schedules.get("nightly")), _scheduled_once, _scheduled),
    Case("schedules.pause", _of_client(lambda client: client.schedules.pause("nightly")), _scheduled_once, _scheduled),
    Case(
        "schedules.resume", _of_client(lambda client: client.schedules.resume("nightly")), _scheduled_once, _scheduled
    ),
    Case(
        "schedules.delete", _of_client(lambda client: client.schedules.delete("nightly")), _scheduled_once, _scheduled
    ),
    Case("tasks.list", _of_client(lambda client: client.tasks.list(role="boss")), _completed_once, _asking),
    Case("tasks.get", _task("get"), _completed_once, _asking),
    Case("tasks.assign", _task("assign", "ann"), _completed_once, _asking),
    Case("tasks.release", _task("release"), _completed_once, _asking),
    Case("tasks.complete", _task("complete", "yes", by="ann"), _completed_once, _asking),
    Case("handle.send", _handle("send", "go", "gone", key="k"), _sent_once, _waiting),
    Case("handle.info", _handle("info"), _is_whole, _waiting),
    Case("handle.history", _handle("history"), _is_whole, _waiting),
    Case("handle.watch", _of_client(_watch), _is_whole, _waiting),
    Case("handle.result", _handle("result"), _is_whole, _waiting, _ends_it),
    Case(
        "handle.ask",
        _of_client(lambda client: client.handle(answers, "i").ask("question", "x")),
        _answered,
        _answering,
        _until_asked,
    ),
    Case("handle.cancel", _handle("cancel"), _is_whole, _waiting),
    Case("handle.cancel, rollback", _handle("cancel", rollback=True), _cancelled_once, _waiting),
    Case(
        "handle.cancel, child",
        _of_client(lambda client: client.handle(keeps, "i").cancel()),
        _child_cancelled,
        _with_child,
    ),
    Case("handle.wake", _handle("wake"), _is_whole, _waiting),
    Case("handle.evict", _handle("evict"), _is_whole, _waiting),
    Case("handle.inbox", _handle("inbox"), _is_whole, _with_messages),
    Case("handle.discard", _discard, _discarded_once, _with_messages),
    Case("handle.recover", _handle("recover", workflow=breaks), _recovered, _failed),
    Case("handle.restart_from", _handle("restart_from"), _rewound, _waiting),
]
