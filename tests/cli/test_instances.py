"""The commands about instances: what they print, and how they fail."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cli.line import Line
from tests.cli.shop import calls, checkout, claims, fails, mistakes, refused
from workflow_sdk import Workflow
from workflow_sdk.cli import output


def test_start_prints_the_id(line: Line) -> None:
    assert line("start", "checkout", '"o"', "--id", "order-1").output == "order-1\n"
    assert len(line("start", "checkout", '"o"').output.strip()) == 36


def test_starting_twice_is_starting_once(line: Line) -> None:
    line("start", "checkout", '"o"', "--id", "order-1")
    line("start", "checkout", '"o"', "--id", "order-1")
    assert "was started with the input 'o', not 'p'" in line(
        *("start", "checkout", '"p"', "--id", "order-1"), code=1
    ).stderr.replace("\\'", "'")
    assert len(line("list").output.splitlines()) == 1


def test_input_comes_over_a_pipe(line: Line) -> None:
    line("start", "checkout", "-", "--id", "order-1", input='{"cups": 2}')
    assert json.loads(line("show", "order-1", "--json").output)["input"] == {"cups": 2}


@pytest.mark.parametrize("args", [("start", "checkout", "o"), ("send", "i", "m", "{"), ("start", "checkout", "[NaN]")])
def test_json_that_is_none(line: Line, args: tuple[str, ...]) -> None:
    assert "no JSON" in line(*args, code=2).stderr


def test_list_over_a_pipe_is_tabs(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    line.run(fails, id="f\n1")
    first, second = (row.split("\t") for row in line("list").output.splitlines())
    assert (first[:3], first[6]) == (["order-1", "checkout", "waiting"], "packed")
    assert first[3].endswith("Z")
    assert (second[:3], second[5:]) == (["f\\n1", "fails", "failed"], ["", "application: ValueError: no tea\\nleft"])


def test_list_filters(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    line.run(fails, id="f1")
    line.run(fails, id="f2")
    assert line("list", "--status", "waiting").output.startswith("order-1\t")
    assert line("list", "--workflow", "checkout").output.startswith("order-1\t")
    limited = line("list", "--workflow", "fails", "--limit", "1")
    assert (limited.stdout.count("\n"), limited.stdout[:3]) == (1, "f1\t")
    assert limited.stderr == "there are more than this one; see --limit\n"
    assert line("list", "--limit", "3").stderr == ""
    assert line("list", "--workflow", "none").output == ""


def test_list_in_json(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    line.run(fails, id="f\n1")
    first, second = map(json.loads, line("list", "--json").output.splitlines())
    assert (first["id"], first["status"], first["input"]) == ("order-1", "waiting", "o")
    assert (second["id"], second["error"]["message"]) == ("f\n1", "no tea\nleft")


def test_list_of_more_than_a_page(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PAGE_MAX", 2)
    ids = [f"f{number}" for number in range(7)]
    for id in ids:
        line("start", "fails", "--id", id)
    for limit in range(1, 9):
        listed = line("list", "--limit", str(limit))
        assert [row.split("\t")[0] for row in listed.stdout.splitlines()] == ids[:limit]
        assert bool(listed.stderr) == (limit < 7)


def test_show_draws_the_history(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    lines = line("show", "order-1").output.splitlines()
    assert lines[0] == "checkout order-1  waiting"
    assert lines[3].split() == ["input", '"o"']
    assert re.fullmatch(r"  waits     message  both/pack/packed  for packed until .*  token [0-9a-f]+", lines[4])
    assert lines[5].startswith("├─ charge  step completed  ")
    assert lines[5].endswith('= "charge-o"')
    assert lines[6].startswith("└─ both  join running  ")
    assert lines[7].startswith("   ├─ pack  branch running")
    assert lines[8].startswith("   │  └─ packed  listen waiting  ")
    assert "  for packed until " in lines[8]
    assert lines[-1] == "undo charge  open"


def test_show_in_ascii(line: Line) -> None:
    line.run(checkout, "ö", id="order-1")
    process = line.shell("show order-1", before="PYTHONIOENCODING=ascii PYTHONUTF8=0")
    assert (process.returncode, process.stderr) == (0, "")
    assert "   |  `- packed  listen waiting" in process.stdout


def test_show_in_json(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    shown = json.loads(line("show", "order-1", "--json").output)
    assert (shown["id"], shown["status"], shown["input"]) == ("order-1", "waiting", "o")
    assert [wait["message"] for wait in shown["waits"]] == ["packed"]
    assert [entry["path"] for entry in shown["history"]] == ["charge", "both"]
    assert shown["history"][1]["children"][0]["children"][0]["path"] == "both/pack/packed"
    assert shown["compensations"] == [{"path": "charge", "progress": "open", "attempts": 0, "error": None}]
    line.run(fails, id="f1")
    assert json.loads(line("show", "f1", "--json").output)["error"]["message"] == "no tea\nleft"


def test_show_tells_what_everybody_may_see(line: Line) -> None:
    line.run(claims, "claim-7", id="c1")
    lines = line("show", "c1").output.splitlines()
    facts = dict(row[2:].split(None, 1) for row in lines if row.startswith("  "))
    assert facts["reference"] == "claim-7"
    assert facts["progress"] == "1 of 2 asking\\nthe clerks"
    assert facts["state"] == '{"asked": 1}'
    assert re.fullmatch(r"task  approve  for task [0-9a-f]{32} until .*  token [0-9a-f]+", facts["waits"])
    shown = json.loads(line("show", "c1", "--json").output)
    assert (shown["state"], shown["reference"]) == ({"asked": 1}, "claim-7")
    assert shown["progress"] == {"done": 1, "total": 2, "note": "asking\nthe clerks"}
    (wait,) = shown["waits"]
    assert (wait["kind"], wait["version"], wait["target"]) == ("task", shown["version"], wait["target"])


def test_show_tells_of_children_and_of_what_is_retried(line: Line) -> None:
    line.run(calls, 10, id="p")
    output = line("show", "p").output
    assert "  waits     child  many/0/c  for child p/many/0/c  token " in output
    assert "            and 2 more\n" in output
    assert line("list").output.startswith("p\tcalls\twaiting\t")
    line.run(refused, id="r")
    output = line("show", "r").output
    assert re.search(
        r"  waits     retry  pay  next attempt .*  token .*  after 1 failed: transport: .* tea\\nleft\n", output
    )
    (wait,) = json.loads(line("show", "r", "--json").output)["waits"]
    assert (wait["attempts"], wait["error"]["message"]) == (1, "no tea\nleft")


def test_list_by_reference(line: Line) -> None:
    line.run(claims, "claim-7", id="c1")
    line.run(claims, "claim-8", id="c2")
    assert line("list", "--reference", "claim-8").output.startswith("c2\t")
    assert line("list", "--reference", "claim-8", "--status", "completed").output == ""
    assert json.loads(line("list", "--reference", "claim-7", "--json").output)["progress"]["done"] == 1


def test_send_tells_what_became_of_it(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    assert line("send", "order-1", "other").output == "queued\n"
    assert line("send", "order-1", "packed", '"tea"', "--key", "k").output == "accepted\n"
    assert line("send", "order-1", "packed", '"tea"', "--key", "k").output == "duplicate\n"
    line.run(checkout, id="order-1")
    assert "has ended" in line("send", "order-1", "packed", code=1).stderr
    assert line("result", "order-1").output == '{"charge": "charge-o", "packed": "tea"}\n'


def test_other_ends_are_errors(line: Line) -> None:
    line.run(fails, id="f1")
    line.run(mistakes, id="s1")
    line.run(checkout, "o", id="order-1")
    assert line("result", "f1", code=1).stderr == "workflow: workflow 'f1' failed: ValueError: no tea left\n"
    assert "'s1' is stuck: DefinitionError" in line("result", "s1", code=1).stderr
    error = line("result", "order-1", "--timeout", "0.01", code=1).stderr
    assert error == "workflow: instance 'order-1' has not ended in 10ms; it goes on\n"


def test_no_time_is_enough_for_what_has_ended(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    assert "not ended in no time at all" in line("result", "order-1", "--timeout", "0", code=1).stderr
    line("send", "order-1", "packed", '"tea"')
    line.run(checkout, id="order-1")
    assert '"packed": "tea"' in line("result", "order-1", "--timeout", "0").output
    line.run(mistakes, id="s1")
    assert "is stuck" in line("result", "s1", "--timeout", "0", code=1).stderr
    assert "no instance" in line("result", "nobody", "--timeout", "0", code=1).stderr


def test_cancel_and_recover(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    line.run(checkout, "o", id="order-2")
    line.run(mistakes, id="s1")
    assert line("cancel", "order-1").output == "cancelled\n"
    assert line("cancel", "order-1").output == "cancelled\n"
    assert line("cancel", "order-2", "--rollback").output == "rolling_back\n"
    assert "is cancelled" in line("recover", "order-1", code=1).stderr
    assert line("recover", "s1").output == "running\n"


@pytest.mark.parametrize("workflow", [checkout, fails, mistakes])
def test_restart_from_the_beginning(line: Line, workflow: Workflow[Any, Any]) -> None:
    line.run(workflow, "o" if workflow is checkout else None, id="i")
    ended = line.run(workflow, id="i").status
    assert line("restart-from", "i").output == "running\n"
    shown = json.loads(line("show", "i", "--json").output)
    assert (shown["history"], shown["error"]) == ([], None)
    assert line.run(workflow, id="i").status is ended


def test_restart_from_a_path(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    line("send", "order-1", "packed", '"tea"')
    line.run(checkout, id="order-1")
    assert line("result", "order-1").output == '{"charge": "charge-o", "packed": "tea"}\n'
    assert line("restart-from", "order-1", "both/pack/packed").output == "running\n"
    assert "both/label/print" in line("show", "order-1", "--json").output
    line.run(checkout, id="order-1")
    assert line("result", "order-1").output == '{"charge": "charge-o", "packed": "tea"}\n', "the message was given back"
    assert line("cancel", "order-1", code=1)
    assert line("restart-from", "order-1", "charge").output == "running\n"
    assert line("cancel", "order-1").output == "cancelled\n"
    assert line("restart-from", "order-1").output == "running\n"


def test_restart_from_a_path_that_is_not_there(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    assert (
        "there is no entry 'both/none' to restart from"
        in line(*("restart-from", "order-1", "both/none"), code=2).stderr
    )
    assert line("list", "--status", "waiting").output.startswith("order-1\t")


def test_prune(line: Line) -> None:
    line.run(fails, id="f1")
    line.run(checkout, "o", id="order-1")
    assert line("prune", "--older-than", "30d").output == "0\n"
    assert line("prune", "--older-than", "0", "--status", "completed").output == "0\n"
    assert line("prune", "--older-than", "0s").output == "1\n"
    assert line("list").output.startswith("order-1\t")


@pytest.mark.parametrize("text", ["", "1y", "-1", "inf", "1e3", "1 d", "9999999999w", "1.d", "\u0661d"])
def test_no_duration(line: Line, text: str) -> None:
    assert "a duration is a number of seconds" in line("prune", "--older-than", text, code=2).stderr


@pytest.mark.parametrize(
    "args",
    [("show",), ("result",), ("cancel",), ("recover",), ("restart-from",), ("watch",), ("send", "m")],
    ids=lambda args: str(args[0]),
)
def test_an_unknown_instance(line: Line, args: tuple[str, ...]) -> None:
    assert "there is no instance 'nobody'" in line(args[0], "nobody", *args[1:], code=1).stderr
