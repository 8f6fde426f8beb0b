"""Pipelines: tasks in order inside one firing, and the rules that say how they go on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.graphs.kinds.ends import end_of, seen, statuses
from tests.support import World
from workflow_sdk import Backoff, Context, CriticalError, DefinitionError, step
from workflow_sdk.graphs import E, Graph, arc, on, task
from workflow_sdk.graphs import pipeline as pipelines
from workflow_sdk.testing import crash_everywhere

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def failing(*errors: Exception | None) -> Any:
    """A function that fails like this, one after the other, and then gives what it was given."""
    left = list(errors)

    async def fetch(given: Any) -> Any:
        calls.append("fetch")
        error = left.pop(0) if left else None
        if error is not None:
            raise error
        return given

    return fetch


async def parse(given: Any) -> Any:
    calls.append("parse")
    return {"parsed": given}


async def save(ctx: Context, given: Any) -> Any:
    calls.append("save")
    ctx.patch(saved=given)
    return {"saved": given}


def pipeline(*tasks: Any, **options: Any) -> Graph:
    graph = Graph("pipeline", status="lenient")
    told = arc("told", on="failed", args={"kind": E.error.kind, "message": E.error.message})
    graph.step("load", tasks=list(tasks), next=["look", told], **options)
    graph.step("look", seen)
    graph.step("told", seen)
    return graph


async def test_each_task_is_given_what_the_one_before_it_gave(world: World) -> None:
    graph = pipeline(task("fetch", failing()), task("parse", parse), task("save", save))
    result = end_of(await world.run(graph, 1))
    assert result.outputs["load"] == {"saved": {"parsed": 1}}
    assert result.outputs["look"]["context"] == {"saved": {"parsed": 1}}
    assert calls == ["fetch", "parse", "save"]


async def test_without_a_rule_a_failed_task_fails_the_firing_at_once(world: World) -> None:
    result = end_of(await world.run(pipeline(task("fetch", failing(ValueError("no"))), task("parse", parse)), 1))
    assert result.outputs["told"]["args"] == {"kind": "application", "message": "no"}
    assert calls == ["fetch"]


async def test_a_retry_waits_and_runs_the_task_again(world: World) -> None:
    backoff = Backoff(initial=timedelta(minutes=1), jitter=0)
    late = on(E.error.kind == "timeout").retry(3, backoff=backoff)
    graph = pipeline(task("fetch", failing(TimeoutError(), TimeoutError()), policy=[late]), task("parse", parse))
    before = world.clock.time()
    result = end_of(await world.run(graph, 1))
    assert result.outputs["load"] == {"parsed": 1}
    assert calls == ["fetch", "fetch", "fetch", "parse"]
    # A waiting time of a minute, then two.
    assert 25 <= world.clock.time() - before <= 185


async def test_a_retry_that_is_used_up_leaves_it_to_the_rules_after_it(world: World) -> None:
    policy = [on(E.error.kind == "timeout").retry(2), on(E.error.kind == "timeout").jump("save")]
    fetch = task("fetch", failing(*[TimeoutError()] * 9), policy=policy)
    result = end_of(await world.run(pipeline(fetch, task("parse", parse), task("save", save)), 1))
    assert result.outputs["load"] == {"saved": 1}
    assert calls == ["fetch", "fetch", "fetch", "save"]


async def test_a_retry_that_is_used_up_fails_if_no_rule_is_left(world: World) -> None:
    fetch = task("fetch", failing(*[TimeoutError("late")] * 9), policy=on(E.error.kind == "timeout").retry(1))
    result = end_of(await world.run(pipeline(fetch), 1))
    assert result.outputs["told"]["args"] == {"kind": "timeout", "message": "late"}
    assert calls == ["fetch", "fetch"]


async def test_the_first_rule_that_matches_wins(world: World) -> None:
    policy = [on(E.error.kind == "timeout").fail(), on().continue_(), on().fail()]
    result = end_of(
        await world.run(pipeline(task("fetch", failing(ValueError()), policy=policy), task("parse", parse)), 1)
    )
    assert result.outputs["load"] == {"parsed": 1}


async def test_break_ends_the_step_with_what_was_done_last(world: World) -> None:
    policy = [on(E.output.parsed == 1).break_()]
    graph = pipeline(task("parse", parse, policy=policy), task("save", save))
    assert end_of(await world.run(graph, 1)).outputs["load"] == {"parsed": 1}
    assert end_of(await world.run(graph, 2, id="j")).outputs["load"] == {"saved": {"parsed": 2}}


async def test_fail_fails_the_step_also_after_a_task_that_was_done(world: World) -> None:
    graph = pipeline(task("parse", parse, policy=[on(E.output.parsed == 1).fail()]))
    result = end_of(await world.run(graph, 1))
    assert "a rule of it fails the step" in result.outputs["told"]["args"]["message"]


async def test_a_jump_back_repeats_tasks_until_a_rule_says_otherwise(world: World) -> None:
    async def grow(given: int) -> int:
        calls.append("grow")
        return given + 1

    graph = pipeline(task("grow", grow), task("look", grow, policy=[on(E.output < 6).jump("grow")]), task("save", save))
    assert end_of(await world.run(graph, 1)).outputs["load"] == {"saved": 7}
    assert calls == ["grow"] * 6 + ["save"]


async def test_a_loop_of_jumps_that_never_ends_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "JUMPS_MAX", 5)
    result = end_of(await world.run(pipeline(task("fetch", failing(), policy=[on().jump("fetch")])), 1))
    assert "have jumped 5 times" in result.outputs["told"]["args"]["message"]
    assert calls == ["fetch"] * 6


async def test_rules_read_the_context_the_workload_and_what_the_task_was_given(world: World) -> None:
    policy = [on((E.ctx.strict == E.workload.strict) & (E.args == "a") & (E.event.name == "step.done")).jump("save")]
    start = Graph("starts", context={"strict": True})
    start.noop("begin", next=arc("first", args="a"))
    start.step("first", tasks=[task("fetch", failing(), policy=policy), task("parse", parse), task("save", save)])
    assert end_of(await world.run(start, {"strict": True})).outputs["first"] == {"saved": "a"}
    assert end_of(await world.run(start, {"strict": False}, id="j")).outputs["first"] == {"saved": {"parsed": "a"}}


async def test_a_rule_patches_the_context_of_the_graph(world: World) -> None:
    large = on(E.output > 5, patch={"size": "large", "n": E.output + 1}).continue_()
    policy = [large, on(patch={"size": "small"}).fail()]
    look = task("look", parse, policy=on(E.ctx.size == "large").break_())
    graph = pipeline(task("fetch", failing(), policy=policy), look, task("save", save))
    result = end_of(await world.run(graph, 6))
    assert result.outputs["load"] == {"parsed": 6}, "the next rule sees it"
    assert result.outputs["look"]["context"] == {"size": "large", "n": 7}
    result = end_of(await world.run(graph, 1, id="j"))
    assert result.outputs["told"]["args"]["kind"] == "application"
    assert result.outcomes["load"].status == "failed", "and what a failed firing has patched is dropped"


async def test_a_task_without_a_function_gives_what_it_was_given(world: World) -> None:
    decide = task("decide", None, policy=[on(E.output == 1).jump("save"), on(E.output == 2).fail()])
    graph = pipeline(task("fetch", failing()), decide, task("parse", parse), task("save", save))
    assert end_of(await world.run(graph, 1)).outputs["load"] == {"saved": 1}
    assert "told" in end_of(await world.run(graph, 2, id="j")).outputs
    assert end_of(await world.run(graph, 3, id="k")).outputs["load"] == {"saved": {"parsed": 3}}


async def test_what_a_rule_has_put_into_the_context_stays_after_a_crash() -> None:
    graph = Graph("pipeline", context={"n": 0})
    counts = on(E.ctx.n < 3, patch={"n": E.ctx.n + 1, "first": E.results.first}).jump("add")
    graph.noop("first", next=arc("load", args=1))
    graph.step("load", tasks=[task("add", add_one), task("turn", None, policy=counts)], next="look")
    graph.step("look", seen)
    await crash_everywhere(graph)


async def test_a_rule_without_an_answer_fails_the_step_with_the_kind_expression(world: World) -> None:
    result = end_of(await world.run(pipeline(task("fetch", failing(), policy=[on(E.ctx.missing == 1).break_()])), 1))
    assert result.outputs["told"]["args"]["kind"] == "expression"


async def test_a_task_has_the_options_of_a_step(world: World) -> None:
    @step(retries=2)
    async def decorated(given: Any) -> Any:
        calls.append("decorated")
        if len(calls) < 3:
            raise ValueError("not yet")
        return given

    assert end_of(await world.run(pipeline(task("work", decorated)), 1)).outputs["load"] == 1
    assert calls == ["decorated"] * 3
    calls.clear()
    shaky = task("fetch", failing(ValueError(), ValueError()), retries=2)
    assert end_of(await world.run(pipeline(shaky), 1, id="j")).outputs["load"] == 1


async def odd_fails(number: int) -> int:
    calls.append(number)
    if number % 2:
        raise CriticalError("odd")
    return number


async def add_one(ctx: Context, number: int) -> int:
    await ctx.sleep("rest", 5)
    ctx.patch(**{f"at {number}": True})
    return number + 1


async def test_what_is_done_is_not_run_again_after_a_crash() -> None:
    graph = Graph("pipeline")
    check = task("check", odd_fails, policy=[on(E.error.message == "odd").retry(1), on(E.error != None).continue_()])  # noqa: E711
    again = task("add", add_one, policy=[on(E.output < 6).jump("check")])
    graph.step("load", tasks=[check, again, task("end", odd_fails)], next="look")
    graph.step("look", seen)
    await crash_everywhere(graph, 3)


async def test_a_failing_pipeline_survives_every_crash() -> None:
    graph = Graph("pipeline")
    graph.step("load", tasks=[task("add", add_one), task("check", odd_fails)], next=arc("mend", on="failed"))
    graph.noop("mend")
    await crash_everywhere(graph, 2)


async def test_a_pipeline_that_takes_too_long_fails_with_the_kind_timeout(world: World) -> None:
    async def slow(ctx: Context, given: Any) -> None:
        await ctx.sleep("long", 1000)

    result = end_of(await world.run(pipeline(task("slow", slow), timeout=10), 1))
    assert result.outputs["told"]["args"]["kind"] == "timeout"
    assert statuses(result)["load"] == "failed"


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: Graph("g").step("a", tasks=[]), "a list of task"),
        (lambda: Graph("g").step("a", tasks=[parse]), "a list of task"),
        (lambda: Graph("g").step("a", tasks=[task("x", parse), task("x", parse)]), "two tasks of one label"),
        (lambda: Graph("g").step("a", tasks=[task("x", parse, policy=on().jump("y"))]), "jumps to 'y'"),
        (lambda: task("x:1", parse), "without colons"),
        (lambda: on(patch=["n"]), "a dict of names"),  # type: ignore[arg-type]
        (lambda: on(patch={"$": "ctx.n"}), "a dict of names"),
        (lambda: task("x", "parse"), "a function to call"),  # type: ignore[arg-type]
        (lambda: task("x", parse, policy=["retry"]), "a list of rules"),
        (lambda: on().retry(0), "from 1 on"),
        (lambda: on().jump(""), "the label of a task"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(declare: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        declare()
