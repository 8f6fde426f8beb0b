"""The tasks of a runtime keep the promises of a task group."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from workflow_sdk.worker.hosting import Work, crew_of

pytestmark = [pytest.mark.usefixtures("host"), pytest.mark.every_host, pytest.mark.law(17)]


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


@pytest.mark.settings(loop=("asyncio", "uvloop"))  # trio drops what comes too late
async def test_errors_of_several_tasks_are_all_raised() -> None:
    both = anyio.Event()

    def fails(error: Exception) -> Work:
        async def work() -> None:
            await both.wait()
            raise error

        return work

    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012  # what is raised leaves the group
        async with anyio.create_task_group() as group:
            crew = crew_of(group)
            crew.spawn(fails(LookupError("one")))
            crew.spawn(fails(ValueError("two")))
            await anyio.wait_all_tasks_blocked()
            both.set()
    assert caught.group_contains(LookupError)
    assert caught.group_contains(ValueError)


@pytest.mark.settings(loop=("asyncio", "uvloop"))
async def test_where_no_task_runs_one_can_be_begun_and_cancelled() -> None:
    """In a callback of the event loop nothing is to be had of anyio."""
    happened: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            happened.append("cancelled")

    loop = asyncio.get_running_loop()
    async with anyio.create_task_group() as group:
        crew = crew_of(group)
        loop.call_soon(crew.spawn, work)
        await anyio.wait_all_tasks_blocked()
        loop.call_soon(crew.cancel)
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
        assert happened == ["cancelled"]
        group.cancel_scope.cancel()
