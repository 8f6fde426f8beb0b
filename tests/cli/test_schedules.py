"""The commands about schedules."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.cli.line import Line
from tests.cli.test_terminal import EVIL, Terminal
from workflow_sdk import Client, Driver


@pytest.fixture
def scheduled(line: Line) -> Line:
    """Two of them."""

    async def use(driver: Driver) -> None:
        async with Client(driver) as client:
            await client.schedule("nightly", "checkout", "o", cron="0 3 * * *", timezone="Europe/Berlin")
            await client.schedule("t\n1", "fails", every=timedelta(hours=2), overlap="queue")

    line.on_store(use)
    return line


def test_schedules_over_a_pipe_are_tabs(scheduled: Line) -> None:
    first, second = (row.split("\t") for row in scheduled("schedules").output.splitlines())
    assert first[:3] == ["nightly", "checkout", "0 3 * * * Europe/Berlin"]
    assert first[3].endswith(":00:00Z")
    assert first[4:] == ["", "", "0"]
    assert second[:3] == ["t\\n1", "fails", "every 2h00m"]


def test_schedules_in_json(scheduled: Line) -> None:
    first, second = map(json.loads, scheduled("schedules", "--json").output.splitlines())
    assert (first["id"], first["input"], first["cron"], first["every"]) == ("nightly", "o", "0 3 * * *", None)
    assert (second["id"], second["every"], second["overlap"], second["paused"]) == ("t\n1", 7200, "queue", False)
    assert second["waiting"] == []


def test_no_schedules(line: Line) -> None:
    assert line("schedules").output == ""


def test_pause_resume_and_delete(scheduled: Line) -> None:
    assert scheduled("pause-schedule", "nightly").output == "paused\n"
    assert scheduled("schedules").output.splitlines()[0].split("\t")[3] == "paused"
    resumed = scheduled("resume-schedule", "nightly").output.strip()
    assert scheduled("schedules").output.splitlines()[0].split("\t")[3] == resumed
    assert scheduled("delete-schedule", "nightly").output == "deleted\n"
    assert scheduled("schedules").output.count("\n") == 1
    for command in ("pause-schedule", "resume-schedule", "delete-schedule"):
        assert "there is no schedule 'nightly'" in scheduled(command, "nightly", code=1).stderr


def test_a_table_for_a_person(scheduled: Line) -> None:
    async def use(driver: Driver) -> None:
        async with Client(driver) as client:
            await client.schedule(EVIL, EVIL, every=1)
            await client.schedules.pause("nightly")

    scheduled.on_store(use)
    terminal = Terminal(scheduled, "schedules", width=120)
    code, output, errors = terminal.ends()
    assert (code, errors) == (0, "")
    head, *rows = output.splitlines()
    assert head.split() == ["ID", "WORKFLOW", "TICKS", "NEXT", "LAST", "WAITING"]
    assert len(rows) == 3
    nightly = next(row for row in rows if row.startswith("nightly"))
    assert nightly.split() == ["nightly", "checkout", *["0", "3", "*", "*", "*"], "Europe/Berlin", "paused"]
    assert b"\x1b[2J" not in terminal.raw
