"""Law 18: what a worker can't read it does not act on. It gives the instance back, and says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.core.test_codec_sealing import Nonce, Squeeze, Xor
from tests.patience import PATIENCE
from tests.rows import about, change_row
from tests.runtime.parts import until_status
from workflow_sdk import (
    Break,
    Client,
    CodecError,
    Context,
    Continue,
    CriticalError,
    Driver,
    RunResult,
    Runtime,
    Status,
    WorkflowFailedError,
    dump_histories,
    replay_check,
    run_workflow,
    step,
    workflow,
)
from workflow_sdk.codecs import fernet, plain, unmarked
from workflow_sdk.rows.keys import Field, InstanceKeys

KEY, OLD = fernet("a" * 43 + "="), fernet("b" * 43 + "=")
ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Every test begins with nothing run."""
    ran.clear()


async def charge(what: str) -> str:
    ran.append(("charge", what))
    return what


@step
async def refund(result: str) -> None:
    ran.append(("refund", result))


@workflow
async def shop(ctx: Context, card: str) -> str:
    first = await ctx.step("first", charge, card, rollback=refund)
    how = await ctx.listen("go")
    second = await ctx.step("second", charge, " ".join([first, how]), rollback=refund)
    await ctx.listen("more")
    if how == "fail":
        raise ValueError("no")
    return second


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    with anyio.fail_after(PATIENCE):
        while not any(text in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR):  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def of_instance(driver: Driver) -> list[tuple[bytes, bytes]]:
    return await driver.scan(*InstanceKeys("i").all())


async def begun(driver: Driver, codec: Any, how: str | None = None) -> None:
    """An instance that waits, and was sent a message if one is given."""
    result = await run_workflow(shop, "4111", driver=driver, instance_id="i", codec=codec)
    assert result.status is Status.WAITING
    if how is not None:
        async with Client(driver, codec=codec) as client:
            await client.handle(shop, "i").send("go", how)
    ran.clear()


OTHERS: dict[str, tuple[Any, Any]] = {
    "no codec": (KEY, None),
    "another key": (KEY, OLD),
    "one that reads everything": (Xor(1), Xor(3)),
    "plain": (KEY, [plain]),
    "several others": (KEY, [OLD, Squeeze(), plain]),
    "a codec, and values without": (None, KEY),
}


