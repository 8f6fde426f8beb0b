"""Another manifest is applied only while nothing is under way, and fences all who have the one before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import anyio
import pytest

from tests.machines.cell_parts import (
    Answer,
    Asked,
    Did,
    Do,
    Say,
    Still,
    ask,
    cell_or_none,
    host,
    manifest_of,
    told,
    until_cell,
    until_count,
    until_words,
)
from tests.runtime.polling import settle, until
from workflow_sdk import (
    ApplyBlockedError,
    Batch,
    Client,
    DefinitionError,
    Delivery,
    Driver,
    Runtime,
    WorkflowSDKError,
)
from workflow_sdk.driver import Set
from workflow_sdk.machines import (
    CellStatus,
    EffectReceipt,
    EffectRejected,
    Machine,
    MachineContext,
    Manifest,
    Transition,
    timer,
)
from workflow_sdk.machines.applying import TRIES_MAX
from workflow_sdk.machines.rows import ACTIVE, ActiveRow
from workflow_sdk.rows.keys import INBOX, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock


def does_as_it_is_told(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """What the word of an event says: to end, to be deleted, to be refused, to ask, to wait; or nothing."""
    match event:
        case EffectReceipt() | EffectRejected():
            return None
        case Do(word="ends"):
            return Transition(words, done=True)
        case Do(word="is deleted"):
            return Transition(None)
        case Do(word="is refused"):
            return "no transition"
        case Do(word="asks"):
            return ask("something")
        case Do(word="asks and ends"):
            return Transition(words, effects=[ask("something")], done=True)
        case Do(word="waits"):
            return timer(after=timedelta(days=1))
        case _:
            return None


def before_and_after(did: Did = does_as_it_is_told) -> tuple[Machine[Any], Manifest, Machine[Any], Manifest]:
    """A machine with its manifest, and the same machine with another event and so with another manifest."""
    one = told(did)
    other = told(did, event=Do | EffectReceipt | EffectRejected)
    return one, manifest_of(one), other, manifest_of(other)


async def everything(driver: Driver) -> list[tuple[bytes, bytes]]:
    """All rows of a store."""
    return await driver.scan(b"", b"\xff")


async def active(driver: Driver) -> str:
    """The hash of the active manifest."""
    raw = await driver.get(ACTIVE)
    assert raw is not None
    return ActiveRow.unpack(raw).hash


async def takes(driver: Driver, one: Machine[Any], *words: str, key: str = "a", **options: Any) -> None:
    """Have a cell take these words, and evict it."""
    async with host(driver, one, **options) as runtime:
        for word in words:
            await runtime.emit(Do(key, word))
        await until(lambda: _has_taken_all(runtime, driver, one, key))


async def _has_taken_all(client: Client, driver: Driver, one: Machine[Any], key: str) -> bool:
    begin, end = InstanceKeys(one.instance_id(key)).range(INBOX)
    is_queued = bool(await driver.scan(begin, end, limit=1))
    cell = await cell_or_none(client, one, key)
    if cell is None or cell.status is CellStatus.STUCK:
        return True
    return not is_queued and cell.status is not CellStatus.RUNNING


async def blocked(driver: Driver, manifest: Manifest, **options: bool) -> ApplyBlockedError:
    """What the refusal says; it has changed nothing."""
    stored = await everything(driver)
    async with Client(driver) as client:
        with pytest.raises(ApplyBlockedError) as caught:
            await client.apply(manifest, **options)
    assert await everything(driver) == stored
    return caught.value


def counts(error: ApplyBlockedError) -> tuple[int, int, int, int]:
    """Cells, intents, timers, queued messages."""
    return error.cells, error.intents, error.timers, error.queued


class Between(FaultyDriver):
    """A store in which something is done just before another manifest is stored, when it was looked whether it may."""

    def __init__(self, driver: Driver, manifest: Manifest, then: Callable[[], Awaitable[None]], times: int = 1) -> None:
        super().__init__(driver)
        self.hash = manifest.hash
        self.then = then
        self.left = times

    async def commit(self, batch: Batch, /) -> None:
        """Do it, then commit."""
        stored = (one.value for one in batch.writes if isinstance(one, Set) and one.key == ACTIVE)
        if self.left and any(ActiveRow.unpack(raw).hash == self.hash for raw in stored):
            self.left -= 1
            await self.then()
        await super().commit(batch)


# When it is refused, and when not.


async def test_on_an_empty_store_it_is_only_stored(driver: Driver) -> None:
    _, old, other, new = before_and_after()
    async with Client(driver) as client:
        await client.apply(new)
    assert await active(driver) == new.hash
    with pytest.raises(DefinitionError, match=r"another active manifest.*client\.apply"):
        await Runtime(driver, machines=old).__aenter__()
    await takes(driver, other, "1")


async def test_what_is_no_manifest_is_not_applied(driver: Driver) -> None:
    anything: Any = "a manifest"
    async with Client(driver) as client:
        with pytest.raises(DefinitionError, match="Manifest, not 'a manifest'"):
            await client.apply(anything)


async def test_an_equal_manifest_is_applied_whatever_is_under_way_and_changes_nothing(driver: Driver) -> None:
    one, old, _, _ = before_and_after()
    await takes(driver, one, "asks", "waits", "1")
    async with Client(driver, machines=old) as client:
        await client.emit(Do("b"))
        stored = await everything(driver)
        await client.apply(old)
        await client.apply(manifest_of(told(does_as_it_is_told)))
    assert await everything(driver) == stored


@pytest.mark.parametrize("end", ["ends", "is deleted"])
async def test_cells_that_have_ended_are_not_in_the_way(driver: Driver, end: str) -> None:
    one, _, other, new = before_and_after()
    await takes(driver, one, "1", end)
    async with Client(driver) as client:
        await client.apply(new)
    assert await active(driver) == new.hash
    await takes(driver, other, "1", key="b")


async def test_cells_that_have_failed_are_not_in_the_way(driver: Driver) -> None:
    one = told(lambda words, event, ctx: ask("something"), event=Do | EffectReceipt)
    new = manifest_of(told(event=Do))
    async with host(driver, one, executors=[Asked().by(lambda params, intent: "no Answer")]) as runtime:
        await runtime.emit(Do("a"))
        await until_cell(runtime, one, "a", lambda cell: cell.status is CellStatus.FAILED)
    async with Client(driver) as client:
        await client.apply(new)
    assert await active(driver) == new.hash


async def test_cells_that_wait_are_in_the_way_unless_they_may_be_idle(driver: Driver) -> None:
    one, _, other, new = before_and_after()
    await takes(driver, one, "1", key="a")
    await takes(driver, one, "1", key="b")
    error = await blocked(driver, new)
    assert counts(error) == (2, 0, 0, 0)
    assert "2 cells have not ended (told@1: 2)" in str(error)
    assert isinstance(error, WorkflowSDKError)
    async with Client(driver) as client:
        await client.apply(new, allow_idle=True)
    await takes(driver, other, "2")
    async with Client(driver, machines=new) as client:
        assert (await client.cell(other, "a")).state == ["1", "2"]


async def test_cells_of_all_machines_count(driver: Driver) -> None:
    one, two = told(), told(name="two@1", event=Say, effects=[])
    both = manifest_of(one, two)
    async with Client(driver, machines=both) as client:
        await client.emit(Do("a"))
        await client.emit(Say("b"))
    error = await blocked(driver, manifest_of(told(event=Do, effects=[])))
    assert counts(error) == (3, 0, 0, 3)
    assert "(told@1: 2, two@1: 1)" in str(error)


async def test_a_stuck_cell_is_in_the_way_even_if_cells_may_be_idle(driver: Driver) -> None:
    one, _, _, new = before_and_after()
    await takes(driver, one, "1", "is refused")
    assert counts(await blocked(driver, new)) == (1, 0, 0, 1)
    error = await blocked(driver, new, allow_idle=True)
    assert counts(error) == (1, 0, 0, 1)
    assert "1 message is queued (told@1: 1)" in str(error)
    assert "not ended" not in str(error)


async def test_effects_in_flight_are_in_the_way_even_if_their_cell_has_ended(driver: Driver) -> None:
    one, old, _, new = before_and_after()
    await takes(driver, one, "asks and ends")
    error = await blocked(driver, new, allow_idle=True, allow_timers=True)
    assert counts(error) == (0, 1, 0, 0)
    assert "1 effect is in flight (told@1: 1)" in str(error)
    asked = Asked()
    async with host(driver, one, executors=[asked.by()]):
        await asked.began.wait()
    async with Client(driver, machines=old) as client:
        await client.apply(new)
    assert await active(driver) == new.hash


async def test_an_effect_is_in_the_way_until_the_cell_has_heard_of_it(driver: Driver) -> None:
    one, old, _, new = before_and_after()
    await takes(driver, one, "asks")
    assert counts(await blocked(driver, new, allow_idle=True)) == (1, 1, 0, 0)
    async with Client(driver, machines=old) as client:
        (intent,) = (await client.cell(one, "a")).inflight
        assert await client.settle(intent, {"text": "done"}) is Delivery.ACCEPTED
    assert counts(await blocked(driver, new, allow_idle=True)) == (1, 0, 0, 1)


async def test_timers_are_in_the_way_unless_they_are_allowed_and_settle_under_the_new_manifest(driver: Driver) -> None:
    one, _, other, new = before_and_after()
    async with host(driver, one, clock=Still()) as runtime:
        await runtime.emit(Do("a", "waits"))
        await until_cell(runtime, one, "a", lambda cell: bool(cell.inflight) and cell.status is CellStatus.WAITING)
        with pytest.raises(ApplyBlockedError) as caught:
            await runtime.apply(new, allow_idle=True)
        assert counts(caught.value) == (1, 0, 1, 0)
        assert "1 timer is pending (told@1: 1)" in str(caught.value)
        with pytest.raises(ApplyBlockedError, match="1 cell has not ended"):
            await runtime.apply(new, allow_timers=True)
        await runtime.apply(new, allow_idle=True, allow_timers=True)
    async with Client(driver, machines=new) as client:
        assert len((await client.cell(other, "a")).inflight) == 1
    async with host(driver, other, clock=VirtualClock()) as runtime:
        await until_words(runtime, other, "a", "waits", "ok timer: None")


async def test_what_is_queued_is_in_the_way_even_if_nobody_has_begun_it(driver: Driver) -> None:
    _, old, _, new = before_and_after()
    async with Client(driver, machines=old) as client:
        for number in range(3):
            await client.emit(Do("a", str(number)))
    assert counts(await blocked(driver, new, allow_idle=True, allow_timers=True)) == (1, 0, 0, 3)


async def test_of_many_cells_all_are_counted(driver: Driver) -> None:
    _, old, _, new = before_and_after()
    async with Client(driver, machines=old) as client:
        for number in range(70):
            await client.emit(Do(f"{number % 65}"))
        for _ in range(70):
            await client.emit(Do("many"))
    assert counts(await blocked(driver, new)) == (66, 0, 0, 140)


# What begins between the look and the commit.


async def test_an_event_that_comes_after_the_look_is_in_the_way(driver: Driver) -> None:
    _, old, _, new = before_and_after()
    async with Client(driver, machines=old) as sender:
        await sender.emit(Do("a", "1"))
        await takes(driver, told(does_as_it_is_told), "ends")

        async def emit() -> None:
            assert await sender.emit(Do("b", "1")) == [Delivery.ACCEPTED]

        async with Client(Between(driver, new, emit)) as client:
            with pytest.raises(ApplyBlockedError) as caught:
                await client.apply(new, allow_idle=True)
    assert counts(caught.value) == (1, 0, 0, 1)
    assert await active(driver) == old.hash


async def test_an_effect_that_is_asked_for_after_the_look_is_in_the_way(driver: Driver) -> None:
    one, old, _, new = before_and_after()
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "1"))
        await until_cell(runtime, one, "a", lambda cell: cell.status is CellStatus.WAITING)

        async def ask() -> None:
            await runtime.emit(Do("a", "asks"))
            await until_cell(runtime, one, "a", lambda cell: bool(cell.inflight) and cell.status is CellStatus.WAITING)

        async with Client(Between(driver, new, ask)) as client:
            with pytest.raises(ApplyBlockedError) as caught:
                await client.apply(new, allow_idle=True)
        assert counts(caught.value) == (1, 1, 0, 0)
        assert await active(driver) == old.hash
        await runtime.emit(Do("a", "2"))
        await until_words(runtime, one, "a", "1", "asks", "2")


async def test_a_transition_after_the_look_is_made_under_the_manifest_before(driver: Driver) -> None:
    hashes: list[str] = []

    def note(words: list[str], event: Any, ctx: MachineContext) -> None:
        hashes.append(ctx.manifest_hash)

    one, old, other, new = before_and_after(note)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "1"))
        await until_cell(runtime, one, "a", lambda cell: cell.status is CellStatus.WAITING)
        looks: list[str] = []

        async def transit() -> None:
            looks.append("looked")
            await runtime.emit(Do("a", "2"))
            await until_count(runtime, one, "a", 2)

        async with Client(Between(driver, new, transit)) as client:
            await client.apply(new, allow_idle=True)
    assert looks == ["looked"]
    await takes(driver, other, "3")
    assert hashes == [old.hash, old.hash, new.hash]


async def test_who_never_finds_a_quiet_moment_is_told(driver: Driver) -> None:
    one, old, _, new = before_and_after()
    async with Client(driver, machines=old) as sender, host(driver, one) as runtime:

        async def come_and_go() -> None:
            await sender.emit(Do("a", "is deleted"))
            await until(lambda: _has_taken_all(runtime, driver, one, "a"))

        between = Between(driver, new, come_and_go, TRIES_MAX)
        async with Client(between) as client:
            await sender.emit(Do("b", "ends"))
            await until_cell(runtime, one, "b", lambda cell: cell.status.is_terminal)
            with pytest.raises(ApplyBlockedError, match="something new was under way"):
                await client.apply(new)
    assert between.left == 0
    assert await active(driver) == old.hash


async def test_of_two_who_apply_at_once_one_is_the_last(driver: Driver) -> None:
    _, old, _, new = before_and_after()
    third = manifest_of(told(event=Say))
    async with Client(driver) as client, Client(driver) as rival:
        await client.apply(old)

        async def overtake() -> None:
            await rival.apply(third)

        async with Client(Between(driver, new, overtake)) as slow:
            await slow.apply(new)
    assert await active(driver) == new.hash


@pytest.mark.parametrize("by", ["an event", "a runtime that opens", "who applies again"])
async def test_who_dies_while_it_applies_leaves_nothing_in_the_way(driver: Driver, by: str) -> None:
    one, old, other, new = before_and_after()
    async with Client(driver, machines=old) as sender:
        await sender.emit(Do("a", "1"))
        await takes(driver, one, "2")
        dying = FaultyDriver(driver, crash_before=lambda number, batch: _stores(batch, new))
        with suppress(SimulatedCrash):
            async with Client(dying) as client:
                await client.apply(new, allow_idle=True)
        assert await is_marked(driver)
        if by == "an event":
            await sender.emit(Do("a", "3"))
            assert not await is_marked(driver)
        if by != "who applies again":
            await takes(driver, one, "4")
            assert not await is_marked(driver)
        await sender.apply(new, allow_idle=True)
    assert not await is_marked(driver)
    await takes(driver, other, "5")


async def is_marked(driver: Driver) -> bool:
    """Whether somebody is about to apply another manifest, or was."""
    raw = await driver.get(ACTIVE)
    assert raw is not None
    return ActiveRow.unpack(raw).judged is not None


def _stores(batch: Batch, manifest: Manifest) -> bool:
    stored = (one.value for one in batch.writes if isinstance(one, Set) and one.key == ACTIVE)
    return any(ActiveRow.unpack(raw).hash == manifest.hash for raw in stored)


# Those who have the manifest before.


async def test_a_client_with_the_manifest_before_is_refused(driver: Driver) -> None:
    _, old, _, new = before_and_after()
    async with Client(driver, machines=old) as client, Client(driver, machines=new) as newer:
        assert await client.emit(Do("a", "1"), id="first") == [Delivery.ACCEPTED]
        with pytest.raises(DefinitionError, match="another active manifest"):
            await newer.emit(Do("b", "1"))
        await takes(driver, told(does_as_it_is_told), "ends")
        await newer.apply(new)
        for _ in range(2):
            with pytest.raises(DefinitionError, match="another"):
                await client.emit(Do("b", "1"))
        assert await newer.emit(Do("b", "1")) == [Delivery.ACCEPTED]


async def test_a_client_whose_manifest_is_active_again_is_served_again(driver: Driver) -> None:
    _, old, _, new = before_and_after()
    async with Client(driver, machines=old) as client, Client(driver) as other:
        await client.apply(old)
        assert await client.emit(Say("a")) == [Delivery.ACCEPTED]
        await takes(driver, told(does_as_it_is_told), "ends")
        await other.apply(new)
        with pytest.raises(DefinitionError, match="another"):
            await client.emit(Do("b"))
        await other.apply(old)
        assert await client.emit(Do("b")) == [Delivery.ACCEPTED]


class Counting(FaultyDriver):
    """A store that counts what is asked of it."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.calls = 0

    async def get(self, key: bytes, /) -> bytes | None:
        """Count, and read."""
        self.calls += 1
        return await super().get(key)

    async def commit(self, batch: Batch, /) -> None:
        """Count, and commit."""
        self.calls += 1
        await super().commit(batch)


