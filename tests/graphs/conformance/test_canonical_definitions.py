"""The canonical execution model: each test is named after the section of the model that it holds."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import anyio
import pytest

from tests.graphs.conformance.books import deaths, failing, waits
from tests.graphs.kinds.ends import end_of, seen
from tests.graphs.running import Noting, by_status, run, tell, waiting
from tests.laws.counting_driver import WatchedDriver
from tests.patience import PATIENCE
from tests.runtime.parts import until_status
from tests.support import World
from workflow_sdk import (
    Backoff,
    Client,
    Context,
    CriticalError,
    DefinitionError,
    Delivery,
    Driver,
    NotAuthorizedError,
    Runtime,
    Status,
    WorkflowFailedError,
    WorkflowStuckError,
    workflow,
)
from workflow_sdk.graphs import E, Graph, InvalidGraphError, Registry, arc, fn, function, quorum
from workflow_sdk.testing import crash_everywhere, explore

calls: list[Any] = []
"""What functions outside were called with."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()


async def answer(ctx: Context, args: Any) -> Any:
    """Gives a number."""
    return 42


async def bank(payload: Any) -> Any:
    """A transport."""
    calls.append(payload)
    return {"receipt": payload}


@function
def twice(number: int) -> int:
    """A function that expressions may call."""
    return 2 * number


@workflow
async def child(ctx: Context, number: int) -> int:
    """Ends at once."""
    return 2 * number


@workflow(version=7)
async def slow_child(ctx: Context, number: int) -> int:
    """Sleeps before it ends."""
    await ctx.sleep("a while", 10)
    return 2 * number


@workflow
async def asking_child(ctx: Context, number: int) -> Any:
    """Ends when it is answered."""
    return await ctx.listen("answer")


def authored() -> Graph:
    """A graph with something of everything."""
    made = Graph("order", version=3, functions=[twice], transports={"bank": bank}, context={"budget": 3})
    made.step("check", answer, next=[arc("pay", when=fn.twice(E.output) > 80), arc("approve")])
    made.call("pay", transport="bank", payload={"cents": E.workload}, result="paid", next=["ship"])
    made.task("approve", payload={"order": E.workload}, roles=["clerk"], next=["ship"])
    made.child("ship", workflow=child, input=E.workload, next=["bill"])
    made.continue_with("bill", workflow=child, input=E.workload)
    return made


DATA: dict[str, Any] = {
    "kind": "workflow_sdk.graph", "format": 1, "name": "good", "steps": [{"name": "a", "fn": "answer"}],
}  # fmt: skip
WRONG: dict[str, Any] = {**DATA, "name": "bad", "steps": [{"name": "a", "fn": "gone", "next": ["nowhere"]}]}


# 2. The life of a definition.


def test_2_1_a_graph_is_authored_in_python_and_its_definition_is_data() -> None:
    data = authored().to_data()
    assert json.loads(json.dumps(data)) == data
    assert [step["name"] for step in data["steps"]] == ["check", "pay", "approve", "ship", "bill"]


def opened() -> Registry:
    """A registry with one graph."""
    registry = Registry([answer, child])
    registry.add(authored())
    return registry.open()


def test_2_2_opening_a_registry_gives_the_metadata_of_each_definition() -> None:
    found = opened().resolve("order")
    assert (found.name, found.version, found.hash) == ("order", 3, authored().hash)


def test_2_2_opening_a_registry_gives_the_canonical_definition() -> None:
    assert opened().canonical("order") == authored().to_data()


def test_2_2_opening_a_registry_gives_the_modules_that_are_required() -> None:
    assert __name__ in opened().resolve("order").uses.modules


def test_2_2_opening_a_registry_gives_the_use_of_functions() -> None:
    uses = opened().resolve("order").uses
    assert uses.functions >= {"answer"}
    assert (set(uses.transports), set(uses.workflows)) == ({"bank"}, {"child"})


async def test_2_3_a_definition_is_validated_before_it_is_accepted(driver: Driver) -> None:
    wrong = Graph("wrong")
    wrong.step("a", answer, next=["nowhere"])
    with pytest.raises(DefinitionError, match="nowhere"):
        Runtime(driver, workflows=[wrong])
    async with Client(driver) as client:
        with pytest.raises(DefinitionError, match="nowhere"):
            await client.start(wrong, id="i")
        assert not (await client.list()).items


def test_2_3_strict_the_start_fails_if_a_definition_is_invalid() -> None:
    registry = Registry([answer], mode="strict")
    registry.add(DATA, WRONG)
    with pytest.raises(InvalidGraphError, match="gone"):
        registry.open()
    with pytest.raises(DefinitionError):
        Runtime("memory://", workflows=registry)


async def test_2_3_warn_the_start_succeeds_and_an_invalid_definition_is_unavailable(driver: Driver) -> None:
    registry = Registry([answer], mode="warn")
    registry.add(DATA, WRONG)
    async with Runtime(driver, workflows=registry) as runtime:
        assert (await (await runtime.start("good", {})).result(timeout=PATIENCE))["status"] == "succeeded"
        with pytest.raises(DefinitionError, match="'bad' is not available"):
            await runtime.start("bad", {})
    assert [one.name for one in registry.unavailable] == ["bad"]


def test_2_4_definitions_are_cached_by_name_and_version() -> None:
    registry = Registry([answer])
    registry.add({**DATA, "version": 2}, {**DATA, "version": 10}, {**DATA, "name": "other"})
    assert registry.open().resolve("good", 2).version == 2
    assert registry.resolve("good", 2) is registry.resolve("good", 2)
    assert registry.resolve("good").version == 10
    assert registry.resolve("other").name == "other"
    with pytest.raises(DefinitionError, match="no version 3"):
        registry.resolve("good", 3)


def test_2_4_the_cache_does_not_change_after_the_start() -> None:
    registry = opened()
    with pytest.raises(DefinitionError, match="can't be changed"):
        registry.add(DATA)
    with pytest.raises(DefinitionError, match="can't be changed"):
        registry.resolve("order").noop("more")


async def test_2_4_an_instance_goes_on_with_the_definition_that_it_began_with(world: World) -> None:
    old, new = Graph("g"), Graph("g")
    for made, words in ((old, "old"), (new, "new")):
        made.wait("ask", message="go", next=["say"])
        made.assign("say", {"words": words})
    first = await world.once(old, mode="yield")
    assert first.status is Status.WAITING
    await world.send("go")
    result = end_of(await world.run(new))
    assert result.outputs["say"] == {"words": "old"}


# 3. What a definition has.


def test_3_expressions_are_compiled_when_a_definition_is_made_and_not_when_it_runs() -> None:
    with pytest.raises(DefinitionError, match=r"steps\[0\].*when"):
        Graph.from_data({**DATA, "steps": [{"name": "a", "kind": "noop", "next": [{"step": "a", "when": "a b"}]}]})


