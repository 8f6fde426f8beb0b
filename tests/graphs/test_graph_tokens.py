"""Tokens: which steps run, in which order, how often, and with which arguments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.graphs.running import Noting, by_status, run
from tests.laws.counting_driver import fresh_world
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Batch, Client, Context, CriticalError, DefinitionError, InputError, Status
from workflow_sdk.graphs import E, Graph, arc
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

# The first tokens.


async def test_the_first_token_is_on_the_entry(world: World) -> None:
    g = Noting(entry="b")
    g.add("a", next="b")
    g.add("b", 1, next=[arc("a", when=E.output == 2), "c"])
    g.add("c")
    result = await run(world, g.graph)
    assert g.ran == ["b", "c"]
    assert by_status(result) == {"a": "never_reached", "b": "completed", "c": "completed"}


async def test_without_an_entry_the_first_step_has_the_only_token_if_any_step_has_next(world: World) -> None:
    g = Noting()
    g.add("a")
    g.add("b", next="c")
    g.add("c")
    problems = [problem.where for problem in g.graph.validate()]
    assert any("b" in where for where in problems), "b can't be reached, as the token is on a alone"


async def test_the_first_step_that_is_declared_is_the_entry_whatever_its_name(world: World) -> None:
    g = Noting()
    g.add("z", next="start")
    g.add("start", next="a")
    g.add("a")
    result = await run(world, g.graph)
    assert g.ran == ["z", "start", "a"]
    assert result.status == "succeeded"


async def test_without_next_there_is_one_token_on_every_step_without_needs(world: World) -> None:
    g = Noting()
    g.add("a")
    g.add("b")
    g.add("c", needs=["a", "b"])
    g.add("d")
    result = await run(world, g.graph)
    assert sorted(g.ran) == ["a", "b", "c", "d"]
    assert {outcome.firings for outcome in result.outcomes.values()} == {1}


async def test_final_never_has_a_first_token_though_it_is_declared_first(world: World) -> None:
    g = Noting(final="end")
    g.add("end")
    g.add("a", next="b")
    g.add("b")
    await run(world, g.graph)
    assert g.ran == ["a", "b", "end"]


async def test_final_is_no_root_of_a_graph_without_next(world: World) -> None:
    g = Noting(final="end")
    g.add("end")
    g.add("a")
    g.add("b", needs=["a"])
    await run(world, g.graph)
    assert g.ran == ["a", "b", "end"]


@pytest.mark.parametrize("where", ["entry", "final", "next", "needs"])
async def test_a_name_that_no_step_has_is_refused_before_anything_is_written(world: World, where: str) -> None:
    graph = Graph("g", **({where: "nowhere"} if where in ("entry", "final") else {}))  # type: ignore[arg-type]
    options: dict[str, Any] = {where: ["nowhere"]} if where in ("next", "needs") else {}
    g = Noting(graph)
    g.add("a", **options)
    assert any("nowhere" in problem.text for problem in graph.validate())
    async with Client(world.driver) as client:
        with pytest.raises(DefinitionError, match="nowhere"):
            await client.start(graph, id="i")
        assert not (await client.list()).items
    assert g.ran == []


async def test_two_tokens_on_a_step_are_two_firings(world: World) -> None:
    g = Noting()
    g.add("a", next=["b", "c"], mode="inclusive")
    g.add("b", next=arc("d", args={"from": "b"}))
    g.add("c", next=arc("d", args={"from": "c"}))
    g.add("d")
    result = await run(world, g.graph)
    assert sorted(args["from"] for args in g.args["d"]) == ["b", "c"]
    assert result.outcomes["d"].firings == 2
    paths = [entry.path for entry in await world.history() if entry.name.startswith("d") or "/d/" in entry.path]
    assert paths == ["g/d/~0", "g/d/~1"]


async def test_a_graph_is_not_over_while_another_token_is_on_the_same_target(world: World) -> None:
    """Two arcs to one step are two tokens: the second is not merged with the first, nor does it end the run early."""
    go_on = anyio.Event()

    async def slow(ctx: Context, args: Any) -> None:
        await go_on.wait()

    async def counts(ctx: Context, args: Any) -> int:
        go_on.set()
        return g.count("d")

    g = Noting()
    g.add("a", next=["b", "c"], mode="inclusive")
    g.add("b", next="d")
    g.add("c", does=slow, next="d")
    g.add("d", does=counts, next="e")
    g.add("e")
    result = await run(world, g.graph)
    assert (g.count("d"), g.count("e")) == (2, 2)
    assert (result.outcomes["d"].firings, result.outcomes["e"].firings) == (2, 2)
    assert result.status == "succeeded"


@pytest.mark.law(6)
async def test_a_step_that_runs_is_fired_again_beside_itself(world: World) -> None:
    """The first firing of `d` ends once the second has begun."""
    go_on = anyio.Event()

    async def first_waits(ctx: Context, args: Any) -> None:
        if args["n"] == 1:
            await go_on.wait()
        go_on.set()

    async def runs(ctx: Context, args: Any) -> None:
        while not g.count("d"):
            await anyio.lowlevel.checkpoint()

    g = Noting()
    g.add("a", next=[arc("d", args={"n": 1}), arc("b")], mode="inclusive")
    g.add("b", does=runs, next=arc("d", args={"n": 2}))
    g.add("d", does=first_waits)
    result = await run(world, g.graph)
    assert result.outcomes["d"].firings == 2


# Routing.


async def test_exclusive_is_the_default_and_the_first_arc_that_matches_has_the_token(world: World) -> None:
    g = Noting()
    g.add("a", 7, next=[arc("b", when=E.output > 10), arc("c", when=E.output > 5), arc("d", when=E.output > 1), "e"])
    for name in "bcde":
        g.add(name)
    result = await run(world, g.graph)
    assert g.ran == ["a", "c"]
    assert by_status(result) == {
        "a": "completed",
        "c": "completed",
        "b": "never_reached",
        "d": "never_reached",
        "e": "never_reached",
    }
    assert result.status == "succeeded"


async def test_inclusive_gives_a_token_for_every_arc_that_matches(world: World) -> None:
    g = Noting()
    arcs = [arc("b", when=E.output > 10), arc("c", when=E.output > 5), arc("d", when="output > 1"), arc("e")]
    g.add("a", 7, mode="inclusive", next=arcs)
    for name in "bcde":
        g.add(name)
    await run(world, g.graph)
    assert g.ran[0] == "a"
    assert sorted(g.ran[1:]) == ["c", "d", "e"]


async def test_an_arc_without_when_is_true(world: World) -> None:
    g = Noting()
    g.add("a", False, next=arc("b"))
    g.add("b")
    await run(world, g.graph)
    assert g.ran == ["a", "b"]


@pytest.mark.law(6)
async def test_two_inclusive_arcs_to_one_step_are_two_tokens(world: World) -> None:
    g = Noting()
    g.add("a", mode="inclusive", next=[arc("b", args={"n": 1}), arc("b", args={"n": 2})])
    g.add("b")
    await run(world, g.graph)
    assert sorted(args["n"] for args in g.args["b"]) == [1, 2]


async def test_the_arcs_are_asked_once_with_what_was_true_when_the_firing_ended(world: World) -> None:
    """In `b` the context is changed and the instance sleeps; what was decided after `a` stays as it was."""
    g = Noting(context={"n": 1})

    async def later(ctx: Context, args: Any) -> Any:
        ctx.patch(n=2)
        await ctx.sleep("nap", 60)
        return args

    g.add("a", next=[arc("b", when=E.ctx.n == 1, args={"n": E.ctx.n}), arc("c", when=E.ctx.n == 2)])
    g.add("b", does=later)
    g.add("c")
    result = await run(world, g.graph)
    assert set(g.ran) == {"a", "b"}
    assert result.outputs["b"] == {"n": 1}


async def test_no_arcs_end_the_branch_and_nothing_else(world: World) -> None:
    g = Noting()
    g.add("a", next=["b", "c"], mode="inclusive")
    g.add("b")
    g.add("c", next="d")
    g.add("d")
    result = await run(world, g.graph)
    assert sorted(g.ran) == ["a", "b", "c", "d"]
    assert result.status == "succeeded"


async def test_no_arc_that_matches_ends_the_branch_and_nothing_else(world: World) -> None:
    g = Noting()
    g.add("a", next=["b", "c"], mode="inclusive")
    g.add("b", next=[arc("e", when=E.output == 1)])
    g.add("c", next="d")
    g.add("d")
    g.add("e")
    result = await run(world, g.graph)
    assert sorted(g.ran) == ["a", "b", "c", "d"]
    assert result.status == "succeeded"


async def test_no_match_fails_the_graph_if_that_is_asked_for(world: World) -> None:
    g = Noting(no_match="error")
    g.add("a", next=[arc("b", when=E.output == 1)])
    g.add("b")
    result = await run(world, g.graph)
    assert result.status == "failed"
    assert result.outcomes["a"].status == "failed"
    assert result.outcomes["a"].reason


async def test_a_step_without_arcs_is_no_missing_match(world: World) -> None:
    g = Noting(no_match="error")
    g.add("a", next=[arc("b")])
    g.add("b")
    assert (await run(world, g.graph)).status == "succeeded"


async def test_cycles_are_legal(world: World) -> None:
    g = Noting(context={"n": 0})

    async def counts(ctx: Context, args: Any) -> int:
        ctx.patch(n=ctx.vars["n"] + 1)
        return int(ctx.vars["n"])

    g.add("a", does=counts, next="b")
    g.add("b", next=[arc("a", when=E.ctx.n < 5), arc("c")])
    g.add("c")
    result = await run(world, g.graph)
    assert g.ran == ["a", "b"] * 5 + ["c"]
    assert (result.outcomes["a"].firings, result.outputs["a"]) == (5, 5)
    assert (await world.history())["g/a/~4"].value == 5


async def test_a_step_can_lead_to_itself(world: World) -> None:
    g = Noting()

    async def counts(ctx: Context, args: Any) -> int:
        return int(args["n"])

    g.add("start", next=arc("a", args={"n": 1}))
    g.add("a", does=counts, next=arc("a", when=E.output < 4, args={"n": E.output + 1}))
    result = await run(world, g.graph)
    assert result.outcomes["a"].firings == 4
    assert result.outputs["a"] == 4


@pytest.mark.parametrize("name", ["start", "end", "final", "graph", "g", "ctx", "~0", "a/b", "a b", "0", "é", "output"])
async def test_no_name_of_a_step_is_reserved(world: World, name: str) -> None:
    g = Noting()
    g.add("first", 1, next=arc(name, args={"n": E.output}))
    g.add(name, 2, next="last")
    g.add("last")
    result = await run(world, g.graph)
    assert g.ran == ["first", name, "last"]
    assert result.outputs[name] == 2
    entry = next(one for one in await world.history() if one.value == 2)
    assert entry.path in await world.history()


# On what an arc is followed.


async def test_an_arc_is_for_done_by_default(world: World) -> None:
    g = Noting()
    g.add("a", fails="no", next="b")
    g.add("b")
    result = await run(world, g.graph)
    assert g.ran == ["a"]
    assert by_status(result) == {"a": "failed", "b": "never_reached"}
    assert "no" in result.outcomes["a"].reason
    assert result.status == "failed"


async def test_an_arc_for_failed_is_not_followed_after_done(world: World) -> None:
    g = Noting()
    g.add("a", next=arc("b", on="failed"))
    g.add("b")
    result = await run(world, g.graph)
    assert (g.ran, result.status) == (["a"], "succeeded")


@pytest.mark.law(11)
async def test_a_failure_arc_that_is_followed_handles_the_failure(world: World) -> None:
    g = Noting()
    g.add("a", fails="no", next=[arc("b"), arc("c", on="failed", args={"error": E.error})])
    g.add("b")
    g.add("c")
    result = await run(world, g.graph)
    assert g.ran == ["a", "c"]
    assert by_status(result) == {"a": "failed", "b": "never_reached", "c": "completed"}
    assert result.status == "succeeded"
    assert "no" in str(g.args["c"][0]["error"])
    assert "a" not in result.outputs


async def test_a_failure_arc_that_does_not_match_handles_nothing(world: World) -> None:
    g = Noting()
    g.add("a", fails="no", next=[arc("b", on="failed", when=E.workload == 2)])
    g.add("b")
    result = await run(world, g.graph, 1)
    assert g.ran == ["a"]
    assert result.status == "failed"


@pytest.mark.parametrize("fails", [None, "no"])
async def test_an_arc_for_any_is_followed_after_done_and_failed(world: World, fails: str | None) -> None:
    g = Noting()
    g.add("a", 1, fails=fails, next=arc("b", on="any", args={"event": E.event.name, "out": E.output}))
    g.add("b")
    result = await run(world, g.graph)
    assert g.ran == ["a", "b"]
    assert result.status == "succeeded"
    assert g.args["b"] == [{"event": "step.failed" if fails else "step.done", "out": None if fails else 1}]


async def test_after_a_success_there_is_no_error(world: World) -> None:
    g = Noting()
    g.add("a", next=[arc("b", when="error is None"), arc("c")])
    g.add("b")
    g.add("c")
    await run(world, g.graph)
    assert g.ran == ["a", "b"]


# Arguments.


async def test_the_entry_gets_the_workload(world: World) -> None:
    g = Noting()
    g.add("a", next="b")
    g.add("b")
    await run(world, g.graph, {"x": [1]})
    assert g.args == {"a": [{"x": [1]}], "b": [{}]}, "an arc without args gives none"


async def test_every_root_gets_the_workload(world: World) -> None:
    g = Noting()
    g.add("a")
    g.add("b")
    await run(world, g.graph, {"x": 1})
    assert g.args == {"a": [{"x": 1}], "b": [{"x": 1}]}


async def test_arguments_are_made_of_expressions_and_literals(world: World) -> None:
    g = Noting(context={"tone": "kind"})
    args = {
        "id": E.output.id,
        "text": "output.id",
        "deep": [1, {"x": E.output.list[1], "who": E.workload.who}],
        "tone": E.ctx.tone,
        "old": E.args.who,
        "again": E.start.who,
    }
    g.add("a", {"id": 3, "list": [4, 5]}, next=arc("b", args=args))
    g.add("b")
    result = await run(world, g.graph, {"who": "you"})
    assert result.status == "succeeded", result.outcomes["a"].reason
    assert g.args["b"] == [
        {
            "id": 3,
            "text": "output.id",
            "deep": [1, {"x": 5, "who": "you"}],
            "tone": "kind",
            "old": "you",
            "again": "you",
        }
    ]


async def test_results_has_the_latest_output_of_every_step_the_one_that_ends_among_them(world: World) -> None:
    g = Noting()
    g.add("a", {"id": 3}, next=arc("b", args={"a": E.results.a.id}))
    g.add("b", {"id": 4}, next=arc("c", args={"a": E.results.a.id, "b": E.results["b"].id}))
    g.add("c")
    result = await run(world, g.graph)
    assert result.status == "succeeded", result.outcomes
    assert g.args["b"] == [{"a": 3}]
    assert g.args["c"] == [{"a": 3, "b": 4}]


async def test_results_has_no_output_of_an_earlier_firing_of_the_step_that_ends(world: World) -> None:
    async def counts(ctx: Context, args: Any) -> int:
        return int(args.get("n", 0)) + 1

    g = Noting()
    g.add("a", does=counts, next=[arc("a", when=E.output < 3, args={"n": E.output}), arc("b", args=E.results.a)])
    g.add("b")
    result = await run(world, g.graph, {})
    assert result.status == "succeeded", result.outcomes
    assert g.args["b"] == [3]


@pytest.mark.parametrize("value", [[1, 2], {"": 1}, True, False, None, 0, "text"], ids=repr)
async def test_arguments_can_be_one_expression(world: World, value: Any) -> None:
    async def naps(ctx: Context, args: Any) -> Any:
        await ctx.sleep("nap", 60)
        return args

    g = Noting()
    g.add("a", value, next=arc("b", args=E.output))
    g.add("b", does=naps)
    assert (await run(world, g.graph)).outputs["b"] == value


async def test_arguments_are_immutable_what_a_body_does_to_them_is_seen_nowhere(world: World) -> None:
    seen: list[Any] = []

    async def spoils(ctx: Context, args: Any) -> Any:
        seen.append(list(args["list"]))
        args["list"].append("spoiled")
        if len(seen) == 1:
            raise ValueError("once more")
        return None

    g = Noting()
    g.add("a", {"list": [1]}, mode="inclusive", next=[arc("b", args={"list": E.output.list}), arc("c", args=E.output)])
    g.add("b", does=spoils, next=arc("d", args=E.args))
    g.add("c")
    g.add("d")
    result = await run(world, g.graph)
    assert seen == [[1], [1]], "another attempt is given the same"
    assert g.args["c"] == [{"list": [1]}]
    assert g.args["d"] == [{"list": [1]}]
    assert result.outputs["a"] == {"list": [1]}


@dataclass
class Ticket:
    """A workload with a type."""

    id: int
    tags: list[str]


@dataclass
class Triage:
    """An output with a type."""

    kind: str
    score: float


async def test_what_is_annotated_has_its_type_and_expressions_read_its_fields(world: World) -> None:
    graph = Graph("typed", workload=Ticket)
    seen: list[Any] = []

    @graph.step(next=[arc("fix", when=(E.output.kind == "bug") & (E.output.score > 0.5), args=E.output)])
    async def classify(ctx: Context, args: Ticket) -> Triage:
        seen.append(args)
        return Triage("bug", 0.7)

    @graph.step
    async def fix(ctx: Context, args: Triage) -> Triage:
        seen.append(args)
        return args

    result = await run(world, graph, Ticket(1, ["x"]))
    assert seen == [Ticket(1, ["x"]), Triage("bug", 0.7)]
    assert by_status(result) == {"classify": "completed", "fix": "completed"}


async def test_a_workload_that_does_not_fit_is_refused_before_anything_is_written(world: World) -> None:
    g = Noting(workload=Ticket)
    g.add("a")
    async with Client(world.driver) as client:
        with pytest.raises(InputError):
            await client.start(g.graph, {"id": "none"}, id="i")
        assert not (await client.list()).items


# What is wrong with a guard is no "false".


@pytest.mark.law(15)
@pytest.mark.parametrize("guard", ["output.nothing == 1", "output.n", "output.n > 'text'", "len(output.n) > 1"])
async def test_a_guard_that_fails_or_is_no_bool_fails_the_firing_and_is_no_missing_match(
    world: World, guard: str
) -> None:
    g = Noting()
    g.add("a", {"n": 1}, next=[arc("b", when=guard), arc("c")])
    g.add("b")
    g.add("c")
    result = await run(world, g.graph)
    assert g.ran == ["a"], "neither this arc nor the next is followed"
    assert (result.status, result.outcomes["a"].status) == ("failed", "failed")
    assert "output" in result.outcomes["a"].reason
    error = (await world.history())["g/a/~0"].error
    assert error is not None
    assert error.kind == "expression"


async def test_arguments_that_lead_to_nothing_fail_the_firing(world: World) -> None:
    g = Noting()
    g.add("a", {"n": 1}, next=[arc("b", args={"x": E.output.nothing})])
    g.add("b")
    result = await run(world, g.graph)
    assert g.ran == ["a"]
    assert by_status(result) == {"a": "failed", "b": "never_reached"}
    assert "nothing" in result.outcomes["a"].reason


async def test_a_guard_after_the_one_that_matches_is_not_asked(world: World) -> None:
    g = Noting()
    g.add("a", {"n": 1}, next=[arc("b", when=E.output.n == 1), arc("c", when=E.output.nothing == 1)])
    g.add("b")
    g.add("c")
    result = await run(world, g.graph)
    assert (g.ran, result.status) == (["a", "b"], "succeeded")


async def test_a_guard_may_be_a_function_of_python(world: World) -> None:
    g = Noting()
    g.add("a", 3, next=[arc("b", when=lambda scope: scope["output"] == 4), arc("c", when=lambda scope: True)])
    g.add("b")
    g.add("c")
    result = await run(world, g.graph)
    assert (g.ran, result.status) == (["a", "c"], "succeeded")


async def test_a_function_of_python_that_raises_fails_the_firing(world: World) -> None:
    def raises(scope: Any) -> bool:
        raise KeyError("mine")

    g = Noting()
    g.add("a", 3, next=[arc("b", when=raises), arc("c")])
    g.add("b")
    g.add("c")
    result = await run(world, g.graph)
    assert g.ran == ["a"]
    assert (result.status, result.outcomes["a"].status) == ("failed", "failed")


# One commit.


async def _chain(length: int, directory: Path) -> int:
    """How many commits a chain of steps takes."""
    g = Noting()
    for number in range(length):
        g.add(str(number), next=str(number + 1) if number + 1 < length else ())
    async with fresh_world(directory) as world:
        counts: list[int] = []

        def count(number: int, batch: Batch) -> bool:
            counts.append(number)
            return False

        driver = FaultyDriver(world.driver, fail_at=count)
        await world.once(g.graph, driver=driver)
        assert g.ran == [str(number) for number in range(length)]
        return len(counts)


@pytest.mark.law(1)
async def test_the_end_of_a_firing_and_the_start_of_the_next_are_one_commit(tmp_path: Path) -> None:
    few, many = await _chain(10, tmp_path), await _chain(30, tmp_path)
    assert many - few == 20


async def test_end_routing_patches_and_starts_are_never_seen_apart(tmp_path: Path) -> None:
    """Killed after each commit: with the end of `a`, its patch and its tokens are recorded, and it never runs again."""

    async def patches(ctx: Context, args: Any) -> int:
        ctx.patch(n=ctx.vars["n"] + 1)
        return int(ctx.vars["n"])

    async def reads(ctx: Context, args: Any) -> Any:
        return [ctx.vars["n"], args]

    for commit in range(1, 100):
        g = Noting(context={"n": 0})
        g.add("a", does=patches, mode="inclusive", next=[arc("b", args={"n": E.output}), arc("c")])
        g.add("b", does=reads)
        g.add("c")
        async with fresh_world(tmp_path) as world:
            try:
                await world.once(g.graph, driver=FaultyDriver(world.driver, crash_after=commit))
                assert commit > 2
                break
            except BaseException as error:
                if not isinstance(error, (SimulatedCrash, BaseExceptionGroup)):
                    raise
            history = await world.history()
            done = {entry.path for entry in history if entry.status.value == "completed"}
            before = list(g.ran)
            g.ran.clear()
            with anyio.fail_after(PATIENCE):
                result = await world.run(g.graph)
            assert result.status is Status.COMPLETED, before
            assert result.output is not None
            assert result.output.outputs == {"a": 1, "b": [1, {"n": 1}], "c": None}
            for name in "abc":
                assert g.count(name) == (0 if f"g/{name}/~0" in done else 1), (name, done, before)
    else:
        raise AssertionError("it never ended")


async def test_a_step_that_raises_what_is_no_exception_fails_like_any_other(world: World) -> None:
    async def exits(ctx: Context, args: Any) -> None:
        raise SystemExit(3)

    g = Noting()
    g.add("a", does=exits, next=arc("b", on="failed"))
    g.add("b")
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "failed", "b": "completed"}


async def test_a_critical_error_of_a_step_is_told_in_the_reason(world: World) -> None:
    async def raises(ctx: Context, args: Any) -> None:
        raise CriticalError("the disk is full")

    g = Noting()
    g.add("a", does=raises)
    result = await run(world, g.graph)
    assert "the disk is full" in result.outcomes["a"].reason


async def test_two_functions_of_one_name_can_be_steps_of_one_graph(world: World) -> None:
    """A function that makes bodies gives them all its own inner name; so do two modules that call theirs `run`."""

    def made(value: int) -> Any:
        async def body(ctx: Context, args: Any) -> int:
            return value

        return body

    graph = Graph("g")
    graph.step("a", made(1), next="b")
    graph.step("b", made(2))
    result = await run(world, graph)
    assert result.outputs == {"a": 1, "b": 2}


async def test_one_function_can_be_several_steps(world: World) -> None:
    async def body(ctx: Context, args: Any) -> str:
        return ctx.path

    graph = Graph("g")
    graph.step("a", body, next="b")
    graph.step("b", body)
    assert (await run(world, graph)).outputs == {"a": "g/a/~0", "b": "g/b/~0"}