async def test_a_runtime_with_the_manifest_before_leaves_cells_to_others_and_can_be_closed(driver: Driver) -> None:
    one, _, other, new = before_and_after()
    counting = Counting(driver)
    async with host(counting, one) as runtime:
        for key in "abc":
            await runtime.emit(Do(key, "1"))
            await until_cell(runtime, one, key, lambda cell: cell.status is CellStatus.WAITING)
        assert runtime.resident == 3
        async with Client(driver, machines=new) as client:
            await client.apply(new, allow_idle=True)
            await client.emit(Do("a", "2"))
            await until(lambda: _is(runtime.resident == 0))
            with pytest.raises(DefinitionError, match="another manifest was applied meanwhile"):
                await runtime.emit(Do("a", "3"))
            await settle(driver)
            calls = counting.calls
            await settle(driver)
            assert counting.calls - calls < 5  # a heartbeat, perhaps
            assert (await client.cell(other, "a")).state == ["1"]
            async with host(driver, other) as newer:
                await until_words(newer, other, "a", "1", "2")
                await newer.emit(Do("b", "2"))
                await until_words(newer, other, "b", "1", "2")


async def test_a_runtime_that_has_applied_another_manifest_is_to_be_opened_again(driver: Driver) -> None:
    one, _, other, new = before_and_after()
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "1"))
        await until_cell(runtime, one, "a", lambda cell: cell.status is CellStatus.WAITING)
        await runtime.apply(new, allow_idle=True)
        with pytest.raises(DefinitionError, match="another manifest was applied"):
            await runtime.emit(Do("a", "2"))
        await until(lambda: _is(runtime.resident == 0))
    with pytest.raises(DefinitionError, match="another active manifest"):
        await runtime.__aenter__()
    await takes(driver, other, "2")
    async with Client(driver, machines=new) as client:
        assert (await client.cell(other, "a")).state == ["1", "2"]


