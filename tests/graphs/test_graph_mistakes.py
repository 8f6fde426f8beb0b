"""What an author may do wrong in a graph, and what is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs.running import Noting, by_status, run, waiting
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Context, DefinitionError, Driver, RollbackError, Runtime, Status, workflow
from workflow_sdk.graphs import E, Graph, arc, node


async def echo(ctx: Context, args: Any) -> Any:
    """Gives back its arguments."""
    return args


async def submits(ctx: Context, args: Any) -> bool:
    """Adds a step with the name that it is told."""
    return bool(await ctx.submit([node(args, echo)]))


@pytest.mark.law(14)
async def test_what_one_run_has_submitted_is_not_in_another(world: World) -> None:
    g = Noting(Graph("g"))
    g.add("a", does=submits)
    first = await run(world, g.graph, "x", id="one")
    second = await run(world, g.graph, "y", id="two")
    third = await run(world, g.graph, "x", id="three")
    assert set(first.outcomes) == {"a", "x"}
    assert set(second.outcomes) == {"a", "y"}
    assert third.outputs["a"] is True, "the name is free in every run"
    assert len(g.graph.nodes) == 1


async def test_what_one_run_has_submitted_is_not_in_another_beside_it(driver: Driver) -> None:
    async def submits_and_waits(ctx: Context, args: Any) -> Any:
        verdict = await ctx.submit([node(args, echo)])
        await ctx.listen("go")
        return bool(verdict)

    graph = Graph("g")
    graph.step("a", submits_and_waits)
    async with Runtime(driver, workflows=[graph]) as runtime:
        handles = [await runtime.start(graph, name, id=name) for name in ("x", "y", "z")]
        for handle in handles:
            await handle.evict()
            await handle.send("go")
        results = [await handle.result(timeout=PATIENCE) for handle in handles]
    assert [set(result.outcomes) for result in results] == [{"a", "x"}, {"a", "y"}, {"a", "z"}]


async def test_the_same_step_twice_is_refused_when_it_is_declared() -> None:
    graph = Graph("g")
    graph.step("a", echo)
    with pytest.raises(DefinitionError, match="a"):
        graph.step("a", echo)


@pytest.mark.parametrize("name", ["", "x" * 1001, 5, b"x", "\ud800"], ids=["empty", "long", "number", "bytes", "half"])
def test_what_is_no_name_is_refused_where_it_is_given(name: Any) -> None:
    async def body() -> None: ...

    graph = Graph("g")
    for declare in (
        lambda: graph.step(name, body),
        lambda: graph.step(name=name)(body),
        lambda: graph.noop(name),
        lambda: node(name, body),
        lambda: Graph(name),
    ):
        with pytest.raises(DefinitionError, match="name"):
            declare()
    assert not graph.nodes


@pytest.mark.parametrize(
    "given",
    [{"context": [1]}, {"context": {1: 2}}, {"limits": 5}, {"limits": {"running": 1}}],
)
def test_a_context_or_limits_that_are_none_are_refused_when_the_graph_is_made(given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(given))):
        Graph("g", **given)


@pytest.mark.parametrize("needs", [5, [5], {"a": 1}, [None]])
def test_needs_that_are_no_names_are_refused(needs: Any) -> None:
    async def body() -> None: ...

    with pytest.raises(DefinitionError, match="`needs` takes names of steps"):
        Graph("g").step("a", body, needs=needs)


async def test_a_step_stays_callable_however_it_is_declared(world: World) -> None:
    graph = Graph("g")

    @graph.step
    async def bare(ctx: Context, args: Any) -> int:
        return 1

    @graph.step(needs=["bare"])
    async def given(ctx: Context, args: Any) -> int:
        return 2

    @graph.step("named", needs=["given"])
    async def whatever(ctx: Context, args: Any) -> int:
        return 3

    result = await run(world, graph)
    assert result.outputs == {"bare": 1, "given": 2, "named": 3}
    assert callable(bare)
    assert callable(given)
    assert callable(whatever)


async def test_a_runtime_refuses_an_invalid_graph_with_all_that_is_wrong(driver: Driver) -> None:
    graph = Graph("g", final="none")
    graph.step("a", echo, next=["nowhere", "elsewhere"])
    with pytest.raises(DefinitionError) as refused:
        async with Runtime(driver, workflows=[graph]):
            pass
    for name in ("none", "nowhere", "elsewhere"):
        assert name in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "both"},
        {"join": "some", "needs": ["b"]},
        {"on_deny": "later"},
        {"trust": "some"},
        {"access": "all"},
        {"nothing_of_that_kind": 1},
        {"next": arc("b", on="done"), "retries": -1},
    ],
    ids=lambda value: next(iter(value)),
)
async def test_an_option_that_does_not_fit_is_refused_when_it_is_declared(options: dict[str, Any]) -> None:
    graph = Graph("g")
    with pytest.raises((DefinitionError, TypeError)):
        graph.step("a", echo, **options)


async def test_an_expression_that_can_not_be_parsed_is_refused_when_the_graph_is_built() -> None:
    with pytest.raises(DefinitionError):
        arc("b", when="output.kind ==")
    with pytest.raises(DefinitionError):
        arc("b", when="__import__('os')")
    with pytest.raises(DefinitionError):
        arc("b", when="output.tags.append('x')")


@pytest.mark.parametrize("value", [object(), "x" * 3_000_000], ids=["no data", "too large"])
async def test_an_output_that_can_not_be_kept_fails_its_firing_and_nothing_else(world: World, value: Any) -> None:
    g = Noting()
    g.add("a", value, next=arc("b", on="failed"))
    g.add("b")
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "failed", "b": "completed"}
    assert result.outcomes["a"].reason
    assert g.count("a") == 1, "another attempt would give the same"


async def test_a_patch_that_can_not_be_kept_does_not_get_lost_silently(world: World) -> None:
    async def patches(ctx: Context, args: Any) -> None:
        ctx.patch(bad=object())

    g = Noting(context={"n": 0})
    g.add("a", does=patches, retries=0)
    result = await world.run(g.graph)
    assert result.status in (Status.FAILED, Status.STUCK)


async def test_the_same_name_twice_in_a_body_is_a_mistake_and_no_failure_of_the_step(world: World) -> None:
    async def mistakes(ctx: Context, args: Any) -> None:
        await ctx.step("s", str)
        await ctx.step("s", str)

    g = Noting()
    g.add("a", does=mistakes, next=arc("b", on="failed"))
    g.add("b")
    result = await world.run(g.graph)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert (result.error.kind, "g/a/~0" in result.error.message) == ("definition", True)
    assert g.count("b") == 0


async def test_an_operation_on_the_ctx_around_the_graph_is_a_mistake(world: World) -> None:
    @workflow
    async def outer(ctx: Context) -> None:
        async def body(inner: Context, args: Any) -> None:
            await ctx.step("s", str)

        graph = Graph("g")
        graph.step("a", body)
        await ctx.graph("g", graph)

    result = await world.run(outer)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"


async def test_two_graphs_of_one_name_in_one_scope_are_a_mistake(world: World) -> None:
    graph = Graph("g")
    graph.step("a", echo)

    @workflow
    async def twice(ctx: Context) -> None:
        await ctx.graph("one", graph)
        await ctx.graph("one", graph)

    assert (await world.run(twice)).status is Status.STUCK


async def test_patch_and_vars_outside_a_graph_are_mistakes(world: World) -> None:
    @workflow
    async def patches(ctx: Context) -> None:
        ctx.patch(n=1)

    @workflow
    async def reads(ctx: Context) -> Any:
        return ctx.vars["n"]

    for number, flow in enumerate((patches, reads)):
        result = await world.run(flow, id=f"i{number}")
        assert result.status is Status.STUCK
        assert result.error is not None
        assert result.error.kind == "definition"


async def test_a_rollback_error_unwinds_the_instance_whatever_the_arcs(world: World) -> None:
    undone: list[Any] = []

    async def undo(result: Any) -> None:
        undone.append(result)

    async def unwinds(ctx: Context, args: Any) -> None:
        raise RollbackError("all of it")

    g = Noting()
    g.add("a", 1, rollback=undo, next="b")
    g.add("b", does=unwinds, next=arc("c", on="failed"))
    g.add("c")
    result = await world.run(g.graph)
    assert (result.status, undone, g.ran) == (Status.ROLLED_BACK, [1], ["a", "b"])


async def test_a_graph_that_was_taken_out_of_the_code_is_covered_by_removed(world: World) -> None:
    graph = Graph("g")
    graph.step("a", echo)

    @workflow(name="w")
    async def before(ctx: Context) -> Any:
        await ctx.graph("one", graph, 1)
        return await ctx.listen("go")

    @workflow(name="w")
    async def now(ctx: Context) -> Any:
        await ctx.removed("one", "graph")
        return await ctx.listen("go")

    first = await world.once(before, mode="yield")
    assert first.status is Status.WAITING
    await world.send("go", 5)
    assert (await world.run(now)).output == 5


async def test_a_step_that_was_taken_out_of_a_graph_under_way_is_told_as_divergence(world: World) -> None:
    async def asks(ctx: Context, args: Any) -> Any:
        return await ctx.listen("go")

    first, second = Graph("g"), Graph("g")
    first.step("a", echo, next="b")
    first.step("b", asks)
    second.step("a", echo, next="c")
    second.step("c", asks)
    await waiting(world, first)
    result = await world.once(second, mode="yield")
    # Its own definition is kept with the instance, so that it may go on with that; it never goes on as if `b` were not.
    if result.status is Status.STUCK:
        assert result.error is not None
        assert "b" in result.error.message
    else:
        assert (result.status, result.waiting_for) == (Status.WAITING, ["go"])


async def test_a_guard_sees_the_arguments_of_its_own_firing(world: World) -> None:
    g = Noting()
    g.add("a", mode="inclusive", next=[arc("b", args={"n": 1}), arc("b", args={"n": 2})])
    g.add("b", next=[arc("c", when=E.args.n == 2, args=E.args)])
    g.add("c")
    await run(world, g.graph)
    assert g.args["c"] == [{"n": 2}]
