"""Admission: whether a token may start its step, and what becomes of those that may not yet."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.graphs.running import Noting, by_status, run, tell, waiting
from tests.patience import PATIENCE
from tests.runtime.parts import until_status
from tests.support import World
from workflow_sdk import Backoff, Client, Context, Driver, InstanceNotFoundError, Runtime, Status
from workflow_sdk.graphs import E, GraphResult, Limits, arc, otherwise, rule


def gated(**options: Any) -> Noting:
    """A step that leads to a gate, which is closed."""
    g = Noting(context={"open": False, **options.pop("context", {})}, **options)
    g.add("a", next="gate")
    g.add("gate", "through", admit=E.ctx.open, next="after")
    g.add("after")
    return g


async def patch(world: World, **values: Any) -> None:
    """Change the context from another client."""
    async with Client(world.driver) as client:
        await client.handle("g", "i").patch(**values)


@pytest.mark.parametrize("admit", [E.ctx.budget > 0, "ctx.budget > 0"])
async def test_an_admitted_token_starts_at_once(world: World, admit: Any) -> None:
    g = Noting(context={"budget": 1})
    g.add("a", admit=admit)
    assert by_status(await run(world, g.graph)) == {"a": "completed"}


async def test_a_denied_token_stays_pending_and_is_shown_as_a_wait_of_kind_admission(world: World) -> None:
    g = gated()
    await waiting(world, g.graph)
    assert g.ran == ["a"]
    async with Client(world.driver) as client:
        info = await client.handle(g.graph, "i").info()
    assert info.status is Status.WAITING
    assert [(wait.kind, wait.name, wait.until) for wait in info.waits] == [("admission", "gate", None)]
    assert info.waits[0].path.startswith("g/gate")


async def test_what_is_blocked_is_told_by_info(world: World) -> None:
    g = gated()
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        info: Any = await client.handle(g.graph, "i").info()
    assert "gate" in str(info.blocked)


async def test_what_waits_as_before_is_shown_as_before_by_every_run(world: World) -> None:
    """A gate, another attempt, and a body that has a time."""

    async def fails(ctx: Context, args: Any) -> None:
        raise ValueError("not yet")

    async def asks(ctx: Context, args: Any) -> None:
        await ctx.listen("answer")

    g = Noting(context={"open": False})
    g.add("a", next=["gate", "retried", "timed"], mode="inclusive")
    g.add("gate", admit=E.ctx.open)
    g.add("retried", does=fails, backoff=Backoff(initial=1000, jitter=0), retries=3)
    g.add("timed", does=asks, timeout=500)
    seen: list[Any] = []
    for values in ({"other": 1}, None, None):
        await waiting(world, g.graph)
        async with Client(world.driver) as client:
            info = await client.handle(g.graph, "i").info()
            seen.append((info.waits, info.version))
            if values is not None:
                await client.handle(g.graph, "i").patch(**values)
    assert sorted(wait.kind for wait in seen[0][0]) == ["admission", "message", "retry", "timer"]
    assert [waits for waits, _ in seen] == [seen[0][0]] * 3
    assert seen[2] == seen[1], "only the patch was a change"
    assert all(0 < wait.version <= seen[0][1] for wait in seen[0][0])
    assert g.count("retried") == g.count("a") == 1


async def test_a_token_that_waits_again_after_it_was_let_go_on_waits_anew(world: World) -> None:
    """Meanwhile it has waited for room."""
    g = Noting(context={"open": False}, limits=Limits(running=1))
    g.graph.noop("first", next=["gate", "a"], mode="inclusive")
    g.add("gate", admit=E.ctx.open)
    g.add("a", does=lambda ctx, args: ctx.listen("go"))
    seen: list[tuple[str, int]] = []
    for given in ({"open": True}, {"open": False}, {}):
        await waiting(world, g.graph)
        async with Client(world.driver) as client:
            handle = client.handle(g.graph, "i")
            seen += [(wait.token, wait.version) for wait in (await handle.info()).waits if wait.kind == "admission"]
            await (handle.patch(**given) if given else handle.send("go"))
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        (again,) = (await client.handle(g.graph, "i").info()).waits
    assert len(seen) == 1
    assert again.kind == "admission"
    assert again.token != seen[0][0]
    assert again.version > seen[0][1]


@pytest.mark.law(6)
async def test_a_patch_from_outside_opens_the_gate(world: World) -> None:
    g = gated()
    await waiting(world, g.graph)
    await patch(world, open=True)
    result = await run(world, g.graph)
    assert g.ran == ["a", "gate", "after"]
    assert (result.status, result.outputs["gate"], result.outcomes["gate"].firings) == ("succeeded", "through", 1)


async def test_a_patch_that_does_not_open_the_gate_leaves_it_pending(world: World) -> None:
    g = gated()
    await waiting(world, g.graph)
    await patch(world, other=1)
    await waiting(world, g.graph)
    await patch(world, open=True)
    assert (await run(world, g.graph)).status == "succeeded"
    assert g.ran == ["a", "gate", "after"]


async def test_a_patch_from_outside_is_read_by_guards_and_bodies(world: World) -> None:
    async def looks(ctx: Context, args: Any) -> Any:
        return [ctx.vars["who"], args]

    g = Noting(context={"open": False})
    g.add("gate", admit=E.ctx.open, next=arc("b", when=E.ctx.who == "boss", args={"who": E.ctx.who}))
    g.add("b", does=looks)
    await waiting(world, g.graph)
    await patch(world, open=True, who="boss")
    assert (await run(world, g.graph)).outputs["b"] == ["boss", {"who": "boss"}]


async def test_a_patch_of_another_firing_opens_the_gate(world: World) -> None:
    g = Noting(context={"open": False})
    g.add("a", mode="inclusive", next=["gate", "opens"])
    g.add("gate", admit=E.ctx.open)
    g.add("opens", does=tell(open=True))
    result = await run(world, g.graph)
    assert g.ran == ["a", "opens", "gate"]
    assert result.status == "succeeded"


async def test_a_patch_wakes_an_instance_that_a_worker_runs(driver: Driver) -> None:
    g = gated()
    async with Runtime(driver, workflows=[g.graph]) as runtime, Client(driver) as client:
        handle = await runtime.start(g.graph, id="i")
        await until_status(handle, Status.WAITING)
        await client.handle("g", "i").patch(open=True)
        result = await handle.result(timeout=PATIENCE)
        assert isinstance(result, GraphResult)
        assert result.status == "succeeded"
    assert g.ran == ["a", "gate", "after"]


async def test_a_patch_reaches_a_live_run(world: World) -> None:
    g = gated()
    results: list[Any] = []
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:

            async def runs() -> None:
                results.append(await world.once(g.graph, mode="live"))

            group.start_soon(runs)
            await world.until_waiting()
            await patch(world, open=True)
    assert results[0].output.status == "succeeded"


async def test_a_patch_before_the_first_run_is_not_lost(world: World) -> None:
    g = gated()
    async with Client(world.driver) as client:
        handle = await client.start(g.graph, id="i")
        await handle.patch(open=True)
    assert (await run(world, g.graph)).status == "succeeded"


async def test_a_patch_of_an_unknown_instance_is_an_error(world: World) -> None:
    async with Client(world.driver) as client:
        with pytest.raises(InstanceNotFoundError):
            await client.handle("g", "nobody").patch(open=True)


async def test_each_pending_token_is_asked_with_its_own_arguments_and_keeps_its_place(world: World) -> None:
    g = Noting(context={"n": 0}, limits=Limits(running=1))
    arcs = [arc("gate", args={"n": n}) for n in (3, 1, 2)]
    g.add("a", mode="inclusive", next=arcs)
    g.add("gate", admit=E.args.n <= E.ctx.n)
    await waiting(world, g.graph)
    await patch(world, n=1)
    await waiting(world, g.graph)
    assert g.args["gate"] == [{"n": 1}]
    await patch(world, n=3)
    result = await run(world, g.graph)
    assert g.args["gate"] == [{"n": 1}, {"n": 3}, {"n": 2}]
    assert result.outcomes["gate"].firings == 3


RULES = [rule(when=E.workload.vip, allow=True), rule(when=E.workload.late, allow=False)]


@pytest.mark.parametrize(
    ("workload", "other", "runs"),
    [
        ({"vip": True, "late": True}, False, True),
        ({"vip": False, "late": True}, True, False),
        ({"vip": False, "late": False}, True, True),
        ({"vip": False, "late": False}, False, False),
    ],
)
async def test_the_first_rule_that_holds_decides(world: World, workload: Any, other: bool, runs: bool) -> None:
    g = Noting(when_blocked="complete")
    g.add("a", admit=[*RULES, otherwise(allow=other)])
    result = await run(world, g.graph, workload)
    assert g.ran == (["a"] if runs else [])
    assert (result.status, result.blocked) == (("succeeded", []) if runs else ("partial", ["a"]))


async def test_discard_drops_a_denied_token_and_that_alone_is_no_failure(world: World) -> None:
    g = Noting(context={"open": False})
    g.add("a", mode="inclusive", next=["gate", "b"])
    g.add("gate", admit=E.ctx.open, on_deny="discard", next="after")
    g.add("after")
    g.add("b", does=tell(open=True))
    result = await run(world, g.graph)
    assert g.ran == ["a", "b"], "what was dropped does not come back when the gate opens"
    assert result.status == "succeeded"
    assert result.outcomes["gate"].status != "completed"
    assert result.outcomes["gate"].reason
    assert result.outcomes["after"].status == "never_reached"


async def test_blocked_completes_as_partial_if_that_is_asked_for(world: World) -> None:
    g = gated(when_blocked="complete")
    result = await run(world, g.graph)
    assert g.ran == ["a"]
    assert (result.status, result.blocked) == ("partial", ["gate"])
    assert result.outcomes["a"].status == "completed"
    assert set(result.outcomes) == {"a", "gate", "after"}


async def test_final_runs_once_before_a_blocked_graph_completes(world: World) -> None:
    g = gated(when_blocked="complete", final="end")
    g.add("end")
    result = await run(world, g.graph)
    assert g.ran == ["a", "end"]
    assert result.status == "partial"


async def test_final_waits_for_pending_tokens(world: World) -> None:
    g = gated(final="end")
    g.add("end")
    await waiting(world, g.graph)
    assert g.ran == ["a"]
    await patch(world, open=True)
    await run(world, g.graph)
    assert g.ran == ["a", "gate", "after", "end"]


@pytest.mark.law(15)
@pytest.mark.parametrize("admit", [E.ctx.nothing > 0, E.ctx.n, "ctx.n + 'x' == 1"])
async def test_an_admission_that_fails_or_is_no_bool_fails_the_node_and_is_no_denial(world: World, admit: Any) -> None:
    g = Noting(context={"n": 1})
    g.add("a", next="gate")
    g.add("gate", admit=admit)
    result = await run(world, g.graph)
    assert g.ran == ["a"]
    assert (result.status, result.outcomes["gate"].status) == ("failed", "failed")
    assert "ctx" in result.outcomes["gate"].reason


async def test_a_pending_token_holds_no_slot(world: World) -> None:
    g = Noting(context={"open": False}, limits=Limits(running=1))
    g.add("a", mode="inclusive", next=["gate", "b"])
    g.add("gate", admit=E.ctx.open)
    g.add("b", next="c")
    g.add("c", does=tell(open=True))
    assert (await run(world, g.graph)).status == "succeeded"
    assert g.ran == ["a", "b", "c", "gate"]


async def test_a_join_can_be_gated(world: World) -> None:
    g = Noting(context={"open": False})
    g.add("a", 1)
    g.add("b", 2)
    g.add("m", needs=["a", "b"], admit=E.ctx.open)
    await waiting(world, g.graph)
    assert sorted(g.ran) == ["a", "b"]
    await patch(world, open=True)
    result = await run(world, g.graph)
    assert g.args["m"] == [{"a": 1, "b": 2}]
    assert result.status == "succeeded"


async def test_a_blocked_graph_can_be_cancelled(world: World) -> None:
    g = gated()
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").cancel()
    result = await world.once(g.graph, mode="yield")
    assert result.status is Status.CANCELLED
    assert g.ran == ["a"]


async def test_a_gate_inside_a_nested_graph_opens_too(world: World) -> None:
    """There, the patch of the handle changes the context of every graph that waits."""
    inner = gated()

    async def nests(ctx: Context, args: Any) -> Any:
        return (await ctx.graph("nested", inner.graph)).status

    g = Noting()
    g.graph.name = "outer"
    g.add("x", does=nests)
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        info = await client.handle(g.graph, "i").info()
    assert [wait.kind for wait in info.waits] == ["admission"]