def test_3_it_has_an_identity() -> None:
    one, other = authored(), authored()
    assert (one.name, one.version, one.hash) == (other.name, other.version, other.hash)
    with_other_version = Graph.from_data({**one.to_data(), "version": 4}, [answer, child, twice], {"bank": bank})
    assert with_other_version.hash != one.hash


def test_3_it_can_be_shown() -> None:
    """By the names of its steps: there are no titles beside them."""
    for picture in (authored().to_svg(), authored().to_mermaid(), authored().to_dot()):
        assert all(name in picture for name in ("check", "pay", "approve", "ship", "bill"))


def test_3_it_names_the_modules_that_it_requires() -> None:
    assert authored().uses.modules >= {__name__}


def step_of(name: str) -> dict[str, Any]:
    """A step of the definition."""
    found: dict[str, Any] = next(step for step in authored().to_data()["steps"] if step["name"] == name)
    return found


def test_3_it_has_the_graph_of_steps() -> None:
    assert step_of("check")["next"] == [{"step": "pay", "when": "twice(output) > 80"}, {"step": "approve"}]


def test_3_it_declares_tasks() -> None:
    assert step_of("approve")["kind"] == "task"
    assert step_of("approve")["details"]["roles"] == {"$args": ["clerk"]}


def test_3_it_has_expressions_as_trees_that_are_read_once() -> None:
    found = Graph.from_data(authored().to_data(), [answer, child, twice], {"bank": bank})
    condition: Any = found.nodes["check"].next[0].when
    assert condition.evaluate({"output": 41}, {"twice": twice}) is True
    assert ("output",) in condition.reads


def test_3_it_declares_calls() -> None:
    assert step_of("pay")["details"]["transport"] == "bank"
    assert step_of("pay")["details"]["payload"] == {"$args": {"cents": {"$": "workload"}}}


def test_3_it_declares_children() -> None:
    assert (step_of("ship")["kind"], step_of("ship")["details"]["workflow"]) == ("child", {"$fn": "child"})


def test_3_it_declares_what_it_continues_with() -> None:
    assert (step_of("bill")["kind"], step_of("bill")["details"]["workflow"]) == ("continue", {"$fn": "child"})


# 4. What a step is run with.


async def test_4_the_name_the_version_and_the_instance(world: World) -> None:
    async def looks(ctx: Context, args: Any) -> Any:
        return [ctx.workflow_name, ctx.workflow_version, ctx.instance_id]

    g = Noting(version=3)
    g.add("a", does=looks)
    assert (await run(world, g.graph, id="order-1")).outputs["a"] == ["g", 3, "order-1"]


async def test_4_the_business_reference(world: World) -> None:
    async def refers(ctx: Context, args: Any) -> Any:
        ctx.reference = "order-1"

    async def looks(ctx: Context, args: Any) -> Any:
        return ctx.reference

    g = Noting()
    g.add("a", does=refers, next="b")
    g.add("b", does=looks)
    assert (await run(world, g.graph)).outputs["b"] == "order-1"


async def test_4_the_state(world: World) -> None:
    async def looks(ctx: Context, args: Any) -> Any:
        return dict(ctx.vars)

    g = Noting(context={"n": 1})
    g.add("a", does=tell(m=2), next=arc("b", when=(E.ctx.n == 1) & (E.ctx.m == 2)))
    g.add("b", does=looks)
    assert (await run(world, g.graph)).outputs["b"] == {"n": 1, "m": 2}


async def test_4_the_payload_of_the_start(world: World) -> None:
    g = Noting()
    g.add("a", next=arc("b", args=[E.workload.n, E.start.n]))
    g.add("b")
    await run(world, g.graph, {"n": 7})
    assert g.args == {"a": [{"n": 7}], "b": [[7, 7]]}


async def test_4_the_payload_of_a_completion_and_its_task(world: World) -> None:
    graph = Graph("asks")
    graph.task(
        "approve", payload={"n": E.workload}, next=arc("look", args={"value": E.output.value, "by": E.output.by})
    )
    graph.step("look", seen)
    await world.once(graph, 7, mode="yield")
    async with Client(world.driver, clock=world.clock) as client:
        (task,) = (await client.tasks.list()).items
        assert (task.name, task.payload, task.path) == ("approve", {"n": 7}, "asks/approve/~0/approve")
        await client.tasks.complete(task.id, "yes", by="ada")
    assert end_of(await world.run(graph, 7)).outputs["look"]["args"] == {"value": "yes", "by": "ada"}


async def test_4_the_current_signal_and_its_id(world: World) -> None:
    async def listens(ctx: Context, args: Any) -> Any:
        message = await ctx.listen_message("m")
        return [message.id, message.name, message.payload]

    g = Noting()
    g.add("a", does=listens, next=arc("b", args=E.output[2]))
    g.add("b")
    await waiting(world, g.graph)
    await world.send("m", 7)
    async with Client(world.driver) as client:
        (queued,) = await client.handle(g.graph, "i").inbox()
    assert (await run(world, g.graph)).outputs["a"] == [queued.id, "m", 7]
    assert g.args["b"] == [7]


async def test_4_the_functions_that_expressions_call(world: World) -> None:
    graph = Graph("calls", functions=[twice])
    graph.noop("a", next=arc("b", args=fn.twice(E.workload)))
    graph.step("b", seen)
    assert end_of(await world.run(graph, 4)).outputs["b"]["args"] == 8


async def test_4_the_transports_that_steps_call(world: World) -> None:
    graph = Graph("calls")
    graph.call("pay", transport="bank", payload=E.workload)
    async with Runtime(world.driver, workflows=[graph], transports={"bank": bank}, clock=world.clock) as runtime:
        handle = await runtime.start(graph, 7)
        assert (await handle.result()).outputs["pay"] == {"receipt": 7}
    assert calls == [7]


async def test_4_the_metadata_of_the_run(world: World) -> None:
    """The id of the node, the version, the token of the wait, and when it was started."""

    async def looks(ctx: Context, args: Any) -> Any:
        calls.append(ctx.path)
        await ctx.listen("m")

    g = Noting()
    g.add("a", does=looks)
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        info = await client.handle(g.graph, "i").info()
    (wait,) = info.waits
    assert (calls[0], wait.path) == ("g/a/~0", "g/a/~0/m")
    assert 0 < wait.version <= info.version
    assert len(wait.token) >= 32
    assert info.created_at == (await world.history())["g/a/~0"].created_at == datetime(2030, 1, 1, tzinfo=UTC)


# 5. What is kept of a run.


async def shows(ctx: Context, args: Any) -> Any:
    """Shows something to whoever looks."""
    ctx.state["policy"] = "p-1"
    return {"customer": 7}


async def test_5_1_what_the_author_reasons_about_is_seen_while_it_waits(world: World) -> None:
    """The state that a step shows, and what steps gave."""
    g = Noting()
    g.add("a", does=shows, next="m")
    g.graph.wait("m", message="answer")
    await world.once(g.graph, mode="yield")
    async with Client(world.driver) as client:
        handle = client.handle(g.graph, "i")
        assert (await handle.info()).state == {"policy": "p-1"}
        assert (await handle.history())["g/a/~0"].value == {"customer": 7}


