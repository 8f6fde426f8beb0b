"""`ctx.map`: one branch for each item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.support import World
from workflow_sdk import Context, JoinError, Kind, StepError, workflow


@dataclass
class Picture:
    name: str


def double(n: int) -> int:
    if n < 0:
        raise ValueError(f"{n} is negative")
    return n * 2


async def each(ctx: Context, n: int) -> int:
    await ctx.sleep("nap", 10 - n)
    return await ctx.step("double", double, n, retries=0)


def mapping(items: Any, **options: Any) -> Any:
    @workflow
    async def maps(ctx: Context) -> Any:
        values = await ctx.map("map", each, items, **options)
        await ctx.sleep("pause", 60)
        return values

    return maps


@pytest.mark.parametrize("items", [[1, 2, 3], (3, 1), range(4), []], ids=str)
async def test_values_come_in_order(world: World, items: Any) -> None:
    result = await world.run(mapping(items))
    assert result.output == [n * 2 for n in items]


async def test_any_iterable_will_do(world: World) -> None:
    @workflow
    async def maps(ctx: Context) -> list[int]:
        return await ctx.map("map", each, (n for n in range(3)))

    assert (await world.run(maps)).output == [0, 2, 4]


async def test_branches_are_numbers(world: World) -> None:
    await world.run(mapping(range(12)))
    history = await world.history()
    assert [entry.path for entry in history["map"].children] == [f"map/{n}" for n in range(12)]
    assert [child.path for child in history["map/11"].children] == ["map/11/nap", "map/11/double"]
    assert (history["map"].kind, history["map/3"].kind) == (Kind.MAP, Kind.BRANCH)
    assert history["map"].value == [n * 2 for n in range(12)]


async def test_objects_come_back_as_what_they_were(world: World) -> None:
    async def show(ctx: Context, picture: Picture) -> Picture:
        await ctx.step("s", lambda: None)
        return Picture(picture.name.upper())

    @workflow
    async def maps(ctx: Context) -> list[Picture]:
        pictures = await ctx.map("map", show, [Picture("a"), Picture("b")])
        assert {type(picture) for picture in pictures} == {Picture}
        await ctx.sleep("pause", 60)
        return pictures

    assert (await world.run(maps)).output == [Picture("A"), Picture("B")]


@pytest.mark.parametrize("limit", [1, 3])
async def test_never_more_than_limit_at_once(world: World, limit: int) -> None:
    under_way: set[int] = set()
    most = [0]

    async def one(ctx: Context, n: int) -> None:
        async def work() -> None:
            under_way.add(n)
            most[0] = max(most[0], len(under_way))
            for _ in range(3):
                await anyio.lowlevel.checkpoint()

        await ctx.step("work", work)
        await ctx.sleep("nap", 10)
        under_way.discard(n)

    @workflow
    async def maps(ctx: Context) -> list[None]:
        return await ctx.map("map", one, range(7), limit=limit)

    assert (await world.run(maps)).output == [None] * 7
    assert most == [limit]


async def test_failures_are_as_in_a_join(world: World) -> None:
    @workflow
    async def maps(ctx: Context) -> list[str]:
        try:
            await ctx.map("map", each, [1, -2, 3, -4])
        except JoinError as error:
            await ctx.sleep("pause", 60)
            failures = [(name, inner) for name, inner in error.errors.items() if isinstance(inner, StepError)]
            return [str(error), *(f"{name}: {inner.error.message}" for name, inner in failures)]
        return []

    assert (await world.run(maps)).output == [
        "map 'map': 2 of 4 branches failed: 1, 3; 1: step 'map/1/double' gave up after 1 attempt: "
        "ValueError: -2 is negative",
        *("1: -2 is negative", "3: -4 is negative"),
    ]


async def test_messages_reach_one_branch_each(world: World) -> None:
    async def one(ctx: Context, n: int) -> int:
        return await ctx.listen("m", type=int)

    @workflow
    async def maps(ctx: Context) -> list[int]:
        return sorted(await ctx.map("map", one, range(3)))

    assert (await world.run(maps, script=[("m", n) for n in range(3)])).output == [0, 1, 2]


async def test_large_values(world: World) -> None:
    async def one(ctx: Context, n: int) -> bytes:
        return bytes([n]) * 50_000

    @workflow
    async def maps(ctx: Context) -> int:
        values = await ctx.map("map", one, range(5))
        await ctx.sleep("pause", 60)
        assert [value[0] for value in values] == list(range(5))
        return sum(map(len, values))

    assert (await world.run(maps)).output == 250_000
