"""A system of instances that reach each other, killed before and after every commit of anyone in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.composition.composed_system import SYSTEM, check, story
from tests.composition.composing import survive
from tests.support import open_store
from workflow_sdk.testing import FaultyDriver

# Not in the setting of a fixture: each crash has a store of its own.
pytestmark = pytest.mark.law(1)

STRIDES = {"memory": 1, "sqlite": 4, "fdb": 4}
"""Which commits: in memory every one; the others have files to open, and what they promise is tested elsewhere."""


@pytest.mark.parametrize("store", STRIDES)
@pytest.mark.parametrize("side", ["crash_before", "crash_after"])
async def test_a_system_that_is_killed_at_any_commit_ends_the_same(store: str, side: str, tmp_path: Path) -> None:
    number = 1
    crashed = True
    while crashed:
        directory = tmp_path / str(number)
        directory.mkdir()
        driver = await open_store(store, directory)
        try:
            faulty = FaultyDriver(
                driver,
                crash_before=number if side == "crash_before" else None,
                crash_after=number if side == "crash_after" else None,
            )
            await survive(faulty, driver, SYSTEM, story)
            await check(driver)
        except BaseException as error:
            error.add_note(f"{side} {number}")
            raise
        finally:
            await driver.aclose()
        crashed = faulty.crashed
        number += STRIDES[store]
    assert number > 25