async def test_5_2_what_the_engine_needs_to_go_on_is_kept_beside_it(world: World) -> None:
    """The status, the wait and its token, the time of the timer, the last message that was taken."""
    g = Noting()
    g.graph.wait("first", message="answer", next="m")
    g.graph.wait("m", message="answer", timeout=60)
    await world.once(g.graph, mode="yield")
    await world.send("answer", 1)
    await world.once(g.graph, mode="yield")
    async with Client(world.driver) as client:
        info = await client.handle(g.graph, "i").info()
        assert await client.handle(g.graph, "i").inbox() == []
    (wait,) = info.waits
    assert (info.status, wait.kind, wait.path, info.state) == (Status.WAITING, "message", "g/m/~0/message", {})
    assert info.wake_at == wait.until
    assert (await world.history())["g/first/~0"].value == 1


# 6. Running up to a wait.


@pytest.mark.parametrize("kind", ["task", "timer", "message", "child"])
async def test_6_it_runs_up_to_a_wait_stores_what_there_is_and_lets_go(world: World, kind: str) -> None:
    graph = Graph("g")
    graph.step("before", seen, next=["wait"])
    match kind:
        case "task":
            graph.task("wait", next=["after"])
        case "timer":
            graph.wait("wait", duration=60, next=["after"])
        case "message":
            graph.wait("wait", message="answer", next=["after"])
        case _:
            graph.child("wait", workflow=asking_child, input=1, next=["after"])
    graph.step("after", seen)
    result = await world.once(graph, mode="yield")
    assert [wait.kind for wait in result.waits if wait.path.startswith("g/")] == [kind]
    recorded = {entry.path for entry in await world.history()}
    assert "g/before/~0" in recorded
    assert "g/after/~0" not in recorded
    # Another process can have it at once: nobody owns it any more.
    with anyio.fail_after(PATIENCE):
        assert (await world.once(graph, mode="yield")).status is result.status


async def test_6_it_runs_up_to_its_end(world: World) -> None:
    result = await world.once(two_steps(), mode="yield")
    assert (result.status, result.waits) == (Status.COMPLETED, [])


def two_steps() -> Graph:
    """Two steps in a row."""
    graph = Graph("g")
    graph.step("a", answer, next=["b"])
    graph.step("b", answer)
    return graph


# 7. What each kind of step does.


async def commits(world: World, steps: int) -> int:
    """How many commits a run takes that assigns so often."""
    graph = Graph(f"assigns {steps}", context={"n": 0})
    names = [f"set {number}" for number in range(steps)] + ["end"]
    for name, after in pairwise(names):
        graph.assign(name, {"n": E.ctx.n + 1}, next=[after])
    graph.step("end", seen)
    watched = WatchedDriver(world.driver)
    result = end_of(await world.once(graph, id=graph.name, driver=watched))
    assert result.outputs["end"]["context"] == {"n": steps}
    return len(watched.commits)


async def test_7_1_an_assignment_is_evaluated_and_written_at_once(world: World) -> None:
    graph = Graph("assigns", context={"n": 1})
    graph.assign("set", {"n": E.ctx.n + E.workload, "words": "as they are"}, next=["look"])
    graph.step("look", seen)
    assert end_of(await world.run(graph, 4)).outputs["look"]["context"] == {"n": 5, "words": "as they are"}


async def test_7_1_an_assignment_stays_in_memory_until_the_next_commit(world: World) -> None:
    # Not the same number: which changes share a commit depends on the order in which the event loop takes its tasks.
    assert await commits(world, 20) <= await commits(world, 1) + 2, "it has no commit of its own"


async def test_7_1_an_assignment_is_neither_lost_nor_made_twice_wherever_it_is_killed() -> None:
    def made() -> Noting:
        g = Noting(context={"n": 0})
        g.add("a", next="set")
        g.graph.assign("set", {"n": E.ctx.n + 1}, next=[arc("a", when=E.ctx.n < 3), arc("b", args=E.ctx.n)])
        g.add("b", does=lambda ctx, args: answer_of(args))
        return g

    async for death in deaths(made):
        assert (death.result.outputs["b"], death.result.outcomes["set"].firings) == (3, 3)


async def answer_of(args: Any) -> Any:
    """What it was given."""
    return args


async def refers(ctx: Context, args: Any) -> Any:
    """Assigns the business reference."""
    ctx.reference = "order-1"
    return 1


async def test_7_2_the_business_reference_is_on_the_instance_and_its_listing_and_on_new_tasks(world: World) -> None:
    g = Noting()
    g.add("a", does=refers, next="approve")
    g.graph.task("approve")
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        assert (await client.handle(g.graph, "i").info()).reference == "order-1"
        assert [info.id for info in await client.list(reference="order-1")] == ["i"]
        assert [task.name for task in await client.tasks.list(reference="order-1")] == ["approve"]
        assert not (await client.list(reference="order-2")).items


async def test_7_2_the_business_reference_is_written_with_what_else_the_step_has_come_to() -> None:
    def made() -> Noting:
        g = Noting()
        g.add("a", does=refers, next="b")
        g.add("b", does=lambda ctx, args: answer_of(ctx.reference))
        return g

    async for death in deaths(made):
        shown = None if death.info is None else death.info.reference
        assert (shown == "order-1") == ("g/a/~0" in death.over), "both, or neither"
        assert death.result.outputs["b"] == "order-1"


def approving() -> Graph:
    """A task of a person, and a step after it."""
    graph = Graph("asks")
    graph.task("approve", payload={"order": E.workload}, roles=["clerk"], next=arc("done", args=E.output.value))
    graph.step("done", seen)
    return graph


async def test_7_3_a_task_of_a_person_ends_the_run_there(world: World) -> None:
    result = await world.once(approving(), "o-1", mode="yield")
    assert (result.status, [wait.kind for wait in result.waits]) == (Status.WAITING, ["task"])
    assert "asks/done/~0" not in await world.history()


async def test_7_3_a_task_of_a_person_gives_one_active_task_and_a_status_and_a_wait(world: World) -> None:
    for _ in range(2):
        # Another process finds the task that is there.
        await world.once(approving(), "o-1", mode="yield")
    async with Client(world.driver) as client:
        (task,) = (await client.tasks.list()).items
        info = await client.handle("asks", "i").info()
    assert (task.name, task.payload, task.roles, task.instance) == ("approve", {"order": "o-1"}, ("clerk",), "i")
    assert info.status is Status.WAITING
    (wait,) = info.waits
    assert (wait.kind, wait.target, wait.token) == ("task", task.id, task.token)


async def test_7_3_a_task_of_a_person_is_one_task_wherever_it_is_killed() -> None:
    await crash_everywhere(approving(), "o-1", script=[("approve", True)])


