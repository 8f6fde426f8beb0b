"""A workflow that is started without an input."""

from __future__ import annotations

from tests.support import World
from workflow_sdk import Context, Status, workflow


@workflow
async def with_an_option(ctx: Context, *, times: int = 3) -> int:
    return times


async def test_an_option_of_the_function_is_no_input(world: World) -> None:
    """Its default is not taken for the input, which this workflow has none of."""
    result = await world.run(with_an_option)
    assert (result.status, result.output) == (Status.COMPLETED, 3)
