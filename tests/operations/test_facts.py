"""What a ctx knows without an entry: time, uuids, random numbers, names, and whether it is replaying."""

from __future__ import annotations

import logging
import random
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.support import World
from workflow_sdk import Break, Context, Continue, workflow

Draws = list[tuple[UUID, UUID, float, int, datetime]]


def draw(ctx: Context) -> tuple[UUID, UUID, float, int, datetime]:
    return ctx.uuid(), ctx.uuid(), ctx.random.random(), ctx.random.randrange(10**9), ctx.now()


async def in_every_scope(ctx: Context, seen: dict[str, Draws]) -> None:
    """Draw in every kind of scope, before a wait and after it."""

    def note(ctx: Context, where: str) -> None:
        seen.setdefault(f"{ctx.path} {where}", []).append(draw(ctx))

    async def branch(ctx: Context) -> None:
        note(ctx, "before")
        await ctx.sleep("nap", 10)
        note(ctx, "after")

    async def item(ctx: Context, n: int) -> None:
        await branch(ctx)

    async def turn(ctx: Context, n: int) -> Continue[int] | Break[None]:
        await branch(ctx)
        return Break(None) if n == 2 else Continue(n + 1)

    await branch(ctx)
    await ctx.join("join", {"a": branch, "b": branch})
    await ctx.race("race", {"only": branch})
    await ctx.map("map", item, [1, 2])
    await ctx.attempt("attempt", branch)
    await ctx.loop("loop", turn, 0)
    note(ctx, "end")


async def test_every_replay_draws_the_same(world: World) -> None:
    seen: dict[str, Draws] = {}

    @workflow
    async def draws(ctx: Context) -> None:
        await in_every_scope(ctx, seen)

    await world.run(draws)
    assert len(seen) == 2 * 10 + 1
    for where, drawn in seen.items():
        assert len(set(drawn)) == 1, where
    if world.setting.mode == "yield":
        assert len(seen[" before"]) > 5
    uuids = [uuid for drawn in seen.values() for uuid in drawn[0][:2]]
    assert len(set(uuids)) == len(uuids), "every scope and every draw has its own"
    assert {uuid.version for uuid in uuids} == {4}
    numbers = [drawn[0][2] for drawn in seen.values()]
    assert len(set(numbers)) == len(numbers)


async def test_instances_draw_differently(world: World) -> None:
    @workflow
    async def draws(ctx: Context) -> list[Any]:
        return [ctx.uuid(), ctx.random.random()]

    first = (await world.run(draws, id="one")).output
    second = (await world.run(draws, id="two")).output
    assert first is not None
    assert second is not None
    assert first[0] != second[0]
    assert first[1] != second[1]


async def test_drawing_leaves_no_entry(world: World) -> None:
    @workflow
    async def draws(ctx: Context) -> bool:
        draw(ctx)
        return isinstance(ctx.random, random.Random)

    assert (await world.run(draws)).output is True
    assert len(await world.history()) == 0


async def test_now_is_when_the_last_operation_ended(world: World) -> None:
    began = datetime.fromtimestamp(world.clock.time(), UTC)

    @workflow
    async def times(ctx: Context) -> list[float]:
        found = [ctx.now()]
        if world.runs == 1:
            world.clock.advance(5)  # passes while the code computes
        found.append(ctx.now())
        await ctx.step("s", lambda: world.clock.advance(7))
        found.append(ctx.now())
        await ctx.sleep("nap", 100)
        found.append(ctx.now())
        assert all(time.tzinfo is UTC for time in found)
        return [(time - began).total_seconds() for time in found]

    assert (await world.run(times)).output == [0, 0, 12, 112]


async def test_names_and_paths(world: World) -> None:
    paths: list[str] = []

    async def branch(ctx: Context) -> None:
        paths.append(ctx.path)
        assert repr(ctx) == f"<ctx i {ctx.path}>"

    async def turn(ctx: Context, n: int) -> Continue[int] | Break[None]:
        await ctx.attempt("x", branch)
        return Break(None) if n == 1 else Continue(n + 1)

    async def item(ctx: Context, n: int) -> None:
        await branch(ctx)

    @workflow(name="named", version=7)
    async def looks(ctx: Context) -> list[Any]:
        await branch(ctx)
        await ctx.loop("outer", turn, 0)
        await ctx.join("a/b~c%", {"d\n": branch})
        await ctx.map("m", item, [0])
        return [ctx.instance_id, ctx.workflow_name, ctx.workflow_version]

    assert (await world.run(looks)).output == ["i", "named", 7]
    assert paths == ["", "outer/~0/x", "outer/~1/x", "a%2Fb%7Ec%25/d%0A", "m/0"]


async def test_replaying_ends_where_the_record_does(world: World) -> None:
    seen: list[list[bool]] = []

    @workflow
    async def looks(ctx: Context) -> None:
        replaying: list[bool] = []
        seen.append(replaying)
        replaying.append(ctx.is_replaying)
        await ctx.step("a", lambda: 1)
        replaying.append(ctx.is_replaying)
        await ctx.sleep("nap", 60)
        replaying.append(ctx.is_replaying)

    await world.run(looks)
    if world.setting.mode == "live":
        assert seen == [[False, False, False]]
    else:
        assert seen == [[False, False], [True, True, False]]


async def test_the_log_is_silent_while_replaying(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="workflow_sdk.workflow")

    async def branch(ctx: Context) -> None:
        ctx.log.info("in branch")
        await ctx.sleep("nap", 10)
        ctx.log.warning("after nap", extra={"mine": 1})

    @workflow
    async def logs(ctx: Context) -> None:
        ctx.log.info("begin %s", 1)
        ctx.log.debug("not shown")
        await ctx.step("a", lambda: 1)
        ctx.log.info("after a")
        await ctx.join("join", {"a": branch})
        ctx.log.info("after join")
        await ctx.sleep("pause", 60)
        ctx.log.info("end")

    await world.run(logs)
    records = [record for record in caplog.records if record.name == "workflow_sdk.workflow"]
    assert [record.getMessage() for record in records] == [
        *("begin 1", "after a", "in branch", "after nap", "after join", "end")
    ]
    facts = [(vars(record)["instance_id"], vars(record)["workflow"], vars(record)["path"]) for record in records]
    assert facts[0] == ("i", "logs", "")
    assert facts[2] == ("i", "logs", "join/a")
    assert vars(records[3])["mine"] == 1


async def test_the_log_is_an_ordinary_logger(world: World, caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def logs(ctx: Context) -> bool:
        try:
            raise ValueError("no")
        except ValueError:
            ctx.log.exception("failed")
        return isinstance(ctx.log, logging.LoggerAdapter) and ctx.log.isEnabledFor(logging.ERROR)

    assert (await world.run(logs)).output is True
    (record,) = [record for record in caplog.records if record.name == "workflow_sdk.workflow"]
    assert record.exc_info is not None
