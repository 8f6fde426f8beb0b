"""The commands about the journals of machines."""

from __future__ import annotations

import json

import pytest

from tests.cli.line import Line
from tests.machines.cell_parts import Asked, Do, ask, host, tells, told, until_words
from workflow_sdk import Driver

IDS: list[str] = []


@pytest.fixture
def written(line: Line) -> Line:
    """A journal of three events and an answer."""
    one, asked = told(lambda words, event, ctx: ask("what") if words == ["1\t"] else None), Asked()

    async def use(driver: Driver) -> None:
        async with host(driver, one, executors=[asked.by(tells("yes"))], journal=True) as runtime:
            await runtime.emit(Do("a", "1\t"))
            await until_words(runtime, one, "a", "1\t", "ok ask@1: yes")
            await runtime.emit(Do("a", "2"))
            await until_words(runtime, one, "a", "1\t", "ok ask@1: yes", "2")

    line.on_store(use)
    IDS[:] = asked.ids
    return line


def test_tail_over_a_pipe_is_tabs(written: Line) -> None:
    rows = [row.split("\t") for row in written("tail", "told@1").output.splitlines()]
    assert [(row[0], row[1], row[2], row[4]) for row in rows] == [
        ("told@1", '"a"', "event", "0"),
        ("told@1", '"a"', "receipt", "1"),
        ("told@1", '"a"', "event", "2"),
    ]
    assert [row[6] for row in rows] == ["", IDS[0], ""]
    assert json.loads(rows[2][7]) == {"key": "a", "word": "2"}


def test_tail_is_of_the_end(written: Line) -> None:
    (row,) = written("tail", "told@1", "--limit", "1", "--json").output.splitlines()
    found = json.loads(row)
    assert (found["key"], found["sequence"], found["value"]["word"]) == ("a", 2, "2")
    assert "recorded" not in found
    assert written("tail", "another@1").output == ""


def test_trace_has_the_request_and_the_answer(written: Line) -> None:
    first, second = map(json.loads, written("trace", IDS[0], "--json").output.splitlines())
    assert (first["kind"], first["sequence"], second["kind"]) == ("event", 0, "receipt")
    assert second["intent_id"] == IDS[0]
    assert "no journal has the intent" in written("trace", "none", code=1).stderr
