"""A graph that fails inside an attempt, a branch, or a step of another graph: its error is kept with its result."""

from __future__ import annotations

from typing import Any

from tests.graphs.running import Noting, run
from tests.support import World
from workflow_sdk import Context, Failure, GraphFailedError, JoinError, RaceError, Status, workflow
from workflow_sdk.graphs import E, Graph, arc


def failing(name: str = "bad") -> Noting:
    """A graph whose only step fails."""
    g = Noting(Graph(name))
    g.add("x", fails="boom")
    return g


async def test_a_failed_graph_in_an_attempt_is_data_with_its_result(world: World) -> None:
    bad = failing().graph

    @workflow
    async def tries(ctx: Context) -> Any:
        tried = await ctx.attempt("try", lambda ctx: ctx.graph("bad", bad))
        await ctx.sleep("nap", 1)
        assert isinstance(tried, Failure)
        assert isinstance(tried.error, GraphFailedError)
        return tried.error.result.outcomes["x"].reason

    assert (await world.run(tries)).output == "CriticalError: boom"


async def test_a_failed_graph_in_a_branch_is_told_with_its_result(world: World) -> None:
    bad = failing().graph

    @workflow
    async def branches(ctx: Context) -> Any:
        found: list[str] = []
        try:
            await ctx.join("join", {"a": lambda ctx: ctx.graph("bad", bad)})
        except JoinError as error:
            found += [one.result.status for one in error.errors.values() if isinstance(one, GraphFailedError)]
        try:
            await ctx.race("race", {"a": lambda ctx: ctx.graph("bad", bad)})
        except RaceError as error:
            found += [one.result.status for one in error.exceptions if isinstance(one, GraphFailedError)]
        await ctx.sleep("nap", 1)
        return found

    assert (await world.run(branches)).output == ["failed", "failed"]


async def test_the_error_of_a_branch_that_nobody_catches_fails_the_workflow(world: World) -> None:
    bad = failing().graph

    @workflow
    async def raises(ctx: Context) -> Any:
        tried = await ctx.attempt("try", lambda ctx: ctx.graph("bad", bad))
        assert isinstance(tried, Failure)
        raise tried.error

    result = await world.run(raises)
    assert result.status is Status.FAILED
    assert result.error is not None
    assert "boom" in result.error.message


async def test_a_result_that_is_too_large_for_the_error_of_a_branch_is_none(world: World) -> None:
    bad = failing()
    bad.add("large", "x" * 100_000)

    @workflow
    async def tries(ctx: Context) -> Any:
        direct = ""
        try:
            await ctx.graph("direct", bad.graph)
        except GraphFailedError as error:
            direct = error.result.outputs["large"]
        tried = await ctx.attempt("try", lambda ctx: ctx.graph("bad", bad.graph))
        assert isinstance(tried, Failure)
        assert isinstance(tried.error, GraphFailedError)
        return [len(direct), tried.error.result]

    # Without arcs, both of its steps begin at once.
    assert (await world.run(tries)).output == [100_000, None]


async def test_a_step_whose_inner_graph_has_failed_is_not_tried_again(world: World) -> None:
    bad, outer = failing("inner"), Noting(Graph("outer"))

    async def nests(ctx: Context, args: Any) -> Any:
        await ctx.graph("inner", bad.graph)

    outer.add("a", does=nests, next=arc("b", on="failed", args=E.error.attributes.failed))
    outer.add("b")
    await run(world, outer.graph)
    assert outer.ran == ["a", "b"]
    assert bad.ran == ["x"]
    assert outer.args["b"] == [["outer/a/~0/inner/x/~0"]]
