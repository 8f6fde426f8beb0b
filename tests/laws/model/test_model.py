"""Whatever the program, and whatever goes wrong: the engine comes to what the model says, and keeps the laws.

A failing example is printed with what replays it (`@reproduce_failure`). WORKFLOW_SDK_CHAOS multiplies the examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.model.plain import Ambiguous, Expected, expected
from tests.laws.model.programs import (
    CANCELLED,
    PROGRAMS,
    Attempt,
    Join,
    Op,
    Program,
    Race,
    Raise,
    Sleep,
    Step,
    Undo,
)
from tests.laws.model.trial import NO_FAULT, Fault, Trial
from tests.support import open_store
from workflow_sdk.instance.execution import Mode

MODES: list[Mode] = ["yield", "live"]


@dataclass(frozen=True)
class Place:
    """Where a program runs: in which store, on which event loop, and in which mode."""

    store: str
    backend: str
    mode: Mode


# Each example draws its place, so that a few examples are spread over all of them. A fixture would give one place to
# all examples of a test.
IN_MEMORY = st.builds(Place, st.just("memory"), st.sampled_from(["asyncio", "trio"]), st.sampled_from(MODES))
ON_DISK = st.builds(Place, st.sampled_from(["sqlite", "fdb"]), st.just("asyncio"), st.sampled_from(MODES))
YIELDING = Place("memory", "asyncio", "yield")

FAULTS: st.SearchStrategy[list[Fault]] = st.lists(
    st.builds(
        Fault,
        st.sampled_from(["none", "crash before", "crash after", "fail", "conflict", "slow", "fight", "email"]),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=12,
)
PAUSES = st.lists(st.integers(0, 60), max_size=8)


def outcome(program: Program, mode: Mode = "yield") -> Expected:
    """What the model says. A program that has more than one right outcome is no example."""
    right: Expected | None = None
    with suppress(Ambiguous):
        right = expected(program if mode == "yield" else program.all_early())
    assume(right is not None)
    assert right is not None
    return right


async def run_once(program: Program, right: Expected, place: Place, faults: list[Fault]) -> None:
    """Run a program on a store of its own, and compare."""
    # Only the store in memory is looked at after every commit: on the others that takes too long.
    in_memory = place.store == "memory"
    with nullcontext("") if in_memory else TemporaryDirectory() as directory:
        driver = await open_store(place.store, Path(directory))
        try:
            trial = Trial(program, driver, place.mode, checked=in_memory)
            await trial.run(faults)
            await trial.check(right)
        finally:
            await driver.aclose()


def run(program: Program, place: Place, faults: Sequence[Fault] = ()) -> None:
    """Run a program in an event loop of its own, and compare with what the model says."""
    anyio.run(run_once, program, outcome(program, place.mode), place, list(faults), backend=place.backend)


async def serve(program: Program, right: Expected, pauses: list[int]) -> None:
    """Have two runtimes run a program, and compare."""
    driver = await open_store("memory", Path())
    try:
        trial = Trial(program, driver, "live")
        await trial.serve(pauses)
        await trial.check(right)
    finally:
        await driver.aclose()


@pytest.mark.law(4, 7, 11)
@examples(240)
@given(program=PROGRAMS, place=IN_MEMORY)
def test_every_program_ends_as_the_model_says(program: Program, place: Place) -> None:
    run(program, place)


@pytest.mark.law(1)
@examples(48)
@given(program=PROGRAMS, place=ON_DISK)
def test_every_program_ends_the_same_on_every_store(program: Program, place: Place) -> None:
    run(program, place)


@pytest.mark.law(1, 2, 3)
@examples(320)
@given(program=PROGRAMS, place=IN_MEMORY, faults=FAULTS)
def test_no_fault_changes_how_a_program_ends(program: Program, place: Place, faults: list[Fault]) -> None:
    run(program, place, faults)


@pytest.mark.law(6)
@examples(120)
@given(program=PROGRAMS, at=st.integers(1, 4), faults=FAULTS | st.just([]))
def test_no_message_is_lost_that_comes_while_the_instance_is_evicted(
    program: Program, at: int, faults: list[Fault]
) -> None:
    assume(any(note.at == 0 for note in program.notes))
    run(program, YIELDING, [Fault("email", at), *faults])


@pytest.mark.law(9, 11)
@examples(60)
@given(program=CANCELLED, faults=FAULTS | st.just([]))
def test_a_cancelled_program_is_undone_in_order_or_not_at_all(program: Program, faults: list[Fault]) -> None:
    run(program, YIELDING, faults)


@pytest.mark.law(10)
@examples(40)
@given(program=PROGRAMS, pauses=PAUSES)
def test_two_runtimes_bring_a_program_to_what_the_model_says(program: Program, pauses: list[int]) -> None:
    anyio.run(serve, program, outcome(program, "live"), pauses)


@pytest.mark.law(4)
@pytest.mark.parametrize("mode", MODES)
def test_nothing_acts_on_a_record_that_rides(mode: Mode) -> None:
    """After a repeatable step in a scope that is over, in a branch, or beside one: random programs seldom have that."""
    rides, acts = Op(Step(repeatable=True)), Op(Step())
    programs: list[tuple[Op, ...]] = [
        (rides, rides, acts, rides),
        (Op(Attempt((rides,))), acts),
        (Op(Join(((rides,), (rides, acts)), None)), acts),
        (Op(Race(((rides, Op(Sleep(500))), (rides,)))), acts),
    ]
    for program in map(Program, programs):
        for fault in (NO_FAULT, *(Fault("crash before", at) for at in range(1, 5))):
            anyio.run(run_once, program, expected(program), Place("memory", "asyncio", mode), [fault])


@pytest.mark.law(11)
def test_a_rollback_that_is_kept_for_a_loser_may_be_kept_again() -> None:
    """A run that dies between the copy of the first loser's rollback and the record of the race copies it again.

    Random programs once found a defect here.
    """
    loser = (Op(Step(undo=Undo())), Op(Sleep(9_000)))
    program = Program((Op(Race((loser, loser, (Op(Sleep(500)),)))), Op(Raise("trouble"))))
    for clean in range(3):
        for at in range(1, 7):
            faults = [Fault("none")] * clean + [Fault("crash after", at)]
            anyio.run(run_once, program, expected(program), YIELDING, faults)