def paying(transport: Any, **options: Any) -> Graph:
    """A call with a way for each end."""
    graph = Graph("pays", transports={"bank": transport, "other": answer_of})
    late = arc("late", on="failed", when=E.error.kind == "timeout")
    failed = arc("failed", on="failed", args={"kind": E.error.kind})
    graph.call(
        "pay",
        transport="bank",
        payload={"cents": E.workload + 1},
        result="paid",
        next=["done", late, failed],
        **options,
    )
    for name in ("done", "late", "failed"):
        graph.step(name, seen)
    return graph


async def test_7_4_a_call_evaluates_its_payload_and_goes_through_the_transport_that_is_named(world: World) -> None:
    end_of(await world.run(paying(bank), 499))
    assert calls == [{"cents": 500}]


async def test_7_4_a_call_gives_the_result_and_stores_it_under_its_key(world: World) -> None:
    result = end_of(await world.run(paying(bank), 499))
    assert result.outputs["pay"] == {"receipt": {"cents": 500}}
    assert result.outputs["done"]["context"] == {"paid": {"receipt": {"cents": 500}}}


async def refuses(payload: Any) -> Any:
    """A transport that fails."""
    raise CriticalError("closed")


async def never_answers(payload: Any) -> Any:
    """A transport that takes too long."""
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("transport", "way"),
    [(bank, "done"), (refuses, "failed"), (never_answers, "late")],
    ids=lambda value: str(value)[:20],
)
async def test_7_4_a_call_takes_the_branch_of_success_of_failure_or_of_timeout(
    world: World, transport: Any, way: str
) -> None:
    result = end_of(await world.run(paying(transport, timeout=0.05, retries=0), 499))
    assert {name for name, status in by_status(result).items() if status == "completed"} - {"pay"} == {way}


async def test_7_4_a_call_needs_no_callback_it_is_over_in_the_run_that_makes_it(world: World) -> None:
    result = await world.once(paying(bank), 499, mode="yield")
    assert (result.status, world.runs) == (Status.COMPLETED, 1)


async def test_7_4_a_call_whose_result_is_recorded_is_not_made_again_wherever_it_is_killed() -> None:
    await crash_everywhere(paying(bank), 499)


@pytest.mark.parametrize(("kind", "way"), [("bug", "fix"), ("praise", "thank"), ("spam", "drop")])
async def test_7_5_of_a_condition_one_branch_is_run(world: World, kind: str, way: str) -> None:
    g = Noting(context={"kind": ""})
    g.graph.assign("set", {"kind": E.workload}, next=["which"])
    g.graph.choose(
        "which", [arc("fix", when=E.ctx.kind == "bug"), arc("thank", when=E.ctx.kind == "praise")], otherwise="drop"
    )
    for name in ("fix", "thank", "drop"):
        g.add(name)
    await run(world, g.graph, kind)
    assert g.ran == [way]


async def test_7_5_a_branch_that_was_taken_is_taken_again_without_asking_wherever_it_is_killed() -> None:
    """What the condition reads is changed by the branch itself, before it waits."""

    async def changes(ctx: Context, args: Any) -> Any:
        ctx.patch(way="other")
        await ctx.sleep("nap", 60)
        return "first"

    def made() -> Noting:
        g = Noting(context={"way": "first"})
        g.graph.choose("which", [arc("a", when=E.ctx.way == "first")], otherwise="b")
        g.add("a", does=changes, next="c")
        g.add("b")
        g.add("c", does=tell(way="other"))
        return g

    async for death in deaths(made):
        assert by_status(death.result) == {
            "which": "completed", "a": "completed", "b": "never_reached", "c": "completed",
        }  # fmt: skip
        assert "b" not in death.before + death.after


def note(what: Any) -> Any:
    """A step of the engine."""
    calls.append(what)
    return what


async def turn(ctx: Context, args: Any) -> Any:
    """One turn of a repeat: it does something, waits, and does something else."""
    await ctx.step("before", note, f"before {args['n']}")
    got = await ctx.listen("answer")
    await ctx.step("after", note, f"after {args['n']}")
    ctx.patch(turns=ctx.vars["turns"] + 1)
    return {"n": args["n"] + 1, "got": [*args["got"], got]}


def repeating() -> Noting:
    """Three turns with a wait in each."""
    g = Noting(Graph("g", context={"turns": 0}))
    g.graph.repeat("r", turn, until=E.output.n >= E.workload.most, next=arc("b", args=E.ctx.turns))
    g.add("b", does=lambda ctx, args: answer_of(args))
    return g


START = {"n": 0, "got": [], "most": 3}
ANSWERS = [("answer", 1), ("answer", 2), ("answer", 3)]


async def test_7_6_repeat_asks_its_source_and_binds_each_iteration(world: World) -> None:
    """The next turn is given what the one before it gave; `until` is asked after each."""
    result = end_of(await world.run(repeating().graph, START, script=ANSWERS))
    assert result.outputs == {"r": {"n": 3, "got": [1, 2, 3]}, "b": 3}
    assert calls == [f"{when} {n}" for n in range(3) for when in ("before", "after")]


async def test_7_6_a_list_is_gone_through_with_each_item_bound(world: World) -> None:
    graph = Graph("g")
    graph.step("e", bank, each=E.workload.items, parallel=1)
    assert end_of(await world.run(graph, {"items": [5, 6]})).outputs["e"] == [{"receipt": 5}, {"receipt": 6}]
    assert calls == [5, 6]


async def test_7_6_what_is_kept_of_a_wait_is_the_step_the_iteration_and_the_place_in_it(world: World) -> None:
    g = repeating()
    for number in range(3):
        result = await world.once(g.graph, START, mode="yield")
        assert [wait.path for wait in result.waits] == [f"g/r/~0/turns/~{number}/turn/answer"]
        assert calls[-1] == f"before {number}"
        await world.send("answer", number)


async def test_7_6_repeat_goes_on_in_the_iteration_that_waited() -> None:
    """Wherever it is killed: no iteration is begun again that is over, and in one that is not, nothing that is done."""

    def made() -> Noting:
        calls.clear()
        g = repeating()
        g.ran = calls
        return g

    async for death in deaths(made, START, ANSWERS):
        assert death.result.outputs == {"r": {"n": 3, "got": [1, 2, 3]}, "b": 3}
        for n in range(3):
            for when in ("before", "after"):
                is_over = f"g/r/~0/turns/~{n}/turn/{when}" in death.over
                assert f"{when} {n}" in (death.before if is_over else death.after)
                assert not (is_over and f"{when} {n}" in death.after)


async def item(ctx: Context, number: int) -> Any:
    """An item: it does something, waits, and does something else."""
    await ctx.step("before", note, f"before {number}")
    got = await ctx.listen("answer")
    return await ctx.step("after", note, [number, got])


async def test_7_6_each_goes_on_in_the_item_that_waited() -> None:
    graph = Graph("g")
    graph.step("e", item, each=E.workload, parallel=1)
    await crash_everywhere(graph, [5, 6], script=[("answer", 1), ("answer", 2)])


