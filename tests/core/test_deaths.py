"""Deaths of workers, and what they are counted against."""

from __future__ import annotations

import pytest

from workflow_sdk import CodecError
from workflow_sdk.rows.instance import Blame, Death, Deaths, Lease, Try, worker_of_lease, worst
from workflow_sdk.rows.wire import pack_record

DEATHS = [Death("a/1", noted=False), Death("b/1", noted=True), Death("c/1", noted=True)]


def test_deaths_are_stored_and_read() -> None:
    deaths = Deaths(tuple(DEATHS))
    assert Deaths.unpack(deaths.pack()) == deaths
    assert worker_of_lease(Lease("w/1", 7, 1.0).name) == "w/1"


def test_a_try_is_stored_and_read() -> None:
    tried = Try("outer/step", ("a/1", "b/1"))
    assert Try.unpack(tried.pack()) == tried
    with pytest.raises(CodecError):
        Try.unpack(pack_record(["path", [1]]))
    with pytest.raises(CodecError):
        Deaths.unpack(pack_record([[["a"]]]))


def test_a_death_counts_against_what_was_executed() -> None:
    tries = {b"x": Try("x", ("a/1", "b/1", "c/1", "now/1")), b"y": Try("y", ("a/1", "c/1")), b"z": Try("z", ("now/1",))}
    assert worst(DEATHS, tries) == Blame("x", ("a/1", "b/1", "c/1"))
    assert worst(DEATHS[1:], {}) == Blame(None, ()), "what they executed has come to an end"
    assert worst(DEATHS, {}) == Blame(None, ("a/1",)), "nobody knows what this one executed"


def test_a_worker_that_lives_is_no_death() -> None:
    tries = {b"x": Try("x", ("a/1", "b/1", "c/1"))}
    assert worst([death for death in DEATHS if death.lease != "b/1"], tries) == Blame("x", ("a/1", "c/1"))
