"""Another manifest is tried on a copy of the cells: nothing is stored, and the report says how far it has looked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.machines.cell_parts import Ask, Asked, Did, Do, Say, ask, host, manifest_of, told, until_cell
from workflow_sdk import Client, DefinitionError, Driver
from workflow_sdk.machines import (
    CellStatus,
    Difference,
    EffectReceipt,
    EffectRejected,
    Intent,
    Machine,
    MachineContext,
    Manifest,
    Refusal,
    ShadowReport,
    Transition,
    machine,
    timer,
)
from workflow_sdk.machines.shadowing import TRANSITIONS_MAX
from workflow_sdk.testing import VirtualClock


def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Asks for what the event says, or ends."""
    if isinstance(event, (EffectReceipt, EffectRejected)):
        return None
    return Transition(words, done=True) if event.word == "ends" else ask(event.word)


async def tried(driver: Driver, manifest: Manifest, *events: Any, **options: Any) -> ShadowReport:
    """The report of a trial, which has changed nothing."""
    stored = await driver.scan(b"", b"\xff")
    async with Client(driver, **options) as client:
        report = await client.shadow(manifest, events)
    assert await driver.scan(b"", b"\xff") == stored
    return report


async def stored(driver: Driver, one: Machine[Any], *words: str, key: str = "a", **options: Any) -> None:
    """Have a cell take these words."""
    async with host(driver, one, **options) as runtime:
        for word in words:
            before = await runtime.emit(Do(key, word))
            assert before
        await until_cell(
            runtime,
            one,
            key,
            lambda cell: cell.last_sequence == len(words) and cell.status is not CellStatus.RUNNING,
        )


def seen(intents: list[Intent]) -> list[tuple[str, Any, str]]:
    """What was asked for, and by which cell."""
    return [(one.effect, one.params, one.key) for one in intents]


async def test_it_tells_what_was_asked_for_and_what_has_changed_and_stores_nothing(driver: Driver) -> None:
    await stored(driver, told(), "1")
    report = await tried(driver, manifest_of(told(asks)), Do("a", "2"), Say("b", "3"))
    assert seen(report.effects) == [("ask@1", Ask("2"), "a"), ("ask@1", Ask("3"), "b")]
    assert report.pending == report.effects
    assert report.statuses == {"told@1/a": CellStatus.WAITING, "told@1/b": CellStatus.WAITING}
    assert report.allowlists == {"told@1": ["ask@1", "timer"]}
    assert report.differences == {
        "told@1/a": Difference(["1"], ["1", "2"]),
        "told@1/b": Difference(None, ["3"]),
    }
    assert report.refused == []
    assert (report.horizon.events, report.horizon.taken, report.horizon.is_cut) == (2, 2, False)
    assert "2 events were looked at, and 2 messages taken. What comes after that was not" in str(report.horizon)


async def test_an_empty_store_has_no_cells(driver: Driver) -> None:
    report = await tried(driver, manifest_of(told()))
    assert (report.effects, report.pending, report.refused) == ([], [], [])
    assert (report.statuses, report.differences) == ({}, {})
    assert report.horizon.events == 0


async def test_effects_that_are_in_flight_are_pending_and_were_not_asked_for_in_the_trial(driver: Driver) -> None:
    await stored(driver, told(asks), "1")
    report = await tried(driver, manifest_of(told(asks)), Do("a", "2"))
    assert seen(report.effects) == [("ask@1", Ask("2"), "a")]
    assert seen(report.pending) == [("ask@1", Ask("1"), "a"), ("ask@1", Ask("2"), "a")]


async def test_no_executor_is_called(driver: Driver) -> None:
    asked, one = Asked(), told(asks)
    async with host(driver, one, executors=[asked.by()]) as runtime:
        report = await runtime.shadow(manifest_of(one), [Do("a", "1")])
        assert seen(report.pending) == [("ask@1", Ask("1"), "a")]
    assert not asked.intents


async def test_what_is_queued_is_taken_first(driver: Driver) -> None:
    one = told()
    async with Client(driver, machines=manifest_of(one)) as client:
        for number in range(70):
            await client.emit(Do("a", str(number)))
    report = await tried(driver, manifest_of(one), Do("a", "last"))
    assert report.differences["told@1/a"].after == [*map(str, range(70)), "last"]
    assert report.horizon.taken == 71


async def test_a_receipt_that_is_queued_is_taken(driver: Driver) -> None:
    one = told(asks)
    await stored(driver, one, "1")
    async with Client(driver, machines=manifest_of(one)) as client:
        (intent,) = (await client.cell(one, "a")).inflight
        await client.settle(intent, {"text": "done"})
    report = await tried(driver, manifest_of(one))
    assert report.differences == {"told@1/a": Difference(["1"], ["1", "ok ask@1: done"])}
    assert report.pending == []


async def test_a_stuck_cell_tries_again(driver: Driver) -> None:
    def refuses(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return "no transition" if words[-1] == "2" else None

    one = told(refuses)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "1"))
        await runtime.emit(Do("a", "2"))
        await until_cell(runtime, one, "a", lambda cell: cell.status is CellStatus.STUCK)
    report = await tried(driver, manifest_of(one))
    assert report.statuses == {"told@1/a": CellStatus.STUCK}
    assert [refusal.what for refusal in report.refused] == ["told@1/a"]
    assert "Transition" in report.refused[0].reason
    mended = await tried(driver, manifest_of(told()))
    assert mended.statuses == {"told@1/a": CellStatus.WAITING}
    assert mended.differences == {"told@1/a": Difference(["1"], ["1", "2"])}


