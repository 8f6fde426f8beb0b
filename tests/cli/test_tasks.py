"""The commands about tasks: what they print, and how they fail."""

from __future__ import annotations

import json

import pytest

from tests.cli.line import Line
from tests.cli.shop import claims
from workflow_sdk.cli import output


def ids(line: Line, *only: str) -> list[str]:
    return [row.split("\t")[2] for row in line("tasks", *only).stdout.splitlines()]


def task_id(line: Line, instance: str) -> str:
    found: str = json.loads(line("tasks", "--instance", instance, "--json").output)["id"]
    return found


def test_tasks_over_a_pipe_are_tabs(line: Line) -> None:
    line.run(claims, "claim-7", id="c\n1")
    (row,) = line("tasks").output.splitlines()
    id, *rest = row.split("\t")
    assert len(id) == 32
    assert rest[:5] == ["approve", "c\\n1", "", "clerk,manager", "claim-7"]
    assert rest[5].endswith("Z")
    assert rest[6].endswith("Z")
    assert rest[7:] == ['{"claim": "claim-7"}']


def test_tasks_filters(line: Line) -> None:
    line.run(claims, "claim-7", id="c1")
    line.run(claims, "claim-8", id="c2")
    assert line("assign-task", task_id(line, "c2"), "clerk-7").output == "assigned\n"
    assert ids(line) == ["c1", "c2"]
    assert ids(line, "--assignee", "clerk-7") == ["c2"]
    assert ids(line, "--role", "clerk") == ["c1", "c2"]
    assert ids(line, "--role", "clerk", "--reference", "claim-7") == ["c1"]
    assert ids(line, "--role", "nobody") == []
    assert ids(line, "--instance", "c1") == ["c1"]
    limited = line("tasks", "--limit", "1")
    assert limited.stdout.count("\n") == 1
    assert limited.stderr == "there are more than this one; see --limit\n"


def test_tasks_in_json(line: Line) -> None:
    line.run(claims, "claim-7", id="c1")
    task = json.loads(line("tasks", "--json").output)
    assert (task["name"], task["instance"], task["path"], task["status"]) == ("approve", "c1", "approve", "open")
    assert (task["payload"], task["roles"], task["assignee"]) == ({"claim": "claim-7"}, ["clerk", "manager"], None)
    assert "log" not in task


def test_tasks_of_more_than_a_page(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PAGE_MAX", 2)
    for number in range(5):
        line.run(claims, "claim", id=f"c{number}")
    for limit in range(1, 7):
        assert ids(line, "--limit", str(limit)) == [f"c{number}" for number in range(5)][:limit]


def test_a_task_is_completed_once(line: Line) -> None:
    line.run(claims, "claim-7", id="c1")
    id = task_id(line, "c1")
    by = ("--by", "clerk-7", "--role", "manager")
    assert line("complete-task", id, "true", *by).output == "completed\n"
    assert line("tasks").output == ""
    assert line("complete-task", id, "true", *by, code=1).stderr == (
        f"workflow: task 'approve' ({id}) is completed by 'clerk-7'\n"
    )
    assert "is completed by 'clerk-7'" in line("assign-task", id, "clerk-8", code=1).stderr
    assert "is completed by 'clerk-7'" in line("release-task", id, code=1).stderr
    line.run(claims, id="c1")
    assert json.loads(line("result", "c1").output) == {"approved": True, "by": "clerk-7"}


def test_who_has_no_role_is_refused(line: Line) -> None:
    line.run(claims, "claim-7", id="c1")
    id = task_id(line, "c1")
    for roles in ((), ("--role", "janitor", "--role", "guest")):
        error = line("complete-task", id, "true", "--by", "clerk-7", *roles, code=1).stderr
        assert "'clerk-7' has none of these roles" in error
    assert ids(line) == ["c1"]


def test_assigning_and_releasing(line: Line) -> None:
    line.run(claims, "claim-7", id="c1")
    id = task_id(line, "c1")
    assert line("assign-task", id, "clerk-7", "--by", "clerk-8").output == "assigned\n"
    assert line("tasks").output.split("\t")[3] == "clerk-7"
    assert line("release-task", id).output == "released\n"
    assert line("tasks").output.split("\t")[3] == ""


@pytest.mark.parametrize(
    "args",
    [("complete-task", "none", "--by", "clerk-7"), ("assign-task", "none", "clerk-7"), ("release-task", "none")],
    ids=lambda args: str(args[0]),
)
def test_an_unknown_task(line: Line, args: tuple[str, ...]) -> None:
    assert line(*args, code=1).stderr == "workflow: there is no task 'none'\n"


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("complete-task", "t", "true"), "Missing option '--by'"),
        (("complete-task", "t", "yes", "--by", "clerk-7"), "no JSON"),
        (("assign-task", "t"), "Missing argument 'NAME'"),
        (("tasks", "--limit", "0"), "0 is not in the range"),
    ],
)
def test_a_command_line_that_cannot_be_understood(line: Line, args: tuple[str, ...], error: str) -> None:
    assert error in line(*args, code=2).stderr


def test_no_name_is_nobody(line: Line) -> None:
    line.run(claims, "claim-7", id="c1")
    id = task_id(line, "c1")
    assert "whose name is a text" in line("complete-task", id, "true", "--by", "", code=2).stderr
    assert "whose name is a text" in line("assign-task", id, "", code=2).stderr
