"""Any object with the five methods is a driver, however it comes by them."""

from __future__ import annotations

from typing import Any

import pytest

from workflow_drivers.memory import MemoryDriver
from workflow_sdk import Context, DefinitionError, Runtime, run_workflow, workflow


class HandsOn:
    """Wraps a driver, and hands everything on that it does not know itself."""

    def __init__(self, inner: MemoryDriver, without: str | None = None) -> None:
        self._inner = inner
        self._without = without

    def __getattr__(self, name: str) -> Any:
        if name == self._without:
            raise AttributeError(name)
        return getattr(self._inner, name)


async def two() -> int:
    return 2


@workflow
async def doubles(ctx: Context) -> int:
    return 2 * await ctx.step(two)


async def test_a_driver_may_hand_on_to_another() -> None:
    driver: Any = HandsOn(MemoryDriver())
    assert (await run_workflow(doubles, driver=driver, instance_id="i")).output == 4
    async with Runtime(driver, workflows=[doubles]) as runtime:
        assert await runtime.run(doubles) == 4


@pytest.mark.parametrize("method", ["get", "scan", "commit", "changed", "aclose"])
async def test_what_lacks_a_method_is_refused(method: str) -> None:
    driver: Any = HandsOn(MemoryDriver(), without=method)
    with pytest.raises(DefinitionError, match="open store"):
        await run_workflow(doubles, driver=driver)
