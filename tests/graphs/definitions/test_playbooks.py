"""Playbooks: entry, admission, routing, the ends of branches, the end of a run and the final step."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from workflow_sdk import Context, DefinitionError, open_driver, run_workflow
from workflow_sdk.graphs import Graph, GraphResult, InvalidGraphError


def admit(when: str) -> dict[str, Any]:
    """The `spec` of a step that may start if something is true."""
    rules = [{"when": when, "then": {"allow": True}}, {"else": {"then": {"allow": False}}}]
    return {"policy": {"admit": {"rules": rules}}}


def policy(**then: Any) -> dict[str, Any]:
    """The `spec` of a task after which something always follows."""
    return {"policy": {"rules": [{"else": {"then": then}}]}}


PLAYBOOK: dict[str, Any] = {
    "apiVersion": "noetl.io/v10",
    "kind": "Playbook",
    "metadata": {"name": "triage", "version": 3, "description": "words"},
    "executor": {"spec": {"entry_step": "classify", "final_step": "report", "no_next_is_error": False}},
    "workload": {"kind": "bug", "items": [1, 2]},
    "workflow": [
        {
            "step": "classify",
            "desc": "what it is",
            "tool": [{"kind": "noop", "spec": policy(do="continue", set_ctx={"kind": "{{ workload.kind }}"})}],
            "next": {
                "spec": {"mode": "inclusive"},
                "arcs": [
                    {
                        "step": "fix",
                        "when": "{{ workload.kind == 'bug' }}",
                        "args": {"kind": "{{ ctx.kind }}", "note": "as it is"},
                    },
                    {"step": "count"},
                ],
            },
        },
        {
            "step": "fix",
            "spec": admit("{{ args.kind == 'bug' }}"),
            "tool": {"kind": "noop"},
        },
        {
            "step": "count",
            "loop": {"in": "{{ workload.items }}", "iterator": "item", "spec": {"max_in_flight": 2}},
            "tool": {"kind": "python", "fn": "fix"},
        },
        {"step": "report", "tool": {"kind": "noop"}},
    ],
}  # fmt: skip


def playbook(*steps: dict[str, Any], **executor: Any) -> Graph:
    """A playbook with these steps."""
    return Graph.from_playbook(
        {"metadata": {"name": "book"}, "executor": {"spec": executor}, "workload": {"x": 1}, "workflow": list(steps)},
        functions=[done, failing],
    )


async def done(ctx: Context, args: Any) -> Any:
    return {"args": args}


async def failing(ctx: Context, args: Any) -> Any:
    raise RuntimeError("no")


def noop(name: str, *arcs: Any, mode: str | None = None) -> dict[str, Any]:
    """A step that runs nothing, with arcs."""
    spec = {} if mode is None else {"spec": {"mode": mode}}
    return {"step": name, "tool": [{"kind": "noop"}], "next": {**spec, "arcs": list(arcs)}}


async def run(graph: Graph, workload: Any = None) -> Any:
    """What a run has come to, as far as it goes."""
    return await run_workflow(graph, workload, driver=await open_driver("memory://"), instance_id="one")


def with_step(**changes: Any) -> dict[str, Any]:
    """The playbook with a step that has something more."""
    changed = copy.deepcopy(PLAYBOOK)
    changed["workflow"][3].update(changes)
    return changed


def with_arc(**changes: Any) -> dict[str, Any]:
    """The playbook with an arc that has something more."""
    return with_step(next={"arcs": [{"step": "fix", **changes}]})


RETRIED = {"kind": "python", "fn": "fix", "spec": policy(do="retry")}
NEITHER = {"policy": {"admit": {"rules": [{"then": {"allow": True}}]}}}


def test_a_playbook_becomes_a_graph_with_a_canonical_definition() -> None:
    graph = Graph.from_playbook(PLAYBOOK, functions={"fix": done})
    assert (graph.name, graph.version, graph.validate()) == ("triage", 3, [])
    assert Graph.from_data(graph.to_data(), functions={"fix": done}).hash == graph.hash
    assert [arc.on for arc in graph.nodes["classify"].next] == ["any", "any"]
    assert graph.nodes["count"].kind == "each"


async def test_the_workload_of_a_playbook_is_what_a_run_is_given_if_nothing_else_is() -> None:
    result = await run(Graph.from_playbook(PLAYBOOK, functions={"fix": done}))
    assert result.output.status == "succeeded"
    assert result.output.outputs["classify"] == {"kind": "bug"}


# Named as the sections of the page that defines playbooks.


async def test_2_1_the_entry_is_the_first_step() -> None:
    graph = playbook(noop("a", {"step": "b"}), noop("b"))
    assert graph.freeze().roots == ["a"]
    assert {name: one.firings for name, one in (await run(graph)).output.outcomes.items()} == {"a": 1, "b": 1}


def test_2_1_also_if_no_step_leads_anywhere_there_is_one_token() -> None:
    graph = playbook(noop("a"), noop("b"))
    assert [problem.where for problem in graph.validate()] == ["b"]


async def test_2_2_the_entry_can_be_another_step() -> None:
    graph = playbook(noop("a"), noop("b", {"step": "a"}), entry_step="b")
    assert list((await run(graph)).output.outputs) == ["a", "b"]
    assert graph.freeze().roots == ["b"]


@pytest.mark.parametrize("key", ["entry_step", "final_step"])
def test_2_2_a_step_that_the_executor_names_has_to_exist(key: str) -> None:
    with pytest.raises(DefinitionError, match=rf"executor\.spec\.{key}: there is no step 'gone'"):
        playbook(noop("a"), **{key: "gone"})


async def test_3_2_a_token_that_is_denied_stays_pending() -> None:
    gate = {**noop("b"), "spec": admit("{{ ctx.open }}")}
    graph = playbook(noop("a", {"step": "b"}), gate)
    graph.context["open"] = False
    result = await run(graph)
    assert not result.status.is_terminal
    assert [(wait.kind, wait.name) for wait in result.waits] == [("admission", "b")]


async def test_4_3_exclusive_is_the_default_and_the_first_match_wins() -> None:
    arcs = [
        {"step": "b", "when": "{{ workload.x == 2 }}"},
        {"step": "c", "when": "{{ workload.x == 1 }}"},
        {"step": "d"},
    ]
    outcomes = (await run(playbook(noop("a", *arcs), noop("b"), noop("c"), noop("d")))).output.outcomes
    assert {name: one.status for name, one in outcomes.items()} == {
        "a": "completed", "b": "never_reached", "c": "completed", "d": "never_reached",
    }  # fmt: skip


async def test_4_3_inclusive_takes_every_arc_that_matches() -> None:
    arcs = [
        {"step": "b", "when": "{{ workload.x == 2 }}"},
        {"step": "c", "when": "{{ workload.x == 1 }}"},
        {"step": "d"},
    ]
    graph = playbook(noop("a", *arcs, mode="inclusive"), noop("b"), noop("c"), noop("d"))
    outputs = (await run(graph)).output.outputs
    assert sorted(outputs) == ["a", "c", "d"]


async def test_4_4_args_are_given_to_the_next_step() -> None:
    arcs = {"step": "b", "args": {"x": "{{ workload.x + 1 }}", "text": "workload.x"}}
    graph = playbook(noop("a", arcs), {"step": "b", "tool": [{"kind": "python", "fn": "done"}]})
    assert (await run(graph)).output.outputs["b"] == {"args": {"x": 2, "text": "workload.x"}}


async def test_4_1_arcs_are_followed_after_a_failure_as_well() -> None:
    graph = playbook(
        {
            "step": "a",
            "tool": {"kind": "python", "fn": "failing", "spec": policy(do="fail")},
            "next": {"arcs": [{"step": "b", "when": "{{ event.name == 'step.failed' }}"}]},
        },
        noop("b"),
    )  # fmt: skip
    result = (await run(graph)).output
    assert (result.status, result.outcomes["b"].status) == ("succeeded", "completed")


async def test_5_a_branch_without_an_arc_that_matches_ends() -> None:
    graph = playbook(noop("a", {"step": "b", "when": "{{ workload.x == 2 }}"}), noop("b"))
    assert (await run(graph)).output.status == "succeeded"


async def test_5_2_that_can_be_made_an_error() -> None:
    graph = playbook(noop("a", {"step": "b", "when": "{{ workload.x == 2 }}"}), noop("b"), no_next_is_error=True)
    assert (await run(graph)).status == "failed"


async def test_7_the_final_step_runs_once_with_a_summary() -> None:
    graph = playbook(
        noop("a", {"step": "b"}, {"step": "c"}, mode="inclusive"),
        noop("b"),
        noop("c"),
        {"step": "end", "tool": {"kind": "python", "fn": "done"}},
        final_step="end",
    )
    result = (await run(graph)).output
    assert result.outcomes["end"].firings == 1
    assert result.outputs["end"]["args"]["counts"]["completed"] == 3


# Refused.


@pytest.mark.law(15)
@pytest.mark.parametrize(
    ("data", "where", "told"),
    [
        (with_step(when="{{ true }}"), "workflow[3].when", "write `spec.policy.admit.rules`"),
        (with_step(nxt=1), "workflow[3]", "has no 'nxt'"),
        (with_step(next={"arcs": [{"step": "gone"}]}), "workflow[3] (report).next.arcs[0].step", "no step 'gone'"),
        (with_arc(when="{{ a b }}"), "workflow[3].next.arcs[0].when", "no expression"),
        (with_arc(args={"a": "x {{ args.b }}"}), "workflow[3].next.arcs[0].args", "partly"),
        (with_step(next={"spec": {"mode": "both"}}), "workflow[3].next.spec.mode", "'exclusive' or 'inclusive'"),
        (with_step(next=["fix"]), "workflow[3].next", "expected `next` as a dict"),
        (with_step(spec=NEITHER), "workflow[3].spec.policy.admit.rules[0]", "either"),
        (with_step(tool=[{"kind": "python", "fn": "gone"}]), "workflow[3] (report)", "no function 'gone'"),
        ({**PLAYBOOK, "workflow": [*PLAYBOOK["workflow"], {"step": "fix"}]}, "workflow[4].name", "two steps 'fix'"),
        (with_step(loop={"in": [1]}, tool={"kind": "noop"}), "workflow[3] (report)", "a `loop` is over one task"),
        (with_step(loop={"in": [1]}, tool=RETRIED), "workflow[3] (report)", "has no rules"),
        ({**PLAYBOOK, "workflw": []}, "", "has no 'workflw'"),
        ({**PLAYBOOK, "workflow": []}, "workflow", "no steps"),
        ({**PLAYBOOK, "metadata": {}}, "metadata.name", "expected a text"),
        ({"metadata": {"name": "x"}}, "", "has to have `workflow`"),
    ],
)  # fmt: skip
def test_what_playbooks_do_not_have_is_refused_with_its_place(data: Any, where: str, told: str) -> None:
    with pytest.raises(InvalidGraphError) as caught:
        Graph.from_playbook(data, functions={"fix": done})
    found = {problem.where: problem.text for problem in caught.value.problems}
    assert told in found[where]


# Sections that no run reads, and tools.


async def end_of(graph: Graph) -> GraphResult:
    """What a run has come to, without a workload."""
    found = await run_workflow(graph, driver=await open_driver("memory://"), instance_id="a")
    assert isinstance(found.output, GraphResult)
    return found.output


def test_what_no_run_reads_is_kept_in_the_definition() -> None:
    keychain, workbook = [{"name": "bank", "kind": "token"}], [{"name": "pay", "tool": {"kind": "http"}}]
    data = {**PLAYBOOK, "keychain": keychain, "workbook": workbook}
    graph = Graph.from_playbook(data, functions={"fix": done})
    assert graph.about == {"metadata": {"description": "words"}, "keychain": keychain, "workbook": workbook}
    again = Graph.from_data(graph.to_data(), functions={"fix": done})
    assert (again.about, again.hash) == (graph.about, graph.hash)
    assert graph.hash != Graph.from_playbook(PLAYBOOK, functions={"fix": done}).hash
    assert "keychain" in graph.to_python()


async def test_without_functions_a_playbook_can_be_looked_at_and_is_run_if_it_calls_none() -> None:
    nothing = Graph.from_playbook({"metadata": {"name": "book"}, "workflow": [noop("a", {"step": "b"}), noop("b")]})
    assert (await end_of(nothing)).status == "succeeded"
    graph = Graph.from_playbook(PLAYBOOK)
    assert graph.validate() == []
    assert graph.hash == Graph.from_playbook(PLAYBOOK, functions={"fix": done}).hash
    with pytest.raises(DefinitionError, match="give fix in `functions`"):
        await end_of(graph)


async def test_a_task_with_fields_of_its_own_is_a_call() -> None:
    async def bank(payload: Any) -> Any:
        return {"paid": payload}

    tool = [{"pay": {"kind": "bank", "amount": "{{ workload.x }}", "method": "POST"}}]
    data = {"metadata": {"name": "book"}, "workload": {"x": 7}, "workflow": [{"step": "a", "tool": tool}]}
    graph = Graph.from_playbook(data, transports={"bank": bank})
    result = await end_of(graph)
    assert result.outputs == {"a": {"paid": {"amount": 7, "method": "POST"}}}
    data["workflow"][0]["tool"].append({"kind": "bank", "amount": 1})  # type: ignore[index]
    with pytest.raises(InvalidGraphError, match="amount, method: for a call"):
        Graph.from_playbook(data)


RULES = {
    "else": [],
    "error": [{"when": "{{ error.kind == 'timeout' }}", "then": {"do": "retry", "attempts": 2}}],
    "output": [{"when": "{{ output.args == 1 }}", "then": {"do": "break"}}],
}


@pytest.mark.parametrize(
    ("rules", "fn", "then", "status"),
    [
        ("else", "done", "fail", "succeeded"),
        ("else", "done", "retry", "succeeded"),
        ("error", "done", "fail", "succeeded"),
        ("output", "done", "fail", "failed"),
        ("else", "failing", "fail", "failed"),
        ("error", "failing", "fail", "failed"),
        ("error", "failing", "continue", "succeeded"),
    ],
)
async def test_an_else_that_fails_is_for_failures_and_for_outputs_that_rules_before_it_did_not_take(
    rules: str, fn: str, then: str, status: str
) -> None:
    after = [*RULES[rules], {"else": {"then": {"do": then}}}]
    tool = {"kind": "python", "name": "one", "fn": fn, "spec": {"policy": {"rules": after}}}
    result = await end_of(playbook({"step": "a", "tool": tool}))
    assert result.status == status
