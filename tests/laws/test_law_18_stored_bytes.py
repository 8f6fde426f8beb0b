"""Law 18: stored bytes choose no code. A row names a function only among those that this process was given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from os import mkdir
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from tests.laws import unmarked
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Batch,
    Break,
    Context,
    Continue,
    Driver,
    Handle,
    InstanceInfo,
    Runtime,
    Status,
    dump_histories,
    open_driver,
    replay_check,
    run_workflow,
    send_message,
    step,
    workflow,
)
from workflow_sdk.instance.loading import sequence_of
from workflow_sdk.journal.compensation import Compensation, HandlerRef
from workflow_sdk.rows.keys import COMPENSATIONS, InstanceKeys
from workflow_sdk.values import Codec

__all__ = ["mkdir"]

pytestmark = pytest.mark.settings(mode="yield")

undone: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_undone() -> None:
    """Every test begins with nothing undone."""
    undone.clear()
    unmarked.undone.clear()


async def undo(result: Any) -> None:
    """A handler in the module of the workflow."""
    undone.append(result)


@step
async def undo_as_a_step(result: Any) -> None:
    """A handler that is known wherever its module is loaded."""
    undone.append(result)


class Undo:
    """Not a function."""

    def __init__(self, result: Any) -> None:
        undone.append(result)


async def book(value: str) -> str:
    return value


@workflow
async def trip(ctx: Context, value: str) -> None:
    await ctx.step("book", book, value, rollback=undo)
    await ctx.listen("go")
    raise ValueError("no")


def is_there(path: Path) -> bool:
    """Whether somebody has made it."""
    return path.exists()


async def rename_handlers(driver: Driver, name: str, id: str = "i", **changes: Any) -> None:
    """Have every compensation of an instance name another function."""
    keys = InstanceKeys(id)
    batch = Batch()
    rows = await driver.scan(*keys.range(COMPENSATIONS))
    assert rows
    for key, raw in rows:
        found = Compensation.unpack(sequence_of(keys, key), raw)
        batch.set(key, replace(found, handler=HandlerRef(name, **changes)).pack())
    await driver.commit(batch)


async def handlers_of(driver: Driver, id: str = "i") -> list[str | None]:
    """What the compensations of an instance name."""
    keys = InstanceKeys(id)
    rows = await driver.scan(*keys.range(COMPENSATIONS))
    found = [Compensation.unpack(sequence_of(keys, key), raw).handler for key, raw in rows]
    return [None if ref is None else ref.name for ref in found]


HOSTILE = [
    "os:mkdir",
    f"{__name__}:mkdir",
    f"{__name__}:Undo",
    f"{__name__}:unmarked.undo",
    f"{__name__}:unmarked.mkdir",
    f"{__name__}:undo.__call__",
    f"{__name__}:nothing",
    "tests.laws.unmarked:undo",
    "planted:undo",
    "builtins:print",
    "",
]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that nobody imports. The file is made as soon as somebody does."""
    trace = tmp_path / "imported"
    (tmp_path / "planted.py").write_text(f"open({str(trace)!r}, 'w')\ndef undo(result): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield trace
    sys.modules.pop("planted", None)


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_row_that_names_another_function_makes_the_instance_stuck(
    world: World, tmp_path: Path, planted: Path, name: str
) -> None:
    victim = tmp_path / "made by a row"
    assert (await world.run(trip, str(victim))).status is Status.WAITING
    await rename_handlers(world.driver, name)
    await world.send("go")
    result = await world.run(trip)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "consistency"
    assert repr(name) in result.error.message
    assert "handlers=" in result.error.message
    assert "@step" in result.error.message
    assert not is_there(planted)
    assert not is_there(victim)
    assert (undone, unmarked.undone) == ([], [])
    # Nothing was lost: with the row as it was, it goes on.
    await rename_handlers(world.driver, f"{__name__}:undo")
    assert (await world.run(trip)).status is Status.ROLLED_BACK
    assert undone == [str(victim)]


async def test_arguments_in_a_row_do_not_help(world: World, tmp_path: Path) -> None:
    victim = tmp_path / "made by a row"
    assert (await world.run(trip, "hotel")).status is Status.WAITING
    await rename_handlers(world.driver, "os:mkdir", args=(Codec().encode(str(victim)),))
    await world.send("go")
    assert (await world.run(trip)).status is Status.STUCK
    assert not is_there(victim)


@pytest.mark.parametrize("name", [f"{__name__}:undo", f"{__name__}:undo_as_a_step", "tests.laws.unmarked:stepped"])
async def test_a_row_may_name_what_is_known(world: World, name: str) -> None:
    assert (await world.run(trip, "hotel")).status is Status.WAITING
    await rename_handlers(world.driver, name)
    await world.send("go")
    assert (await world.run(trip)).status is Status.ROLLED_BACK
    assert undone + unmarked.undone == ["hotel"]


async def test_a_handler_that_was_given_may_be_named(world: World) -> None:
    """It stays stuck until the function is given; then it goes on by itself, or by `recover`."""
    assert (await world.run(trip, "hotel")).status is Status.WAITING
    await rename_handlers(world.driver, "tests.laws.unmarked:undo")
    await world.send("go")
    assert (await world.run(trip)).status is Status.STUCK
    result = await run_workflow(trip, driver=world.driver, instance_id="i", clock=world.clock, handlers=[unmarked.undo])
    assert result.status is Status.ROLLED_BACK
    assert unmarked.undone == ["hotel"]


async def until(handle: Handle[Any], status: Status) -> InstanceInfo:
    """The instance, once it has that status."""
    with anyio.fail_after(PATIENCE):
        async for info in handle.watch():
            if info.status is status:
                return info
    raise AssertionError(f"it never was {status}")


async def test_a_runtime_calls_what_it_was_given_and_nothing_else(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    victim = tmp_path / "made by a row"
    ids = {"hostile": "os:mkdir", "other": "tests.laws.unmarked:undo"}
    async with Runtime(store, workflows=[trip]) as runtime:
        for id in ids:
            await until(await runtime.start(trip, str(victim), id=id), Status.WAITING)
    driver = await open_driver(store)
    for id, name in ids.items():
        await rename_handlers(driver, name, id)
        await send_message(driver, id, "go")
    await driver.aclose()
    async with Runtime(store, workflows=[trip]) as runtime:
        for id in ids:
            info = await until(runtime.handle(trip, id), Status.STUCK)
            assert info.error is not None
            assert info.error.kind == "consistency"
    async with Runtime(store, workflows=[trip], handlers=[unmarked.undo]) as runtime:
        assert runtime.handlers == (unmarked.undo,)
        for id in ids:
            await runtime.handle(trip, id).recover()
        await until(runtime.handle(trip, "other"), Status.ROLLED_BACK)
        await until(runtime.handle(trip, "hostile"), Status.STUCK)
    assert unmarked.undone == [str(victim)]
    assert not is_there(victim)


@pytest.mark.parametrize("dumped", [False, True])
async def test_checking_imports_and_calls_nothing_that_a_row_names(
    world: World, tmp_path: Path, planted: Path, dumped: bool
) -> None:
    assert (await world.run(trip, "hotel")).status is Status.WAITING
    await rename_handlers(world.driver, "planted:undo")
    source: Any = world.driver
    if dumped:
        source = tmp_path / "dump"
        await dump_histories(world.driver, source)
    report = await replay_check(source, [trip])
    assert "planted:undo" in str(report)
    assert not is_there(planted)
    await rename_handlers(world.driver, "tests.laws.unmarked:undo")
    assert not (await replay_check(world.driver, [trip])).ok
    assert (await replay_check(world.driver, [trip], handlers=[unmarked.undo])).ok


async def test_a_handler_that_is_not_known_is_found_by_walking_the_code(world: World) -> None:
    """A plain function of another module has no name in the record, and yet it is called."""

    @workflow
    async def plain(ctx: Context) -> None:
        await ctx.step("book", book, "plain", rollback=unmarked.undo)
        await ctx.step("partial", book, "partial", rollback=partial(unmarked.undo))
        await ctx.step("step", book, "step", rollback=unmarked.stepped)
        await ctx.listen("go")
        raise ValueError("no")

    assert (await world.run(plain)).status is Status.WAITING
    assert await handlers_of(world.driver) == [None, None, "tests.laws.unmarked:stepped"]
    await world.send("go")
    assert (await world.run(plain)).status is Status.ROLLED_BACK
    assert unmarked.undone == ["step", "partial", "plain"]


@workflow
async def loops(ctx: Context) -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
        await ctx.step("book", book, str(number), rollback=unmarked.undo)
        return Continue(number + 1) if number < 2 else Break()

    await ctx.loop("loop", turn, 0, commit_interval=1, history_keep=0)
    raise ValueError("no")


async def test_inside_a_loop_it_is_a_mistake_that_says_how_to_make_it_known(world: World) -> None:
    result = await world.run(loops)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert "handlers=" in result.error.message
    assert "@step" in result.error.message
    given = await run_workflow(
        loops, driver=world.driver, instance_id="given", clock=world.clock, handlers=[unmarked.undo]
    )
    assert given.status is Status.ROLLED_BACK
    assert unmarked.undone == ["2", "1", "0"]