@pytest.mark.parametrize("case", OTHERS)
async def test_a_worker_that_can_not_read_an_instance_runs_nothing_of_it(
    driver: Driver, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    own, other = OTHERS[case]
    await begun(driver, own, "well")
    before = await of_instance(driver)
    with caplog.at_level(logging.ERROR):
        async with Runtime(driver, workflows=[shop], codec=other):
            await until_logged(caplog, "instance i is left to workers with another codec")
            # What it can read, it runs.
            async with Client(driver, codec=other) as client:
                handle = await client.start(shop, "own", id="own")
                await until_status(handle, Status.WAITING)
    assert await of_instance(driver) == before
    assert ran == [("charge", "own")]
    with pytest.raises(CodecError):
        await run_workflow(shop, driver=driver, instance_id="i", codec=other)
    assert await of_instance(driver) == before
    async with Runtime(driver, workflows=[shop], codec=own) as runtime:
        handle = runtime.handle(shop, "i")
        await handle.send("more")
        assert await handle.result(timeout=PATIENCE) == "4111 well"
    assert ran == [("charge", "own"), ("charge", "4111 well")]


async def test_what_is_rolling_back_is_left_alone_as_well(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    await begun(driver, KEY, "fail")
    async with Client(driver, codec=KEY) as client:
        await client.handle(shop, "i").cancel(rollback=True)
    before = await of_instance(driver)
    with caplog.at_level(logging.ERROR):
        async with Runtime(driver, workflows=[shop], codec=OLD):
            await until_logged(caplog, "left to workers with another codec")
    assert (ran, await of_instance(driver)) == ([], before)
    result = await run_workflow(shop, driver=driver, instance_id="i", codec=KEY)
    assert (result.status, ran) == (Status.CANCELLED, [("refund", "4111")])


async def test_codecs_change_while_instances_go_on(driver: Driver) -> None:
    """Whoever has written of an instance can be read by whoever goes on with it, or they don't."""

    async def run(codec: Any) -> RunResult[str]:
        return await run_workflow(shop, "4111", driver=driver, instance_id="i", codec=codec)

    await begun(driver, OLD, "well")
    assert (await run([KEY, OLD])).status is Status.WAITING
    assert ran == [("charge", "4111 well")]
    before = await of_instance(driver)
    for too_few in (OLD, KEY, None, [KEY, plain]):
        with pytest.raises(CodecError):
            await run(too_few)
    assert await of_instance(driver) == before
    async with Client(driver, codec=[KEY, OLD]) as client:
        await client.handle(shop, "i").send("more")
    assert (await run([OLD, KEY])).output == "4111 well"
    assert len(ran) == 1


@pytest.mark.parametrize("codec", [[KEY, plain], [plain, KEY]], ids=["on", "off"])
async def test_values_without_a_codec_are_read_with_plain(driver: Driver, codec: Any) -> None:
    await begun(driver, None, "well")
    result = await run_workflow(shop, driver=driver, instance_id="i", codec=codec)
    assert (result.status, ran) == (Status.WAITING, [("charge", "4111 well")])
    is_sealed = bool((await about(driver, "i")).birth.seals)
    assert is_sealed == (codec[0] is KEY)


async def unseal(driver: Driver) -> None:
    """Forget which codecs have written of the instance: a run finds out when it comes to a value."""
    await change_row(driver, "i", Field.BIRTH, seals=())


@pytest.mark.parametrize("how", ["well", "fail"])
async def test_a_value_that_can_not_be_read_ends_the_run(driver: Driver, how: str) -> None:
    await begun(driver, OLD, how)
    assert (await run_workflow(shop, driver=driver, instance_id="i", codec=[KEY, OLD])).status is Status.WAITING
    async with Client(driver, codec=OLD) as client:
        await client.handle(shop, "i").send("more")
    await unseal(driver)
    ran.clear()
    with pytest.raises(CodecError, match="encoded"):
        await run_workflow(shop, driver=driver, instance_id="i", codec=OLD)
    assert ran == []
    async with Client(driver, codec=[KEY, OLD]) as client:
        assert (await client.handle(shop, "i").info()).error is None
    result = await run_workflow(shop, driver=driver, instance_id="i", codec=[KEY, OLD])
    assert result.status is (Status.COMPLETED if how == "well" else Status.ROLLED_BACK)
    assert len(ran) == (0 if how == "well" else 2)


async def test_a_handler_whose_value_can_not_be_read_is_not_tried(driver: Driver) -> None:
    await begun(driver, OLD, "fail")
    await run_workflow(shop, driver=driver, instance_id="i", codec=[KEY, OLD])
    async with Client(driver, codec=OLD) as client:
        await client.handle(shop, "i").cancel(rollback=True)
    await unseal(driver)
    ran.clear()
    with pytest.raises(CodecError, match="encoded"):
        await run_workflow(shop, driver=driver, instance_id="i", codec=OLD)
    assert ran == []
    assert (await run_workflow(shop, driver=driver, instance_id="i", codec=[OLD, KEY])).status is Status.CANCELLED
    assert ran == [("refund", "4111 fail"), ("refund", "4111")]


async def test_a_message_that_can_not_be_read_is_set_aside(driver: Driver) -> None:
    """It is bad messages: whoever sent it has another codec."""
    await begun(driver, KEY)
    for codec in (None, OLD):
        async with Client(driver, codec=codec) as client:
            await client.handle("shop", "i").send("go", "4111")
    assert (await run_workflow(shop, driver=driver, instance_id="i", codec=KEY)).status is Status.WAITING
    assert ran == []
    async with Client(driver, codec=KEY) as client:
        await client.handle(shop, "i").send("go", "well")
    await run_workflow(shop, driver=driver, instance_id="i", codec=KEY)
    assert ran == [("charge", "4111 well")]


async def test_what_a_codec_wrote_before_there_were_marks(driver: Driver) -> None:
    await begun(driver, None, "well")
    raw = (await about(driver, "i")).birth.input
    await change_row(driver, "i", Field.BIRTH, input=Squeeze().encode(raw))
    with pytest.raises(CodecError, match="unmarked"):
        await run_workflow(shop, driver=driver, instance_id="i", codec=Squeeze())
    # Without a codec it can't be told from what is damaged.
    assert (await run_workflow(shop, driver=driver, instance_id="i")).status is Status.STUCK
    async with Client(driver, codec=[Squeeze(), plain]) as client:
        await client.handle("shop", "i").recover()
    assert ran == []
    result = await run_workflow(shop, driver=driver, instance_id="i", codec=[Squeeze(), unmarked(Squeeze()), plain])
    assert (result.status, ran) == (Status.WAITING, [("charge", "4111 well")])


SECRET = "4111-1111-secret"


async def leaks(what: str) -> None:
    raise CriticalError(f"the card {what} was refused", what)


async def keeps(result: str, more: str) -> None:
    ran.append((result, more))


@workflow
async def child(ctx: Context, card: str) -> str:
    return card


@workflow
async def all_there_is(ctx: Context, card: str) -> str:
    async def turn(ctx: Context, state: list[str]) -> Continue[list[str]] | Break[list[str]]:
        return Continue([*state, card]) if len(state) < 3 else Break(state)

    async def fails(ctx: Context) -> None:
        await ctx.step("refused", leaks, card)

    async def gives(ctx: Context) -> str:
        return card

    ctx.state["card"] = card
    ctx.state["list"] = [card]
    ctx.progress(1, 2, f"with {card}")
    await ctx.loop("turns", turn, [card], commit_interval=1)
    await ctx.attempt("try", fails)
    await ctx.join("both", {"one": gives, "two": gives})
    await ctx.child("child", child, card)
    await ctx.send("send", "reader", "go", card)
    await ctx.listen("wait", timeout=0, default=card)
    assert await ctx.listen("go") == SECRET
    assert (await ctx.task("task", payload=card, assignee="ann", roles=["clerk"])).result == SECRET
    await ctx.step("again", leaks, card)
    return card


@pytest.mark.parametrize("codec", [KEY, Nonce()], ids=["fernet", "nonce"])
async def test_everything_that_authors_and_people_write_is_covered(driver: Driver, codec: Any) -> None:
    async with Runtime(driver, workflows=[all_there_is, child, shop], codec=codec) as runtime:
        reader = await runtime.start(shop, SECRET, id="reader")
        await until_status(reader, Status.WAITING)
        handle = await runtime.start(
            all_there_is,
            SECRET,
            id="i",
        )
        await handle.send("go", SECRET)
        await runtime.schedule("nightly", child, SECRET, every=86_400)
        with anyio.fail_after(PATIENCE):
            while not (tasks := (await runtime.tasks.list()).items):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert tasks[0].payload == SECRET
        info = await handle.info()
        assert info.progress is not None
        assert (info.state, info.progress.note) == ({"card": SECRET, "list": [SECRET]}, f"with {SECRET}")
        await runtime.tasks.complete(tasks[0].id, SECRET, by="ann", roles=["clerk"])
        with pytest.raises(WorkflowFailedError) as caught:
            await handle.result(timeout=PATIENCE)
        error = caught.value.error
        assert error is not None
        assert SECRET in error.message
        assert SECRET in error.traceback
        assert SECRET in str((await handle.history())["again"].error)
    stored = await driver.scan(b"", b"\xff")
    assert [key for key, raw in stored if b"4111" in raw or b"4111" in key or b"secret" in raw] == []
    # What is searched stays in clear.
    assert any(b"ann" in key for key, _ in stored) or any(b"ann" in raw for _, raw in stored)


async def draws(client: Client) -> str:
    return str(await client.handle("all_there_is", "i").history())


READS: dict[str, Callable[[Client], Any]] = {
    "info": lambda client: client.handle("all_there_is", "i").info(),
    "history": draws,
    "result": lambda client: client.handle("all_there_is", "i").result(timeout=PATIENCE),
    "list": lambda client: client.list(),
}


@pytest.mark.parametrize("codec", [None, OLD, [OLD, plain]], ids=["none", "another", "another and plain"])
@pytest.mark.parametrize("read", READS)
async def test_a_client_with_another_codec_gets_an_error(driver: Driver, read: str, codec: Any) -> None:
    @workflow(name="all_there_is")
    async def fails(ctx: Context, card: str) -> None:
        ctx.state["card"] = card
        await ctx.step("refused", leaks, card)

    await run_workflow(fails, SECRET, driver=driver, instance_id="i", codec=KEY)
    async with Client(driver, codec=codec) as client:
        with pytest.raises(CodecError) as caught:
            await READS[read](client)
        assert SECRET not in str(caught.value)


async def test_what_is_not_changed_is_not_written_again(driver: Driver) -> None:
    """Encryption gives other bytes each time; a state that stays the same is no change."""

    async def shown() -> list[bytes | None]:
        return [await driver.get(InstanceKeys("i").field(field)) for field in (Field.STATE, Field.SHOWN)]

    seen: list[list[bytes | None]] = []

    async def look(what: str) -> None:
        seen.append(await shown())

    @workflow
    async def looks(ctx: Context) -> None:
        ctx.state["list"] = [1, 2]
        ctx.progress(1, 2, "note")
        for number in range(4):
            await ctx.step(f"step {number}", look, str(number))

    await run_workflow(looks, driver=driver, instance_id="i", codec=Nonce())
    assert seen[1] == seen[2] == seen[3]
    assert None not in seen[1]


async def test_a_check_compares_values_and_not_their_bytes(driver: Driver) -> None:
    await run_workflow(child, "4111", driver=driver, instance_id="i", codec=Nonce())
    assert (await replay_check(driver, [child], finished=1, codec=Nonce())).ok


async def test_a_check_tells_of_what_it_can_not_read(driver: Driver, tmp_path: Path) -> None:
    await begun(driver, KEY, "well")
    assert await dump_histories(driver, tmp_path / "dump", codec=KEY) == 1
    assert (await replay_check(tmp_path / "dump", [shop], codec=KEY)).ok
    for codec in (None, OLD):
        report = await replay_check(tmp_path / "dump", [shop], codec=codec)
        assert [problem.kind for problem in report.problems] == ["failure"]
        assert "codec=" in str(report)
    assert ran == []
