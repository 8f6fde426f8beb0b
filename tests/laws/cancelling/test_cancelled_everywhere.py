"""Whoever cancels a public call, at whatever moment: nothing leaks, nothing is written twice, the lease is given back.

Each call is tried once for every moment at which it is suspended: see `moments`. In the quick tier every case has some
of its moments, in the deep tier all of them.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from zlib import crc32

import anyio
import pytest

from tests.laws.cancelling.driving import DRIVING
from tests.laws.cancelling.hosting import HOSTING
from tests.laws.cancelling.moments import HOWS, How, cancelled_at
from tests.laws.cancelling.reaching import REACHING
from tests.laws.cancelling.running import RUNNING
from tests.laws.cancelling.stage import Case, open_stage
from tests.settings import Setting

pytestmark = [pytest.mark.law(1), pytest.mark.law(10), pytest.mark.law(17), pytest.mark.law(21)]

STEP = 10
"""In the quick tier, every so many-th moment."""
MOMENTS_MAX = 1000


async def tried(case: Case, store: str, directory: Path, moment: int, how: How) -> bool:
    """Cancel the call at one moment; whether it came to that."""
    async with open_stage(store, directory) as stage:
        if case.prepare is not None:
            await case.prepare(stage)
        async with anyio.create_task_group() as group:
            if case.beside is not None:
                group.start_soon(case.beside, stage)
            stage.outcome = await cancelled_at(moment, how, lambda: case.call(stage))
            group.cancel_scope.cancel()
        outcome = stage.outcome
        try:
            if outcome.error is not None and not outcome.has_come and case.name != "store fails":
                raise outcome.error
            await stage.works()
            await case.check(stage)
            await stage.opened.aclose()
            assert not outcome.left, f"tasks are left: {outcome.left}"
        except (AssertionError, Exception) as error:
            error.add_note(f"{case.name}, cancelled at moment {moment} by {how.value}, in {store}")
            raise
        return outcome.has_come


@pytest.mark.parametrize("case", [*DRIVING, *RUNNING, *REACHING, *HOSTING], ids=lambda case: case.name)
async def test_cancelled_at_every_moment(
    case: Case, place: Setting, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if place.store not in case.stores:
        pytest.skip(f"not with {place.store}")
    hows = [How.SCOPE] if place.loop == "trio" else HOWS
    step = 1 if request.config.getoption("--deep") else STEP
    first = crc32(f"{case.name} {place}".encode()) % step + 1
    for moment in count(first, step):
        how = [hows[(moment // step) % len(hows)]] if step > 1 else hows
        reached: list[bool] = []
        for one in how:
            directory = tmp_path / f"{moment}-{one.name}"
            directory.mkdir()
            reached.append(await tried(case, place.store, directory, moment, one))
        if not any(reached):
            break
        assert moment < MOMENTS_MAX
