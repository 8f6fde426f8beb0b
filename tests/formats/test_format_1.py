"""Bytes once written are an interface: what format 1 stored is read, printed and gone on with, now and always.

The files beside this one were made by `make_1.py`. They are never edited, only added to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fdb.tuple
import pytest

from tests.formats import workflows_1
from tests.formats.files import Files, later
from tests.formats.workflows_1 import ends, everything, unwinds
from workflow_sdk import (
    Client,
    Driver,
    EntryStatus,
    Kind,
    Status,
    open_driver,
    read_history,
    run_workflow,
    send_message,
)
from workflow_sdk.instance.execution import Mode
from workflow_sdk.journal.compensation import Compensation, HandlerRef, Progress
from workflow_sdk.journal.inbox import InboxMessage, TakingRow
from workflow_sdk.journal.loop_states import Base, unpack_bases
from workflow_sdk.journal.names import NameRow
from workflow_sdk.rows.entries import BranchesData, Entry, EntryTrouble, ListenData, LoopData, RetryData, SleepData
from workflow_sdk.rows.keys import (
    ARCHIVE,
    BASES,
    COMPENSATIONS,
    FIELDS,
    HISTORY,
    INBOX,
    METADATA,
    NAMES,
    TAKINGS,
    WAITS,
    Field,
    InstanceKeys,
)

FILES = Files("format_1")
INSTANCES = ["half way", "rolling back", "exhausted", "completed", "failed", "stuck", "sleeping", "crashed"]

BEGAN = 1893456000.0
PARTS = {
    "names": NAMES,
    "history": HISTORY,
    "inbox": INBOX,
    "fields": FIELDS,
    "metadata": METADATA,
    "compensations": COMPENSATIONS,
    "takings": TAKINGS,
    "archive": ARCHIVE,
    "waits": WAITS,
    "bases": BASES,
}


def rows_of(part: str, instance: str | None = None) -> Iterator[tuple[bytes, bytes]]:
    """The rows of one part of one instance's space, or of every instance's: the rest of the key, and the value."""
    for id in [instance] if instance else INSTANCES:
        prefix = InstanceKeys(id).space + PARTS[part]
        yield from ((key[len(prefix) :], raw) for key, raw, _ in FILES.rows if key.startswith(prefix))


def entry_at(*location: Any) -> Entry:
    """An entry of the instance that is half way."""
    return Entry.unpack(dict(rows_of("history", "half way"))[fdb.tuple.pack(location)])


def name(text: str) -> int:
    """The index of a name of the instance that is half way."""
    found = {NameRow.unpack(raw).text: fdb.tuple.unpack(key)[0] for key, raw in rows_of("names", "half way")}
    return int(found[text])


@pytest.fixture(autouse=True)
def _clean() -> None:
    workflows_1.RAN.clear()
    workflows_1.MENDED.clear()


def test_every_record_holds_what_it_held() -> None:
    assert FILES.check_records() > 180


def test_every_part_is_there() -> None:
    found = {part: len(list(rows_of(part))) for part in PARTS}
    assert all(found.values()), found
    fields = {fdb.tuple.unpack(key)[0] for key, _ in rows_of("fields")}
    assert fields == {Field.HEAD, Field.RESULT, Field.BIRTH, Field.DEATHS, Field.TALLY, 20, 21}


def test_every_entry_is_read_and_would_be_written_the_same() -> None:
    states: set[str] = set()
    for _, raw in [*rows_of("history"), *rows_of("archive")]:
        entry = Entry.unpack(raw)
        states.add(f"{entry.kind} {entry.status}")
        assert entry.pack() == raw
    assert states == {
        *("step completed", "step failed", "step waiting", "sleep completed", "sleep waiting"),
        *("listen completed", "listen failed", "listen waiting", "version completed", "checkpoint completed"),
        *(
            f"{kind} {status}"
            for kind in ("loop", "join", "race", "map")
            for status in ("completed", "failed", "running")
        ),
        *("attempt completed", "attempt failed", "attempt running", "branch completed", "branch failed"),
    }
    # A transaction is recorded like a step; the store that this was written to has none. Others came later.
    later = {"transact", "send", "child", "continue", "task", "graph", "firing", "submit", "effect"}
    assert {kind.value for kind in Kind} - later == {state.split()[0] for state in states}


def test_other_records_are_read_and_would_be_written_the_same() -> None:
    for _, raw in rows_of("metadata"):
        assert EntryTrouble.unpack(raw).pack() == raw
    for key, raw in rows_of("inbox"):
        assert InboxMessage.unpack(key, raw).pack() == raw
    progress: set[Progress] = set()
    for key, raw in rows_of("compensations"):
        compensation = Compensation.unpack(fdb.tuple.unpack(key)[0], raw)
        progress.add(compensation.progress)
        assert compensation.pack() == raw
    assert progress == set(Progress)
    ((_, raw),) = rows_of("takings")
    taking = TakingRow.unpack(raw)
    assert InboxMessage.unpack(b"id", taking.message) == InboxMessage(b"id", "bait", b"fa bait", BEGAN + 488)


def test_states_that_loops_had_hold() -> None:
    begun = BEGAN + 305
    rows = {fdb.tuple.unpack(key)[-1][1]: unpack_bases(raw) for key, raw in rows_of("bases", "half way")}
    assert rows == {
        0: [Base(0, 0, begun, b"\x00")],
        1: [Base(0, 0, begun, b"\x00"), Base(1, 1, begun, b"\x01")],
    }


def test_what_entries_hold() -> None:
    opened, pair = name("open"), entry_at(name("pair"))
    done = EntryStatus.COMPLETED
    assert entry_at(name("charge/card")) == Entry(Kind.STEP, 2, BEGAN, status=done, finished_at=BEGAN, value=b"fcharge")
    assert entry_at(opened, name("sleeps"), name("sleep")).data == SleepData(BEGAN + 305 + 86_400)
    assert entry_at(opened, name("retries"), name("retry")).data == RetryData(BEGAN + 305 + 86_400)
    assert entry_at(opened, name("listens"), name("go")).data == ListenData(("go", "gone"), BEGAN + 305 + 86_400)
    assert entry_at(opened, name("loops"), name("loop")).data == LoopData(2, b"\x02", BEGAN + 305, since=2)
    assert entry_at(opened, name("races"), name("race")).data == BranchesData(("takes", "wins"))
    assert entry_at(opened, name("maps"), name("map")).data == BranchesData(count=2)
    assert entry_at(name("race")).data == BranchesData(("slow", "quick"), winner=1)
    assert entry_at(name("map")).data == BranchesData(count=2, outcomes=((b"\x02", None), (b"\x04", None)))
    assert entry_at(name("map"), (name("map"), 1)).value == b"\x04"
    assert entry_at(name("loop"), (name("loop"), 2), name("turn 2")).value == b"fturn 2"
    assert isinstance(pair.data, ListenData)
    assert (pair.data.count, pair.data.timed_out) == (2, True)
    assert [taken.payload for taken in pair.data.taken] == [b"honly one"]


def test_what_compensations_hold() -> None:
    rows = {fdb.tuple.unpack(key)[0]: raw for key, raw in rows_of("compensations", "half way")}
    card = Compensation.unpack(1, rows[1])
    assert card.handler == HandlerRef("tests.formats.workflows_1:refund", (b"ffailed",))
    assert (card.path, card.result, card.progress) == ("charge%2Fcard", b"fcharge", Progress.OPEN)
    assert Compensation.unpack(2, rows[2]).handler is None


@pytest.mark.parametrize(("instance", "text"), list(zip(INSTANCES, FILES.histories, strict=True)), ids=INSTANCES)
async def test_a_history_prints_as_it_did(instance: str, text: str) -> None:
    driver = await FILES.store()
    assert str(await read_history(driver, instance)) == text


SCRIPT = [("turn", 1), ("inside", 2), ("number", 3), ("win", "won")]
END = {
    "first": ("apple", 3),
    "charged": "charge",
    "declined": "declined with 51",
    "version": 3,
    "early": (1, b"2"),
    "missing": "none",
    "too late": "listen 'too late': no message 'too late' came in time",
    "pair": ["only one"],
    "loop": "three turns",
    "join": ["bad"],
    "fine": {"good": "good"},
    "map": [2, 4],
    "race": "quick",
    "attempts": [True, False],
    "bad race": False,
    "bad map": False,
    "bad loop": False,
    "sleeps": "slept",
    "retries": "retry",
    "listens": "late",
    "loops": 4,
    "races": ["wins", "won", "a bait"],
    "tries": True,
    "maps": [0, 3],
    "done/100%": "done",
}


async def go_on_to_the_end(driver: Driver, mode: Mode) -> dict[str, Any]:
    workflows_1.MENDED.append("retry")
    time = later()
    for message, payload in SCRIPT:
        await send_message(driver, "half way", message, payload, clock=time)
    while True:
        result = await run_workflow(everything, driver=driver, instance_id="half way", mode=mode, clock=time)
        if result.wake_at is None:
            assert (result.status, result.error) == (Status.COMPLETED, None)
            assert result.output is not None
            return result.output
        time.advance(max(0.0, result.wake_at.timestamp() - time.time()))


@pytest.mark.parametrize("mode", ["yield", "live"])
async def test_an_instance_goes_on_to_its_end(mode: Mode) -> None:
    driver = await FILES.store()
    output = await go_on_to_the_end(driver, mode)
    assert output == END | {"uuid": "e11abb49-8582-4aff-8f63-f5498afbba86", "random": 272946087}
    assert workflows_1.RAN == ["count 4", "retry"]
    assert (await read_history(driver, "half way")).status is Status.COMPLETED


@pytest.mark.parametrize("mode", ["yield", "live"])
async def test_an_instance_that_was_half_way_can_still_be_rolled_back(mode: Mode) -> None:
    driver = await FILES.store()
    workflows_1.MENDED.append("refund charge failed")
    time = later()
    for message, payload in SCRIPT:
        await send_message(driver, "half way", message, payload, clock=time)
    time.advance(86_400 * 10)
    while True:
        result = await run_workflow(everything, driver=driver, instance_id="half way", mode=mode, clock=time)
        if result.wake_at is None:
            break
        time.advance(max(0.0, result.wake_at.timestamp() - time.time()))
    assert result.status is Status.ROLLED_BACK, result.error
    assert sorted(workflows_1.RAN[:4]) == ["count 4", "retry", "retry", "retry"]
    assert workflows_1.RAN[4:] == [*["undo good"] * 4, "unship ship", "refund charge failed"]


async def test_a_rollback_goes_on() -> None:
    driver = await FILES.store()
    workflows_1.MENDED.extend(["refund two of failure", "refund one of failure"])
    result = await run_workflow(unwinds, driver=driver, instance_id="rolling back", mode="live", clock=later())
    assert result.status is Status.ROLLED_BACK
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("workflow_sdk.errors.RollbackError", "enough")
    assert workflows_1.RAN == ["refund two of failure", "refund one of failure"]


async def test_ended_instances_are_read() -> None:
    driver = await FILES.store()
    done = await run_workflow(ends, driver=driver, instance_id="completed", clock=later())
    assert (done.status, done.output) == (Status.COMPLETED, ("completed", 7))
    failed = await run_workflow(ends, driver=driver, instance_id="failed", clock=later())
    assert failed.error is not None
    assert (failed.status, failed.error.type) == (Status.FAILED, "tests.formats.workflows_1.Declined")
    assert (failed.error.message, failed.error.attributes) == ("declined with 7", {"code": 7})
    # Only looked at: to another Python than the one that wrote it, the code is another, and it would be tried again.
    async with Client(driver) as client:
        exhausted = await client.handle(unwinds, "exhausted").info()
    assert exhausted.error is not None
    assert (exhausted.status, exhausted.error.kind) == (Status.STUCK, "application")


async def test_others_go_on() -> None:
    driver = await FILES.store()
    stuck = await run_workflow(ends, driver=driver, instance_id="stuck", clock=later())
    assert stuck.error is not None
    assert (stuck.status, stuck.error.kind) == (Status.STUCK, "definition")
    sleeping = await run_workflow(ends, driver=driver, instance_id="sleeping", mode="live", clock=later())
    assert sleeping.output == ("sleeping", 7)
    crashed = await run_workflow(ends, driver=driver, instance_id="crashed", clock=later())
    assert crashed.output == ("crashed", 7)
    assert workflows_1.RAN == ["crashes"]


async def test_a_database_of_then_is_opened(tmp_path: Path) -> None:
    FILES.copy_database(tmp_path / "old.db")
    driver = await open_driver(f"sqlite:///{tmp_path}/old.db")
    try:
        assert str(await read_history(driver, "half way")) == FILES.histories[0]
        output = await go_on_to_the_end(driver, "yield")
        assert END.items() <= output.items()
        assert workflows_1.RAN == ["count 4", "retry"]
    finally:
        await driver.aclose()
