"""Reading what is recorded of an instance, without running it."""

from __future__ import annotations

import pytest

from tests.support import World
from workflow_sdk import Context, EntryStatus, History, InstanceNotFoundError, Kind, Status, read_history, workflow


async def undo(value: int) -> None:
    raise NotImplementedError


@workflow(name="books")
async def books(ctx: Context) -> None:
    async def branch(ctx: Context) -> int:
        await ctx.step("in/side", lambda: 1)
        await ctx.sleep("nap", 60)
        return 2

    await ctx.step("reserve", lambda: 7, rollback=undo)
    await ctx.join("join", {"a": branch})
    await ctx.listen("go")
    raise ValueError("no")


async def test_nothing_is_recorded_of_an_unknown_instance(world: World) -> None:
    with pytest.raises(InstanceNotFoundError, match="there is no instance 'nobody'"):
        await read_history(world.driver, "nobody")


async def test_an_instance_under_way(world: World) -> None:
    await world.once(books, mode="yield")
    before = await world.driver.scan(b"", b"\xff")
    history = await read_history(world.driver, "i")
    assert isinstance(history, History)
    assert (history.instance_id, history.workflow, history.status, history.error) == (
        *("i", "books", Status.SLEEPING, None),
    )
    assert [entry.path for entry in history] == ["reserve", "join", "join/a", "join/a/in%2Fside", "join/a/nap"]
    assert (history["join/a"].kind, history["join/a"].status) == (Kind.BRANCH, EntryStatus.RUNNING)
    assert [(item.path, item.progress) for item in history.compensations] == [("reserve", "open")]
    assert await world.driver.scan(b"", b"\xff") == before, "reading changes nothing"


async def test_a_failed_rollback(world: World) -> None:
    result = await world.run(books, script=[("go", None)])
    assert result.status is Status.STUCK
    history = await read_history(world.driver, "i")
    assert (history.status, len(history)) == (Status.STUCK, 6)
    assert history.error is not None
    assert (history.error.kind, history.error.type) == ("application", "NotImplementedError")
    (item,) = history.compensations
    assert (item.path, item.progress, item.attempts) == ("reserve", "exhausted", 4)
    assert item.error is not None
    assert str(history).splitlines()[-1].startswith("undo reserve: exhausted (NotImplementedError")


async def test_instances_are_read_apart(world: World) -> None:
    @workflow
    async def one(ctx: Context, name: str) -> None:
        await ctx.step(name, lambda: None)

    for id in ("a", "a\x00b", "ab"):
        await world.run(one, f"step of {id}", id=id)
    for id in ("a", "a\x00b", "ab"):
        assert [entry.name for entry in await read_history(world.driver, id)] == [f"step of {id}"]
