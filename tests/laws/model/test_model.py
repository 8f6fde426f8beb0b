"""Whatever the program, and whatever goes wrong: the engine comes to what the model says, and keeps the laws.

A failing example is printed with what replays it (`@reproduce_failure`). WORKFLOW_SDK_CHAOS multiplies the examples.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from tests.laws.model.plain import Ambiguous, Expected, expected
from tests.laws.model.programs import CANCELLED, PROGRAMS, Op, Program, Race, Raise, Sleep, Step, Undo
from tests.laws.model.trial import Fault, Trial
from tests.support import SETTINGS, Setting, open_store
from workflow_sdk.execution.execution import Mode

UNHURRIED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
ON_MEMORY = [setting for setting in SETTINGS if setting.store == "memory"]
ON_DISK = [setting for setting in SETTINGS if setting.store != "memory"]

FAULTS: st.SearchStrategy[list[Fault]] = st.lists(
    st.builds(
        Fault,
        st.sampled_from(["none", "crash before", "crash after", "fail", "conflict", "slow", "fight", "mail"]),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=12,
)
PAUSES = st.lists(st.integers(0, 60), max_size=8)


def examples(count: int) -> settings:
    """So many examples, each as long as it takes."""
    return settings(max_examples=effort(count), deadline=None, print_blob=True, suppress_health_check=UNHURRIED)


def outcome(program: Program, mode: Mode = "yield") -> Expected:
    """What the model says. A program that has more than one right outcome is no example."""
    right: Expected | None = None
    with suppress(Ambiguous):
        right = expected(program if mode == "yield" else program.all_early())
    assume(right is not None)
    assert right is not None
    return right


async def run(program: Program, right: Expected, setting: Setting, faults: list[Fault]) -> None:
    """Run a program on a store of its own, and compare."""
    with TemporaryDirectory() as directory:
        driver = await open_store(setting.store, Path(directory))
        try:
            trial = Trial(program, driver, setting.mode, checked=setting.store == "memory")
            await trial.run(faults)
            await trial.check(right)
        finally:
            await driver.aclose()


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
@pytest.mark.parametrize("setting", ON_MEMORY, ids=str)
@examples(60)
@given(program=PROGRAMS)
def test_every_program_comes_to_what_the_model_says(setting: Setting, program: Program) -> None:
    assert anyio.run(run, program, outcome(program, setting.mode), setting, [], backend=setting.backend) is None


@pytest.mark.law(1)
@pytest.mark.parametrize("setting", ON_DISK, ids=str)
@examples(12)
@given(program=PROGRAMS)
def test_every_program_comes_to_the_same_on_every_store(setting: Setting, program: Program) -> None:
    assert anyio.run(run, program, outcome(program, setting.mode), setting, [], backend=setting.backend) is None


@pytest.mark.law(1, 2, 3)
@pytest.mark.parametrize("setting", ON_MEMORY, ids=str)
@examples(80)
@given(program=PROGRAMS, faults=FAULTS)
def test_no_trouble_changes_what_a_program_comes_to(setting: Setting, program: Program, faults: list[Fault]) -> None:
    assert anyio.run(run, program, outcome(program, setting.mode), setting, faults, backend=setting.backend) is None


@pytest.mark.law(6)
@examples(120)
@given(program=PROGRAMS, at=st.integers(1, 4), faults=FAULTS | st.just([]))
def test_no_message_is_lost_that_comes_while_it_is_put_away(program: Program, at: int, faults: list[Fault]) -> None:
    assume(any(letter.at == 0 for letter in program.letters))
    setting = Setting("memory", "asyncio", "yield")
    assert anyio.run(run, program, outcome(program), setting, [Fault("mail", at), *faults]) is None


@pytest.mark.law(9, 11)
@examples(60)
@given(program=CANCELLED, faults=FAULTS | st.just([]))
def test_a_cancelled_program_is_undone_in_order_or_not_at_all(program: Program, faults: list[Fault]) -> None:
    assert anyio.run(run, program, outcome(program), Setting("memory", "asyncio", "yield"), faults) is None


@pytest.mark.law(10)
@examples(40)
@given(program=PROGRAMS, pauses=PAUSES)
def test_two_runtimes_bring_a_program_to_what_the_model_says(program: Program, pauses: list[int]) -> None:
    assert anyio.run(serve, program, outcome(program, "live"), pauses) is None


@pytest.mark.law(11)
def test_what_is_set_aside_for_a_rollback_may_be_set_aside_again() -> None:
    """Killed after it copied what the first loser did, and before the race is recorded, it copies that once more."""
    loser = (Op(Step(undo=Undo())), Op(Sleep(9_000)))
    program = Program((Op(Race((loser, loser, (Op(Sleep(500)),)))), Op(Raise("trouble"))))
    setting = Setting("memory", "asyncio", "yield")
    for clean in range(3):
        for at in range(1, 7):
            faults = [Fault("none")] * clean + [Fault("crash after", at)]
            assert anyio.run(run, program, expected(program), setting, faults) is None
