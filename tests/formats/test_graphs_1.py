"""What format 1 stored of graphs is read, printed and gone on with, now and always.

The files beside this one were made by `make_graphs_1.py`. They are never edited, only added to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fdb.tuple
import pytest

from tests.formats import graphs_1
from tests.formats.files import Files, later
from tests.formats.graphs_1 import asks, begin, ended, half_way, surrounded
from workflow_sdk import (
    Client,
    Driver,
    Status,
    WorkflowFailedError,
    open_driver,
    read_history,
    run_workflow,
    send_message,
)
from workflow_sdk.graphs import Graph, GraphResult
from workflow_sdk.graphs.rows import (
    ADDED,
    FIRINGS,
    HEAD,
    JOINS,
    OUTLINE,
    STEPS,
    TOKENS,
    VARS,
    Arrival,
    Firing,
    MarkingHead,
    Outline,
    StepState,
    Token,
)
from workflow_sdk.instance.execution import Mode
from workflow_sdk.rows.entries import Entry, FiringData
from workflow_sdk.rows.keys import ARCHIVE, DEFINITIONS, HISTORY, MARKINGS, WAITS, InstanceKeys
from workflow_sdk.rows.wire import Row, unpack_record

FILES = Files("graphs_1")
INSTANCES = ["half way", "succeeded", "failed", "surrounded"]
BEGAN = 1893456000.0
DAY = 86_400.0


def rows_of(part: bytes, instance: str = "half way") -> list[tuple[bytes, bytes]]:
    """The rows of one part of an instance's space: the rest of the key, and the value."""
    prefix = InstanceKeys(instance).space + part
    return [(key[len(prefix) :], raw) for key, raw, _ in FILES.rows if key.startswith(prefix)]


def marking(kind: int) -> dict[tuple[Any, ...], bytes]:
    """The rows of one kind of the marking of the run that is half way, by what follows that in the key."""
    found = [(fdb.tuple.unpack(key.partition(b"\x02\x00")[2]), raw) for key, raw in rows_of(MARKINGS)]
    return {key[1:]: raw for key, raw in found if key[0] == kind}


@pytest.fixture(autouse=True)
def _clean() -> None:
    graphs_1.RAN.clear()
    graphs_1.MENDED.clear()


ADDED_SINCE: dict[type[Row], list[Any]] = {Token: [0], Firing: [0], FiringData: [[]]}
"""The fields that rows have got since then, as they are where they were not written."""
DATA = 8
"""Where in an entry its data are."""


def test_every_record_holds_what_it_held() -> None:
    assert FILES.check_records() > 100


def test_every_entry_is_read_and_would_be_written_the_same() -> None:
    states: set[str] = set()
    for instance in INSTANCES:
        for _, raw in [*rows_of(HISTORY, instance), *rows_of(ARCHIVE, instance)]:
            entry = Entry.unpack(raw)
            states.add(f"{entry.kind} {entry.status}")
            before, now = unpack_record(raw), unpack_record(entry.pack())
            if isinstance(entry.data, FiringData):
                was, data = before.pop(DATA), now.pop(DATA)
                assert data == [*was, *ADDED_SINCE[FiringData]]
            assert now == before
    graph = {f"graph {status}" for status in ("running", "completed", "failed")}
    assert {*graph, "firing completed", "firing failed", "submit completed", "listen completed"} <= states


@pytest.mark.parametrize(
    ("kind", "row", "count"),
    [
        (HEAD, MarkingHead, 1),
        (TOKENS, Token, 1),
        (FIRINGS, Firing, 9),
        (STEPS, StepState, 14),
        (OUTLINE, Outline, 1),
    ],
)  # fmt: skip
def test_rows_of_a_marking_are_read_and_would_be_written_the_same(kind: int, row: type[Row], count: int) -> None:
    found = marking(kind)
    assert len(found) == count
    for raw in found.values():
        before, now = unpack_record(raw), unpack_record(row.unpack(raw).pack())
        assert now[: len(before)] == before
        assert now[len(before) :] == ADDED_SINCE.get(row, [])