def with_child(of: Any, **options: Any) -> Graph:
    """A step that starts another instance and waits for it."""
    graph = Graph("parent", context={"kept": "before"})
    graph.step("first", refers, next="work")
    graph.child(
        "work", workflow=of, input=E.workload, next=arc("look", args={"of work": E.output, "again": E.results.work})
    )
    graph.step("look", seen)
    return graph


async def test_7_7_a_child_that_ends_at_once_is_no_wait(world: World) -> None:
    result = await world.once(with_child(child), 4, mode="yield")
    assert end_of(result).outputs["work"] == 8


async def test_7_7_a_child_that_waits_is_a_wait_of_its_parent(world: World) -> None:
    await world.once(with_child(asking_child), 4, mode="yield")
    async with Client(world.driver) as client:
        info = await client.handle("parent", "i").info()
        (wait,) = info.waits
        assert (info.status, wait.kind, wait.path) == (Status.WAITING, "child", "parent/work/~0/child")
        assert (await client.handle(asking_child, str(wait.target)).info()).status is Status.WAITING


async def test_7_7_what_the_parent_keeps_is_the_child_and_its_version_its_own_reference_and_place(world: World) -> None:
    await world.once(with_child(slow_child), 4, mode="yield")
    async with Client(world.driver) as client:
        info = await client.handle("parent", "i").info()
        (wait,) = info.waits
        of_child = await client.handle(slow_child, str(wait.target)).info()
    assert (of_child.workflow, of_child.workflow_version, of_child.input) == ("slow_child", 7, 4)
    assert info.reference == "order-1"
    assert wait.path == "parent/work/~0/child"


async def test_7_7_a_child_gives_its_output_where_the_parent_waited_with_all_that_it_knew(world: World) -> None:
    result = end_of(await world.run(with_child(slow_child), 4))
    assert result.outputs["work"] == 8
    assert result.outputs["look"] == {"args": {"of work": 8, "again": 8}, "context": {"kept": "before"}}


async def test_7_7_a_child_is_one_child_wherever_both_are_killed() -> None:
    await crash_everywhere(with_child(slow_child), 4, workflows=[slow_child])


def successor() -> Graph:
    """A step that starts another instance and goes on."""
    graph = Graph("goes on")
    graph.continue_with("next", workflow=asking_child, input=E.workload, next="after")
    graph.step("after", seen)
    return graph


async def test_7_8_continue_with_starts_another_instance_and_does_not_wait_for_it(world: World) -> None:
    result = end_of(await world.once(successor(), 4, mode="yield"))
    async with Client(world.driver, clock=world.clock) as client:
        info = await client.handle(asking_child, result.outputs["next"]).info()
    assert (info.workflow, info.input, info.status.is_terminal) == ("asking_child", 4, False)
    assert result.outcomes["after"].status == "completed"


async def test_7_8_continue_with_starts_one_instance_wherever_it_is_killed() -> None:
    graph = Graph("goes on")
    graph.continue_with("next", workflow=slow_child, input=E.workload, next="after")
    graph.step("after", seen)
    await crash_everywhere(graph, 4, workflows=[slow_child])


# 8. Going on.


async def test_8_1_where_it_goes_on_is_recorded_the_same_in_every_run(world: World) -> None:
    """What kind of wait it is, the task, the branch, the step in it and the iteration."""
    graph = Graph("g", context={"turns": 0})
    graph.noop(
        "a",
        next=[arc("r", args={"n": 0, "got": []}), arc("approve"), arc("not", when=E.workload == 2)],
        mode="inclusive",
    )
    graph.repeat("r", turn, until=E.output.n >= 3)
    graph.task("approve")
    graph.noop("not")
    found: list[Any] = []
    for id in ("i", "j"):
        await world.once(graph, 1, id=id, mode="yield")
        await world.send("answer", 1, id=id)
        await world.once(graph, 1, id=id, mode="yield")
        async with Client(world.driver) as client:
            info = await client.handle(graph, id).info()
        found.append(sorted((wait.kind, wait.name, wait.path) for wait in info.waits))
    assert found[0] == found[1] == [
        ("message", "answer", "g/r/~0/turns/~1/turn/answer"), ("task", "approve", "g/approve/~0/approve"),
    ]  # fmt: skip


async def test_8_1_another_process_goes_on_from_the_store_alone(driver: Driver) -> None:
    def made() -> Graph:
        g = Noting(Graph("g"))
        g.add("a", 1, next="b")
        g.add("b", does=waits("answer"), next="c")
        g.add("c")
        noted.append(g)
        return g.graph

    noted: list[Noting] = []
    async with Runtime(driver, workflows=[made()]) as runtime:
        await until_status(await runtime.start("g", None, id="i"), Status.WAITING)
    async with Runtime(driver, workflows=[made()]) as runtime:
        handle = runtime.handle("g", "i")
        await handle.send("answer", 42)
        assert (await handle.result(timeout=PATIENCE))["outputs"] == {"a": 1, "b": 42, "c": None}
    assert [g.ran.count("a") for g in noted] == [1, 0]


def every_wait() -> Graph:
    """A graph with a wait of each kind."""
    graph = Graph("g", context={"open": False})
    graph.noop("a", next=["m", "t", "approve", "kid", "gate"], mode="inclusive")
    graph.wait("m", message="answer")
    graph.wait("t", duration=60)
    graph.task("approve")
    graph.child("kid", workflow=asking_child, input=1)
    graph.noop("gate", admit=E.ctx.open)
    return graph


async def test_8_2_every_wait_has_a_token_of_its_own(world: World) -> None:
    await world.once(every_wait(), mode="yield")
    async with Client(world.driver) as client:
        first = (await client.handle("g", "i").info()).waits
        await world.once(every_wait(), mode="yield")
        again = (await client.handle("g", "i").info()).waits
    assert {wait.kind for wait in first} == {"message", "timer", "task", "child", "admission"}
    assert len({wait.token for wait in first}) == len(first) == 5
    assert all(len(wait.token) >= 32 for wait in first)
    assert again == first, "one that goes on in another run keeps its token"


async def store(world: World) -> Any:
    """All that is stored."""
    return await world.driver.scan(b"", b"\xff")


async def test_8_2_a_signal_whose_token_does_not_fit_is_stale_and_changes_nothing(world: World) -> None:
    """The token of an earlier turn of the same wait, of another instance, and of no wait at all."""
    g = repeating()
    await world.once(g.graph, START, mode="yield")
    await world.once(g.graph, START, id="j", mode="yield")
    async with Client(world.driver, clock=world.clock) as client:
        handle = client.handle(g.graph, "i")
        (old,) = (await handle.info()).waits
        (other,) = (await client.handle(g.graph, "j").info()).waits
        assert await handle.send("answer", 1, token=old.token) is Delivery.ACCEPTED
        await world.once(g.graph, START, mode="yield")
        before = await store(world)
        for stale in (old.token, other.token, "00" * 20, ""):
            assert await handle.send("answer", 9, token=stale) is Delivery.STALE
        assert await store(world) == before
        (now,) = (await handle.info()).waits
        assert await handle.send("answer", 2, token=now.token) is Delivery.ACCEPTED
    assert end_of(await world.run(g.graph, START, script=ANSWERS[2:])).outputs["r"]["got"] == [1, 2, 3]


