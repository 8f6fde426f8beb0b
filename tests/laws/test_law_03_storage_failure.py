"""A storage failure is not a step failure: the run stops and gives the instance back, and no step knows of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from tests.laws.watching import WatchedDriver
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Batch,
    Break,
    ConflictError,
    Context,
    Continue,
    Driver,
    LeaseLostError,
    Status,
    StorageError,
    Success,
    workflow,
)
from workflow_sdk.rows.keys import FIELDS, HISTORY, METADATA, Field, InstanceKeys
from workflow_sdk.testing import FaultyDriver

KEYS = InstanceKeys("i")


class Author:
    """Code that catches whatever it can, and writes down what it caught."""

    def __init__(self) -> None:
        self.caught: list[BaseException] = []
        self.ran: list[str] = []
        self.undone: list[int] = []

    async def work(self, name: str) -> str:
        self.ran.append(name)
        return name

    async def guard(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await operation()
        except Exception as error:  # noqa: BLE001  # what an author would write
            self.caught.append(error)
            return "caught"
        except BaseException as error:
            if not isinstance(error, anyio.get_cancelled_exc_class()):
                self.caught.append(error)
            raise

    async def branch(self, ctx: Context) -> str:
        value = await self.guard(lambda: ctx.step("in branch", self.work, ctx.path))
        await self.guard(lambda: ctx.sleep("nap", 5))
        return str(value)

    async def turn(self, ctx: Context, n: int) -> Continue[int] | Break[int]:
        await self.guard(lambda: ctx.step("in turn", self.work, ctx.path))
        return Break(n) if n == 2 else Continue(n + 1)

    async def everything(self, ctx: Context) -> list[Any]:
        guard = self.guard
        both = {"a": self.branch, "b": self.branch}
        return [
            await guard(lambda: ctx.step("first", self.work, "first")),
            await guard(lambda: ctx.sleep("pause", 60)),
            await guard(lambda: ctx.listen("word", timeout=60, default="silence")),
            await guard(lambda: ctx.join("join", both)),
            (await guard(lambda: ctx.race("race", {"only": self.branch}))).value,
            await guard(lambda: ctx.loop("loop", self.turn, 0, commit_interval=1)),
            await guard(lambda: ctx.attempt("attempt", self.branch)),
            await guard(lambda: ctx.version("v", 3)),
            await guard(lambda: ctx.checkpoint("point")),
        ]


EXPECTED = [
    "first",
    None,
    "silence",
    {"a": "join/a", "b": "join/b"},
    "race/only",
    2,
    Success("attempt"),
    3,
    None,
]


@pytest.mark.parametrize("kind", ["fail_at", "conflict_at"])
async def test_no_failed_commit_is_seen_by_the_author(world: World, kind: str) -> None:
    for number in range(1, 100):
        author = Author()

        @workflow
        async def guarded(ctx: Context) -> list[Any]:
            return await author.everything(ctx)  # noqa: B023  # run within this turn

        id = f"{kind}-{number}"
        driver = FaultyDriver(world.driver, **{kind: [number]})  # type: ignore[arg-type]  # one of two of its arguments
        error = StorageError if kind == "fail_at" else ConflictError
        try:
            result = await world.run(guarded, id=id, driver=driver)
        except error:
            # It was given back, so that nobody has to wait for the lease to run out.
            assert await world.driver.get(InstanceKeys(id).lease) is None
            result = await world.run(guarded, id=id)
        else:
            # A conflict of which nothing is to be seen is tried again, where one with others would be.
            assert driver.commits < number or kind == "conflict_at"
        assert (result.status, result.output) == (Status.COMPLETED, EXPECTED)
        assert author.caught == []
        if driver.commits < number:
            assert number > 15
            return
    raise AssertionError("there is no end of commits")


async def rows(world: World, part: bytes) -> list[tuple[bytes, bytes]]:
    return await world.driver.scan(*KEYS.range(part))


async def test_the_step_runs_again_as_if_it_had_not_run(world: World) -> None:
    """One attempt is all that it has; a store that fails twice takes none of it."""
    author = Author()

    @workflow
    async def once(ctx: Context) -> str:
        await ctx.step("before", author.work, "before")
        return await ctx.step("only", author.work, "only", retries=0)

    with pytest.raises(StorageError, match="told to fail"):
        await world.once(once, driver=FaultyDriver(world.driver, fail_at=[3]))
    history, troubles = await rows(world, HISTORY), await rows(world, METADATA)
    fields = await rows(world, FIELDS)
    assert (len(history), troubles) == (1, [])
    # The claim, and then the step.
    with pytest.raises(StorageError, match="told to fail"):
        await world.once(once, driver=FaultyDriver(world.driver, fail_at=[2]))
    assert (await rows(world, HISTORY), await rows(world, METADATA)) == (history, troubles)
    assert len(await rows(world, FIELDS)) == len(fields)
    result = await world.run(once)
    assert (result.status, result.output) == (Status.COMPLETED, "only")
    assert author.ran == ["before", "only", "only", "only"]
    assert (await world.history())["only"].attempts == 1


async def test_a_failed_attempt_whose_record_is_lost_does_not_count(world: World) -> None:
    tries: list[int] = []

    async def shaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return "done"

    @workflow
    async def retry(ctx: Context) -> str:
        return await ctx.step("shaky", shaky, retries=1)

    with pytest.raises(StorageError):
        await world.once(retry, driver=FaultyDriver(world.driver, fail_at=[2]))
    assert await rows(world, HISTORY) == []
    assert (await world.run(retry)).output == "done"
    assert (await world.history())["shaky"].attempts == 2


class Down(FaultyDriver):
    """A store that, once it is down, stays down, and says so with an error of its own."""

    def __init__(self, driver: Driver, *, after: int) -> None:
        super().__init__(driver)
        self.after = after

    async def commit(self, batch: Batch, /) -> None:
        self.check()
        await super().commit(batch)

    async def get(self, key: bytes, /) -> bytes | None:
        self.check()
        return await super().get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        self.check()
        return await super().scan(begin, end, limit=limit, reverse=reverse)

    def check(self) -> None:
        if self.commits >= self.after:
            raise OSError("no route to the store")


@pytest.mark.parametrize("after", range(1, 12))
async def test_a_store_that_stays_down_is_the_error_of_the_run(world: World, after: int) -> None:
    """Whatever the driver raises is raised, also if the lease can't be given back; the next run takes it over."""
    author = Author()

    @workflow
    async def guarded(ctx: Context) -> list[Any]:
        return await author.everything(ctx)

    with pytest.raises(OSError, match="no route"):
        await world.run(guarded, driver=Down(world.driver, after=after))
    result = await world.run(guarded)
    assert (result.status, result.output, author.caught) == (Status.COMPLETED, EXPECTED, [])


