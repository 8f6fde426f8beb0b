"""The commands about cells of machines, whose code the command line does not have."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from tests.cli.line import Line
from tests.machines.cell_parts import Do, ask, host, manifest_of, told, until_cell
from workflow_sdk import Client, Driver
from workflow_sdk.machines import (
    CellStatus,
    EffectReceipt,
    EffectRejected,
    Machine,
    MachineContext,
    Transition,
    machine,
)


@dataclass(frozen=True)
class Numbered:
    """An event for the cell of a number."""

    key: int
    word: str = ""


@dataclass(frozen=True)
class Anything:
    """An event for the one cell."""

    word: str


@machine("numbers@1", state=dict[str, int], event=Numbered, key=int, effects=[])
def numbers(state: dict[str, int] | None, event: Numbered, ctx: MachineContext) -> Transition[dict[str, int]]:
    """Counts under numbers."""
    return Transition({"count": (state or {}).get("count", 0) + 1})


MIXED = told(event=Do, key=str | int, name="mixed@1", effects=[])
ONE = told(event=Anything, key=None, name="one@1", effects=[])
TOLD: Machine[list[str]] = told(
    lambda words, event, ctx: None if isinstance(event, EffectReceipt | EffectRejected) else ask(event.word)
)


@pytest.fixture
def machines(line: Line) -> Line:
    """Cells of four machines."""

    async def use(driver: Driver) -> None:
        async with host(driver, TOLD, numbers, MIXED, ONE) as runtime:
            for event in (Do("a", "x"), Do("b\n", "y"), Numbered(7), Anything("z")):
                await runtime.emit(event)
            for one, key in ((TOLD, "a"), (TOLD, "b\n"), (numbers, 7), (MIXED, "a"), (ONE, None)):
                await until_cell(
                    runtime, one, key, lambda cell: cell.revision == 1 and cell.status is CellStatus.WAITING
                )

    line.on_store(use)
    return line


def test_cells_over_a_pipe_are_tabs(machines: Line) -> None:
    assert machines("cells", "told@1").output.splitlines() == [
        'a\twaiting\t1\t1\t["x"]',
        'b\\n\twaiting\t1\t1\t["y"]',
    ]
    assert machines("cells", "numbers@1").output == '7\twaiting\t1\t0\t{"count": 1}\n'
    assert machines("cells", "one@1").output == '\twaiting\t1\t0\t["z"]\n'


def test_cells_in_json(machines: Line) -> None:
    first, second = map(json.loads, machines("cells", "told@1", "--json").output.splitlines())
    assert (first["key"], first["state"], first["status"], first["revision"]) == ("a", ["x"], "waiting", 1)
    assert second["key"] == "b\n"
    (intent,) = first["inflight"]
    assert (intent["effect"], intent["params"], intent["attempt"]) == ("ask@1", {"what": "x"}, 1)


def test_no_more_than_the_limit(machines: Line) -> None:
    shown = machines("cells", "told@1", "--limit", "1")
    assert shown.stdout.count("\n") == 1
    assert "there are more than this one" in shown.stderr


def test_a_cell(machines: Line) -> None:
    first, *state, last = machines("cell", "told@1", "a").output.splitlines()
    assert first == "a  waiting  1 transitions"
    assert json.loads("\n".join(state)) == ["x"]
    assert '  ask@1  {"what": "x"}  attempt 1, since ' in last


@pytest.mark.parametrize(
    ("words", "key"),
    [(("numbers@1", "7"), 7), (("mixed@1", "a"), "a"), (("one@1",), None), (("told@1", "b\n"), "b\n")],
)
def test_a_cell_in_json(machines: Line, words: tuple[str, ...], key: object) -> None:
    shown = json.loads(machines("cell", *words, "--json").output)
    assert (shown["key"], shown["revision"]) == (key, 1)


def test_what_is_not_there_is_an_error(machines: Line) -> None:
    assert "has no cell 'c'" in machines("cell", "told@1", "c", code=1).stderr
    assert "has no cell 8" in machines("cell", "numbers@1", "8", code=1).stderr
    found = machines("cells", "gone@1", code=2).stderr
    assert "no machine 'gone@1'; it has: told@1, numbers@1, mixed@1, one@1" in found


def test_a_store_without_machines(line: Line) -> None:
    line("start", "checkout", "--id", "order-1")
    assert "no active manifest" in line("cells", "told@1", code=2).stderr


def test_a_client_without_a_manifest_sees_plain_data(line: Line) -> None:
    async def use(driver: Driver) -> None:
        async with Client(driver, machines=manifest_of(numbers)) as client:
            await client.emit(Numbered(1))
        async with Client(driver) as client:
            assert (await client.cell("numbers@1", 1)).status is CellStatus.RUNNING
            assert [cell.key for cell in (await client.cells("numbers@1")).items] == [1]

    line.on_store(use)


def test_an_event_is_sent_as_json_once_for_each_id(machines: Line) -> None:
    event = f"{Numbered.__module__}.Numbered"
    for delivery in ("accepted", "duplicate"):
        assert machines("emit", event, '{"key": 8, "word": "x"}', "--id", "one").output == f"{delivery}\n"
    assert machines("emit", event, "-", input='{"key": 8}').output == "accepted\n"
    shown = json.loads(machines("cell", "numbers@1", "8", "--json").output)
    assert shown["key"] == 8


@pytest.mark.parametrize(
    ("name", "event", "code", "told"),
    [
        ("Unknown", "{}", 2, "has no event"),
        ("Numbered", '{"key": "x"}', 2, "Expected `int`"),
        ("Numbered", "{", 2, "JSON"),
    ],
)
def test_an_event_that_can_not_be_sent_says_why(machines: Line, name: str, event: str, code: int, told: str) -> None:
    assert told in machines("emit", f"{Numbered.__module__}.{name}", event, code=code).stderr
