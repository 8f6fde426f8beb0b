"""Controllers: fan_out, best_of, tournament and generate_and_filter add steps to the run, and end with them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs.kinds.ends import end_of, seen, statuses
from tests.support import World
from workflow_sdk import Client, Context, CriticalError, DefinitionError, Status
from workflow_sdk.graphs import E, Graph, GraphResult, Limits, arc, node, quorum
from workflow_sdk.graphs.model import Node
from workflow_sdk.graphs.plays import MATCHES, MISSING, WORKERS, Done, Lost, Round, next_move
from workflow_sdk.testing import crash_everywhere, explore

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


async def double(number: int) -> int:
    calls.append(number)
    return number * 2


async def even_only(number: int) -> int:
    calls.append(number)
    if number % 2:
        raise CriticalError(f"{number} is odd")
    return number


async def rested(ctx: Context, number: int) -> int:
    await ctx.sleep("rest", 10 - number)
    return number * 2


async def most(ctx: Context, numbers: list[int]) -> int:
    return max(numbers)


async def greater(ctx: Context, pair: dict[str, int]) -> str:
    calls.append((pair["left"], pair["right"]))
    return "left" if pair["left"] > pair["right"] else "right"


async def is_even(number: int) -> bool:
    return number % 2 == 0


async def numbers(ctx: Context, args: Any) -> list[int]:
    return list(range(args))


def statuses_of(result: GraphResult, prefix: str) -> dict[str, str]:
    return {name: status for name, status in statuses(result).items() if name.startswith(prefix)}


# Fan out.


@pytest.mark.law(1)
@pytest.mark.parametrize("worker", [double, rested])
async def test_a_fan_out_gives_the_list_of_what_its_workers_gave_in_order(world: World, worker: Any) -> None:
    graph = Graph("fans")
    graph.fan_out("review", worker, over=E.workload, next=arc("look", args={"all": E.output}))
    graph.step("look", seen)
    result = end_of(await world.run(graph, [3, 1, 2]))
    assert result.outputs["review"] == [6, 2, 4]
    assert result.outputs["look"]["args"] == {"all": [6, 2, 4]}
    assert statuses_of(result, "review.") == dict.fromkeys(["review.0", "review.1", "review.2"], "completed")
    assert [result.outputs[f"review.{number}"] for number in range(3)] == [6, 2, 4]


async def test_then_is_given_the_list_and_gives_the_output(world: World) -> None:
    graph = Graph("fans")
    graph.fan_out("review", double, over=E.workload, then=most)
    result = end_of(await world.run(graph, [3, 1]))
    assert result.outputs["review"] == 6
    assert statuses(result)["review.then"] == "completed"


async def test_an_empty_list_is_done_at_once(world: World) -> None:
    graph = Graph("fans")
    graph.fan_out("review", double, over=E.workload, next="after")
    graph.noop("after")
    result = end_of(await world.run(graph, []))
    assert result.outputs["review"] == []
    assert statuses(result) == {"review": "completed", "after": "completed"}


@pytest.mark.law(6)
async def test_a_join_over_an_empty_list_completes_at_once(world: World) -> None:
    graph = Graph("fans")
    graph.fan_out("left", double, over=E.workload)
    graph.fan_out("right", double, over=E.workload)
    graph.step("both", seen, needs=["left", "right"])
    assert end_of(await world.run(graph, [])).outputs["both"]["args"] == {"left": [], "right": []}


async def test_empty_lists_in_a_circle_come_to_an_end(world: World) -> None:
    graph = Graph("fans", context={"n": 0})
    graph.assign("count", {"n": E.ctx.n + 1}, next="review")
    graph.fan_out("review", double, over=[], next=[arc("count", when=E.ctx.n < 300), arc("over")])
    graph.noop("over")
    result = end_of(await world.run(graph))
    assert result.outcomes["review"].firings == 300


async def test_what_is_no_list_is_an_expression_error_of_the_firing(world: World) -> None:
    graph = Graph("fans")
    graph.fan_out("review", double, over=E.workload, next=arc("told", on="failed", args={"kind": E.error.kind}))
    graph.step("told", seen)
    result = end_of(await world.run(graph, {"no": "list"}))
    assert result.outputs["told"]["args"] == {"kind": "expression"}
    assert "a list" in result.outcomes["review"].reason


async def test_a_path_that_is_missing_is_an_expression_error_of_the_firing(world: World) -> None:
    graph = Graph("fans")
    graph.fan_out("review", double, over=E.workload.missing, next=arc("told", on="failed", args={"kind": E.error.kind}))
    graph.step("told", seen)
    assert end_of(await world.run(graph, {})).outputs["told"]["args"] == {"kind": "expression"}


async def test_a_failed_worker_fails_the_fan_out_after_the_others_have_ended_and_is_named(world: World) -> None:
    graph = Graph("fans", limits=Limits(running=1))
    told = arc("told", on="failed", args={"type": E.error.type, "message": E.error.message})
    graph.fan_out("review", even_only, over=E.workload, next=told)
    graph.step("told", seen)
    result = end_of(await world.run(graph, [2, 3, 4]))
    assert calls == [2, 3, 4]
    assert statuses_of(result, "review") == {
        "review": "failed", "review.0": "completed", "review.1": "failed", "review.2": "completed",
    }  # fmt: skip
    assert "'review.1'" in result.outputs["told"]["args"]["message"]
    assert "3 is odd" in result.outputs["told"]["args"]["message"]
    assert result.status == "succeeded", "an arc has handled the failure of all of it"


async def test_a_failure_that_no_arc_handles_fails_the_graph(world: World) -> None:
    graph = Graph("fans")
    graph.fan_out("review", even_only, over=E.workload)
    run = await world.run(graph, [2, 3])
    assert run.status is Status.FAILED
    assert run.error is not None
    assert "review.1" in run.error.message


async def test_fail_fast_waits_for_the_controller(world: World) -> None:
    graph = Graph("fans", status="fail_fast", limits=Limits(running=1))
    graph.fan_out("review", even_only, over=E.workload, next=arc("mend", on="failed"))
    graph.step("mend", seen)
    result = end_of(await world.run(graph, [3, 2]))
    assert (result.status, calls) == ("succeeded", [3, 2])


async def test_workers_have_the_options_of_the_controller(world: World) -> None:
    async def shaky(number: int) -> int:
        calls.append(number)
        if len(calls) < 3:
            raise ConnectionError("not now")
        return number

    graph = Graph("fans")
    graph.fan_out("review", shaky, over=[1], retries=2)
    assert end_of(await world.run(graph)).outputs["review"] == [1]
    assert calls == [1, 1, 1]


# Limits, trust, names.


async def test_a_controller_takes_no_slot_of_those_that_run(world: World) -> None:
    graph = Graph("fans", limits=Limits(running=1))
    graph.fan_out("review", rested, over=[1, 2])
    assert end_of(await world.run(graph)).outputs["review"] == [2, 4]


async def test_workers_count_as_steps_and_as_starts(world: World) -> None:
    graph = Graph("fans", status="lenient", limits=Limits(nodes=3))
    graph.fan_out("review", double, over=[1, 2, 3])
    result = end_of(await world.run(graph))
    assert result.status == "partial"
    assert statuses(result) == {
        "review": "failed", "review.0": "completed", "review.1": "completed", "review.2": "denied",
    }  # fmt: skip
    assert "review.2" in result.outcomes["review"].reason

    graph = Graph("starts", status="lenient", limits=Limits(starts=2))
    graph.fan_out("review", double, over=[1, 2])
    result = end_of(await world.run(graph, id="j"))
    assert statuses(result) == {"review": "failed", "review.0": "completed", "review.1": "denied"}


@pytest.mark.law(18)
async def test_what_the_workers_of_a_quarantined_controller_submit_is_quarantined(world: World) -> None:
    async def submitting(ctx: Context, number: int) -> bool:
        return bool(await ctx.submit([node(f"more {number}", even_only, args=2, access="write")]))

    graph = Graph("fans", status="lenient", functions=[even_only])
    graph.fan_out("review", submitting, over=[1], trust="quarantined")
    result = end_of(await world.run(graph))
    assert statuses(result) == {"review": "completed", "review.0": "completed", "more 1": "denied"}


async def test_a_controller_that_fires_again_gives_its_workers_other_names(world: World) -> None:
    graph = Graph("fans", context={"n": 0})
    graph.assign("count", {"n": E.ctx.n + 1}, next="review")
    graph.fan_out("review", double, over="[ctx.n]", next=[arc("count", when=E.ctx.n < 3), arc("over")])
    graph.noop("over")
    result = end_of(await world.run(graph))
    assert result.outputs["review"] == [6]
    assert list(statuses_of(result, "review")) == ["review", "review.0", "review#1.0", "review#2.0"]
    assert result.outputs["review#1.0"] == 4


async def test_a_name_that_is_taken_fails_the_controller(world: World) -> None:
    graph = Graph("fans")
    graph.fan_out("review", double, over=[1], next=arc("review.0", on="failed"))
    graph.noop("review.0")
    result = end_of(await world.run(graph))
    assert "there is one already" in result.outcomes["review"].reason


@pytest.mark.law(7)
async def test_a_controller_that_loses_a_race_takes_its_workers_along(world: World) -> None:
    graph = Graph("races")
    graph.noop("begin", mode="inclusive", next=["quick", "slow"])
    graph.wait("quick", duration=1)
    graph.fan_out("slow", rested, over=[1, 2])
    graph.step("first", seen, needs=["quick", "slow"], join=quorum(1))
    result = end_of(await world.run(graph))
    assert statuses_of(result, "slow") == dict.fromkeys(["slow", "slow.0", "slow.1"], "cancelled")
    assert statuses(result)["first"] == "completed"


async def test_a_join_waits_for_the_controllers_of_its_own_fork_instance(world: World) -> None:
    graph = Graph("forks", context={"n": 0})
    graph.assign("count", {"n": E.ctx.n + 1}, mode="inclusive", next=["review", "other"])
    graph.fan_out("review", rested, over="[ctx.n, 2]")
    graph.wait("other", duration=3)
    after = [arc("count", when=E.ctx.n < 3), arc("over")]
    graph.step("both", seen, needs=["review", "other"], next=after)
    graph.step("any", seen, needs=["review", "other"], join="alive")
    graph.noop("over")
    result = end_of(await world.run(graph))
    assert result.outputs["both"]["args"] == {"review": [6, 4], "other": None}
    assert {name: result.outcomes[name].firings for name in ("review", "both", "any")} == {
        "review": 3, "both": 3, "any": 3,
    }  # fmt: skip
    await crash_everywhere(graph, commits_max=15)


async def test_a_cancelled_controller_survives_every_crash() -> None:
    graph = Graph("races")
    graph.noop("begin", mode="inclusive", next=["quick", "slow"])
    graph.wait("quick", duration=5)
    graph.fan_out("slow", rested, over=[1, 8])
    graph.step("first", seen, needs=["quick", "slow"], join=quorum(1))
    await crash_everywhere(graph)


# Best of.


async def test_best_of_gives_what_the_judge_chooses(world: World) -> None:
    async def attempt(ctx: Context, args: int) -> int:
        calls.append(args)
        return args + len(calls)

    graph = Graph("best")
    graph.best_of("draft", attempt, n=3, judge=most)
    result = end_of(await world.run(graph, 10))
    assert result.outputs["draft"] == 13
    assert calls == [10, 10, 10]
    assert list(statuses(result)) == ["draft", "draft.0", "draft.1", "draft.2", "draft.judge"]


async def test_best_of_goes_on_with_those_that_are_there(world: World) -> None:
    async def attempt(args: Any) -> int:
        calls.append(args)
        if len(calls) == 2:
            raise CriticalError("no idea")
        return len(calls)

    graph = Graph("best", limits=Limits(running=1))
    graph.best_of("draft", attempt, n=3, judge=sorted)
    result = end_of(await world.run(graph))
    assert result.outputs["draft"] == [1, 3]
    assert (result.status, statuses(result)["draft.1"]) == ("succeeded", "failed")


async def test_best_of_fails_if_none_is_there(world: World) -> None:
    graph = Graph("best")
    graph.best_of("draft", even_only, n=2, judge=most, next=arc("mend", on="failed"))
    graph.noop("mend")
    result = end_of(await world.run(graph, 3))
    assert statuses(result) == {"draft": "failed", "mend": "completed", "draft.0": "failed", "draft.1": "failed"}


async def test_a_judge_that_fails_fails_the_controller(world: World) -> None:
    async def judge(candidates: list[int]) -> None:
        raise CriticalError("can't tell")

    graph = Graph("best")
    graph.best_of("draft", double, n=2, judge=judge, next=arc("mend", on="failed"))
    graph.noop("mend")
    assert "can't tell" in end_of(await world.run(graph, 3)).outcomes["draft"].reason


# Tournament.


async def test_a_tournament_compares_in_pairs_and_an_odd_one_passes_on(world: World) -> None:
    graph = Graph("cup", limits=Limits(running=1))
    graph.tournament("cup", E.workload, judge=greater)
    result = end_of(await world.run(graph, [3, 1, 5, 2, 4]))
    assert result.outputs["cup"] == 5
    assert calls == [(3, 1), (5, 2), (3, 5), (5, 4)]


async def test_functions_can_be_entrants_and_one_that_fails_loses(world: World) -> None:
    async def broken(args: int) -> int:
        raise CriticalError("hurt")

    async def plus(ctx: Context, args: int) -> int:
        return args + 1

    graph = Graph("cup")
    graph.tournament("cup", [double, broken, plus], judge=greater)
    result = end_of(await world.run(graph, 5))
    assert result.outputs["cup"] == 10
    assert result.status == "succeeded"
    assert statuses_of(result, "cup") == {
        "cup": "completed", "cup.0": "completed", "cup.1": "failed", "cup.2": "completed", "cup.match.0": "completed",
    }  # fmt: skip


async def test_a_judge_may_give_the_better_one_itself(world: World) -> None:
    graph = Graph("cup")
    graph.tournament("cup", ["pear", "fig", "banana"], judge=lambda pair: max(pair["left"], pair["right"], key=len))
    assert end_of(await world.run(graph)).outputs["cup"] == "banana"


@pytest.mark.parametrize(("entrants", "words"), [([], "no entrants"), ([1, 2], "not 'neither'")])
async def test_a_tournament_without_a_winner_fails(world: World, entrants: list[int], words: str) -> None:
    graph = Graph("cup")
    graph.tournament("cup", entrants, judge=lambda pair: "neither", next=arc("mend", on="failed"))
    graph.noop("mend")
    assert words in end_of(await world.run(graph)).outcomes["cup"].reason


async def test_a_tournament_of_one_is_won(world: World) -> None:
    graph = Graph("cup")
    graph.tournament("cup", [7], judge=greater)
    assert end_of(await world.run(graph)).outputs["cup"] == 7
    assert calls == []


class _Outputs:
    """What the steps of a controller gave."""

    def __init__(self, outputs: list[Any]) -> None:
        self.given = outputs

    def outputs(self, role: str, first: int, count: int) -> list[Any]:
        return self.given

    def lost(self, role: str, first: int, count: int) -> dict[str, Exception]:
        return {f"{role}.{at}": ValueError() for at, output in enumerate(self.given) if output is MISSING}


@given(st.lists(st.integers(), min_size=1, max_size=40))
def test_every_tournament_is_won_by_the_best_after_as_many_matches_as_there_are_losers(entrants: list[int]) -> None:
    cup = Node("cup", "tournament", details={"judge": greater})
    matches, move = 0, next_move(cup, None, {"over": entrants}, None, _Outputs([]))
    while isinstance(move, Round):
        assert (move.role, move.first) == (MATCHES, matches)
        matches += len(move.given)
        chosen = ["left" if pair["left"] >= pair["right"] else "right" for pair in move.given]
        move = next_move(cup, None, {}, move.note, _Outputs(chosen))
    assert move == Done(max(entrants))
    assert matches == len(entrants) - 1


@given(st.lists(st.integers() | st.just(MISSING), min_size=1, max_size=20))
def test_every_fan_out_gives_all_outputs_or_names_what_is_lost(outputs: list[Any]) -> None:
    fan = Node("fan", "fan_out", fn=double)
    first = next_move(fan, None, {"over": outputs}, None, _Outputs([]))
    assert isinstance(first, Round)
    assert (first.role, list(first.given)) == (WORKERS, outputs)
    move = next_move(fan, None, {}, first.note, _Outputs(outputs))
    lost = [f"{WORKERS}.{at}" for at, output in enumerate(outputs) if output is MISSING]
    if lost:
        assert isinstance(move, Lost)
        assert lost[0] in str(move.failure)
    else:
        assert move == Done(outputs)


# Generate and filter.


async def test_generate_and_filter_gives_the_items_that_are_kept_in_order(world: World) -> None:
    graph = Graph("ideas")
    graph.generate_and_filter("ideas", numbers, is_even)
    result = end_of(await world.run(graph, 5))
    assert result.outputs["ideas"] == [0, 2, 4]
    assert list(statuses(result)) == ["ideas", "ideas.generate", *(f"ideas.{number}" for number in range(5))]


async def test_nothing_generated_is_nothing_kept(world: World) -> None:
    graph = Graph("ideas")
    graph.generate_and_filter("ideas", numbers, is_even)
    assert end_of(await world.run(graph, 0)).outputs["ideas"] == []


@pytest.mark.parametrize(("generate", "keep"), [(even_only, is_even), (double, is_even), (numbers, even_only)])
async def test_a_generator_or_filter_that_fails_fails_the_controller(world: World, generate: Any, keep: Any) -> None:
    graph = Graph("ideas")
    graph.generate_and_filter("ideas", generate, keep, next=arc("mend", on="failed"))
    graph.noop("mend")
    assert statuses_of(end_of(await world.run(graph, 3)), "ideas")["ideas"] == "failed"


# Crashes.


def of_all_kinds() -> Graph:
    graph = Graph("controls", context={"n": 0}, limits=Limits(running=2))
    graph.assign("count", {"n": E.ctx.n + 1}, next="review")
    graph.fan_out("review", rested, over=[1, 2], then=most, next=[arc("count", when=E.ctx.n < 2), arc("draft", args=2)])
    graph.best_of("draft", even_only, n=2, judge=most, next="cup")
    graph.tournament("cup", [3, 1, 2], judge=greater, next=arc("ideas", args=2))
    graph.generate_and_filter("ideas", numbers, is_even)
    return graph


async def test_controllers_survive_every_crash() -> None:
    await crash_everywhere(of_all_kinds())


async def test_controllers_of_a_document_run_as_those_of_the_code(world: World) -> None:
    graph = of_all_kinds()
    functions = [rested, most, even_only, greater, numbers, is_even]
    read = Graph.from_data(graph.to_data(), functions=functions)
    assert read.hash == graph.hash
    assert end_of(await world.run(read)) == end_of(await world.run(graph, id="j"))


def test_exploring_takes_a_controller_for_one_step() -> None:
    assert explore(of_all_kinds()).findings == []
    graph = Graph("waits")
    graph.fan_out("review", rested, over=[1], next="gate")
    graph.noop("gate", admit=False)
    assert {finding.node for finding in explore(graph).findings} == {"gate"}


async def test_controllers_that_fail_survive_every_crash() -> None:
    graph = Graph("fails")
    graph.fan_out("review", even_only, over=[1, 2, 3], next=arc("draft", on="failed", args=3))
    graph.best_of("draft", even_only, n=2, judge=most, next=arc("cup", on="failed"))
    graph.tournament("cup", [double, even_only], judge=greater, next=arc("over", on="any"))
    graph.noop("over")
    await crash_everywhere(graph)


async def test_controllers_go_on_after_each_eviction(world: World) -> None:
    result = end_of(await world.run(of_all_kinds()))
    assert {name: result.outputs[name] for name in ("review", "draft", "cup", "ideas")} == {
        "review": 4, "draft": 2, "cup": 3, "ideas": [0],
    }  # fmt: skip
    assert list(statuses_of(result, "review#")) == ["review#1.0", "review#1.1", "review#1.then"]


async def test_controllers_can_be_restarted_from_each_of_their_firings(world: World) -> None:
    graph = of_all_kinds()
    first = end_of(await world.run(graph))
    paths = [entry.path for entry in await world.history() if entry.path.startswith("controls/")]
    firings = [path for path in paths if path.count("/") == 2]
    assert len(firings) == sum(outcome.firings for outcome in first.outcomes.values())
    for number, path in enumerate(firings):
        id = f"i{number}"
        await world.run(graph, id=id)
        async with Client(world.driver, clock=world.clock) as client:
            await client.handle(graph, id).restart_from(path)
        again = end_of(await world.run(graph, id=id))
        assert again == first, path
        assert {entry.path for entry in await world.history(id) if entry.path.count("/") == 2} == set(firings)


async def test_recovering_runs_the_workers_again_that_have_failed(world: World) -> None:
    broken = {2, 3}

    async def shaky(number: int) -> int:
        calls.append(number)
        if number in broken:
            raise CriticalError("not now")
        return number

    graph = Graph("fans", limits=Limits(running=1))
    graph.fan_out("review", shaky, over=[1, 2, 3, 4], then=most, next="after")
    graph.noop("after")
    assert (await world.run(graph)).status is Status.FAILED
    broken.clear()
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(graph, "i").recover()
    result = end_of(await world.run(graph))
    assert result.outputs["review"] == 4
    assert calls == [1, 2, 3, 4, 2, 3]


async def test_what_workers_have_done_is_undone_also_by_functions_without_a_name(world: World) -> None:
    async def undo(number: int) -> None:
        calls.append(f"undo {number}")

    graph = Graph("fans", limits=Limits(running=1))
    graph.fan_out("review", double, over=[1, 2], rollback=undo, next="pause")
    graph.wait("pause", duration=60, next=arc("fail", args=3))
    graph.step("fail", even_only)
    assert (await world.run(graph)).status is Status.ROLLED_BACK
    assert calls[:2] == [1, 2]
    assert sorted(map(str, calls[-2:])) == ["undo 2", "undo 4"]


async def test_a_graph_with_controllers_can_be_submitted(world: World) -> None:
    more = Graph("more")
    more.fan_out("inner", double, over=[1, 2])

    async def submits(ctx: Context, args: Any) -> bool:
        return bool(await ctx.submit(more))

    graph = Graph("fans", functions=[double])
    graph.step("outer", submits)
    result = end_of(await world.run(graph))
    assert result.outputs == {"outer": True, "inner": [2, 4], "inner.0": 2, "inner.1": 4}


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda graph: graph.fan_out("a", "double", over=[1]), "worker is a function"),
        (lambda graph: graph.fan_out("a", double, over=3), "is no expression"),
        (lambda graph: graph.best_of("a", double, n=0, judge=most), "from 1 on"),
        (lambda graph: graph.best_of("a", double, n=2, judge=None), "judge is a function"),
        (lambda graph: graph.tournament("a", [double, 3], judge=most), "an entrant beside functions"),
        (lambda graph: graph.generate_and_filter("a", numbers, 3), "keep is a function"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(declare: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        declare(Graph("wrong"))
