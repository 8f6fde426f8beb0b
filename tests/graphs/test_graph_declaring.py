"""What is refused when a step is declared, and which functions a step can call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.graphs.running import run
from tests.support import World
from workflow_sdk import (
    Context,
    DefinitionError,
    HistoryDivergedError,
    ListenTimeoutError,
    NotAuthorizedError,
    Runtime,
    StorageError,
    WorkflowStuckError,
    workflow,
)
from workflow_sdk.graphs import E, ExpressionError, Graph, arc, function, node, otherwise, rule, task


async def echo(ctx: Context, args: Any) -> Any:
    """Gives back its arguments."""
    return args


def counts_plainly(ctx: Context, args: Any) -> Any:
    """A body with a ctx and without an `await`."""
    ctx.patch(seen=args)
    return ctx.vars["seen"]


def of_two(_context: Any, args: Any) -> Any:
    """Takes both, under other names."""
    return args


def declared(fn: Callable[..., Any], **options: Any) -> Graph:
    graph = Graph("g")
    graph.step("a", fn, **options)
    return graph


# Functions.


@pytest.mark.parametrize("options", [{}, {"timeout": 60}])
async def test_a_plain_function_with_a_ctx_is_a_body(world: World, options: dict[str, Any]) -> None:
    assert (await run(world, declared(counts_plainly, **options), 7)).outputs == {"a": 7}


async def test_a_plain_function_with_a_ctx_is_a_body_in_every_place_that_takes_one(world: World) -> None:
    graph = Graph("g")
    graph.step("each", counts_plainly, each=[1, 2], next="repeat")
    graph.repeat("repeat", counts_plainly, maximum=2, next="sequence")
    graph.sequence("sequence", [counts_plainly, counts_plainly], next="tasks")
    graph.step("tasks", tasks=[task("one", counts_plainly)], next="fan")
    graph.fan_out("fan", counts_plainly, over=[1, 2])
    outputs = (await run(world, graph, 7)).outputs
    assert (outputs["each"], outputs["repeat"], outputs["fan"]) == ([1, 2], {}, [1, 2])


async def test_a_function_that_asks_for_two_values_is_given_ctx_and_arguments(world: World) -> None:
    assert (await run(world, declared(of_two), 7)).outputs == {"a": 7}


@pytest.mark.parametrize(("fn", "output"), [(max, 3), (len, 2), (str, "[3, 1]"), (sorted, [1, 3])])
async def test_functions_of_python_are_given_the_arguments(world: World, fn: Any, output: Any) -> None:
    assert (await run(world, declared(fn), [3, 1])).outputs == {"a": output}


def _three(ctx: Any, args: Any, more: Any) -> None: ...
def _named(ctx: Any, *, more: Any) -> None: ...
def _yields(ctx: Any, args: Any) -> Iterator[int]:
    yield 1


async def _yields_later(ctx: Any, args: Any) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("fn", [_three, _named, _yields, _yields_later])
def test_a_function_that_no_firing_could_call_is_refused_when_it_is_declared(fn: Any) -> None:
    for declare in (
        lambda: declared(fn),
        lambda: node("a", fn),
        lambda: task("a", fn),
        lambda: Graph("g").best_of("a", echo, n=2, judge=fn),
    ):
        with pytest.raises(DefinitionError, match=r"more|generator"):
            declare()


def test_parameters_that_have_a_value_already_are_no_obstacle() -> None:
    def with_default(ctx: Any, args: Any, more: int = 3, *, other: int = 4) -> None: ...
    def with_key(args: Any, *, idempotency_key: str) -> None: ...
    def with_any(*args: Any, **named: Any) -> None: ...

    for fn in (with_default, with_key, with_any):
        declared(fn)


# Options.


def test_an_option_that_there_is_not_is_told_with_all_that_there_are() -> None:
    with pytest.raises(DefinitionError, match="no option colour") as caught:
        declared(echo, colour=1)
    told = str(caught.value)
    assert all(option in told for option in ("admit", "each", "needs", "next", "parallel", "retries", "tasks"))
    with pytest.raises(DefinitionError, match=r"no option colour; .*args.*needs"):
        node("a", echo, colour=1)


_WRONG: Any = 1


@pytest.mark.parametrize(
    "declare",
    [
        lambda graph: graph.step("a", echo, tasks=[task("one", echo)]),
        lambda graph: graph.step("a", tasks=[task("one", echo)], each=[1]),
        lambda graph: graph.step("a", echo, parallel=2),
        lambda graph: graph.step("a", echo, admit=[rule(when="True", allow=_WRONG)]),
        lambda graph: graph.step("a", echo, admit=[otherwise(allow=_WRONG)]),
        lambda graph: Graph("other", context=_WRONG),
        lambda graph: Graph("other", context={_WRONG: 2}),
    ],
)
def test_what_would_be_passed_over_is_refused(declare: Callable[[Graph], object]) -> None:
    with pytest.raises(DefinitionError):
        declare(Graph("g"))


def test_steps_are_added_by_the_graph_alone() -> None:
    graph = declared(echo)
    with pytest.raises(TypeError):
        graph.nodes["b"] = graph.nodes["a"]  # type: ignore[index]


def test_a_lambda_that_can_not_be_exported_is_told_with_its_place() -> None:
    guarded = declared(echo, next=arc("b", when=lambda scope: scope.output == 1))
    guarded.step("b", lambda args: args)
    with pytest.raises(DefinitionError) as caught:
        guarded.to_data()
    told = str(caught.value)
    assert told.count("the lambda at test_graph_declaring.py, line ") == 2
    assert "0x" not in told


# Graphs that are not sound, wherever they are used.


def unsound() -> Graph:
    return declared(echo, next="nowhere")


async def test_a_graph_that_is_not_sound_is_a_batch_that_is_refused(world: World) -> None:
    async def submits(ctx: Context) -> list[Any]:
        verdict = await ctx.submit(unsound())
        return [bool(verdict), verdict.stage, "nowhere" in verdict.reason]

    assert (await run(world, declared(submits))).outputs == {"a": [False, "definition", True]}


async def test_a_graph_that_is_not_sound_is_no_child() -> None:
    @workflow
    async def parent(ctx: Context) -> None:
        await ctx.child("child", unsound(), 1)

    async with Runtime("memory://", workflows=[parent]) as runtime:
        with pytest.raises(WorkflowStuckError, match="nowhere") as stuck:
            await runtime.run(parent)
    assert stuck.value.error is not None
    assert stuck.value.error.kind == "definition"


def test_errors_of_the_library_say_their_kind() -> None:
    kinds = {DefinitionError: "definition", NotAuthorizedError: "authorization", HistoryDivergedError: "consistency"}
    kinds |= {ListenTimeoutError: "timeout", StorageError: "transport", ExpressionError: "expression"}
    assert all(error.kind == kind for error, kind in kinds.items())  # type: ignore[attr-defined]  # each has one


async def test_roles_that_are_no_texts_are_an_error_of_the_kind_expression(world: World) -> None:
    asked: list[dict[str, Any]] = [{"roles": [E.workload]}, {"roles": E.workload}, {"assignee": E.workload}]
    for options in asked:
        graph = Graph("g")
        graph.task("ask", next=arc("told", on="failed", args=E.error.kind), **options)
        graph.step("told", echo)
        assert (await run(world, graph, 5, id=str(options))).outputs == {"told": "expression"}


# Functions of expressions.


@function
def is_hot(ticket: str) -> bool:
    """What guards ask."""
    return ticket == "hot"


@pytest.mark.parametrize(
    ("when", "functions"),
    [
        ("is_hot(output)", []),
        ("is_hot(output)", [is_hot]),
        ("warm(output)", {"warm": is_hot}),
        (is_hot(E.output), []),  # type: ignore[arg-type]  # a term
        (is_hot(E.output) & True, []),  # type: ignore[arg-type]  # as above
    ],
)
async def test_a_function_that_is_marked_is_called_by_its_name(world: World, when: Any, functions: Any) -> None:
    graph = Graph("g", functions=functions)
    graph.step("a", echo, next=[arc("b", when=when), arc("c")])
    graph.noop("b")
    graph.noop("c")
    assert (await run(world, graph, "hot")).outcomes["b"].status == "completed"


def test_what_is_read_calls_only_the_functions_that_it_is_given() -> None:
    data = declared(echo, next=arc("a", when="is_hot(output)")).to_data()
    assert Graph.from_data(data, functions=[echo, is_hot]).validate() == []
    assert "is_hot()" in str(Graph.from_data(data, functions=[echo]).validate()[0])


def test_a_module_that_builds_a_graph_imports_the_functions_of_its_expressions() -> None:
    text = declared(echo, next=arc("a", when="is_hot(output)")).to_python()
    assert "import echo, is_hot" in text
    assert "functions={'is_hot': is_hot}" in text
