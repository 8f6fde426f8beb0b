"""Law 15: a mistake of the author stops the instance where it is made, and the message says how to mend it."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from tests.laws.mistakes import MISTAKES, OPERATIONS, OPTIONS, RAN, TIMES, Wrong, give, mistakes_of_names
from tests.support import World
from workflow_sdk import Break, Context, DefinitionError, Delivery, RunResult, Status, Workflow, send_message, workflow


class Scene:
    """A workflow that makes a mistake somewhere, with effects before and after it."""

    def __init__(self, mistake: Wrong, *, where: str = "root", swallowed: bool = False) -> None:
        self.mistake = mistake
        self.swallowed = swallowed
        self.effects: list[str] = []
        self.undone: list[object] = []
        self.went_on = False
        self.prefix = {"root": "", "branch": "outer/a/", "turn": "outer/~0/", "attempt": "outer/", "item": "outer/0/"}[
            where
        ]

        @workflow
        async def job(ctx: Context) -> str:
            await ctx.step("before", self.work, "before", rollback=self.undo)
            await self.place(where)(ctx)
            await ctx.step("after all", self.work, "after all")
            return "done"

        self.job: Workflow[Any, str] = job

    async def work(self, name: str) -> None:
        self.effects.append(name)

    async def undo(self, value: object) -> None:
        self.undone.append(value)

    async def part(self, ctx: Context) -> None:
        if not self.swallowed:
            await self.mistake.make(ctx)
            return
        try:
            await self.mistake.make(ctx)
        except Exception:  # noqa: BLE001  # swallowing it must not help
            self.went_on = True
        try:
            await ctx.step("after", self.work, "after")
        except Exception:  # noqa: BLE001
            await ctx.step("after that", self.work, "after that")

    def place(self, where: str) -> Callable[[Context], Awaitable[object]]:
        async def turn(ctx: Context, state: None) -> Break[None]:
            await self.part(ctx)
            return Break()

        async def item(ctx: Context, item: int) -> None:
            await self.part(ctx)

        places: dict[str, Callable[[Context], Awaitable[object]]] = {
            "root": self.part,
            "branch": lambda ctx: ctx.join("outer", {"a": self.part}),
            "turn": lambda ctx: ctx.loop("outer", turn),
            "attempt": lambda ctx: ctx.attempt("outer", self.part),
            "item": lambda ctx: ctx.map("outer", item, [1]),
        }
        return places[where]

    async def check(self, world: World, id: str = "i") -> None:
        """The instance is stuck, with a message that helps; nothing happened after the mistake, nothing is undone."""
        RAN.clear()
        result = await world.run(self.job, id=id)
        assert result.status is Status.STUCK
        assert result.error is not None
        assert result.error.kind == "definition"
        assert result.error.type == f"{self.mistake.error.__module__}.{self.mistake.error.__name__}"
        if self.mistake.name is not None:
            assert f"'{self.prefix}{self.mistake.name}'" in result.error.message or (
                f"'{self.mistake.name}'" in result.error.message and self.mistake.id == "no time"
            )
        for text in self.mistake.says:
            assert text in result.error.message
        assert result.error.traceback
        assert (self.effects, self.undone, RAN) == (["before"], [], [])
        await self.check_record(world, result, id)

    async def check_record(self, world: World, result: RunResult[Any], id: str) -> None:
        history = await world.history(id)
        assert (history.status, history.error) == (Status.STUCK, result.error)
        assert history["before"].finished_at is not None
        paths = {entry.path for entry in history}
        assert not {f"{self.prefix}after", "after all"} & paths
        if self.mistake in TIMES or self.mistake in OPTIONS:
            assert paths <= {"before", "outer", "outer/a", "outer/0"}, "nothing is recorded of the call"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.id)
async def test_a_mistake_makes_the_instance_stuck(world: World, mistake: Wrong) -> None:
    """In every scope, and whether its error is raised or swallowed: an instance for each, one after the other."""
    for where, swallowed in itertools.product(["root", "branch", "turn", "attempt", "item"], [False, True]):
        id = f"{where}, {'swallowed' if swallowed else 'raised'}"
        print(id)
        await Scene(mistake, where=where, swallowed=swallowed).check(world, id)


@pytest.mark.parametrize("where", ["root", "branch", "attempt"])
async def test_an_operation_that_the_last_line_forgets_to_await_is_a_mistake(world: World, where: str) -> None:
    async def forgets(ctx: Context) -> str:
        await ctx.step("first", give)
        ctx.step("last", give)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
        return "done"

    @workflow
    async def job(ctx: Context) -> Any:
        if where == "branch":
            return await ctx.join("outer", {"only": forgets})
        return await (forgets(ctx) if where == "root" else ctx.attempt("outer", forgets))

    result = await world.run(job)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert "last' was called and never awaited" in result.error.message


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_name_that_can_not_be_is_a_mistake(world: World, operation: str) -> None:
    for mistake in mistakes_of_names(operation):
        print(mistake.id)
        await Scene(mistake).check(world, mistake.id)


async def test_the_mended_code_goes_on_where_it_was(world: World) -> None:
    ran: list[str] = []

    async def work(name: str) -> str:
        ran.append(name)
        return name

    @workflow(name="job")
    async def wrong(ctx: Context) -> str:
        await ctx.step("first", work, "first")
        await ctx.step("second", work, "second")
        await ctx.step("second", work, "third")
        return "done"

    @workflow(name="job")
    async def mended(ctx: Context) -> str:
        await ctx.step("first", work, "first")
        await ctx.step("second", work, "second")
        await ctx.step("third", work, "third")
        return "done"

    assert (await world.run(wrong)).status is Status.STUCK
    assert (await world.run(wrong)).status is Status.STUCK
    result = await world.run(mended)
    assert (result.status, result.output, result.error) == (Status.COMPLETED, "done", None)
    assert ran == ["first", "second", "third"]
    assert (await world.history()).error is None


async def test_a_stuck_instance_waits_for_nothing_and_keeps_what_it_is_sent(world: World) -> None:
    @workflow(name="job")
    async def wrong(ctx: Context) -> Any:
        await ctx.listen("first")
        await ctx.step("twice", give)
        await ctx.step("twice", give)

    @workflow(name="job", version=2)
    async def mended(ctx: Context) -> Any:
        first = await ctx.listen("first")
        await ctx.step("twice", give)
        return [first, await ctx.listen("second")]

    result = await world.run(wrong, script=[("first", 1)])
    assert result.status is Status.STUCK
    assert (result.wake_at, result.waiting_for) == (None, [])
    # It listens to neither: both are kept until it does.
    assert await send_message(world.driver, "i", "first", 2) is Delivery.QUEUED
    assert await send_message(world.driver, "i", "second", 3) is Delivery.QUEUED
    assert (await world.run(mended)).output == [1, 3]


async def test_a_mistake_in_one_branch_stops_its_siblings(world: World) -> None:
    ran: list[str] = []

    async def work(name: str) -> str:
        ran.append(name)
        return name

    @workflow
    async def job(ctx: Context) -> None:
        async def wrong(ctx: Context) -> None:
            await ctx.sleep("nap", 5)
            await ctx.step("twice", give)
            await ctx.step("twice", give)

        async def right(ctx: Context) -> None:
            await ctx.step("at once", work, "at once")
            await ctx.sleep("nap", 10)
            await ctx.step("later", work, "later")

        await ctx.join("join", {"wrong": wrong, "right": right})

    assert (await world.run(job)).status is Status.STUCK
    assert ran == ["at once"]


async def test_a_forgotten_await_in_a_loser_leaks_no_warning(world: World) -> None:
    """Nobody is stuck for it, since a loser does nothing any more; but its coroutine is closed."""

    @workflow
    async def job(ctx: Context) -> str:
        async def loser(ctx: Context) -> None:
            await ctx.sleep("nap", 500)

        async def forgets(ctx: Context) -> None:
            ctx.step("forgotten", give)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
            await anyio.sleep_forever()

        async def winner(ctx: Context) -> None:
            await ctx.step("won", give)

        return (await ctx.race("race", {"loser": loser, "forgets": forgets, "winner": winner})).winner

    assert (await world.run(job)).output == "winner"


@pytest.mark.law(19)
async def test_a_payload_that_is_not_what_the_code_asks_for_is_no_mistake(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> int:
        return await ctx.listen("message", type=int)

    result = await world.run(job, script=[("message", "text"), ("message", 5)])
    assert (result.status, result.output) == (Status.COMPLETED, 5)


@pytest.mark.parametrize("when", [0, -5])
async def test_a_time_that_is_past_is_no_mistake(world: World, when: float) -> None:
    @workflow
    async def job(ctx: Context) -> list[Any]:
        await ctx.sleep("nap", when)
        return [await ctx.listen("message", timeout=when, default="nothing")]

    assert (await world.run(job)).output == ["nothing"]
    assert "nap" in await world.history()


@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
async def test_the_ctx_of_an_instance_that_was_evicted(world: World, swallowed: bool) -> None:
    """The mistake is that of the instance whose code makes it."""
    kept: list[Context] = []

    @workflow
    async def lends(ctx: Context) -> None:
        kept.append(ctx)
        await ctx.listen("m")

    @workflow
    async def borrows(ctx: Context) -> None:
        try:
            await kept[0].step("s", lambda: None)
        except DefinitionError:
            if not swallowed:
                raise

    assert (await world.once(lends, id="lends", mode="yield")).status is Status.WAITING
    result = await world.once(borrows, id="borrows")
    assert result.status is Status.STUCK
    assert result.error is not None
    assert "another branch or instance" in result.error.message
    assert (await world.once(lends, id="lends", mode="yield")).status is Status.WAITING