def test_what_a_marking_holds() -> None:
    firings = {firing.step: firing for firing in map(Firing.unpack, marking(FIRINGS).values())}
    assert sorted(firings) == [
        "items", "late two", "listens", "outside too", "person", "retries", "sleeps", "workers", "workers.2",
    ]  # fmt: skip
    assert (firings["retries"].attempts, firings["retries"].retry_at) == (1, BEGAN + DAY)
    assert firings["workers"].waits_for == ("workers.0", "workers.1", "workers.2")
    assert firings["sleeps"].stack == (("fork", 1),)
    ((_, raw),) = marking(TOKENS).items()
    assert (Token.unpack(raw).step, Token.unpack(raw).denied) == ("gated", "its rules do not allow it")
    assert {version for (version,) in marking(VARS)} == {firings["workers.2"].vars, firings["outside too"].vars, 7}
    arrived = {key: Arrival.unpack(raw).output for key, raw in marking(JOINS).items() if len(key) == 3}
    assert arrived == {("meet", 1, "quick"): b"equick"}
    assert {key for key in marking(JOINS) if len(key) == 2} == {("meet", 1), ("first", 1)}
    assert len(marking(ADDED)) == 3
    assert Outline.unpack(marking(OUTLINE)[()]).steps[:3] == ("begin", "turn", "fork")


def test_definitions_and_waits_are_there() -> None:
    assert len([key for key, *_ in FILES.rows if key.startswith(DEFINITIONS)]) == 2 * 3
    assert len(rows_of(WAITS)) > 5


@pytest.mark.parametrize(("instance", "text"), list(zip(INSTANCES, FILES.histories, strict=True)), ids=INSTANCES)
async def test_a_history_prints_as_it_did(instance: str, text: str) -> None:
    driver = await FILES.store()
    assert str(await read_history(driver, instance)) == text


SCRIPT = [("go", "yes"), ("work", 30), ("item", 40)]
RAN = ["gated o-1", "told yes", "retries", "after", "waited", "waited"]
"""What is done of the rest. Whatever was done then is not done again."""
OUTPUTS: dict[str, Any] = {
    "begin": {"order": "o-1", "lines": [("apple", 3)]},
    "turn": 2,
    "fork": "o-1",
    "quick": "quick",
    "sleeps": ["slow", 2, None, "after"],
    "retries": "retries",
    "listens": "yes",
    "told": "told yes",
    "gated": "gated o-1",
    "grows": True,
    "items": [1, 40],
    "workers": [2, 20, 30],
    "workers.0": 2,
    "workers.1": 20,
    "workers.2": 30,
    "workers.then": [2, 20, 30],
    "mended": {"mended": "wrong is broken"},
    "one": "one",
    "first": ["one"],
    "meet": {"quick": "quick", "sleeps": ["slow", 2, None, "after"]},
    "late one": {"n": 1},
    "late two": "waited",
    "late sum": {"late one": {"n": 1}, "late two": "waited"},
    "from outside": {"n": 7},
    "outside too": "waited",
}
CONTEXT = {
    "turns": 2, "open": True, "forked": True, "late": True, "outside": [1, b"two"], "mended": "wrong is broken",
}  # fmt: skip


async def go_on_to_the_end(driver: Driver, mode: Mode, graph: Graph = half_way) -> GraphResult:
    graphs_1.MENDED.append("retries")
    time = later()
    async with Client(driver, clock=time) as client:
        await client.handle(graph, "half way").patch(open=True)
        (task,) = (await client.tasks.list()).items
        await client.tasks.complete(task.id, "done", by="somebody")
    for message, payload in SCRIPT:
        await send_message(driver, "half way", message, payload, clock=time)
    while True:
        result = await run_workflow(graph, driver=driver, instance_id="half way", mode=mode, clock=time)
        if result.wake_at is None:
            assert (result.status, result.error) == (Status.COMPLETED, None)
            assert result.output is not None
            return result.output
        time.advance(max(0.0, result.wake_at.timestamp() - time.time()))