async def test_a_state_that_does_not_fit_any_more_is_seen(driver: Driver) -> None:
    await stored(driver, told(), "1")

    @machine("told@1", state=int, event=Do, key=str, effects=[])
    def counted(state: int | None, event: Do, ctx: MachineContext) -> Transition[int]:
        return Transition((state or 0) + 1)

    report = await tried(driver, manifest_of(counted), Do("a", "2"), Do("b", "2"))
    assert report.statuses == {"told@1/a": CellStatus.STUCK, "told@1/b": CellStatus.WAITING}
    (refusal,) = report.refused
    assert refusal.what == "told@1/a"
    assert "it is no int" in refusal.reason
    assert report.differences == {"told@1/b": Difference(None, 1)}


async def test_keys_that_do_not_fit_any_more_are_seen(driver: Driver) -> None:
    await stored(driver, told(), "1")

    @dataclass(frozen=True)
    class Numbered:
        key: int
        word: str = ""

    report = await tried(driver, manifest_of(told(event=Numbered, key=int, effects=[])))
    assert [refusal.what for refusal in report.refused] == ["told@1/a"]
    assert "its key does not fit" in report.refused[0].reason
    without = await tried(driver, manifest_of(told(event=Do, key=None, effects=[])))
    assert without.refused == [Refusal("told@1/a", "its key does not fit: the machine has other keys, or none")]


async def test_machines_that_are_gone_are_named_if_they_have_cells(driver: Driver) -> None:
    one, two = told(), told(name="two@1", event=Say, effects=[])
    async with Client(driver, machines=manifest_of(one, two)) as client:
        await client.emit(Do("a"))
    report = await tried(driver, manifest_of(told(name="new@1")))
    assert report.refused == [Refusal("told@1", "it is not in the manifest, and 1 of its cells have not ended")]
    assert report.statuses == {}


async def test_events_that_are_refused_are_told_with_the_reason(driver: Driver) -> None:
    await stored(driver, told(asks), "ends")
    bad: Any = Do(key=7)  # type: ignore[arg-type]
    report = await tried(driver, manifest_of(told(event=Do, effects=[])), Do("a"), Say("b"), bad)
    reasons = {refusal.what[:10]: refusal.reason for refusal in report.refused}
    assert reasons["Do(key='a'"] == "a cell that it reaches has ended"
    assert reasons["Say(key='b"] == "no route leads from it"
    assert "str" in reasons["Do(key=7, "]
    assert report.statuses == {"told@1/a": CellStatus.COMPLETED}
    assert report.horizon.taken == 0


async def test_what_cells_tell_each_other_is_in_it(driver: Driver) -> None:
    def tell(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return Transition(words, events=[Say("b", "told")]) if isinstance(event, Do) else None

    report = await tried(driver, manifest_of(told(tell)), Do("a", "1"))
    assert report.differences == {"told@1/a": Difference(None, ["1"]), "told@1/b": Difference(None, ["told"])}


async def test_cells_that_are_deleted_are_seen(driver: Driver) -> None:
    await stored(driver, told(), "1")
    gone: Did = lambda words, event, ctx: Transition(None)  # noqa: E731
    report = await tried(driver, manifest_of(told(gone)), Do("a", "2"))
    assert report.differences == {"told@1/a": Difference(["1"], None)}
    assert report.statuses == {}


async def test_timers_that_are_due_by_now_settle_and_others_are_pending(driver: Driver) -> None:
    def waits(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return None if isinstance(event, EffectReceipt) else timer(after=timedelta(days=float(event.word)))

    clock = VirtualClock(quiet=0.1)
    one = told(waits)
    report = await tried(driver, manifest_of(one), Do("a", "0"), Do("b", "1"), clock=clock)
    assert report.differences["told@1/a"].after == ["0", "ok timer: None"]
    assert seen(report.pending) == [("timer", report.pending[0].params, "b")]
    assert [key for _, _, key in seen(report.effects)] == ["a", "b"]


async def test_timers_of_what_is_queued_begin_now(driver: Driver) -> None:
    def waits(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return None if isinstance(event, EffectReceipt) else timer(after=timedelta(days=1))

    clock = VirtualClock(quiet=0.1)
    one = told(waits)
    async with Client(driver, machines=manifest_of(one), clock=clock) as client:
        await client.emit(Do("a", "1"))
    report = await tried(driver, manifest_of(one), Do("b", "2"), clock=clock)
    assert [one.key for one in report.pending] == ["a", "b"]
    assert report.differences["told@1/a"].after == ["1"]


async def test_machines_that_go_on_for_ever_are_cut(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow_sdk.machines.shadowing.TRANSITIONS_MAX", 200)
    assert TRANSITIONS_MAX > 200

    @machine("echo@1", state=int, event=Do, key=str, effects=[])
    def echo(state: int | None, event: Do, ctx: MachineContext) -> Transition[int]:
        return Transition((state or 0) + 1, events=[event])

    report = await tried(driver, manifest_of(echo), Do("a"))
    assert report.horizon.is_cut
    assert report.horizon.taken == 200
    assert "it was ended there, although there was more to take" in str(report.horizon)


async def test_what_is_no_manifest_and_no_list_of_events_is_refused(driver: Driver) -> None:
    anything: Any = "anything"
    async with Client(driver) as client:
        with pytest.raises(DefinitionError, match="what is tried is a Manifest"):
            await client.shadow(anything, [])
        with pytest.raises(DefinitionError, match="takes a list of events"):
            await client.shadow(manifest_of(told()), anything)