async def test_a_store_that_fails_to_read_the_inbox_is_the_error_of_the_run(world: World) -> None:
    author = Author()

    class Unreadable(FaultyDriver):
        async def scan(
            self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
        ) -> list[tuple[bytes, bytes]]:
            if self.commits:
                raise StorageError("unreadable")
            return await super().scan(begin, end, limit=limit, reverse=reverse)

    @workflow
    async def listen(ctx: Context) -> str:
        return str(await author.guard(lambda: ctx.listen("word", timeout=0, default="silence")))

    with pytest.raises(StorageError, match="unreadable"):
        await world.once(listen, driver=Unreadable(world.driver))
    assert author.caught == []
    assert (await world.run(listen)).output == "silence"


async def test_a_storage_failure_is_not_a_failure_of_a_rollback_handler(world: World) -> None:
    author = Author()

    async def undo(value: str) -> None:
        author.ran.append(f"undo {value}")

    @workflow
    async def fail(ctx: Context) -> None:
        await ctx.step("one", author.work, "one", rollback=undo)
        await ctx.step("two", author.work, "two", rollback=undo)
        raise ValueError("no")

    # Claim, one, two, rolling back, undo two.
    for number in (4, 5, 6, 7):
        id = str(number)
        author.ran.clear()
        with pytest.raises(StorageError):
            await world.once(fail, id=id, driver=FaultyDriver(world.driver, fail_at=[number]))
        result = await world.run(fail, id=id)
        assert result.status is Status.ROLLED_BACK
        assert [item.attempts for item in (await world.history(id)).compensations] in ([], [1, 1])
        undone = [name for name in author.ran if name.startswith("undo")]
        assert list(dict.fromkeys(undone)) == ["undo two", "undo one"]


async def test_siblings_stop_when_the_store_fails(world: World) -> None:
    author = Author()
    stopped: list[str] = []

    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            stopped.append("slow")
            raise

    async def a(ctx: Context) -> None:
        await author.guard(lambda: ctx.step("slow", slow))

    @workflow
    async def both(ctx: Context) -> None:
        await ctx.join("join", {"a": a, "b": author.branch})

    with pytest.raises(StorageError), anyio.fail_after(PATIENCE):
        await world.once(both, driver=FaultyDriver(world.driver, fail_at=[2]))
    assert (stopped, author.caught) == (["slow"], [])


@pytest.mark.parametrize("still_running", [True, False])
async def test_a_conflict_because_the_lease_is_lost_says_so(world: World, still_running: bool) -> None:
    """The instance is taken over while a step runs, and the other one may have given it back by then."""
    author = Author()
    begun, taken_over = anyio.Event(), anyio.Event()
    runs = 0

    async def slow() -> str:
        nonlocal runs
        runs += 1
        begun.set()
        if runs == 1:
            await taken_over.wait()
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        value = await author.guard(lambda: ctx.step("slow", slow, rollback=print))
        await ctx.sleep("later", 3600)
        return str(value)

    rows_before: list[list[tuple[bytes, bytes]]] = []

    async def first() -> None:
        with pytest.raises(LeaseLostError, match="taken over"):
            await world.once(work)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await begun.wait()
            if still_running:
                # Takes the lease, and dies.
                with pytest.raises(OSError, match="no route"):
                    await world.once(work, driver=Down(world.driver, after=1))
            else:
                result = await world.once(work, mode="yield")
                assert result.status is Status.SLEEPING
            rows_before.append(await world.driver.scan(*KEYS.all()))
            taken_over.set()
    assert [await world.driver.scan(*KEYS.all())] == rows_before
    assert author.caught == []
    assert (await world.run(work)).output == "done"


async def test_giving_back_writes_nothing_else(world: World) -> None:
    author = Author()

    @workflow
    async def two(ctx: Context) -> None:
        await ctx.step("one", author.work, "one", repeatable=True)
        await ctx.step("two", author.work, "two")

    watched = WatchedDriver(world.driver)
    with pytest.raises(StorageError):
        await world.once(two, driver=FaultyDriver(watched, fail_at=[2]))
    assert len(watched.changes) == 2
    back = watched.changes[-1]
    assert back.lease_released
    # But for the alarm, by which somebody else finds it.
    assert (back.entries, back.names, back.fields - {Field.HEAD}) == ({}, [], set())
