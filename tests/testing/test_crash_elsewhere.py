"""`crash_everywhere` runs a workflow as if every run were in another process: code that depends on which is found."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from time import time_ns
from typing import Any

import pytest

from workflow_sdk import Context, Workflow, workflow
from workflow_sdk.testing import crash_everywhere

NAMES = frozenset({"ada", "bob"})


async def pay(name: str) -> None:
    return None


async def say(text: object) -> str:
    return str(text)


Body = Callable[[Context], Awaitable[Any]]


async def in_a_helper(ctx: Context) -> None:
    for name in NAMES:
        await ctx.step(pay, name)


async def in_a_loop(ctx: Context) -> None:
    for name in {"ada", "bob"}:
        await ctx.step(pay, name)


async def in_a_comprehension(ctx: Context) -> None:
    paid = [await ctx.step("say", say, name) if name == "ada" else name for name in NAMES]
    await ctx.step(f"paid {paid[0]}", pay, "ada")


async def in_a_list(ctx: Context) -> None:
    first, second = list(NAMES)
    await ctx.step(pay, first)
    await ctx.step(pay, second)


async def unpacked(ctx: Context) -> None:
    first, second = NAMES
    await ctx.step(pay, first)
    await ctx.step(pay, second)


async def with_a_star(ctx: Context) -> str:
    return await ctx.step("say", say, [*NAMES])


async def popped(ctx: Context) -> None:
    left = set(NAMES)
    while left:
        await ctx.step(pay, left.pop())


async def popped_from_a_list(ctx: Context) -> None:
    left = sorted(NAMES)
    while left:
        await ctx.step(pay, left.pop())


async def counted(ctx: Context) -> None:
    for number, name in enumerate(NAMES):
        await ctx.step(f"pay {number}", say, name)


async def joined(ctx: Context) -> None:
    await ctx.step(f"pay {', '.join(NAMES)}", pay, "all")


async def as_items_of_a_map(ctx: Context) -> None:
    await ctx.map("pay", lambda ctx, name: ctx.step("one", pay, name), NAMES)


async def the_hour(ctx: Context) -> None:
    await ctx.step(f"pay at {datetime.now():%H}", pay, "ada")  # noqa: DTZ005


async def the_hour_in_utc(ctx: Context) -> None:
    await ctx.step(f"pay at {datetime.now(tz=ctx.now().tzinfo):%H}", pay, "ada")


async def the_day(ctx: Context) -> None:
    await ctx.step(f"pay on {date.today()}", pay, "ada")  # noqa: DTZ011


async def the_time(ctx: Context) -> None:
    await ctx.step("odd" if int(time.time()) % 2 else "even", pay, "ada")


async def the_time_in_days(ctx: Context) -> None:
    await ctx.step("pay", pay, "ada")
    await ctx.step(f"after {time_ns() // 86_400_000_000_000}", pay, "ada")


async def a_hash(ctx: Context) -> None:
    await ctx.step(f"pay {hash('ada') % 1000}", pay, "ada")


async def a_hash_of_several(ctx: Context) -> None:
    await ctx.step(f"pay {hash(('ada', 1)) % 1000}", pay, "ada")


async def chance(ctx: Context) -> None:
    for number in range(5):
        await ctx.step(f"pay {number} {random.random() < 0.5}", pay, "ada")


DEPENDENT: dict[str, Body] = {
    body.__name__: body
    for body in (
        *(in_a_loop, in_a_comprehension, in_a_list, unpacked, with_a_star, popped, counted, joined, as_items_of_a_map),
        *(
            in_a_helper,
            the_hour,
            the_hour_in_utc,
            the_day,
            the_time,
            the_time_in_days,
            a_hash,
            a_hash_of_several,
            chance,
        ),
    )
}


def of(body: Body) -> Workflow[None, Any]:
    @workflow
    async def job(ctx: Context) -> Any:
        return await body(ctx)

    return job


@pytest.mark.parametrize("body", DEPENDENT)
async def test_code_that_depends_on_its_process_is_found(body: str) -> None:
    with pytest.raises(AssertionError, match="job"):
        await crash_everywhere(of(DEPENDENT[body]))


async def test_a_workflow_that_is_made_in_a_function_is_looked_through() -> None:
    names = {"ada", "bob"}

    async def branch(ctx: Context) -> None:
        for name in names:
            await ctx.step(pay, name)

    @workflow
    async def local(ctx: Context) -> None:
        await ctx.join("both", {"one": branch})

    with pytest.raises(AssertionError, match="other arguments"):
        await crash_everywhere(local)


class Steps:
    """What steps do may depend on where they run: it is recorded."""

    async def look(self) -> list[str]:
        return list(NAMES)

    async def write(self, text: str) -> None:
        pass


async def in_the_same_order(ctx: Context) -> list[str]:
    async def names() -> list[str]:
        return [name.title() for name in NAMES]

    def year() -> int:
        return datetime.now().year  # noqa: DTZ005

    found = await ctx.step(names)
    found += await ctx.step("look", Steps().look)
    assert await ctx.step(year) < datetime.fromtimestamp(time.time(), tz=UTC).year + 2
    for name in sorted(NAMES):
        await ctx.step(pay, name)
    began = time.time()
    await ctx.step("write", Steps().write, f"{ctx.now()} {ctx.random.random()}")
    ctx.log.info("that took %s", timedelta(seconds=time.time() - began))
    assert {name.upper() for name in NAMES} == {"ADA", "BOB"}
    numbers = {1, 2, 3}
    total = sum(numbers) + sum(2 * number for number in numbers)
    odd = "odd" if hash((1, 2)) % 2 else "even"
    return [*found, odd, str(total), str(min(numbers)), str(ctx.now())]


async def test_code_that_does_not_is_not() -> None:
    report = await crash_everywhere(of(in_the_same_order))
    assert report.ok


async def test_the_functions_are_as_they_were_afterwards() -> None:
    job = of(in_a_loop)
    codes = [job.fn.__code__, in_a_loop.__code__, in_the_same_order.__code__]
    fingerprint = of(in_a_loop).fingerprint
    assert (await crash_everywhere(of(in_the_same_order))).ok
    with pytest.raises(AssertionError):
        await crash_everywhere(job)
    assert [job.fn.__code__, in_a_loop.__code__, in_the_same_order.__code__] == codes
    assert job.fingerprint == fingerprint


async def test_what_has_no_source_is_run_as_it_is() -> None:
    names: dict[str, Any] = {"workflow": workflow, "pay": pay, "Context": Context}
    exec(
        "@workflow\nasync def made(ctx):\n    for name in {'ada', 'bob'}:\n        await ctx.step(pay, name)\n"
        "    return [name for name in {1}]\n",
        names,
    )
    assert (await crash_everywhere(names["made"])).ok
