"""The types that flow through the public interface. The type checkers run these tests, by reading them.

Every `type: ignore` marks a mistake that must be one: where it is none, the checkers call the ignore unused.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from workflow_sdk import (
    Backoff,
    Break,
    Client,
    Context,
    Continue,
    ContinueAsNew,
    Delivery,
    Driver,
    Failure,
    Handle,
    History,
    InstanceInfo,
    Message,
    Page,
    Progress,
    RaceResult,
    RunResult,
    Runtime,
    Schedule,
    Step,
    Success,
    Task,
    TaskChange,
    TaskResult,
    TaskStatus,
    Wait,
    Workflow,
    read_history,
    run_workflow,
    send_message,
    step,
    workflow,
)


@dataclass
class Order:
    id: str


async def charge(order: Order, cents: int) -> bool:
    return bool(order.id) and cents > 0


def plain(order: Order, cents: int) -> str:
    return f"{order.id} {cents}"


@step(repeatable=True)
async def stepped(order: Order) -> int:
    return len(order.id)


@step(retries=5, timeout=10, backoff=Backoff(initial=1), no_retry=(ValueError,), rollback=plain)
def plain_stepped(order: Order, *, cents: int = 0) -> str:
    return f"{order.id} {cents}"


class Shop:
    async def bound(self, order: Order) -> float:
        return len(order.id) / 2


@workflow
async def checkout(ctx: Context, order: Order) -> list[int]:
    return [len(order.id)]


@workflow
async def nothing(ctx: Context) -> None: ...


@workflow(name="named", version=2, divergence="lenient")
async def named(ctx: Context, number: int = 1) -> str:
    return str(number)


@workflow
async def again(ctx: Context, turns: int) -> str | ContinueAsNew:
    return ContinueAsNew(turns + 1) if turns < 3 else "done"


@workflow
async def for_ever(ctx: Context) -> ContinueAsNew:
    return ContinueAsNew()


@workflow(retention=timedelta(days=30))
async def later(ctx: Context, order: Order) -> bool | ContinueAsNew:
    return True


async def branch(ctx: Context) -> int:
    return 1


async def other(ctx: Context) -> int:
    return 2


async def text(ctx: Context) -> str:
    return "text"


async def steps(ctx: Context, order: Order) -> None:
    assert_type(await ctx.step("charge", charge, order, 5), bool)
    assert_type(await ctx.step(charge, order, 5), bool)
    assert_type(await ctx.step("plain", plain, order, 5), str)
    assert_type(await ctx.step(plain, order, 5), str)
    assert_type(await ctx.step("lambda", lambda: 5), int)
    assert_type(await ctx.step(Shop().bound, order), float)
    assert_type(await ctx.step("partial", functools.partial(charge, order), 5), bool)
    assert_type(await ctx.step("options", charge, order, 5, retries=1, timeout=timedelta(seconds=1)), bool)
    assert_type(await ctx.step("stepped", stepped, order), int)
    assert_type(await ctx.step(plain_stepped, order), str)


async def wrong_steps(ctx: Context, order: Order) -> None:
    await ctx.step("charge", charge, order)  # type: ignore[arg-type]
    await ctx.step("charge", charge, order, "5")  # type: ignore[arg-type, call-arg]
    await ctx.step(charge, order, 5, 6)  # type: ignore[arg-type, call-arg]
    await ctx.step("plain", plain, order, None)  # type: ignore[arg-type, call-arg]
    await ctx.step("charge", charge, order, 5, retries="3")  # type: ignore[call-overload, call-arg]
    await ctx.step("charge", charge, order, 5, attempts=3)  # type: ignore[call-overload]


async def decorated(order: Order) -> None:
    assert_type(await stepped(order), int)
    assert_type(plain_stepped(order, cents=5), str)
    await stepped("o")  # type: ignore[arg-type]
    assert isinstance(stepped, Step)


async def loops(ctx: Context) -> None:
    async def with_state(ctx: Context, state: int) -> Continue[int] | Break[str]:
        return Break("done") if state else Continue(state + 1)

    async def without_state(ctx: Context, state: None) -> Break[str] | None:
        return Break("done")

    assert_type(await ctx.loop("loop", with_state, 0), str)
    assert_type(await ctx.loop("loop", with_state, 0, commit_interval=5, history_keep=1), str)
    assert_type(await ctx.loop("loop", without_state), str)


async def waits(ctx: Context, when: datetime) -> None:
    await ctx.sleep("sleep", 5)
    await ctx.sleep("sleep", timedelta(days=1))
    await ctx.sleep_until("until", when)
    await ctx.sleep("sleep", "5")  # type: ignore[arg-type]
    await ctx.sleep_until("until", 5)  # type: ignore[arg-type]
    assert_type(await ctx.listen("any"), Any)
    assert_type(await ctx.listen("typed", type=Order), Order)
    assert_type(await ctx.listen("typed", ["a", "b"], type=int, timeout=5), int)
    assert_type(await ctx.listen("default", type=Order, timeout=5, default=None), Order | None)
    assert_type(await ctx.listen_message("message", type=Order), Message[Order])
    assert_type((await ctx.listen_message("message", type=Order)).payload, Order)
    assert_type(await ctx.listen_message("message", type=int, until=when, default=0), Message[int] | int)
    assert_type(await ctx.listen_many("many", count=3, type=Order), list[Order])
    assert_type(await ctx.listen_many("many", count=3), list[Any])
    await ctx.listen_many("many")  # type: ignore[call-overload]


async def branches(ctx: Context, orders: list[Order]) -> None:
    async def each(ctx: Context, order: Order) -> int:
        return len(order.id)

    assert_type(await ctx.join("join", {"a": branch, "b": other}, limit=2), dict[str, int])
    assert_type(await ctx.race("race", {"a": branch, "b": other}), RaceResult[int])
    winner, first = await ctx.race("race again", {"a": branch, "b": other})
    assert_type(winner, str)
    assert_type(first, int)
    won = await ctx.race("race", {"a": branch})
    assert_type(won.winner, str)
    assert_type(won.value, int)
    assert_type(await ctx.map("map", each, orders, limit=3), list[int])
    await ctx.map("map", each, [1, 2])  # type: ignore[arg-type]
    await ctx.join("join", {"a": charge})  # type: ignore[dict-item]
    await ctx.join("join", [branch])  # type: ignore[arg-type]
    outcome = await ctx.attempt("attempt", text)
    assert_type(outcome, Success[str] | Failure)
    match outcome:
        case Success(value):
            assert_type(value, str)
        case Failure(error):
            assert_type(error, Exception)


async def facts(ctx: Context) -> None:
    assert_type(await ctx.version("version", 2), int)
    assert_type(ctx.now(), datetime)
    assert_type(ctx.uuid(), UUID)
    assert_type(ctx.random.random(), float)
    assert_type(ctx.instance_id, str)
    assert_type(ctx.workflow_version, int)
    assert_type(ctx.is_replaying, bool)
    await ctx.removed("gone", "step")
    await ctx.checkpoint("done")


async def running(driver: Driver, order: Order) -> None:
    assert_type(checkout, Workflow[Order, list[int]])
    assert_type(nothing, Workflow[None, None])
    result = await run_workflow(checkout, order, driver=driver, instance_id="i", mode="live")
    assert_type(result, RunResult[list[int]])
    assert_type(result.output, list[int] | None)
    assert_type(await run_workflow(nothing, driver=driver), RunResult[None])
    assert_type(await run_workflow(named, 5, driver=driver), RunResult[str])
    assert_type(await send_message(driver, "i", "m", order), Delivery)
    assert_type(await read_history(driver, "i"), History)
    await run_workflow(checkout, "order", driver=driver)  # type: ignore[misc]
    await run_workflow(checkout, order, driver=driver, mode="fast")  # type: ignore[call-overload]
    await run_workflow(charge, order, driver=driver)  # type: ignore[call-overload]


def not_a_workflow(ctx: Context) -> None: ...


def wrong_definitions() -> None:
    workflow(not_a_workflow)  # type: ignore[arg-type]
    step(retries="3")  # type: ignore[call-overload]
    workflow(divergence="loose")  # type: ignore[call-overload]


def test_names_are_known_at_run_time_too() -> None:
    assert_type(checkout.name, str)
    assert (checkout.name, nothing.name, named.name, named.version) == ("checkout", "nothing", "named", 2)


async def started(client: Client, order: Order) -> None:
    assert_type(await client.start(checkout, order), Handle[list[int]])
    assert_type(await client.start(nothing, id="n"), Handle[None])
    assert_type(await client.start("checkout", {"id": "o"}), Handle[Any])
    assert_type(await client.run(named), str)
    assert_type(await client.run(named, 5), str)
    assert_type(await client.handle(checkout, "o").result(timeout=5), list[int])
    assert_type(await client.handle(checkout, "o").send("m", 1, key="k"), Delivery)


async def wrongly_started(client: Client, order: Order) -> None:
    await client.start(checkout)  # type: ignore[arg-type]
    await client.start(checkout, 5)  # type: ignore[misc]
    await client.run(checkout, order.id)  # type: ignore[misc]


async def between_instances(ctx: Context, order: Order, handle: Handle[int]) -> None:
    assert_type(await ctx.send("tell", "o-1", "packed"), str)
    assert_type(await ctx.send("tell", handle, "packed", order), str)
    assert_type(await ctx.child("child", checkout, order), list[int])
    assert_type(await ctx.child("child", nothing), None)
    assert_type(await ctx.child("child", named), str)
    assert_type(await ctx.child("child", named, 5, id="n-1", on_cancel="abandon"), str)
    assert_type(await ctx.child("child", again, 0), str)
    assert_type(await ctx.child("child", "checkout", {"id": "o"}), Any)
    assert_type(await ctx.continue_with("next", checkout, order), str)
    assert_type(await ctx.continue_with("next", nothing, id="n-1"), str)
    assert_type(await ctx.continue_with("next", "checkout", order), str)


async def wrongly_between_instances(ctx: Context, order: Order) -> None:
    await ctx.send("tell", 5, "packed")  # type: ignore[arg-type]
    await ctx.send("tell", "o-1")  # type: ignore[call-arg]
    await ctx.child("child", checkout)  # type: ignore[arg-type]
    await ctx.child("child", checkout, 5)  # type: ignore[misc]
    await ctx.child("child", named, "5")  # type: ignore[misc]
    await ctx.child("child", charge, order)  # type: ignore[call-overload]
    await ctx.child("child", checkout, order, on_cancel="ignore")  # type: ignore[call-overload]
    await ctx.continue_with("next", checkout, 5)  # type: ignore[misc]


async def people(ctx: Context, when: datetime) -> None:
    assert_type(await ctx.task("any"), TaskResult[Any])
    assert_type(await ctx.task("typed", type=Order), TaskResult[Order])
    done = await ctx.task("all", payload=1, assignee="a", roles=["r"], type=bool, timeout=timedelta(days=1))
    assert_type(done.value, bool)
    assert_type(done.result, bool)
    assert_type(done.by, str)
    assert_type(done.completed_at, datetime)
    assert_type(done.task_id, str)
    await ctx.task("until", until=when, roles=("r",))
    await ctx.task("when", until=5)  # type: ignore[call-overload]
    await ctx.task("roles", roles=5)  # type: ignore[call-overload]


async def what_everybody_may_see(ctx: Context) -> None:
    assert_type(ctx.state, MutableMapping[str, Any])
    ctx.state["cents"] = 5
    ctx.state = {"cents": 5}
    ctx.state = 5  # type: ignore[assignment]
    assert_type(ctx.reference, str | None)
    ctx.reference = "order-1"
    ctx.reference = None
    ctx.reference = 5  # type: ignore[assignment]
    ctx.progress(1)
    ctx.progress(0.5, 2, note="half")
    ctx.progress("half")  # type: ignore[arg-type]


async def starting_over(client: Client, driver: Driver, order: Order) -> None:
    assert_type(again, Workflow[int, str])
    assert_type(later, Workflow[Order, bool])
    assert_type(await client.start(again, 0), Handle[str])
    assert_type(await client.run(later, order), bool)
    assert_type(await client.handle(again, "a").result(), str)
    assert_type((await run_workflow(again, 0, driver=driver)).output, str | None)
    await client.start(for_ever)
    await client.start(again, "0")  # type: ignore[misc]


async def looking(client: Client, handle: Handle[int]) -> None:
    assert_type(handle.watch(), AsyncIterator[InstanceInfo])
    async for info in handle.watch():
        assert_type(info, InstanceInfo)
        assert_type(info.version, int)
        assert_type(info.workflow_version, int)
        assert_type(info.state, dict[str, Any])
        assert_type(info.reference, str | None)
        assert_type(info.progress, Progress | None)
        assert_type(info.waits, list[Wait])
        await handle.send("m", token=info.waits[0].token, expected_version=info.waits[0].version)
    assert_type(await client.list(reference="order-1"), Page[InstanceInfo])


async def the_task_list(client: Client) -> None:
    assert_type(
        await client.tasks.list(assignee="a", role="r", reference="o", instance="i", limit=5, cursor=None), Page[Task]
    )
    task = await client.tasks.get("t")
    assert_type(task, Task)
    assert_type(task.status, TaskStatus)
    assert_type(task.log, tuple[TaskChange, ...])
    await client.tasks.assign(task.id, "a")
    await client.tasks.release(task.id, by="a")
    await client.tasks.complete(task.id, {"approved": True}, by="a", roles=["r"])
    await client.tasks.complete(task.id)  # type: ignore[call-arg]


def retention() -> None:
    Runtime("memory://", workflows=[later], retention=timedelta(days=30))
    Runtime("memory://", workflows=[later], retention=60)
    Runtime("memory://", workflows=[later], retention="30d")  # type: ignore[arg-type]
    workflow(retention="30d")  # type: ignore[call-overload]


async def scheduled(client: Client, order: Order) -> None:
    assert_type(await client.schedule("s", checkout, order, cron="0 3 * * *", timezone="Europe/Berlin"), Schedule)
    assert_type(await client.schedule("s", nothing, every=timedelta(hours=1), overlap="queue"), Schedule)
    assert_type(await client.schedule("s", "checkout", {"id": "o"}, every=5, catch_up="all"), Schedule)
    assert_type(await client.schedules.list(), Page[Schedule])
    assert_type(await client.schedules.get("s"), Schedule)


async def wrongly_scheduled(client: Client, order: Order) -> None:
    await client.schedule("s", checkout, order.id, every=1)  # type: ignore[misc]
    await client.schedule("s", checkout, order.id, every=1)  # type: ignore[misc]
    await client.schedule("s", nothing, every=1, overlap="never")  # type: ignore[call-overload]
    await client.schedule("s", nothing, every=1, overlap="never")  # type: ignore[call-overload]
    await client.schedule("s", nothing, often=1)  # type: ignore[call-overload]
