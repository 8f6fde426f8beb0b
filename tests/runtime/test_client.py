"""Starting instances, waiting for how they end, and forgetting them; whoever runs them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Rows, doubles, naps, until_status
from tests.runtime.polling import settle
from tests.runtime.shifted import ByHand, Shifted
from workflow_sdk import (
    AlreadyExistsError,
    Backoff,
    Client,
    Context,
    CriticalError,
    DefinitionError,
    Driver,
    Handle,
    InputError,
    InstanceNotFoundError,
    InstanceStateError,
    Runtime,
    Status,
    StorageError,
    Workflow,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowSDKError,
    WorkflowStuckError,
    workflow,
)


@dataclass
class Order:
    """An input with a type."""

    id: str
    items: list[int]


@dataclass
class Receipt:
    """An output with a type."""

    order: Order
    total: int


@workflow
async def checkout(ctx: Context, order: Order) -> Receipt:
    """Something with types of its own."""
    return Receipt(order, await ctx.step("total", sum, order.items))


@workflow
async def greets(ctx: Context, name: str = "you") -> str:
    """Has an input that can be left out."""
    return f"hello {name}"


async def undo(result: object) -> None:
    """Nothing is left to undo."""


@workflow
async def ends(ctx: Context, how: str) -> None:
    """Ends as it is told."""
    if how == "rolled_back":
        await ctx.step("do", lambda: 1, rollback=undo)
    if how == "stuck":
        await ctx.sleep("", 1)
    if how == "cancelled":
        await ctx.listen("never")
    raise CriticalError("as told")


FLOWS: list[Workflow[Any, Any]] = [checkout, greets, ends, doubles, naps]


async def test_an_instance_runs_to_its_end(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        order = Order("o-1", [1, 2, 3])
        handle = await runtime.start(checkout, order, id="order-1")
        assert (handle.id, await handle.result()) == ("order-1", Receipt(order, 6))
        assert await handle.result(timeout=PATIENCE) == Receipt(order, 6), "it can be asked again"
        assert await runtime.run(doubles, 21) == 42
    rows = await Rows.of(driver)
    assert (rows.leases, rows.alarms, rows.workers) == ([], [], []), "nothing is left of the worker"


async def test_an_id_of_its_own(driver: Driver) -> None:
    async with Client(driver) as client:
        first, second = await client.start(doubles, 1), await client.start(doubles, 1)
        assert first.id != second.id
        assert str(UUID(first.id)) == first.id


async def test_a_client_starts_and_a_runtime_runs(driver: Driver) -> None:
    async with Client(driver) as client:
        handle = await client.start(checkout, Order("o", [4]), id="i")
        info = await handle.info()
        assert (info.status, info.workflow, info.input, info.output) == (
            *(Status.PENDING, "checkout", {"id": "o", "items": [4]}, None),
        )
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.01)
        async with Runtime(driver, workflows=FLOWS):
            assert (await client.handle(checkout, "i").result(timeout=PATIENCE)).total == 4
        info = await handle.info()
        assert (info.status, info.output["total"], info.waits, info.wake_at) == (Status.COMPLETED, 4, [], None)
        assert info.workflow_version == 1
        assert info.fingerprint == checkout.fingerprint
        assert info.created_at <= info.updated_at


async def test_starting_twice_is_starting_once(driver: Driver) -> None:
    ran: list[str] = []

    @workflow
    async def once(ctx: Context, what: str) -> str:
        await ctx.step("note", ran.append, what)
        return what

    async with Runtime(driver, workflows=[once]) as runtime:
        handles: list[Handle[str]] = []

        async def start() -> None:
            handles.append(await runtime.start(once, "x", id="i"))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(start)
        assert [await handle.result(timeout=PATIENCE) for handle in handles] == ["x"] * 10
        again = await runtime.start(once, "x", id="i")
        assert await again.result() == "x", "ended or not"
        assert await (await runtime.start("once", "x", id="i")).result() == "x", "by name it is the same"
    assert ran == ["x"]


async def test_an_id_that_is_taken(driver: Driver) -> None:
    async with Client(driver) as client:
        await client.start(greets, "Ann", id="i")
        with pytest.raises(AlreadyExistsError, match=r"'i' runs workflow 'greets', not 'doubles'"):
            await client.start(doubles, 1, id="i")
        with pytest.raises(AlreadyExistsError, match=r"'i' of workflow 'greets' was started .* 'Ann', not 'Bob'"):
            await client.start(greets, "Bob", id="i")
        with pytest.raises(AlreadyExistsError):
            await client.start("doubles", "Ann", id="i")
        assert (await client.handle(greets, "i").info()).input == "Ann"


async def test_a_conflict_that_is_none_is_no_start(driver: Driver) -> None:
    """A store that refuses once has stored nothing: the start is tried again."""

    class RefusesOnce:
        refused = False

        async def commit(self, batch: Any, /) -> None:
            if not self.refused:
                self.refused = True
                await client.delete("i")
            await driver.commit(batch)

        def __getattr__(self, name: str) -> Any:
            return getattr(driver, name)

    async with Runtime(driver, workflows=FLOWS) as runtime:
        await runtime.run(doubles, 1, id="i")
    async with Client(driver) as client:
        odd: Any = RefusesOnce()
        async with Client(odd) as other:
            await other.start(doubles, 2, id="i")
        assert (await client.handle(doubles, "i").info()).input == 2


@pytest.mark.parametrize("id", ["", "x" * 1001, "\ud800", 3])
async def test_ids_are_texts(driver: Driver, id: Any) -> None:
    async with Client(driver) as client:
        with pytest.raises(DefinitionError, match="an instance id is a text"):
            await client.start(doubles, 1, id=id)
    assert await driver.scan(b"", b"\xff") == []


@pytest.mark.parametrize("input", [{"id": 3}, "text", None, Order("o", ["x"])])  # type: ignore[list-item]
async def test_an_input_of_the_wrong_type(driver: Driver, input: Any) -> None:
    async with Client(driver) as client:
        with pytest.raises(InputError, match="the input of workflow 'checkout'"):
            await client.start(checkout, input)
    async with Runtime(driver, workflows=FLOWS) as runtime:
        with pytest.raises(InputError, match="the input of workflow 'checkout'"):
            await runtime.start("checkout", input)
        assert (await runtime.list()).items == [], "nothing is stored"


async def test_by_name_results_are_plain_data(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        plain = {"order": {"id": "o", "items": [1]}, "total": 1}
        assert await runtime.run("checkout", {"id": "o", "items": [1]}, id="i") == plain
        assert await runtime.handle(checkout, "i").result() == Receipt(Order("o", [1]), 1)
        assert await runtime.handle("checkout", "i").result() == plain
        assert await runtime.run("greets") == "hello you"


async def test_a_workflow_that_is_not_there(driver: Driver) -> None:
    async with Runtime(driver, workflows=[doubles]) as runtime:
        for flow in (greets, "greets"):
            with pytest.raises(DefinitionError, match=r"was not given the workflow 'greets'; it has: doubles"):
                await runtime.start(flow, id="i")
        something: Any = 3
        with pytest.raises(DefinitionError):
            await runtime.start(something)
    assert await driver.scan(b"", b"\xff") == []


@pytest.mark.parametrize("workflows", [[doubles, 3], [doubles, workflow(name="doubles")(naps.fn)]])
async def test_workflows_have_names_of_their_own(driver: Driver, workflows: Any) -> None:
    with pytest.raises(DefinitionError, match=r"decorated with @workflow, not 3|two workflows are called 'doubles'"):
        Runtime(driver, workflows=workflows)


async def test_a_client_that_is_not_open(driver: Driver) -> None:
    with pytest.raises(DefinitionError, match="Client is not open"):
        await Client(driver).start(doubles, 1)
    async with Client("memory://") as client:
        await client.start(doubles, 1)
        inside = client.access.driver
    with pytest.raises(StorageError):
        await inside.get(b"a")  # what the client has opened is closed
    assert await driver.get(b"a") is None, "what it was handed is left open"


@pytest.mark.parametrize(
    ("how", "error", "kind"),
    [
        ("failed", WorkflowFailedError, "failed"),
        ("rolled_back", WorkflowFailedError, "rolled_back"),
        ("cancelled", WorkflowCancelledError, "cancelled"),
        ("stuck", WorkflowStuckError, "stuck"),
    ],
)
async def test_every_other_end(driver: Driver, how: str, error: type[Any], kind: str) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(ends, how, id="i")
        if how == "cancelled":
            await until_status(handle, Status.WAITING)
            await handle.cancel()
        found: list[Any] = []
        for _ in range(2):
            with pytest.raises(error) as caught:
                await handle.result(timeout=PATIENCE)
            found.append(caught.value)
        assert [error.status for error in found] == [Status(kind)] * 2
        assert all(type(error.status) is Status for error in found)
        info = await handle.info()
        assert info.status == kind
        assert [error.error for error in found] == [info.error] * 2
        assert "as told" in str(info.error) or how in ("cancelled", "stuck")


@pytest.mark.parametrize("give_up", ["timeout", "cancel"])
async def test_who_gives_up_waiting_does_no_harm(driver: Driver, give_up: str) -> None:
    clock = Shifted()
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        handle = await runtime.start(naps, 600)
        await until_status(handle, Status.SLEEPING)
        if give_up == "timeout":
            with pytest.raises(TimeoutError):
                await handle.result(timeout=0.01)
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(handle.result)
                await settle(driver)
                group.cancel_scope.cancel()
        assert (await handle.info()).status is Status.SLEEPING
        clock.offset = 601
        assert await handle.result(timeout=PATIENCE) == "awake"


async def test_many_wait_for_one(driver: Driver) -> None:
    got: list[str] = []
    clock = ByHand()
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        handle = await runtime.start(naps, 60)

        async def wait() -> None:
            got.append(await handle.result(timeout=PATIENCE))

        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(wait)
            await settle(driver)
            assert got == []
            clock.offset = 61
    assert got == ["awake"] * 100


async def test_nothing_is_known_of_an_unknown_instance(driver: Driver) -> None:
    async with Client(driver) as client:
        handle = client.handle(doubles, "nobody")
        calls: list[Callable[[], Any]] = [
            *(handle.result, handle.info, handle.history, handle.cancel, handle.wake, handle.recover),
            *(handle.evict, handle.restart_from, lambda: handle.send("m"), lambda: handle.ask("m")),
            lambda: client.delete("nobody"),
        ]
        for call in calls:
            with pytest.raises(InstanceNotFoundError, match="there is no instance 'nobody'"):
                await call()
    assert await driver.scan(b"", b"\xff") == []


async def test_what_a_status_does_not_allow(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        done, waiting = await runtime.start(doubles, 1), await runtime.start(ends, "cancelled")
        stuck = await runtime.start(ends, "stuck")
        await done.result()
        await until_status(waiting, Status.WAITING)
        await until_status(stuck, Status.STUCK)
        refused: list[tuple[str, Callable[[], Any]]] = [
            ("completed", done.cancel),
            ("completed", done.wake),
            ("completed", done.recover),
            ("completed", lambda: done.ask("m")),
            ("waiting", waiting.recover),
            ("waiting", lambda: runtime.delete(waiting.id)),
            ("stuck", stuck.wake),
            ("stuck", lambda: runtime.delete(stuck.id)),
        ]
        before = await driver.scan(b"", b"\xff")
        for status, call in refused:
            with pytest.raises(InstanceStateError, match=rf"is {status}|has ended"):
                await call()
        assert [key for key, _ in await driver.scan(b"", b"\xff")] == [key for key, _ in before]


@pytest.mark.law(21)
async def test_deleting(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(doubles, 1, id="gone")
        await handle.result()
        await runtime.delete("gone")
        assert (await Rows.of(driver)).of_instance("gone") == []
        errors: list[WorkflowSDKError] = []

        async def expect(call: Coroutine[Any, Any, Any]) -> None:
            with pytest.raises(InstanceNotFoundError) as caught:
                await call
            errors.append(caught.value)

        await expect(handle.result())
        await expect(runtime.delete("gone"))
        assert await runtime.run(doubles, 5, id="gone") == 10, "the id is free again"
    assert len(errors) == 2


async def test_infos_of_a_waiting_instance(driver: Driver) -> None:
    @workflow
    async def waits(ctx: Context) -> None:
        async def one(ctx: Context) -> None:
            await ctx.listen("a", ["x", "y"], timeout=60)

        async def two(ctx: Context) -> None:
            await ctx.sleep("b", 30)

        await ctx.join("both", {"one": one, "two": two})

    async with Runtime(driver, workflows=[waits]) as runtime:
        handle = await runtime.start(waits)
        await until_status(handle, Status.WAITING)
        info = await handle.info()
        found = sorted((wait.kind, wait.name, wait.path, wait.message or "") for wait in info.waits)
        assert found == [
            ("message", "a", "both/one/a", "x"),
            ("message", "a", "both/one/a", "y"),
            ("timer", "b", "both/two/b", ""),
        ]
        assert info.wake_at == min(wait.until for wait in info.waits if wait.until)
    info_away = None
    async with Client(driver) as client:
        info_away = await client.handle(waits, handle.id).info()
    assert (info_away.status, info_away.waits, info_away.wake_at) == (Status.WAITING, *(info.waits, info.wake_at))


async def test_attempts_of_a_step_that_is_under_way(driver: Driver) -> None:
    @workflow
    async def struggles(ctx: Context) -> None:
        def fail() -> None:
            raise OSError("no")

        await ctx.step("in/side", fail, retries=5, backoff=Backoff(initial=60))

    async with Runtime(driver, workflows=[struggles]) as runtime:
        handle = await runtime.start(struggles)
        await until_status(handle, Status.SLEEPING)
        info = await handle.info()
        assert info.attempts == {"in%2Fside": 1}
        assert [wait.kind for wait in info.waits] == ["retry"]


@workflow
async def defaults(ctx: Context, number: int = 5) -> int:
    return number


async def test_an_input_that_is_left_out(driver: Driver) -> None:
    async with Client(driver) as client, Runtime(driver, workflows=[defaults]) as runtime:
        known, by_name = await runtime.start(defaults), await client.start("defaults")
        assert (await known.result(timeout=PATIENCE), await by_name.result(timeout=PATIENCE)) == (5, 5)
        assert await runtime.run(defaults, 6) == 6


async def test_what_is_no_workflow_no_status_and_no_key(driver: Driver) -> None:
    async with Client(driver) as client:
        for name in ("", "x" * 1001):
            with pytest.raises(DefinitionError, match="can't be called"):
                await client.start(name)
        with pytest.raises(DefinitionError, match=r"no status 'nonsense'.*pending, running"):
            await client.list(status="nonsense")
        handle = await client.start(defaults, 1)
        with pytest.raises(DefinitionError, match="key"):
            await handle.send("m", key="")


async def test_a_handle_of_another_workflow(driver: Driver) -> None:
    async with Runtime(driver, workflows=[defaults, doubles]) as runtime:
        await runtime.run(defaults, 1, id="i")
        other = runtime.handle(doubles, "i")
        for call in (other.result, other.info):
            with pytest.raises(DefinitionError, match="runs workflow 'defaults', not 'doubles'"):
                await call()


async def test_no_time_to_wait_is_time_to_look(driver: Driver) -> None:
    async with Runtime(driver, workflows=[defaults, naps]) as runtime:
        ended = await runtime.start(defaults, 3)
        assert await ended.result(timeout=PATIENCE) == 3
        assert await ended.result(timeout=0) == 3
        with pytest.raises(TimeoutError):
            await (await runtime.start(naps, 600)).result(timeout=0)