async def test_8_2_the_token_of_a_wait_that_has_begun_again_in_the_same_place_is_stale(world: World) -> None:
    g = Noting()
    g.graph.wait("m", message="answer")
    await world.once(g.graph, mode="yield")
    async with Client(world.driver, clock=world.clock) as client:
        handle = client.handle(g.graph, "i")
        (old,) = (await handle.info()).waits
        await handle.restart_from()
        await world.once(g.graph, mode="yield")
        (new,) = (await handle.info()).waits
        assert (old.path, old.token == new.token) == (new.path, False)
        assert await handle.send("answer", 1, token=old.token) is Delivery.STALE
        assert await handle.send("answer", 2, token=new.token) is Delivery.ACCEPTED
    assert end_of(await world.run(g.graph)).outputs["m"] == 2


async def test_8_2_a_cancelled_timer_wakes_nothing(world: World) -> None:
    """The message has come in time: when the time is over, the step is long done, and its failure arc is not taken."""
    g = Noting()
    g.graph.wait("m", message="answer", timeout=60, next=["b", arc("late", on="failed")])
    g.add("b", does=lambda ctx, args: ctx.sleep("nap", 1000))
    g.add("late")
    await world.once(g.graph, mode="yield")
    await world.send("answer")
    result = await run(world, g.graph)
    assert by_status(result) == {"m": "completed", "b": "completed", "late": "never_reached"}
    assert result.outcomes["m"].firings == 1


async def test_8_2_waking_it_twice_changes_nothing(world: World) -> None:
    g = repeating()
    await world.once(g.graph, START, mode="yield")
    async with Client(world.driver, clock=world.clock) as client:
        before = await client.handle(g.graph, "i").info()
        for _ in range(2):
            await client.handle(g.graph, "i").wake()
            await client.handle(g.graph, "i").wake()
            await world.once(g.graph, START, mode="yield")
        after = await client.handle(g.graph, "i").info()
    assert [(wait.path, wait.token) for wait in after.waits] == [(wait.path, wait.token) for wait in before.waits]
    assert calls == ["before 0"]


async def test_8_2_a_child_that_ends_too_late_changes_nothing(world: World) -> None:
    """The quorum has fired without it."""
    g = Noting()
    g.graph.noop("a", next=["kid", "m"], mode="inclusive")
    g.graph.child("kid", workflow=asking_child, input=1)
    g.graph.wait("m", message="answer")
    g.add("join", needs=["kid", "m"], join=quorum(1))
    await world.once(g.graph, mode="yield")
    async with Client(world.driver, clock=world.clock) as client:
        (target,) = [str(wait.target) for wait in (await client.handle(g.graph, "i").info()).waits if wait.target]
        await world.send("answer", 7)
        result = await run(world, g.graph)
        assert (by_status(result)["kid"], by_status(result)["join"]) == ("cancelled", "completed")
        before = await client.handle(g.graph, "i").info()
        assert await client.handle(asking_child, target).send("answer", 8) in (
            Delivery.CLOSED,
            Delivery.QUEUED,
            Delivery.ACCEPTED,
        )
        await world.once(asking_child, 1, id=target, mode="yield")
        assert await client.handle(g.graph, "i").info() == before
    assert g.args["join"] == [{"m": 7}]


async def test_8_2_a_signal_that_is_delivered_again_counts_once(world: World) -> None:
    g = repeating()
    await world.once(g.graph, START, mode="yield")
    async with Client(world.driver, clock=world.clock) as client:
        handle = client.handle(g.graph, "i")
        assert await handle.send("answer", 1, key="once") is Delivery.ACCEPTED
        await world.once(g.graph, START, mode="yield")
        for _ in range(2):
            assert await handle.send("answer", 1, key="once") is Delivery.DUPLICATE
    result = await world.once(g.graph, START, mode="yield")
    assert [wait.path for wait in result.waits] == ["g/r/~0/turns/~1/turn/answer"], "still in the second turn"


async def test_8_3_every_commit_that_changes_what_is_recorded_increments_the_version(world: World) -> None:
    g = Noting()
    g.add("a", 1, next="b")
    g.add("b", does=naps, next="c")
    g.add("c")
    states: list[tuple[int, list[Any]]] = []

    async def look(commit: int) -> None:
        """What there is before a commit."""
        if commit > 1:
            async with Client(world.driver) as client:
                version = (await client.handle(g.graph, "i").info()).version
            states.append((version, [(one.path, one.status, one.value) for one in await world.history()]))

    result = await world.run(g.graph, driver=WatchedDriver(world.driver, look))
    assert result.status is Status.COMPLETED
    assert len({version for version, _ in states}) > 3
    for (before, old), (after, new) in pairwise(states):
        assert after - before in ((1,) if old != new else (0, 1))


async def test_8_3_to_be_run_and_wait_as_before_keeps_the_version(world: World) -> None:
    g = repeating()
    found: list[int] = []
    async with Client(world.driver, clock=world.clock) as client:
        for _ in range(3):
            await world.once(g.graph, START, mode="yield")
            found.append((await client.handle(g.graph, "i").info()).version)
    assert found == [found[0]] * 3


async def test_8_3_a_signal_with_the_version_of_a_wait_that_is_over_is_stale_before_it_changes_anything(
    world: World,
) -> None:
    g = repeating()
    await world.once(g.graph, START, mode="yield")
    async with Client(world.driver, clock=world.clock) as client:
        handle = client.handle(g.graph, "i")
        (old,) = (await handle.info()).waits
        assert await handle.send("answer", 1, expected_version=old.version) is Delivery.ACCEPTED
        await world.once(g.graph, START, mode="yield")
        before = await store(world)
        assert await handle.send("answer", 9, expected_version=old.version) is Delivery.STALE
        assert await store(world) == before


# 9. Tasks of persons.


async def test_9_completing_a_task_is_a_signal_from_outside_that_wakes_it(driver: Driver) -> None:
    """No object waits in memory: whichever worker is there goes on."""
    async with Client(driver) as client:
        async with Runtime(driver, workflows=[approving()]) as runtime:
            await until_status(await runtime.start("asks", "o-1", id="i"), Status.WAITING)
        (task,) = (await client.tasks.list()).items
        await client.tasks.complete(task.id, "yes", by="ada", roles=["clerk"])
        async with Runtime(driver, workflows=[approving()]) as runtime:
            result = await runtime.handle("asks", "i").result(timeout=PATIENCE)
    assert result["outputs"]["done"]["args"] == "yes"


# 10. Errors.


async def test_10_definition_errors_are_told_before_anything_runs(world: World) -> None:
    g = Noting()
    g.add("a", next="nowhere")
    with pytest.raises(DefinitionError) as told, anyio.fail_after(PATIENCE):
        await world.once(g.graph)
    assert "nowhere" in str(told.value)
    assert g.ran == []


