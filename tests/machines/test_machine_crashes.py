"""Machines killed at every commit come to the same: nothing is lost, doubled or left over."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.fernet import Fernet

from tests.machines.crashed_orders import Begun, Broken, Cleared, Confirmed, Shop, charge, manifest, order
from tests.support import open_store
from workflow_sdk import (
    Context,
    DefinitionError,
    Driver,
    codecs,
    open_driver,
    workflow,
)
from workflow_sdk.machines import (
    CellStatus,
    EffectReceipt,
    Intent,
    MachineContext,
    Manifest,
    Transition,
    canonical,
    event,
    executor,
    machine,
    timer,
)
from workflow_sdk.testing import CellCrashReport, crash_everywhere
from workflow_sdk.testing._cells_report import CellEnding

pytestmark = pytest.mark.law(1, 21)


async def crash(events: Sequence[Any], **options: Any) -> CellCrashReport:
    """Orders, killed everywhere."""
    shop = Shop()
    return await crash_everywhere(
        order, events, manifest=manifest, executors=shop.executors(), reset=shop.reset, **options
    )


def cell(report: CellCrashReport, key: str) -> CellEnding:
    """An order, at the end of the run without a crash."""
    return report.clean.cells[f"crash/order@1/{key}"]


def stage(report: CellCrashReport, key: str) -> str:
    """What an order has come to."""
    state = cell(report, key).state
    assert state is not None
    found: dict[str, Any] = canonical.restored(state)
    return str(found["stage"])


async def test_an_order_with_an_effect_and_a_timer_that_tells_the_stock() -> None:
    report = await crash([Begun("a", 500)])
    assert report.ok
    assert cell(report, "a").status is CellStatus.COMPLETED
    assert stage(report, "a") == "late"
    # Which of them share a commit is a matter of turns: a run may make one or two fewer than the first.
    assert all(run.crashed for run in report.runs if run.commit < report.commits - 2)
    assert sorted(report.clean.settled.values()) == ["crash/charge@1", "crash/note@1", "timer"]
    assert not report.clean.open
    again = {effect for run in report.runs for effect in run.ran_again}
    assert again == {"crash/charge@1", "crash/note@1"}, "an effect whose receipt is lost runs again"


async def test_a_deleted_order_whose_key_comes_again_asks_for_no_intent_twice() -> None:
    report = await crash([Begun("a", 7), Cleared("a"), Begun("a", 7)])
    assert cell(report, "a").sequence == 8
    assert cell(report, "a").revision == 4
    charges = [id for id, effect in report.clean.settled.items() if effect == "crash/charge@1"]
    assert len(charges) == 2, "the same charge of the same order, and yet another one"


async def test_a_deleted_order_leaves_its_count() -> None:
    report = await crash([Begun("a", 7), Cleared("a")])
    assert set(report.clean.cells) == {"crash/stock@1"}
    assert list(report.clean.deleted.values()) == [4]


async def test_several_effects_at_once() -> None:
    report = await crash([Begun("a", 7), Confirmed("a")], horizon=3600)
    assert stage(report, "a") == "noted 1"
    assert cell(report, "a").status is CellStatus.WAITING
    assert list(report.clean.open.values()) == ["timer"], "it is due after the horizon"


async def test_a_refused_transition_stays_first() -> None:
    report = await crash([Begun("a", 7), Broken("a"), Confirmed("a"), Begun("b", 7)], horizon=60)
    stuck = cell(report, "a")
    assert (stuck.status, stuck.queued) == (CellStatus.STUCK, 2)
    assert stage(report, "b") == "noted 6"


async def test_answers_that_do_not_fit_and_effects_that_fail() -> None:
    report = await crash([Begun("odd", 666), Begun("poor", 13)])
    assert stage(report, "odd") == "rejected no receipt"
    assert (stage(report, "poor"), cell(report, "poor").status) == ("charge: error", CellStatus.COMPLETED)


@event("crash/Ring@1")
@dataclass(frozen=True)
class Ring:
    """Something comes to a machine without keys."""

    times: int = 1


@dataclass(frozen=True)
class Rung:
    """How often that was."""

    times: int = 0


@machine("crash/fragile@1", state=Rung, event=Ring | EffectReceipt, effects=[charge])
def fragile(state: Rung | None, event: Any, ctx: MachineContext) -> Transition[Rung]:
    """It has no arm for an answer that does not fit."""
    return Transition(Rung((state or Rung()).times + 1), effects=[charge(666), charge(666)])


async def test_a_cell_that_fails() -> None:
    shop = Shop()
    report = await crash_everywhere(fragile, [Ring(), Ring()], executors=shop.executors()[:1], reset=shop.reset)
    (found,) = report.clean.cells.values()
    assert found.status is CellStatus.FAILED
    assert (found.sequence, found.inflight) == (1, ())
    assert not report.clean.open, "the other effect was settled, too, and its receipt dropped"


@machine("crash/chime@1", state=Rung, event=Ring | EffectReceipt, effects=[timer])
def chime(state: Rung | None, event: Any, ctx: MachineContext) -> Transition[Rung]:
    """It has a timer again and again."""
    return Transition(Rung((state or Rung()).times + 1), effects=[timer(after=timedelta(days=1))])


async def test_timers_are_let_come_as_far_as_the_horizon() -> None:
    report = await crash_everywhere(chime, [Ring()], horizon=timedelta(days=3.5), commits_max=4)
    assert report.clean.cells["crash/chime@1"].sequence == 4
    assert list(report.clean.open.values()) == ["timer"]


async def test_an_event_comes_before_a_timer_if_it_is_told_so() -> None:
    report = await crash_everywhere(chime, [Ring(), (3600, Ring()), (90_000, Ring())], horizon=1)
    assert report.clean.cells["crash/chime@1"].sequence == 5, "three times by hand, twice by a timer"


@pytest.mark.parametrize("store", ["sqlite", "fdb"])
async def test_in_any_store(store: str, tmp_path: Path) -> None:
    async with aclosing(await open_store(store, tmp_path)) as driver:
        mine = await rows(driver)
        events = [Begun("a", 500), Confirmed("a"), Cleared("a"), Begun("a", 1)]
        report = await crash(events, store=driver, commits_max=9)
        assert len(report.runs) == 18
        assert await rows(driver) == mine, "of what was tried, nothing is left"


async def rows(driver: Driver) -> list[tuple[bytes, bytes]]:
    """All that is in a store."""
    return await driver.scan(b"", b"\xff")


async def test_what_others_have_in_the_store_is_none_of_its_business() -> None:
    async with aclosing(await open_driver("memory://")) as driver:
        other = await crash_everywhere(chime, [Ring()], horizon=1, commits_max=1, store=driver)
        assert other.ok
        report = await crash([Begun("a", 500)], store=driver, commits_max=2)
        assert report.ok
        assert not await rows(driver)


async def test_with_a_codec() -> None:
    report = await crash([Begun("a", 500)], codec=codecs.fernet(Fernet.generate_key()), commits_max=6)
    assert stage(report, "a") == "late"


async def test_executors_that_are_plain_functions() -> None:
    done: list[str] = []

    @executor(charge)
    def plainly(params: Any, intent: Intent) -> Any:
        done.append(intent.id)
        return {"receipt": "yes"}

    report = await crash_everywhere(
        order, [Begun("a", 1)], manifest=manifest, executors=[plainly], horizon=1, commits_max=5, reset=done.clear
    )
    assert stage(report, "a") == "paid yes"
    assert sorted(report.clean.open.values()) == ["crash/note@1", "timer"], "nobody is there to note it"


async def test_the_report_is_a_table() -> None:
    lines = str(await crash([Begun("a", 5)], horizon=1)).splitlines()
    assert lines[0].startswith("crash/order@1, crash/stock@1: ")
    assert lines[1] == "without a crash: 2 cells (2 waiting), 2 effects settled"
    assert lines[2] == "every one of them comes to the same"
    assert [line for line in lines if "crash/order@1/a after 1, crash/charge@1 " in line]
    assert [line for line in lines if "same; ran again: crash/charge@1" in line]


@machine("crash/counter@1", state=Rung, event=Ring, effects=[])
def counter(state: Rung | None, event: Ring, ctx: MachineContext) -> Transition[Rung]:
    """Counts."""
    return Transition(Rung((state or Rung()).times + 1))


# It finds what is wrong.


@machine("crash/clumsy@1", state=Rung, event=Ring, effects=[])
def by_set(state: Rung | None, event: Ring, ctx: MachineContext) -> Transition[Rung]:
    """Sets have another order in every process."""
    return Transition(Rung(next(iter({3, 5, 7}))))


async def test_a_machine_that_depends_on_the_order_of_a_set_is_found() -> None:
    with pytest.raises(AssertionError, match="without any crash: cell crash/clumsy@1 is "):
        await crash_everywhere(by_set, [Ring()])


async def test_an_executor_that_gives_something_else_each_time_is_found() -> None:
    answers: list[int] = []

    @executor(charge)
    async def differs(params: Any, intent: Intent) -> Any:
        answers.append(1)
        return {"receipt": str(len(answers))}

    with pytest.raises(AssertionError, match="its executors do has to come to the same"):
        await crash_everywhere(order, [Begun("a", 5)], manifest=manifest, executors=[differs])


async def test_what_can_not_be_crashed_is_refused() -> None:
    shop, wrongly = Shop(), cast("Any", crash_everywhere)
    with pytest.raises(DefinitionError, match="said by routes: crash_everywhere"):
        await crash_everywhere(order, [Begun("a", 5)])
    with pytest.raises(DefinitionError, match="has no route"):
        await crash([Ring()])
    with pytest.raises(DefinitionError, match="takes a list of events"):
        await crash(Begun("a", 5))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError, match=r"is \(seconds, event\)"):
        await crash([(1, 2, Begun("a", 5))])
    with pytest.raises(DefinitionError, match="is not negative"):
        await crash([(-1, Begun("a", 5))])
    with pytest.raises(DefinitionError, match="can't be sent"):
        await crash(["no event"])
    with pytest.raises(DefinitionError, match="is not in the manifest"):
        await crash_everywhere(chime, [Ring()], manifest=manifest)
    with pytest.raises(DefinitionError, match="takes a Manifest"):
        await wrongly(chime, [Ring()], manifest=chime)
    with pytest.raises(DefinitionError, match="no effect of the manifest"):
        await crash_everywhere(counter, [Ring()], executors=shop.executors())
    with pytest.raises(DefinitionError, match="for machines only"):
        await wrongly(no_machine, executors=shop.executors())
    with pytest.raises(DefinitionError, match="two"):
        await crash_everywhere(manifest, [Begun("a", 5)], manifest=Manifest())


@workflow
async def no_machine(ctx: Context) -> None:
    """A workflow."""
