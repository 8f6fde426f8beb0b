"""The examples of graphs end the same, wherever they are killed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from workflow_sdk.testing import crash_everywhere

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An example as a module of its own, as its reader would have it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module(request.param)


@pytest.mark.parametrize("example", ["triage"], indirect=True)
async def test_a_ticket_ends_the_same_after_every_crash(example: Any) -> None:
    report = await crash_everywhere(example.triage, example.Ticket(7, "a crash at midnight"))
    assert report.clean.info.output["outputs"]["merge"] == "merged"


@pytest.mark.parametrize("example", ["agent_plan"], indirect=True)
async def test_a_plan_that_has_grown_ends_the_same_after_every_crash(example: Any) -> None:
    report = await crash_everywhere(example.plan, "why was the shop slow?")
    assert len(report.clean.info.output["outcomes"]) > len(example.plan.nodes)


@pytest.mark.parametrize("example", ["tournament"], indirect=True)
async def test_a_tournament_has_the_same_winner_after_every_crash(example: Any) -> None:
    report = await crash_everywhere(example.naming, "a teapot")
    assert report.clean.info.output["outputs"]["contest"] == "The Spout"
