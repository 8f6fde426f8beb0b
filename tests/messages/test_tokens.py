"""Tokens of waits can't be guessed, and stay the same as long as the wait lasts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.looking import dump
from tests.runtime.parts import until_status
from workflow_sdk import Client, Context, ContinueAsNew, Delivery, Driver, Handle, Runtime, Status, workflow
from workflow_sdk.rows.outside import proof_of, shown_token, wait_of

pytestmark = pytest.mark.law(19)


@workflow
async def waits(ctx: Context) -> Any:
    """Waits for one message, and for a person."""

    async def listen(ctx: Context) -> Any:
        return await ctx.listen("m")

    async def ask(ctx: Context) -> Any:
        return (await ctx.task("t")).value

    return await ctx.join("both", {"listen": listen, "ask": ask})


@workflow
async def starts_over(ctx: Context, life: int) -> Any:
    """The same wait, at the same place, in each life."""
    await ctx.listen("m")
    return ContinueAsNew(life + 1)


async def tokens(handle: Handle[Any]) -> dict[str, str]:
    """The tokens of an instance that waits."""
    await until_status(handle, Status.WAITING)
    return {wait.path: wait.token for wait in (await handle.info()).waits}


async def test_a_token_of_another_instance_is_stale(driver: Driver) -> None:
    async with Runtime(driver, workflows=[waits]) as runtime:
        one, other = await runtime.start(waits, id="one"), await runtime.start(waits, id="other")
        mine, theirs = await tokens(one), await tokens(other)
        assert not set(mine.values()) & set(theirs.values())
        token = mine["both/listen/m"]
        before = await dump(driver)
        for wrong in (theirs["both/listen/m"], token[32:], "00" * 16 + token[32:], token[:32], "", "x"):
            assert await one.send("m", token=wrong) is Delivery.STALE
        assert await dump(driver) == before
        assert await one.send("m", token=token) is Delivery.ACCEPTED


async def test_tokens_stay_the_same_in_every_process(driver: Driver) -> None:
    found: list[dict[str, str]] = []
    async with Client(driver) as client:
        handle = await client.start("waits", id="i")
        for _ in range(2):
            async with Runtime(driver, workflows=[waits]):
                await handle.wake()
                found.append(await tokens(handle))
            found.append(await tokens(handle))
        (task,) = (await client.tasks.list()).items
        assert found == [found[0]] * 4
        assert task.token == (await client.tasks.get(task.id)).token == found[0]["both/ask/t"]


async def test_each_life_has_tokens_of_its_own(driver: Driver) -> None:
    async with Runtime(driver, workflows=[starts_over]) as runtime:
        handle = await runtime.start(starts_over, 0, id="i")
        seen: list[str] = []
        for _ in range(3):
            seen += (await tokens(handle)).values()
            assert await handle.send("m", token=seen[-1]) is Delivery.ACCEPTED
            while (await tokens(handle)).get("m") == seen[-1]:
                pass
            assert await handle.send("m", token=seen[-1]) is Delivery.STALE
        assert len(set(seen)) == 3


def test_a_proof_has_128_bits_of_the_seed_the_instance_and_the_wait() -> None:
    proofs = {
        proof_of(seed, id, token)
        for seed in (b"a" * 16, b"b" * 16)
        for id in ("i", "ix", "j\x00")
        for token in (b"\x15\x01\x15\x02", b"x\x15\x01\x15\x02", b"")
    }
    assert len(proofs) == 18
    assert {len(proof) for proof in proofs} == {16}
    shown = shown_token(proof_of(b"s", "i", b"t"), b"t")
    assert wait_of(b"s", "i", shown) == b"t"
    assert wait_of(b"s", "i", shown.upper()) == b"t"
    assert wait_of(b"s", "i", "é") is None
