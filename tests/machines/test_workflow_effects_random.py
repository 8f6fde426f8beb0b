"""Random workflows that ask for effects, under workers that die, on stores that fail: each hears of its own, once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.chaos import effort
from tests.machines.cell_parts import Answer, Ask, ask
from tests.patience import PATIENCE
from tests.runtime.polling import until
from workflow_sdk import Break, Client, Context, Continue, Driver, Runtime, Success, workflow
from workflow_sdk.machines import Intent, Manifest, executor, timer
from workflow_sdk.machines.rows import all_intents
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

pytestmark = pytest.mark.law(1, 10, 21)

SEEDS = 40
DEATHS = 4
"""How often the worker dies: one more death under the same effect in a row, and it is settled as a fault."""
MANIFEST = Manifest(effects=[ask, timer])


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Deaths and failures on purpose are no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def program(chance: Random, depth: int = 0) -> list[Any]:
    """What a scope does, one after the other."""
    found: list[Any] = []
    for number in range(chance.randrange(1, 4)):
        kinds = ["ask", "ask", "timer", "step", *(["map", "join", "race", "loop", "attempt"] if depth < 2 else [])]
        kind = chance.choice(kinds)
        inner = program(chance, depth + 1) if kind in ("map", "join", "loop", "attempt") else []
        found.append([f"{kind}{number}", kind, chance.randrange(1, 4), inner])
    return found


@workflow
async def plays(ctx: Context, todo: list[Any]) -> list[str]:
    """Do as the program says; return what the effects were answered, each with the path that asked for it."""
    return await _scope(ctx, todo)


async def _scope(ctx: Context, todo: list[Any]) -> list[str]:
    return [text for one in todo for text in await _one(ctx, *one)]


async def _one(ctx: Context, name: str, kind: str, count: int, inner: list[Any]) -> list[str]:
    where = f"{ctx.instance_id} {ctx.path}/{name}"

    async def asks(ctx: Context, number: int = 0) -> list[str]:
        receipt = await ctx.effect(f"{name} asks", ask(f"{where} {number}").tagged(where))
        assert (receipt.status, receipt.issuer, receipt.key) == ("ok", where, ctx.instance_id)
        return [f"{where} {number}: {receipt.payload.text}"]

    async def sleeps(ctx: Context) -> list[str]:
        await ctx.sleep("sleep", 3600)
        return []

    match kind:
        case "ask":
            return await asks(ctx)
        case "timer":
            assert (await ctx.effect(name, timer(after=60))).status == "ok"
            return []
        case "step":
            return await ctx.step(name, lambda: [f"{where}: step"])
        case "map":
            found = await ctx.map(name, lambda ctx, number: _numbered(ctx, number, inner, asks), range(count))
            return [text for texts in found for text in texts]
        case "join":
            joined = await ctx.join(name, {"asks": asks, "inner": lambda ctx: _scope(ctx, inner)})
            return [*joined["asks"], *joined["inner"]]
        case "race":
            # Who wins depends on time; who loses may have asked, and its receipt is dropped.
            await ctx.race(name, {"asks": asks, "sleeps": sleeps})
            return []
        case "loop":

            async def turn(ctx: Context, done: int) -> Any:
                texts = await _scope(ctx, inner)
                assert all(text.startswith(ctx.instance_id) for text in texts)
                return Continue(done + 1) if done + 1 < count else Break(texts)

            return await ctx.loop(name, turn, 0)
        case _:
            got = await ctx.attempt(name, lambda ctx: _scope(ctx, inner))
            assert isinstance(got, Success), "nothing fails"
            return got.value


async def _numbered(ctx: Context, number: int, inner: list[Any], asks: Any) -> list[str]:
    return [*await asks(ctx, number), *await _scope(ctx, inner)]


async def _none(driver: Driver) -> bool:
    return not await driver.scan(*all_intents())


@pytest.mark.parametrize("seed", range(effort(SEEDS)))
async def test_random_workflows_hear_of_their_own_effects_whoever_dies(driver: Driver, seed: int) -> None:
    chance, clock = Random(seed), VirtualClock(quiet=0.02)
    began: Counter[str] = Counter()
    asked: dict[str, str] = {}

    @executor(ask, timeout=3600)
    async def answers(params: Ask, intent: Intent) -> Answer:
        began[intent.id] += 1
        assert asked.setdefault(intent.id, params.what) == params.what, "an intent has one request"
        if chance.random() < 0.3:
            await anyio.lowlevel.checkpoint()
        return Answer(params.what)

    todo = {str(number): program(chance) for number in range(3)}
    async with Client(driver, clock=clock) as client:
        for id, one in todo.items():
            await client.start(plays, one, id=id)

    async def work(through: Any, ids: list[str]) -> None:
        options: dict[str, Any] = {"max_resident": chance.choice([0, 2, 100])}
        async with Runtime(
            through, workflows=[plays], machines=MANIFEST, executors=[answers], clock=clock, **options
        ) as runtime:
            for id in ids:
                await runtime.handle(plays, id).result()

    for _ in range(DEATHS):
        faulty = FaultyDriver(
            driver,
            crash_before=chance.choice([None, chance.randrange(1, 60)]),
            crash_after=chance.choice([None, chance.randrange(1, 60)]),
            fail_at=[*chance.sample(range(8, 60), 3)],
            conflict_at=[*chance.sample(range(60), 6)],
            seed=seed,
        )
        try:
            with anyio.fail_after(PATIENCE):
                await work(faulty, [*todo])
        except* SimulatedCrash:
            pass
    with anyio.fail_after(PATIENCE):
        await work(driver, [*todo])
        async with Client(driver) as client, Runtime(driver, machines=MANIFEST, executors=[answers], clock=clock):
            await until(lambda: _none(driver))  # of waits that have lost a race
            for id in todo:
                for text in await client.handle(plays, id).result():
                    if not text.endswith(": step"):
                        request, answer = text.split(": ")
                        assert request == answer
                        assert request.startswith(f"{id} ")