async def kind_of(world: World, graph: Graph, workload: Any = None) -> Any:
    """The kind of the error of step `a`, as guards and as the history tell it."""
    result = end_of(await world.run(graph, workload))
    error = (await world.history())[f"{graph.name}/a/~0"].error
    assert error is not None
    assert result.outputs["told"]["args"] == {"kind": error.kind}
    return error.kind


TOLD = arc("told", on="failed", args={"kind": E.error.kind})


async def test_10_expression_errors(world: World) -> None:
    graph = Graph("g")
    graph.assign("a", {"n": E.workload.gone}, next=[TOLD])
    graph.step("told", seen)
    assert await kind_of(world, graph, {}) == "expression"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError("no route"), "transport"),
        (TimeoutError("late"), "timeout"),
        (NotAuthorizedError("not you"), "authorization"),
        (ValueError("no"), "transport"),
        (CriticalError("no"), "application"),
    ],
)
async def test_10_transport_timeout_and_authorization_errors_and_those_of_the_application(
    world: World, error: Exception, kind: str
) -> None:
    async def fails(payload: Any) -> Any:
        raise error

    graph = Graph("g", transports={"bank": fails})
    graph.call("a", transport="bank", retries=0, next=[TOLD])
    graph.step("told", seen)
    assert await kind_of(world, graph) == kind


async def test_10_timeouts_of_waits_and_steps_are_timeout_errors(world: World) -> None:
    graph = Graph("g")
    graph.wait("a", message="never", timeout=60, next=[TOLD])
    graph.step("told", seen)
    assert await kind_of(world, graph) == "timeout"


async def test_10_consistency_errors_stop_the_instance_and_lose_nothing(world: World) -> None:
    """The code does not fit what is recorded: it is told, nothing is changed, and the right code goes on."""
    g, other = Noting(Graph("g")), Noting(Graph("g"))
    g.add("a", does=lambda ctx, args: listens_as(ctx, "one"), next="b")
    g.add("b")
    other.add("a", does=lambda ctx, args: listens_as(ctx, "two"), next="b")
    other.add("b")
    await waiting(world, g.graph)
    stuck = await world.once(other.graph, mode="yield")
    assert stuck.error is not None
    assert (stuck.status, stuck.error.kind) == (Status.STUCK, "consistency")
    async with Client(world.driver, clock=world.clock) as client:
        info = await client.handle("g", "i").info()
        assert info.recoverable
        with pytest.raises(WorkflowStuckError):
            await client.handle("g", "i").result(timeout=PATIENCE)
        await client.handle("g", "i").recover()
    await waiting(world, g.graph)
    await world.send("one", 1)
    assert (await run(world, g.graph)).outputs["a"] == 1


async def listens_as(ctx: Context, name: str) -> Any:
    """Waits under that name."""
    return await ctx.listen(name)


async def test_10_an_error_may_take_a_failure_branch(world: World) -> None:
    g = Noting()
    g.add("a", fails="no", next=[arc("b"), arc("mend", on="failed")])
    g.add("b")
    g.add("mend")
    result = await run(world, g.graph)
    assert (g.ran, result.status) == (["a", "mend"], "succeeded")


async def test_10_an_error_may_schedule_a_retry(world: World) -> None:
    exact = Backoff(initial=60, factor=1, maximum=60, jitter=0)
    g = Noting()
    g.add("a", does=failing(ValueError("not yet")), backoff=exact)
    began = world.clock.time()
    first = await world.once(g.graph, mode="yield")
    assert (first.status, [wait.kind for wait in first.waits]) == (Status.SLEEPING, ["retry"]), (
        "no worker sleeps for it"
    )
    assert (await run(world, g.graph)).status == "succeeded"
    assert (g.count("a"), world.clock.time() - began >= 60) == (2, True)


async def test_10_an_error_may_fail_the_workflow(world: World) -> None:
    g = Noting()
    g.add("a", fails="broken")
    await run(world, g.graph)
    async with Client(world.driver) as client:
        with pytest.raises(WorkflowFailedError, match="broken"):
            await client.handle(g.graph, "i").result(timeout=PATIENCE)


async def test_10_an_error_may_leave_the_instance_to_be_recovered(world: World) -> None:
    healthy: list[bool] = []

    async def fails(ctx: Context, args: Any) -> str:
        if not healthy:
            raise CriticalError("broken")
        return "mended"

    g = Noting()
    g.add("a", 1, next="b")
    g.add("b", does=fails)
    await run(world, g.graph)
    async with Client(world.driver) as client:
        assert (await client.handle(g.graph, "i").info()).recoverable
        healthy.append(True)
        await client.handle(g.graph, "i").recover()
    assert (await run(world, g.graph)).outputs == {"a": 1, "b": "mended"}
    assert g.ran == ["a", "b", "b"]


# 11. Retries.


async def test_11_a_retry_is_a_stored_wait_with_its_failure_and_a_token_and_nobody_sleeps_for_it(world: World) -> None:
    exact = Backoff(initial=60, factor=1, maximum=60, jitter=0)
    g = Noting()
    g.add("a", does=failing(ValueError("not yet"), ValueError("not yet")), backoff=exact)
    tokens: list[str] = []
    for attempts in (1, 2):
        result = await world.once(g.graph, mode="yield")
        async with Client(world.driver) as client:
            info = await client.handle(g.graph, "i").info()
        (wait,) = info.waits
        assert (result.status, wait.kind, wait.attempts) == (Status.SLEEPING, "retry", attempts)
        assert wait.error is not None
        assert wait.error.message == "not yet"
        assert wait.until == info.wake_at == result.wake_at
        tokens.append(wait.token)
        world.clock.advance(60)
    assert len(set(tokens)) == 2, "each retry has a token of its own"
    assert (await run(world, g.graph)).status == "succeeded"
    assert g.count("a") == 3


# 12. The end.


async def test_12_it_completes_when_nothing_is_awaited_any_more(world: World) -> None:
    """And no timer, task or child of it is left, but what it has come to."""
    g = Noting(retention=3600)
    g.graph.wait("m", message="answer", timeout=60, next=["approve"])
    g.graph.task("approve", timeout=60)
    await world.once(g.graph, mode="yield")
    await world.send("answer")
    assert (await world.once(g.graph, mode="yield")).status is Status.WAITING
    async with Client(world.driver, clock=world.clock) as client:
        (task,) = (await client.tasks.list()).items
        await client.tasks.complete(task.id, 1, by="ada")
        result = await world.run(g.graph)
        info = await client.handle(g.graph, "i").info()
        assert not (await client.tasks.list()).items
    assert (result.status, info.status, info.waits, info.wake_at) == (Status.COMPLETED, Status.COMPLETED, [], None)
    assert info.purge_at is not None
    assert (info.purge_at - info.updated_at).total_seconds() == 3600


# 13. Determinism.


