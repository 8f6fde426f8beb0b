"""The tasks of a runtime keep the promises of a task group."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from workflow_sdk.runtime.crew import crew_of

pytestmark = pytest.mark.law(17)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


async def test_no_task_outlives_the_group_and_shields_hold() -> None:
    happened: list[str] = []

    async def shielded() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            happened.append("cancelled")
            with anyio.CancelScope(shield=True):
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                happened.append("given back")

    async with anyio.create_task_group() as group:
        crew = crew_of(group)
        for _ in range(3):
            crew.spawn(shielded)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert sorted(happened) == ["cancelled"] * 3 + ["given back"] * 3


async def test_cancelled_by_itself_and_what_comes_later_too() -> None:
    happened: list[str] = []

    async def work(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            happened.append(name)

    async with anyio.create_task_group() as group:
        crew = crew_of(group)
        crew.spawn(lambda: work("early"))
        await anyio.wait_all_tasks_blocked()
        crew.cancel()
        crew.spawn(lambda: work("late"))
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
        assert happened[:1] == ["early"]
        group.cancel_scope.cancel()
    assert happened in (["early", "late"], ["early"])


async def test_a_cancellation_is_kept_up() -> None:
    """Whoever swallows it once is cancelled again by the next wait."""
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        for _ in range(3):
            try:
                await anyio.sleep(3600)
            except anyio.get_cancelled_exc_class():
                swallowed += 1
        await anyio.sleep(3600)

    async with anyio.create_task_group() as group:
        crew_of(group).spawn(stubborn)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert swallowed == 3


async def test_an_error_ends_them_all() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await anyio.lowlevel.checkpoint()
        raise LookupError("no")

    async def goes_on() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("yes")

    async def all_of_them() -> None:
        async with anyio.create_task_group() as group:
            crew = crew_of(group)
            crew.spawn(goes_on)
            crew.spawn(fails)
            await anyio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await all_of_them()
    assert caught.group_contains(LookupError)
    assert ended == ["yes"]
