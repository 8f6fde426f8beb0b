"""Instances of every kind, as a store has them, and what can be done with one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import anyio

from tests.patience import PATIENCE
from tests.runtime.parts import opened
from workflow_sdk import (
    Backoff,
    Batch,
    Break,
    Client,
    Context,
    Continue,
    Driver,
    JoinError,
    ListenTimeoutError,
    Workflow,
    read_history,
    run_workflow,
    send_message,
    workflow,
)
from workflow_sdk.rows.keys import ASIDE, INBOX, InstanceKeys

__all__ = ["ACTIONS", "FLOWS", "Row", "act", "do", "rows_of", "stored"]

Row = tuple[bytes, bytes]

AT_ONCE = Backoff(initial=0)
MUCH_LATER = Backoff(initial=1e6, maximum=1e6)


async def value() -> dict[str, Any]:
    return {"a": [1, 2.5, "x"], "b": (1, None)}


async def fails() -> None:
    raise LookupError("nothing there", 7)


async def undo(result: object) -> None:
    """Nothing to be done."""


async def cannot_undo(result: object) -> None:
    raise OSError(5, "no way")


async def _turn(ctx: Context, seen: list[int]) -> Continue[list[int]] | Break[str]:
    await ctx.step("work", value)
    return Continue([*seen, len(seen)]) if len(seen) < 4 else Break("done")


async def _listens_in_turns(ctx: Context, seen: list[int]) -> Continue[list[int]] | Break[str]:
    if len(seen) > 3:
        await ctx.listen("never")
    return Continue([*seen, len(seen)]) if len(seen) < 9 else Break("done")


async def _double(ctx: Context, item: int) -> int:
    return item


async def _everything(ctx: Context) -> None:
    async def good(ctx: Context) -> Any:
        return await ctx.step("good", value)

    async def bad(ctx: Context) -> Any:
        return await ctx.step("bad", fails, retries=1, backoff=AT_ONCE)

    async def sleeps(ctx: Context) -> None:
        await ctx.step("begun", value)
        await ctx.sleep("long", 3600)

    await ctx.step("first", value, rollback=undo)
    await ctx.loop("turns", _turn, [], commit_interval=2)
    await ctx.join("all", {"one": good, "two": good})
    try:
        await ctx.join("some", {"good": good, "bad": bad})
    except JoinError:
        await ctx.step("after", value)
    await ctx.race("fast", {"good": good, "slow": sleeps})
    await ctx.map("each", _double, [1, 2, 3])
    await ctx.attempt("try", bad)
    try:
        await ctx.listen("nothing", timeout=0)
    except ListenTimeoutError:
        await ctx.sleep("none", 0)
    await ctx.listen("taken")
    await ctx.version("change", 2)


@workflow
async def parks(ctx: Context) -> str:
    async def listens(ctx: Context) -> Any:
        return await ctx.listen("go", type=int)

    async def sleeps(ctx: Context) -> None:
        await ctx.sleep("long", 3600)

    async def turns(ctx: Context) -> str:
        return await ctx.loop("waiting", _listens_in_turns, [], commit_interval=2)

    async def retries(ctx: Context) -> None:
        await ctx.step("again", fails, retries=9, backoff=MUCH_LATER)

    async def takes(ctx: Context) -> None:
        await ctx.listen("early")
        await ctx.listen("late")

    async def races(ctx: Context) -> None:
        await ctx.race("open", {"takes": takes, "sleeps": sleeps})

    await _everything(ctx)
    await ctx.join("wait", {"l": listens, "s": sleeps, "t": turns, "r": retries, "o": races})
    return "over"


@workflow
async def completes(ctx: Context, what: dict[str, int]) -> str:
    await _everything(ctx)
    return "over"


@workflow
async def rolls_back(ctx: Context) -> None:
    await ctx.step("first", value, rollback=undo)
    await ctx.step("bad", fails, retries=0)


@workflow
async def dies(ctx: Context) -> None:
    await ctx.step("bad", fails, retries=0)


@workflow
async def unwinds(ctx: Context) -> None:
    """Is rolling back: what is to be undone is tried again later."""
    await ctx.step("first", value, rollback=undo)
    await ctx.step("second", value, rollback=cannot_undo, backoff=MUCH_LATER)
    raise LookupError("no more")


@workflow
async def mistakes(ctx: Context) -> None:
    await ctx.step("first", value)
    await ctx.sleep("", 1)


FLOWS: dict[str, Workflow[Any, Any]] = {
    flow.name: flow for flow in (parks, completes, rolls_back, dies, unwinds, mistakes)
}


@cache
def stored() -> tuple[Row, ...]:
    """Every row of a store with an instance of each workflow, which has its name for its id."""

    async def make() -> tuple[Row, ...]:
        async with opened("memory://") as driver:
            async with Client(driver) as client:
                for name in ("parks", "completes"):
                    await client.start(FLOWS[name], {"n": 1} if name == "completes" else None, id=name)
                    await send_message(driver, name, "taken", [1])
                    await client.handle(name, name).send("early", {"k": 1}, key="once")
                    await send_message(driver, name, "unread", "x")
                await send_message(driver, "parks", "go", "set aside")
                await client.start("unknown", {"n": 1}, id="pending")
            for name, flow in FLOWS.items():
                await run_workflow(flow, driver=driver, instance_id=name)
            return tuple(await driver.scan(b"", b"\xff"))

    return anyio.run(make)


def rows_of(id: str) -> list[Row]:
    """The rows of one instance that have a value."""
    begin, end = InstanceKeys(id).all()
    return [(key, raw) for key, raw in stored() if begin <= key < end and raw]


Action = Callable[[Driver, Client, str], Awaitable[object]]


async def _run(driver: Driver, client: Client, id: str) -> object:
    return await run_workflow(FLOWS[id], driver=driver, instance_id=id)


async def _run_on(driver: Driver, client: Client, id: str) -> object:
    """What has come meanwhile leads further."""
    for message in ("go", "never", "late"):
        await send_message(driver, id, message, 1)
    return await run_workflow(FLOWS[id], driver=driver, instance_id=id)


async def _history(driver: Driver, client: Client, id: str) -> object:
    return str(await read_history(driver, id))


async def _info(driver: Driver, client: Client, id: str) -> object:
    return await client.handle("", id).info()


async def _list(driver: Driver, client: Client, id: str) -> object:
    return await client.list()


async def _send(driver: Driver, client: Client, id: str) -> object:
    return await client.handle("", id).send("go", 1, key="again")


async def _send_to_wait(driver: Driver, client: Client, id: str) -> object:
    handle = client.handle("", id)
    waits = (await handle.info()).waits
    for wait in waits:
        if wait.message is not None:
            await handle.send(wait.message, 1, token=wait.token)
    return waits


async def _inbox(driver: Driver, client: Client, id: str) -> object:
    return await client.handle("", id).inbox()


async def _discard(driver: Driver, client: Client, id: str) -> object:
    handle = client.handle("", id)
    start = len(InstanceKeys(id).space)
    for part in (INBOX, ASIDE):
        for key, _ in await driver.scan(*InstanceKeys(id).range(part)):
            await handle.discard(key[start + len(part) :].hex())
    return None


async def _result(driver: Driver, client: Client, id: str) -> object:
    try:
        return await client.handle(FLOWS[id], id).result(0)
    except TimeoutError:
        return None


async def _start(driver: Driver, client: Client, id: str) -> object:
    return await client.start(id, {"n": 1} if id == "completes" else None, id=id)


async def _restart(driver: Driver, client: Client, id: str) -> object:
    await client.handle("", id).restart_from()
    return await run_workflow(FLOWS[id], driver=driver, instance_id=id)


async def _restart_from(driver: Driver, client: Client, id: str) -> object:
    await client.handle("", id).restart_from("turns/~3" if id in ("parks", "completes") else "first")
    return await run_workflow(FLOWS[id], driver=driver, instance_id=id)


async def _recover(driver: Driver, client: Client, id: str) -> object:
    await client.handle("", id).recover()
    return await run_workflow(FLOWS[id], driver=driver, instance_id=id)


async def _cancel(driver: Driver, client: Client, id: str) -> object:
    await client.handle("", id).cancel(rollback=True)
    return await run_workflow(FLOWS[id], driver=driver, instance_id=id)


async def _wake(driver: Driver, client: Client, id: str) -> object:
    await client.handle("", id).evict()
    await client.handle("", id).wake()
    return None


async def _delete(driver: Driver, client: Client, id: str) -> object:
    await client.delete(id)
    return None


ACTIONS: dict[str, Action] = {
    "run": _run,
    "run on": _run_on,
    "history": _history,
    "info": _info,
    "list": _list,
    "send": _send,
    "send to a wait": _send_to_wait,
    "inbox": _inbox,
    "discard": _discard,
    "result": _result,
    "start": _start,
    "restart": _restart,
    "restart from": _restart_from,
    "recover": _recover,
    "cancel": _cancel,
    "wake": _wake,
    "delete": _delete,
}


def act(action: str, id: str, changed: Row | None = None) -> object:
    """Do something with an instance in a store of its own, of which one row is another."""

    return do(lambda driver, client: ACTIONS[action](driver, client, id), changed)


def do(what: Callable[[Driver, Client], Awaitable[object]], changed: Row | None = None) -> object:
    """Do something with a store of its own, of which one row is another."""
    rows = stored()

    async def done() -> object:
        async with opened("memory://") as driver:
            batch = Batch()
            for key, raw in rows:
                batch.set(key, raw)
            if changed is not None:
                batch.set(*changed)
            await driver.commit(batch)
            with anyio.fail_after(PATIENCE):
                async with Client(driver) as client:
                    return await what(driver, client)

    return anyio.run(done)