async def test_13_an_expression_has_one_answer_for_one_context(world: World) -> None:
    graph = Graph("g")
    graph.assign("a", {"words": E.workload.words, "n": fn.sum(E.workload.numbers), "top": fn.max(E.workload.numbers)})
    workload = {"words": {"b": 1, "a": 2}, "numbers": [3, 1, 2]}
    outputs = [end_of(await world.run(graph, workload, id=id)).outputs["a"] for id in "ijk"]
    assert outputs[0] == outputs[1] == outputs[2]
    assert (outputs[0]["n"], outputs[0]["top"]) == (6, 3)


async def test_13_what_an_expression_came_to_is_recorded_and_not_asked_again_wherever_it_is_killed() -> None:
    """A function of the author's that gives another number each time: what was recorded stays."""
    numbers = iter(range(1, 1_000_000))

    @function
    def drawn(given: Any) -> int:
        return next(numbers)

    def made() -> Noting:
        g = Noting(Graph("g", functions=[drawn]))
        g.add("a", next=arc("b", args=fn.drawn(E.workload)))
        g.add("b", does=naps, next=arc("c", args=E.args))
        g.add("c", does=lambda ctx, args: answer_of(args))
        return g

    async for death in deaths(made, 1):
        found = [entry.value for entry in death.recorded or () if entry.path == "g/b/~0/kept"]
        kept = [value for value in found if value is not None]
        assert kept in ([], [death.result.outputs["b"]])
        assert death.result.outputs["c"] == death.result.outputs["b"]


async def naps(ctx: Context, args: Any) -> Any:
    """Records what it was given, and sleeps."""
    kept = await ctx.step("kept", answer_of, args)
    await ctx.sleep("nap", 60)
    assert kept == args
    return args


async def test_13_calls_are_side_effects_with_one_key_each_however_often_they_are_tried(world: World) -> None:
    async def shaky(payload: Any, *, idempotency_key: str) -> Any:
        calls.append(idempotency_key)
        if len(calls) < 3:
            raise ConnectionError("not now")
        return "paid"

    assert end_of(await world.run(paying(shaky), 499)).outputs["pay"] == "paid"
    assert (len(calls), len(set(calls))) == (3, 1)


def test_13_no_hidden_function_is_left_in_a_definition() -> None:
    graph = Graph("g")
    graph.noop("a", next=arc("b", when=lambda scope: scope["workload"] == 1))
    graph.noop("b")
    with pytest.raises(DefinitionError, match="the lambda at"):
        graph.to_data()


async def test_13_no_local_time_the_time_of_a_step_is_recorded_and_the_same_on_replay(world: World) -> None:
    times: list[datetime] = []

    async def looks(ctx: Context, args: Any) -> Any:
        times.append(ctx.now())
        await ctx.sleep("nap", 60)
        return [times[0] == times[-1], len(times)]

    g = Noting()
    g.add("a", does=looks)
    await world.once(g.graph, mode="yield")
    world.clock.advance(3600)
    assert (await run(world, g.graph)).outputs["a"] == [True, 2], "an hour later, in another process"


async def test_13_no_object_in_memory_what_a_body_changes_of_its_arguments_is_seen_nowhere(world: World) -> None:
    async def spoils(ctx: Context, args: Any) -> Any:
        args["list"].append("spoiled")
        with pytest.raises(TypeError):
            ctx.vars["n"] = 2  # type: ignore[index]

    g = Noting(context={"n": 1})
    g.add("a", does=spoils, next=arc("b", args=[E.args.list, E.workload.list, E.ctx.n]))
    g.add("b")
    await run(world, g.graph, {"list": [1]})
    assert g.args["b"] == [[[1], [1], 1]]


async def test_13_no_ambient_state_any_process_comes_to_the_same() -> None:
    """Each run is as if in another process: other objects, another order of sets, another time."""
    await crash_everywhere(every_step(), {"n": 2})


def every_step() -> Graph:
    """A graph with a fork, a join, a choice, a loop, a repeat and a nap."""
    graph = Graph("g", context={"turns": 0})
    graph.noop("a", next=["items", "nap"], mode="inclusive")
    graph.step("items", bank, each=[1, 2], next=["which"])
    graph.choose("which", [arc("set", when=E.workload.n == 2)], otherwise="nothing")
    graph.assign("set", {"n": fn.len(E.results.items)})
    graph.noop("nothing")
    graph.wait("nap", duration=60)
    graph.step("join", seen, needs=["set", "nap"])
    return graph


# 14. The parts that there are.


def test_14_what_is_authored_is_normalised() -> None:
    data = authored().to_data()
    again = Graph.from_data(data, [answer, child, twice], {"bank": bank})
    assert (again.to_data(), again.hash) == (data, authored().hash)
    shuffled = dict(reversed(data.items()))
    assert Graph.from_data(shuffled, [answer, child, twice], {"bank": bank}).hash == authored().hash


async def test_14_what_is_interpreted_is_the_canonical_definition(world: World) -> None:
    """Read from data, it does what the authored one does."""
    again = Graph.from_data(every_step().to_data(), [bank, seen])
    first = end_of(await world.run(every_step(), {"n": 2}))
    assert end_of(await world.run(again, {"n": 2}, id="j")) == first


def test_14_the_interpreter_runs_nothing_by_itself() -> None:
    found = explore(every_step(), depth=20)
    assert found.findings == []
    assert calls == []


async def test_14_calls_are_dispatched_by_the_names_of_transports(world: World) -> None:
    async def post(payload: Any) -> Any:
        calls.append(["post", payload])

    graph = Graph("g", transports={"bank": bank, "post": post})
    graph.call("a", transport="post", payload=1, next=["b"])
    graph.call("b", transport="bank", payload=2)
    end_of(await world.run(graph))
    assert calls == [["post", 1], 2]


async def test_14_of_several_workers_one_at_a_time_runs_an_instance(driver: Driver) -> None:
    g = Noting(Graph("g"))
    g.add("a", next=["b", "c"], mode="inclusive")
    g.add("b", does=waits("answer"))
    g.add("c")
    async with Runtime(driver, workflows=[g.graph]) as one, Runtime(driver, workflows=[g.graph]):
        handle = await one.start(g.graph, id="i")
        await until_status(handle, Status.WAITING)
        await handle.send("answer", 1)
        assert (await handle.result(timeout=PATIENCE)).status == "succeeded"
    assert (g.count("a"), g.count("c")) == (1, 1)


async def test_14_what_it_goes_on_with_is_written_and_read_back(world: World) -> None:
    """Of a context with values of many types, after a wait, in another process."""
    moment = datetime(2030, 1, 31, tzinfo=UTC)
    g = Noting(context={"list": [1, {"x": None}], "at": moment, "raw": b"\x00", "n": 2**70})
    g.graph.wait("m", message="answer", next=["look"])
    g.graph.step("look", seen)
    await world.once(g.graph, mode="yield")
    await world.send("answer")
    result = end_of(await world.run(g.graph))
    assert result.outputs["look"]["context"] == {"list": [1, {"x": None}], "at": moment, "raw": b"\x00", "n": 2**70}