def check(result: GraphResult) -> None:
    """It has come to the right end."""
    outputs = dict(result.outputs)
    report, person = outputs.pop("report"), outputs.pop("person")
    assert outputs == OUTPUTS
    assert (person["result"], person["by"]) == ("done", "somebody")
    assert report["context"] == CONTEXT
    assert report["failures"] == {"wrong": "ValueError: wrong is broken"}
    assert report["counts"] == {"completed": 26, "failed": 1, "cancelled": 1, "never_reached": 1}
    assert result.status == "succeeded"
    assert (result.outcomes["retries"].firings, result.outcomes["turn"].firings) == (1, 2)
    assert sorted(graphs_1.RAN) == sorted(RAN)


@pytest.mark.parametrize("mode", ["yield", "live"])
async def test_a_run_goes_on_to_its_end(mode: Mode) -> None:
    driver = await FILES.store()
    check(await go_on_to_the_end(driver, mode))
    rows = await driver.scan(*InstanceKeys("half way").range(MARKINGS))
    assert rows == []


async def test_a_run_goes_on_with_the_definition_that_was_stored() -> None:
    """The code of today declares another graph of that name."""
    functions = [one for one in vars(graphs_1).values() if callable(one) and hasattr(one, "__name__")]
    changed = Graph(half_way.name, functions=functions)
    changed.step("begin", begin)
    changed.step("another", asks)
    check(await go_on_to_the_end(await FILES.store(), "yield", changed))


async def test_a_run_that_was_half_way_can_still_be_rolled_back() -> None:
    """Also what a firing has done that was cancelled, and one that is under way."""
    driver, time = await FILES.store(), later()
    async with Client(driver, clock=time) as client:
        await client.handle(half_way, "half way").cancel(rollback=True)
    result = await run_workflow(half_way, driver=driver, instance_id="half way", clock=time)
    assert result.status is Status.CANCELLED, result.error
    assert graphs_1.RAN == ["undo slow", "undo other", "undo o-1"]


async def test_a_run_of_then_can_be_restarted_in_the_middle() -> None:
    driver, time = await FILES.store(), later()
    async with Client(driver, clock=time) as client:
        await client.handle(half_way, "half way").restart_from("formats.half way/turn/~1")
    await run_workflow(half_way, driver=driver, instance_id="half way", mode="yield", clock=time)
    assert sorted(graphs_1.RAN) == sorted(["quick", "retries", "wrong", "other"])
    firings = [one.path for one in await read_history(driver, "half way") if "/turn/" in one.path]
    assert len(firings) == 2


async def test_runs_that_have_ended_are_read() -> None:
    driver = await FILES.store()
    done = await run_workflow(ended, driver=driver, instance_id="succeeded", clock=later())
    assert isinstance(done.output, GraphResult)
    assert (done.output.status, done.output.blocked) == ("partial", ["closed"])
    assert done.output.outputs == {"start": 1, "good": (1, b"bytes"), "bad": "fine", "both": ["bad", "good"]}
    assert [outcome.status for outcome in done.output.outcomes.values()] == [
        "completed", "completed", "completed", "denied", "completed",
    ]  # fmt: skip
    async with Client(driver) as client:
        with pytest.raises(WorkflowFailedError) as failed:
            await client.handle(ended, "failed").result()
    result = failed.value.result
    assert isinstance(result, GraphResult)
    assert (result.status, result.outcomes["bad"].reason) == ("failed", "ValueError: below zero")
    assert result.outcomes["both"].status == "skipped"
    assert result.outputs == {"start": -1, "good": (-1, b"bytes")}


async def test_a_graph_among_other_operations_goes_on() -> None:
    driver, time = await FILES.store(), later()
    await send_message(driver, "surrounded", "answer", 42, clock=time)
    result = await run_workflow(surrounded, driver=driver, instance_id="surrounded", clock=time)
    done = {"start": 1, "good": (1, b"bytes"), "bad": "fine", "both": ["bad", "good"]}
    assert result.output == ["partial", done, {"asks": 42, "answered": 42}]


async def test_a_database_of_then_is_opened(tmp_path: Path) -> None:
    FILES.copy_database(tmp_path / "old.db")
    driver = await open_driver(f"sqlite:///{tmp_path}/old.db")
    try:
        assert str(await read_history(driver, "half way")) == FILES.histories[0]
        check(await go_on_to_the_end(driver, "yield"))
    finally:
        await driver.aclose()
