"""Rules of playbooks, version 10: each test is named after the section of the rules that it holds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs.conformance.books import Book, admit, admit_if, deaths, failing, raises, rule, to, waits
from tests.graphs.running import Noting, by_status, run, tell, waiting
from tests.patience import PATIENCE
from tests.runtime.parts import until_status
from tests.support import World
from workflow_sdk import Client, Context, DefinitionError, Driver, Runtime, Status
from workflow_sdk.graphs import E, Graph, InvalidGraphError, Limits, arc


def paths(history: Any, kind: str = "firing") -> list[str]:
    """The paths of what is recorded of one kind."""
    return [entry.path for entry in history if entry.kind.value == kind]


# The introduction.


def test_0_the_root_has_metadata_keychain_executor_workload_workflow_and_workbook() -> None:
    b = Book({"x": 1})
    b.then("a")
    b.data |= {"keychain": [{"name": "bank", "kind": "secret"}], "workbook": [{"name": "common"}]}
    assert b.made().validate() == []
    for left_out in ("keychain", "executor", "workload", "workbook"):
        b.data.pop(left_out)
        assert b.made().validate() == [], f"{left_out} is optional"
    for needed in ("metadata", "workflow"):
        with pytest.raises(DefinitionError, match=needed):
            Graph.from_playbook({key: value for key, value in b.data.items() if key != needed}, b.functions)
    with pytest.raises(DefinitionError, match="steps"):
        Graph.from_playbook({**b.data, "steps": []}, b.functions)


def test_0_the_workflow_is_an_array_of_steps() -> None:
    b = Book()
    b.then("a")
    with pytest.raises(InvalidGraphError, match="workflow"):
        Graph.from_playbook({**b.data, "workflow": {"a": b.data["workflow"][0]}}, b.functions)


# 1.1. Steps as transitions.


async def test_1_1_a_token_is_control_that_is_ready_to_run_a_step(world: World) -> None:
    b = Book()
    b.then("a", to("b", n=1), to("b", n=2), mode="inclusive")
    b.then("b")
    result = await run(world, b.made())
    assert sorted(args["n"] for args in b.args["b"]) == [1, 2], "two tokens on a step run it twice"
    assert result.outcomes["b"].firings == 2


async def test_1_1_a_step_takes_the_token_when_it_starts(world: World) -> None:
    """While it is under way, however often it is loaded again, nothing else can start by that token."""
    b = Book()
    b.then("a", tool=b.tool("a", does=waits("answer")))
    graph = b.made()
    for _ in range(3):
        await waiting(world, graph)
        assert paths(await world.history()) == ["g/a/~0"]
    await world.send("answer", 42)
    assert (await run(world, graph)).outcomes["a"].firings == 1


async def test_1_1_arcs_make_the_tokens_of_the_steps_after_it(world: World) -> None:
    b = Book()
    b.then("a", to("c"))
    b.then("b")
    b.then("c", to("b"))
    await run(world, b.made())
    assert b.ran == ["a", "c", "b"]


# 1.2. Who does what: there is no server. A client writes the start, and whichever worker has it does the rest.


async def test_1_2_who_starts_it_runs_nothing_and_a_worker_does_the_rest(driver: Driver) -> None:
    b = Book()
    b.then("a", to("b"))
    b.then("b")
    graph = b.made()
    async with Client(driver) as client:
        handle = await client.start(graph, {}, id="i")
        assert (b.ran, (await handle.info()).status.is_terminal) == ([], False)
        async with Runtime(driver, workflows=[graph]):
            assert (await handle.result(timeout=PATIENCE)).status == "succeeded"
    assert b.ran == ["a", "b"]


async def test_1_2_entry_admission_and_routing_are_decided_once_and_another_worker_goes_on_with_them() -> None:
    """Guards and admission read what `b` changes: had they been asked again, another way would be taken."""

    def made() -> Book:
        b = Book()
        b.then("a", to("b", "coalesce(get(ctx.late, None), False) == False"), to("c"))
        b.then("b", to("d"), spec=admit_if("get(ctx.late, False) == False"), tool=b.tool("b", does=tell(late=True)))
        b.then("c")
        b.then("d")
        return b

    async for death in deaths(made):
        assert by_status(death.result) == {
            "a": "completed", "b": "completed", "c": "never_reached", "d": "completed",
        }, death.before  # fmt: skip
        assert death.again == []


async def test_1_2_runs_of_steps_are_given_to_workers_as_far_as_limits_allow(world: World) -> None:
    """A playbook sets no limit: here it is one of the graph."""
    g = Noting(limits=Limits(running=1))
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", does=waits("b"))
    g.add("c")
    await waiting(world, g.graph)
    assert g.ran == ["a", "b"], "c is scheduled once b is over"
    await world.send("b")
    assert (await run(world, g.graph)).status == "succeeded"
    assert g.count("c") == 1


async def test_1_2_whoever_runs_it_finds_that_it_is_complete(driver: Driver) -> None:
    b = Book()
    b.then("a", to("b"), tool=b.tool("a", does=waits("answer")))
    b.then("b")
    graph = b.made()
    async with Runtime(driver, workflows=[graph]) as runtime:
        await until_status(await runtime.start(graph, {}, id="i"), Status.WAITING)
    async with Client(driver) as client, Runtime(driver, workflows=[graph]):
        await client.handle(graph, "i").send("answer", 1)
        assert (await client.handle(graph, "i").result(timeout=PATIENCE)).status == "succeeded"


async def test_1_2_events_are_kept_and_what_is_shown_follows_from_them(world: World) -> None:
    b = Book()
    b.then("a", to("b", n=1), to("b", n=2), mode="inclusive")
    b.then("b", tool=b.tool("b", does=waits("answer")))
    graph = b.made()
    await waiting(world, graph)
    history = await world.history()
    assert {entry.path: entry.status.value for entry in history if entry.kind.value == "firing"} == {
        "g/a/~0": "completed", "g/b/~0": "running", "g/b/~1": "running",
    }  # fmt: skip
    async with Client(world.driver) as client:
        info = await client.handle(graph, "i").info()
    assert [wait.path for wait in info.waits] == ["g/b/~0/answer", "g/b/~1/answer"]
    for _ in range(2):
        await world.send("answer", 1)
        await world.once(graph, mode="yield")
    assert set(paths(await world.history())) == {"g/a/~0", "g/b/~0", "g/b/~1"}


async def test_1_2_the_tasks_of_a_step_are_run_in_order_inside_one_firing(world: World) -> None:
    b = Book()
    b.then("a", tool=[b.tool("x", 1), b.tool("y", 2), b.tool("z", 3)])
    result = await run(world, b.made())
    assert b.ran == ["x", "y", "z"]
    assert [b.args[name] for name in "yz"] == [[1], [2]], "each is given what the one before it gave"
    assert (result.outcomes["a"].firings, result.outputs["a"]) == (1, 3)


async def test_1_2_a_rule_retries_a_task(world: World) -> None:
    b = Book()
    late = rule("error.kind == 'timeout'", do="retry", attempts=2)
    fetch = b.tool("x", None, late, does=failing(TimeoutError(), TimeoutError()))
    b.then("a", tool=[fetch, b.tool("y", 2)])
    result = await run(world, b.made())
    assert b.ran == ["x", "x", "x", "y"]
    assert (result.outcomes["a"].firings, result.outputs["a"]) == (1, 2)


async def test_1_2_a_rule_retries_a_task_no_more_often_than_it_says(world: World) -> None:
    b = Book()
    late = rule("error.kind == 'timeout'", do="retry", attempts=2)
    fetch = b.tool("x", None, late, does=failing(*[TimeoutError("late")] * 9))
    b.then("a", tool=[fetch, b.tool("y", 2)])
    result = await run(world, b.made())
    assert b.ran == ["x", "x", "x"]
    assert result.outcomes["a"].status == "failed"


async def test_1_2_a_rule_jumps_to_another_task(world: World) -> None:
    b = Book()
    b.then("a", tool=[b.tool("x", 1, rule("output == 1", do="jump", to="z")), b.tool("y", 2), b.tool("z", 3)])
    assert (await run(world, b.made())).outputs["a"] == 3
    assert b.ran == ["x", "z"]


async def test_1_2_a_rule_breaks_off_the_tasks_and_the_step_is_done(world: World) -> None:
    b = Book()
    b.then("a", to("b"), tool=[b.tool("x", 1, rule("output == 1", do="break")), b.tool("y", 2)])
    b.then("b")
    assert (await run(world, b.made())).outputs == {"a": 1, "b": None}
    assert b.ran == ["x", "b"]


async def test_1_2_a_rule_fails_the_step(world: World) -> None:
    b = Book()
    b.then("a", tool=[b.tool("x", 1, rule("output == 1", do="fail")), b.tool("y", 2)])
    result = await run(world, b.made())
    assert b.ran == ["x"]
    assert (result.status, result.outcomes["a"].status) == ("failed", "failed")


async def test_1_2_a_rule_continues_after_a_failure(world: World) -> None:
    b = Book()
    b.then(
        "a", tool=[b.tool("x", None, rule("error.kind == 'application'", do="continue"), fails="no"), b.tool("y", 2)]
    )
    assert (await run(world, b.made())).outputs["a"] == 2
    assert b.ran == ["x", "y"]


async def test_1_2_what_tasks_and_steps_have_come_to_is_recorded_and_not_done_again() -> None:
    """Plain functions are steps of the engine: one whose outcome is recorded is never called again."""
    calls: list[str] = []

    def made() -> Book:
        calls.clear()
        b = Book()
        b.then("a", to("b"), tool=[b.tool(name) for name in ("x", "y")])
        b.then("b")

        async def plain(args: Any) -> int:
            calls.append("y")
            return 7

        b.functions["y"] = plain
        return b

    async for death in deaths(made):
        assert death.result.outputs["a"] == 7
        assert death.history["g/a/~0/y"].value == 7
        if "b" in death.before:
            assert calls == ["y"]
        assert death.again == []


# 2. The entry.


async def test_2_1_without_an_entry_the_first_step_is_the_entry(world: World) -> None:
    b = Book()
    b.then("z", to("start"))
    b.then("start", to("a"))
    b.then("a")
    await run(world, b.made())
    assert b.ran == ["z", "start", "a"]


async def test_2_1_the_final_step_is_no_entry_though_it_is_the_first(world: World) -> None:
    """It never has a first token: then the first of the others is the entry."""
    b = Book(final_step="end")
    b.then("end")
    b.then("a", to("b"))
    b.then("b")
    result = await run(world, b.made())
    assert b.ran == ["a", "b", "end"]
    assert result.outcomes["end"].firings == 1


async def test_2_2_the_executor_may_name_another_entry_and_then_it_is_that(world: World) -> None:
    b = Book(entry_step="b")
    b.then("a")
    b.then("b", to("a"))
    await run(world, b.made())
    assert b.ran == ["b", "a"]


def test_2_2_the_entry_that_is_named_must_exist() -> None:
    b = Book(entry_step="gone")
    b.then("a")
    with pytest.raises(InvalidGraphError) as refused:
        b.made()
    assert [problem.where for problem in refused.value.problems] == ["executor.spec.entry_step"]
    assert "'gone'" in str(refused.value)


async def test_2_3_there_is_exactly_one_first_token_on_the_entry(world: World) -> None:
    b = Book()
    b.then("a", to("b"), tool=b.tool("a", does=waits("answer")))
    b.then("b", to("c"))
    b.then("c")
    graph = b.made()
    await waiting(world, graph)
    assert paths(await world.history()) == ["g/a/~0"]
    await world.send("answer", 1)
    result = await run(world, graph)
    assert {outcome.firings for outcome in result.outcomes.values()} == {1}


def test_2_3_a_step_that_no_token_can_come_to_is_refused_and_has_no_first_token() -> None:
    """Also if no step leads anywhere: a playbook has one first token, on the first step."""
    b = Book()
    b.then("a")
    b.then("b")
    graph = b.made()
    assert [problem.where for problem in graph.validate()] == ["b"]


async def test_2_3_several_first_tokens_are_for_graphs_without_arcs(world: World) -> None:
    g = Noting()
    for name in "abc":
        g.add(name)
    g.add("m", needs=["a", "b", "c"])
    assert (await run(world, g.graph)).status == "succeeded"
    assert sorted(g.ran[:3]) == ["a", "b", "c"]


# 3. Admission.


def test_3_1_a_step_has_no_when() -> None:
    b = Book()
    b.then("a", when="{{ true }}")
    with pytest.raises(InvalidGraphError) as refused:
        b.made()
    assert [problem.where for problem in refused.value.problems] == ["workflow[0].when"]
    assert "spec.policy.admit.rules" in str(refused.value)


RULES = admit(
    rule("workload.vip", allow=True), rule("workload.late", allow=False), rule("workload.rich", allow=True),
    rule(None, allow=False),
)  # fmt: skip


@pytest.mark.parametrize(
    ("true", "is_admitted"), [("vip late", True), ("late rich", False), ("rich", True), ("", False), ("late", False)]
)
async def test_3_1_the_first_rule_that_holds_decides_and_else_is_last(
    world: World, true: str, is_admitted: bool
) -> None:
    b = Book({name: name in true for name in ("vip", "late", "rich")})
    b.then("a", spec=RULES)
    result = await world.once(b.made(), mode="yield")
    assert b.ran == (["a"] if is_admitted else [])
    assert result.status is (Status.COMPLETED if is_admitted else Status.WAITING)


@pytest.mark.parametrize("allow", [True, False])
async def test_3_1_if_no_rule_holds_it_is_admitted_unless_a_rule_says_who_is(world: World, allow: bool) -> None:
    """A gate that lists who may start lets nobody else in; one that lists who may not lets all others in."""
    b = Book({"x": 1})
    b.then("a", spec=admit(rule("workload.x == 2", allow=allow)))
    result = await world.once(b.made(), mode="yield")
    assert result.status is (Status.WAITING if allow else Status.COMPLETED)


@pytest.mark.parametrize("spec", [{}, {"policy": {}}, {"policy": {"admit": {}}}, {"policy": {"admit": {"rules": []}}}])
async def test_3_1_without_admission_a_token_is_admitted(world: World, spec: dict[str, Any]) -> None:
    b = Book()
    b.then("a", spec=spec)
    await run(world, b.made())
    assert b.ran == ["a"]


def gated() -> Book:
    """A step behind a gate that is closed."""
    b = Book()
    b.then("a", to("gate"))
    b.then("gate", to("after"), spec=admit_if("get(ctx.open, False)"))
    b.then("after")
    return b


async def test_3_2_a_denied_token_is_given_to_no_worker(driver: Driver) -> None:
    b = gated()
    graph = b.made()
    async with Runtime(driver, workflows=[graph]) as runtime, Client(driver) as client:
        handle = await runtime.start(graph, {}, id="i")
        await until_status(handle, Status.WAITING)
        await client.handle(graph, "i").patch(other=1)
        while not (info := await handle.info()).blocked:
            # It is just being asked again.
            await until_status(handle, Status.WAITING)
        assert info.blocked == ["gate"]
        assert b.ran == ["a"]


async def test_3_2_a_denied_token_stays_pending_until_the_context_lets_it_through(world: World) -> None:
    """The default. Another process finds it as it was."""
    b = gated()
    graph = b.made()
    for _ in range(2):
        await waiting(world, graph)
        async with Client(world.driver) as client:
            waits = (await client.handle(graph, "i").info()).waits
        assert [(wait.kind, wait.name) for wait in waits] == [("admission", "gate")]
    async with Client(world.driver) as client:
        await client.handle(graph, "i").patch(open=True)
    assert (await run(world, graph)).status == "succeeded"
    assert b.ran == ["a", "gate", "after"]


async def test_3_2_a_task_of_the_playbook_opens_the_gate_by_a_patch_wherever_it_is_killed() -> None:
    def made() -> Book:
        b = gated()
        b.data["workflow"][0]["next"] = {"spec": {"mode": "inclusive"}, "arcs": [to("gate"), to("approve")]}
        b.then("approve", tool=b.tool("approve", does=tell(open=True)))
        return b

    async for death in deaths(made):
        assert by_status(death.result) == dict.fromkeys(("a", "gate", "after", "approve"), "completed")
        assert death.again == []


async def test_3_2_a_denied_token_is_dropped_if_the_step_says_so(world: World) -> None:
    """The other policy is that of a step of a graph: playbooks have no word for it."""
    g = Noting(context={"open": False})
    g.add("a", next="gate")
    g.add("gate", admit=E.ctx.open, on_deny="discard", next="after")
    g.add("after")
    result = await run(world, g.graph)
    assert g.ran == ["a"]
    assert (result.status, by_status(result)["gate"]) == ("succeeded", "denied")


# 4. Routing.


async def test_4_1_arcs_are_asked_after_step_done(world: World) -> None:
    b = Book()
    b.then("a", to("wrong", "event.name != 'step.done'"), to("b", "event.name == 'step.done'"))
    b.then("wrong")
    b.then("b")
    await run(world, b.made())
    assert b.ran == ["a", "b"]


async def test_4_1_arcs_are_asked_after_step_failed(world: World) -> None:
    b = Book()
    b.then("a", to("wrong", "event.name == 'step.done'"), to("b", "event.name == 'step.failed'"), tool=None)
    b.data["workflow"][0]["tool"] = b.tool("a", fails="no")
    b.then("wrong")
    b.then("b")
    result = await run(world, b.made())
    assert b.ran == ["a", "b"]
    assert result.status == "succeeded", "an arc that was followed has handled the failure"


def loops(items: Any, **fields: Any) -> Book:
    """A step with a loop, and an arc for each event."""
    b = Book({"items": items})
    loop = {"in": "{{ workload.items }}", "iterator": "item"}
    arcs = [to(name.replace(".", " "), f"event.name == '{name}'") for name in ("step.done", "step.failed", "loop.done")]
    b.then("a", *arcs, mode="inclusive", loop=loop, tool=fields.get("tool") or b.tool("a", 1))
    for name in ("step done", "step failed", "loop done"):
        b.then(name)
    return b


@pytest.mark.parametrize("items", [[], [5], [5, 6, 7]], ids=len)
async def test_4_1_arcs_are_asked_once_after_loop_done_also_of_an_empty_list(world: World, items: list[int]) -> None:
    b = loops(items)
    result = await run(world, b.made())
    assert result.outputs["a"] == [1] * len(items)
    assert [name for name in b.ran if name != "a"] == ["loop done"]
    assert result.outcomes["loop done"].firings == 1
    assert b.args.get("a", []) == items


async def test_4_1_a_loop_of_which_an_item_fails_is_step_failed(world: World) -> None:
    b = loops([5])
    b.functions["a"] = raises
    result = await run(world, b.made())
    assert b.ran == ["step failed"]
    assert result.status == "succeeded"


@pytest.mark.parametrize("items", [[], [5, 6]], ids=len)
async def test_4_1_a_loop_routes_exactly_once_wherever_it_is_killed(items: list[int]) -> None:
    async for death in deaths(lambda: loops(items)):
        assert death.result.outputs["a"] == [1] * len(items)
        assert death.result.outcomes["loop done"].firings == 1
        assert by_status(death.result)["step done"] == "never_reached"
        assert [path for path in paths(death.history) if path.startswith("g/loop")] == ["g/loop done/~0"]
        assert death.again == []


def repeats(turns: int) -> Noting:
    """A step that is repeated, and an arc for each event. Playbooks have no word for it."""
    g = Noting()

    async def counts(ctx: Context, args: Any) -> int:
        return int(args) + 1

    done, over = E.event.name == "step.done", E.event.name == "loop.done"
    arcs = [arc("step done", when=done), arc("loop done", when=over, args={"n": E.output})]
    body = g.body("a", does=counts)
    g.graph.repeat("a", body, until=E.output >= turns, mode="inclusive", next=arcs)
    g.add("step done")
    g.add("loop done")
    return g


@pytest.mark.parametrize("turns", [1, 3])
async def test_4_1_arcs_are_asked_once_after_the_loop_done_of_repeat(world: World, turns: int) -> None:
    g = repeats(turns)
    result = await run(world, g.graph, 0)
    assert g.ran == ["a"] * turns + ["loop done"]
    assert g.args["loop done"] == [{"n": turns}]
    assert result.outcomes["loop done"].firings == 1


async def test_4_1_repeat_routes_exactly_once_wherever_it_is_killed() -> None:
    async for death in deaths(lambda: repeats(3), 0):
        assert death.result.outputs["a"] == 3
        assert death.result.outcomes["loop done"].firings == 1
        assert by_status(death.result)["step done"] == "never_reached"
        assert death.again == []


async def test_4_2_without_when_an_arc_is_true(world: World) -> None:
    b = Book()
    b.then("a", to("b"), value=False)
    b.then("b")
    await run(world, b.made())
    assert b.ran == ["a", "b"]


@pytest.mark.parametrize(
    "guard",
    [
        "event.name == 'step.done'",
        "workload.n == 7",
        "start.n == 7",
        "ctx.tone == 'kind'",
        "args.given == 'by the arc'",
        "output == 3 and results.a == 3 and error is None",
    ],
)
async def test_4_2_a_guard_reads_the_event_the_workload_the_context_and_the_args(world: World, guard: str) -> None:
    b = Book({"n": 7})
    b.then("first", to("a", given="by the arc"), tool=b.tool("first", does=tell(tone="kind")))
    b.then("a", to("right", guard), to("wrong"), value=3)
    b.then("right")
    b.then("wrong")
    await run(world, b.made())
    assert b.ran == ["first", "a", "right"]


@pytest.mark.parametrize(("guard", "is_followed"), [("workload.n == 7", True), ("workload.n == 8", False)])
async def test_4_2_the_result_decides_whether_the_arc_matches(world: World, guard: str, is_followed: bool) -> None:
    b = Book({"n": 7})
    b.then("a", to("b", guard))
    b.then("b")
    await run(world, b.made())
    assert b.ran == ["a", "b"][: 1 + is_followed]


@pytest.mark.parametrize("guard", ["workload.gone == 1", "workload.n", "len(workload.n) > 1"])
async def test_4_2_a_guard_without_an_answer_is_an_error_and_never_false(world: World, guard: str) -> None:
    b = Book({"n": 7})
    b.then("a", to("b", guard), to("c"))
    b.then("b")
    b.then("c")
    result = await run(world, b.made())
    assert b.ran == ["a"]
    error = (await world.history())["g/a/~0"].error
    assert error is not None
    assert (result.status, error.kind) == ("failed", "expression")


async def test_4_3_without_a_mode_it_is_exclusive(world: World) -> None:
    b = Book()
    b.then("a", to("b"), to("c"))
    b.then("b")
    b.then("c")
    await run(world, b.made())
    assert b.ran == ["a", "b"]


async def test_4_3_exclusive_the_first_arc_that_matches_has_the_one_token(world: World) -> None:
    b = Book({"n": 7})
    arcs = [to("b", "workload.n > 9"), to("c", "workload.n > 5"), to("d", "workload.n > 1"), to("e")]
    b.then("a", *arcs, mode="exclusive")
    for name in "bcde":
        b.then(name)
    result = await run(world, b.made())
    assert b.ran == ["a", "c"]
    assert result.outcomes["c"].firings == 1


async def test_4_3_inclusive_every_arc_that_matches_has_a_token(world: World) -> None:
    b = Book({"n": 7})
    b.then("a", to("b", "workload.n > 9"), to("c", "workload.n > 5"), to("d"), mode="inclusive")
    for name in "bcd":
        b.then(name)
    result = await run(world, b.made())
    assert sorted(b.ran) == ["a", "c", "d"]
    assert by_status(result)["b"] == "never_reached"


async def test_4_3_inclusive_gives_each_token_once_wherever_it_is_killed() -> None:
    def made() -> Book:
        b = Book()
        b.then("a", to("b"), to("c"), mode="inclusive")
        b.then("b")
        b.then("c")
        return b

    async for death in deaths(made):
        assert [outcome.firings for outcome in death.result.outcomes.values()] == [1, 1, 1]
        assert death.again == []


async def test_4_4_args_are_bound_to_the_token(world: World) -> None:
    """They are what they were when the arc was taken, however much later the step runs."""
    b = Book({"n": 7})
    arcs = [to("gate", n="{{ workload.n + 1 }}", old="{{ get(ctx.tone, None) }}", text="workload.n"), to("later")]
    b.then("a", *arcs, mode="inclusive")
    b.then("gate", spec=admit_if("get(ctx.tone, '') == 'new'"))
    b.then("later", tool=b.tool("later", does=tell(tone="new")))
    await run(world, b.made())
    assert b.ran == ["a", "later", "gate"]
    assert b.args["gate"] == [{"n": 8, "old": None, "text": "workload.n"}], "what is not in braces is a literal"


async def test_4_4_args_are_immutable(world: World) -> None:
    async def spoils(ctx: Context, args: Any) -> Any:
        assert args == {"list": [1]}
        args["list"].append(2)
        if b.count("b") == 1:
            raise ValueError("once more")

    b = Book({"list": [1]})
    b.then("a", to("b", list="{{ workload.list }}"))
    b.then("b", to("c", list="{{ args.list }}"), tool=b.tool("b", does=spoils))
    b.then("c")
    assert (await run(world, b.made())).status == "succeeded"
    assert b.ran == ["a", "b", "b", "c"], "another attempt is given the same"
    assert b.args["c"] == [{"list": [1]}]


async def test_4_4_a_large_payload_is_passed_as_a_reference(world: World) -> None:
    """What is too large for args fails the firing that would pass it; a reference to it passes."""
    b = Book()
    b.then("a", to("b", all="{{ output.pages }}"), value={"pages": ["x" * 1000] * 1100, "at": "s3://pages"})
    b.then("b")
    result = await run(world, b.made())
    assert b.ran == ["a"]
    assert (result.status, result.outcomes["a"].status) == ("failed", "failed")
    b.data["workflow"][0]["next"]["arcs"][0]["args"] = {"at": "{{ output.at }}"}
    await run(world, b.made(), id="j")
    assert b.args["b"] == [{"at": "s3://pages"}]


# 5. The ends of branches.


async def test_5_1_without_next_a_step_is_a_leaf_and_the_branch_ends(world: World) -> None:
    b = Book()
    b.then("a", to("b"), to("c"), mode="inclusive")
    b.then("b")
    b.then("c", to("d"))
    b.then("d")
    result = await run(world, b.made())
    assert sorted(b.ran) == ["a", "b", "c", "d"]
    assert result.status == "succeeded"


async def test_5_2_if_no_arc_matches_the_branch_ends_and_no_other(world: World) -> None:
    b = Book({"n": 7})
    b.then("a", to("b"), to("c"), mode="inclusive")
    b.then("b", to("e", "workload.n == 8"))
    b.then("c", to("d"))
    b.then("d")
    b.then("e")
    result = await run(world, b.made())
    assert sorted(b.ran) == ["a", "b", "c", "d"]
    assert (result.status, by_status(result)["e"]) == ("succeeded", "never_reached")


@pytest.mark.parametrize(("says", "status"), [(None, "succeeded"), (False, "succeeded"), (True, "failed")])
async def test_5_2_no_match_is_an_error_only_if_the_executor_says_so(
    world: World, says: bool | None, status: str
) -> None:
    b = Book({"n": 7}, **({} if says is None else {"no_next_is_error": says}))
    b.then("a", to("b", "workload.n == 8"))
    b.then("b")
    result = await run(world, b.made())
    assert (result.status, b.ran) == (status, ["a"])


async def test_5_2_a_leaf_is_no_missing_match(world: World) -> None:
    b = Book(no_next_is_error=True)
    b.then("a", to("b"))
    b.then("b")
    assert (await run(world, b.made())).status == "succeeded"


# 6. Quiescence.


async def test_6_1_it_is_not_complete_while_a_token_can_start(world: World) -> None:
    """One token waits for a slot when the last firing but one ends."""
    g = Noting(limits=Limits(running=1), final="end")
    g.add("a", mode="inclusive", next=["b", "c", "d"])
    for name in "bcd":
        g.add(name)
    g.add("end")
    await run(world, g.graph)
    assert g.ran == ["a", "b", "c", "d", "end"]


async def test_6_1_it_is_not_complete_while_a_token_is_pending(world: World) -> None:
    """A denied token may still be enabled: the run is blocked, and not complete."""
    b = gated()
    b.data["executor"]["spec"]["final_step"] = "end"
    b.then("end")
    graph = b.made()
    await waiting(world, graph)
    assert b.ran == ["a"]
    async with Client(world.driver) as client:
        await client.handle(graph, "i").patch(open=True)
    await run(world, graph)
    assert b.ran == ["a", "gate", "after", "end"]


async def test_6_1_it_is_not_complete_while_a_step_is_under_way(world: World) -> None:
    b = Book(final_step="end")
    b.then("a", to("b"), to("c"), mode="inclusive")
    b.then("b")
    b.then("c", tool=b.tool("c", does=waits("answer")))
    b.then("end")
    graph = b.made()
    await waiting(world, graph)
    assert "end" not in b.ran
    await world.send("answer")
    await run(world, graph)
    assert b.ran[-1] == "end"


async def test_6_1_a_retry_counts_as_under_way(world: World) -> None:
    b = Book(final_step="end")
    b.then("a", to("b"), to("c"), mode="inclusive")
    b.then("b", tool=b.tool("b", does=failing(ValueError("not yet"), ValueError("not yet"))))
    b.then("c")
    b.then("end")
    result = await run(world, b.made())
    assert b.ran[-1] == "end"
    assert (b.count("b"), b.count("end"), result.status) == (3, 1, "succeeded")


async def test_6_1_it_is_not_complete_while_a_join_is_pending(world: World) -> None:
    """Playbooks have no joins: they are `needs` of a graph."""
    g = Noting(final="end")
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b")
    g.add("c", does=waits("answer"))
    g.add("m", needs=["b", "c"])
    g.add("end")
    await waiting(world, g.graph)
    assert not {"m", "end"} & set(g.ran)
    await world.send("answer")
    await run(world, g.graph)
    assert g.ran[-2:] == ["m", "end"]


async def test_6_1_it_is_complete_when_none_of_these_is_left(world: World) -> None:
    b = Book({"n": 7})
    b.then("a", to("b"), to("c", "workload.n == 8"), mode="inclusive")
    b.then("b")
    b.then("c")
    result = await world.run(b.made())
    assert (result.status, result.waits) == (Status.COMPLETED, [])


async def test_6_1_it_is_complete_wherever_it_is_killed() -> None:
    def made() -> Book:
        b = Book(final_step="end")
        b.then("a", to("b"), to("c"), mode="inclusive")
        b.then("b", tool=b.tool("b", does=failing(ValueError("not yet"))))
        b.then("c")
        b.then("end")
        return b

    async for death in deaths(made):
        assert by_status(death.result) == dict.fromkeys(("a", "b", "c", "end"), "completed")
        assert (death.before + death.after)[-1] == "end"
        assert death.again == []


async def test_6_2_it_has_succeeded_if_every_branch_has_ended_as_it_should(world: World) -> None:
    b = Book()
    b.then("a", to("b"), to("c"), mode="inclusive")
    b.then("b")
    b.then("c")
    assert (await run(world, b.made())).status == "succeeded"


async def test_6_2_it_has_failed_if_a_branch_has_ended_in_a_failure(world: World) -> None:
    """That is the policy `strict`, which holds if nothing else is said; the other branch still ends."""
    b = Book()
    b.then("a", to("b"), to("c"), mode="inclusive")
    b.then("b", tool=b.tool("b", fails="no"))
    b.then("c", to("d"))
    b.then("d")
    result = await run(world, b.made())
    assert result.status == "failed"
    assert by_status(result) == {"a": "completed", "b": "failed", "c": "completed", "d": "completed"}


@pytest.mark.parametrize(
    ("policy", "status", "other"),
    [("strict", "failed", "completed"), ("lenient", "partial", "completed"), ("fail_fast", "failed", "cancelled")],
)
async def test_6_2_the_policy_that_is_stated_computes_the_status(
    world: World, policy: str, status: str, other: str
) -> None:
    """Playbooks have no word for it: it is `Graph(status=)`."""
    g = Noting(status=policy)
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", fails="no")

    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)

    g.add("c", does=naps)
    result = await run(world, g.graph)
    assert (result.status, by_status(result)["c"]) == (status, other)


# 7. The final step.


async def test_7_1_the_final_step_runs_once_after_quiescence(world: World) -> None:
    b = Book(final_step="end")
    b.then("a", to("b"), to("c"), mode="inclusive")
    b.then("b")
    b.then("c", to("b"))
    b.then("end")
    result = await run(world, b.made())
    assert b.ran[-1] == "end"
    assert (b.count("b"), b.count("end"), result.outcomes["end"].firings) == (2, 1, 1)


async def test_7_1_the_final_step_runs_after_a_failure_too(world: World) -> None:
    b = Book(final_step="end")
    b.then("a", tool=b.tool("a", fails="no"))
    b.then("end")
    result = await run(world, b.made())
    assert b.ran == ["a", "end"]
    assert (result.status, by_status(result)["end"]) == ("failed", "completed")


async def test_7_1_the_final_step_is_run_once_wherever_it_is_killed() -> None:
    def made() -> Book:
        b = Book(final_step="end")
        b.then("a", to("b"))
        b.then("b")
        b.then("end", tool=b.tool("end", "summed up"))
        return b

    async for death in deaths(made):
        assert death.result.outcomes["end"].firings == 1
        assert death.result.outputs["end"] == "summed up"
        assert death.again == []


async def test_7_1_when_the_final_step_is_over_the_run_is(world: World) -> None:
    b = Book(final_step="end")
    b.then("a")
    b.then("end", tool=b.tool("end", does=waits("answer")))
    graph = b.made()
    await waiting(world, graph)
    await world.send("answer", 42)
    result = await world.once(graph, mode="yield")
    assert result.status is Status.COMPLETED


def test_7_1_arcs_lead_neither_to_the_final_step_nor_from_it() -> None:
    """It would be run before all else is over, or not be the last."""
    b = Book(final_step="end")
    b.then("a", to("end"))
    b.then("end", to("a"))
    problems = {problem.where: problem.text for problem in b.made().validate()}
    assert problems.keys() == {"a", "end"}
    assert all("final" in text for text in problems.values())


def test_7_1_the_final_step_that_is_named_must_exist_and_is_no_entry() -> None:
    b = Book(final_step="gone")
    b.then("a")
    with pytest.raises(InvalidGraphError, match=r"executor\.spec\.final_step: there is no step 'gone'"):
        b.made()
    b.data["executor"]["spec"] = {"entry_step": "a", "final_step": "a"}
    assert any("final" in problem.text for problem in b.made().validate())


async def test_7_2_the_final_step_is_given_a_summary(world: World) -> None:
    """References to results, if they are large, are what the steps give as their outputs."""
    b = Book(final_step="end")
    b.then("a", to("b"), to("c"), to("d", "get(workload.n, 0) == 1"), mode="inclusive")
    b.then("b", value={"rows": "s3://rows"})
    b.then("c", tool=b.tool("c", fails="broken"))
    b.then("d")
    b.then("end")
    await run(world, b.made())
    (summary,) = b.args["end"]
    assert summary["instance_id"] == "i"
    assert {status: count for status, count in summary["counts"].items() if count} == {
        "completed": 2, "failed": 1, "never_reached": 1,
    }  # fmt: skip
    assert summary["outputs"] == {"a": None, "b": {"rows": "s3://rows"}}
    assert summary["failures"].keys() == {"c"}
    assert "broken" in summary["failures"]["c"]


async def test_7_3_a_final_step_that_fails_fails_the_run(world: World) -> None:
    b = Book(final_step="end")
    b.then("a", value=1)
    b.then("end", tool=b.tool("end", fails="no"))
    result = await run(world, b.made())
    assert (result.status, by_status(result)) == ("failed", {"a": "completed", "end": "failed"})


async def test_7_3_a_final_step_that_fails_makes_it_partial_if_that_is_the_policy(world: World) -> None:
    """Playbooks have no word for it: it is `Graph(final_failure=)`. What steps gave is kept for who looks at it."""
    g = Noting(final="end", final_failure="partial")
    g.add("a", {"rows": "s3://rows"})
    g.add("end", fails="no")
    result = await run(world, g.graph)
    assert (result.status, result.outputs) == ("partial", {"a": {"rows": "s3://rows"}})


# 8. Steps and tasks that run nothing.

NOOP: dict[str, Any] = {"kind": "noop"}


async def test_8_a_noop_routes_and_nothing_else(world: World) -> None:
    b = Book({"n": 7})
    b.then("which", to("b", "workload.n == 8"), to("c"), tool=NOOP)
    b.then("b")
    b.then("c")
    result = await run(world, b.made())
    assert b.ran == ["c"]
    assert result.outputs["which"] is None


async def test_8_a_noop_patches_the_context_by_a_rule(world: World) -> None:
    b = Book({"n": 7})
    sets = {**NOOP, "spec": {"policy": {"rules": [rule(None, do="continue", set_ctx={"n": "{{ workload.n + 1 }}"})]}}}
    b.then("set", to("b", n="{{ ctx.n }}"), tool=sets)
    b.then("b")
    await run(world, b.made())
    assert b.args["b"] == [{"n": 8}]


async def test_8_a_rule_of_any_task_patches_the_context(world: World) -> None:
    b = Book({"n": 7})
    large = rule("output > 5", do="continue", set_ctx={"size": "large", "n": "{{ output }}"})
    small = rule(None, do="continue", set_ctx={"size": "small"})
    sees = {"name": "look", **NOOP, "spec": {"policy": {"rules": [rule("ctx.size == 'large'", do="break")]}}}
    b.then("a", to("b", size="{{ ctx.size }}", n="{{ ctx.n }}"), tool=[b.tool("x", 6, large, small), sees, b.tool("y")])
    b.then("b")
    await run(world, b.made())
    assert b.ran == ["x", "b"]
    assert b.args["b"] == [{"size": "large", "n": 6}]


async def test_8_a_noop_is_a_decision_point_between_tasks(world: World) -> None:
    b = Book({"skip": True})
    decides = {**NOOP, "spec": {"policy": {"rules": [rule("workload.skip", do="jump", to="z"), rule(None, do="fail")]}}}
    b.then("a", tool=[b.tool("x", 1), {"name": "gate", **decides}, b.tool("y", 2), b.tool("z", 3)])
    result = await run(world, b.made())
    assert b.ran == ["x", "z"]
    assert b.args["z"] == [1], "a noop hands on what it was given"
    assert result.outputs["a"] == 3


async def test_8_a_noop_alone_may_decide_that_its_step_fails(world: World) -> None:
    b = Book({"n": 7})
    b.then("a", tool={**NOOP, "spec": {"policy": {"rules": [rule("workload.n == 7", do="fail")]}}})
    result = await run(world, b.made())
    assert by_status(result) == {"a": "failed"}


async def test_8_a_noop_that_decides_and_patches_does_so_once_wherever_it_is_killed() -> None:
    def made() -> Book:
        b = Book({"n": 7})
        counts = rule("get(ctx.n, 0) < 3", do="jump", to="x", set_ctx={"n": "{{ get(ctx.n, 0) + 1 }}"})
        gate = {"name": "gate", **NOOP, "spec": {"policy": {"rules": [counts]}}}
        b.then("a", to("b", n="{{ ctx.n }}"), tool=[b.tool("x", 1), gate])
        b.then("b")
        return b

    async for death in deaths(made):
        assert death.result.status == "succeeded"
        assert death.history["g/b/~0"].status.value == "completed"
        assert death.again == []


async def test_8_neither_a_noop_nor_a_reserved_name_is_needed(world: World) -> None:
    b = Book()
    b.then("only", value=1)
    assert (await run(world, b.made())).outputs == {"only": 1}


@pytest.mark.parametrize("name", ["start", "end", "final", "workflow", "noop", "ctx"])
async def test_8_no_name_means_anything_by_itself(world: World, name: str) -> None:
    b = Book()
    b.then("a", to(name))
    b.then(name, to("z"))
    b.then("z")
    await run(world, b.made())
    assert b.ran == ["a", name, "z"]


# 9. All of it together.


async def test_9_the_defaults_together(world: World) -> None:
    """The first step is the entry, admission allows, the first arc that matches is taken, and no match ends it."""
    b = Book({"n": 7})
    b.then("a", to("b", "workload.n == 8"), to("c"), to("b"))
    b.then("b")
    b.then("c", to("b", "workload.n == 8"))
    result = await run(world, b.made())
    assert b.ran == ["a", "c"]
    assert (result.status, by_status(result)["b"]) == ("succeeded", "never_reached")


async def test_9_what_the_executor_overrides(world: World) -> None:
    b = Book({"n": 7}, entry_step="c", final_step="sum", no_next_is_error=True)
    b.then("a", to("b", "workload.n == 8"))
    b.then("b")
    b.then("c", to("a"))
    b.then("sum")
    result = await run(world, b.made())
    assert b.ran == ["c", "a", "sum"]
    assert result.status == "failed"