async def test_timers_and_effects_are_left_to_those_who_have_the_active_manifest(driver: Driver) -> None:
    clock = VirtualClock()
    one, _, other, new = before_and_after()
    before, after = Asked(), Asked()
    async with host(driver, one, executors=[before.by()], clock=Still()) as runtime:
        await runtime.emit(Do("a", "waits"))
        await until_cell(runtime, one, "a", lambda cell: bool(cell.inflight) and cell.status is CellStatus.WAITING)
        async with Client(driver, machines=new, clock=clock) as client:
            await client.apply(new, allow_idle=True, allow_timers=True)
            await until(lambda: _is(runtime.resident == 0))
            await client.emit(Do("b", "asks"))
            await settle(driver)
            assert not before.intents
            async with host(
                driver, other, executors=[after.by(lambda params, intent: Answer("new"))], clock=clock
            ) as newer:
                await until_words(newer, other, "b", "asks", "ok ask@1: new")
                await until_words(newer, other, "a", "waits", "ok timer: None")
    assert (len(before.intents), len(after.intents)) == (0, 1)


async def _is(holds: bool) -> bool:
    return holds


async def test_events_that_come_while_it_is_tried_are_taken_under_one_manifest_or_refused(driver: Driver) -> None:
    seen: list[tuple[str, str]] = []

    def note(words: list[str], event: Any, ctx: MachineContext) -> Any:
        seen.append((event.word, ctx.manifest_hash))
        return Transition(words, done=True)

    one, old, other, new = before_and_after(note)
    accepted: list[str] = []
    applied: list[int] = []

    async def send(sender: Client, name: str) -> None:
        with suppress(DefinitionError):
            for number in range(20):
                await sender.emit(Do(f"{name}-{number}", f"{name}-{number}"))
                accepted.append(f"{name}-{number}")

    async def try_to_apply(client: Client) -> None:
        while not applied:
            with suppress(ApplyBlockedError):
                await client.apply(new)
                applied.append(len(accepted))

    async with Client(driver) as client:
        await client.apply(old)
        async with Client(driver, machines=old) as sender, host(driver, one) as runtime:
            async with anyio.create_task_group() as group:
                for name in "xyz":
                    group.start_soon(send, sender, name)
                group.start_soon(try_to_apply, client)
            # What was accepted was taken before the manifest was applied: nothing was queued then.
            assert sorted(word for word, _ in seen) == sorted(accepted)
            assert {hash for _, hash in seen} <= {old.hash}
            assert runtime.resident == 0
    await takes(driver, other, "ends", key="last")
    assert seen[-1] == ("ends", new.hash)
