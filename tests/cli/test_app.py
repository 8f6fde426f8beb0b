"""What holds for every command: the store, the errors, the help, the pipe."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import click.testing
import pytest

from tests.cli.line import Line
from tests.cli.shop import fails
from tests.environment import clean_environment
from tests.patience import PATIENCE
from workflow_sdk.cli.__main__ import cli, main
from workflow_sdk.cli.options import given_store

ROOT = Path(__file__).parents[2]


COMMANDS = [
    ("list",),
    ("show", "i"),
    ("send", "i", "m"),
    ("result", "i"),
    ("cancel", "i"),
    ("recover", "i"),
    ("restart-from", "i"),
    ("prune", "--older-than", "1d"),
    ("watch", "i"),
    ("schedules",),
    ("tail", "m"),
    ("trace", "i"),
    ("pause-schedule", "s"),
    ("resume-schedule", "s"),
    ("delete-schedule", "s"),
    ("doctor",),
    ("check", "tests.cli.shop:checkout"),
    ("dump", "histories"),
    ("tasks",),
    ("complete-task", "t", "--by", "somebody"),
    ("assign-task", "t", "somebody"),
    ("release-task", "t"),
    ("cells", "m"),
    ("cell", "m", "k"),
    ("emit", "e", "{}"),
]
"""Those that work on what is there."""


def test_the_script_is_announced() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert EntryPoint("workflow", scripts["workflow"], "console_scripts").load() is main


def test_the_store_can_be_given_before_or_after_the_command(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKFLOW_STORE", raising=False)
    line("start", "checkout", "--id", "order-1")
    runner = click.testing.CliRunner(env={"WORKFLOW_STORE": "memory://"})
    assert runner.invoke(cli, ["list"]).output == ""
    assert runner.invoke(cli, ["--store", line.store, "list"]).output.startswith("order-1\t")
    assert runner.invoke(cli, ["list", "--store", line.store]).output.startswith("order-1\t")


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_no_store(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKFLOW_STORE", raising=False)
    result = click.testing.CliRunner().invoke(cli, [command])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "which store?" in result.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("list", "--store", "mysql://x"), "no driver for the store"),
        (("list", "--status", "odd"), "'odd' is not one of"),
        (("list", "--limit", "0"), "0 is not in the range"),
        (("bogus",), "No such command 'bogus'"),
        (("show",), "Missing argument 'ID'"),
        (("show", "a", "b"), "unexpected extra argument"),
        (("prune",), "Missing option '--older-than'"),
        (("start", "x", "--id", ""), "an instance id is a text"),
        (("list", "--store", ""), "which store?"),
        (("show", "\udcff"), "'\\udcff' is no text in the encoding of this terminal"),
    ],
)
def test_usage_errors(line: Line, args: tuple[str, ...], says: str) -> None:
    assert says in line(*args, code=2).stderr


@pytest.mark.parametrize("settings", ["", "?", "?synchronous=normal", "?synchronous=normal&"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command[0]))
def test_a_store_that_is_mistyped_is_not_made(line: Line, command: tuple[str, ...], settings: str) -> None:
    folder = line.folder / "other"
    folder.mkdir()
    mistyped = Line(f"sqlite:///{folder}/ap.db{settings}", folder)
    assert "ap.db': there is no such file" in mistyped(*command, code=1).stderr
    assert list(folder.iterdir()) == []


def test_a_store_is_made_where_that_is_asked_for(line: Line) -> None:
    made = Line(f"sqlite:///{line.folder}/new.db?mode=rwc", line.folder)
    assert made("list").output == ""
    assert (line.folder / "new.db").exists()
    started = Line(f"sqlite:///{line.folder}/started.db", line.folder)
    assert started("start", "checkout", "--id", "i").output == "i\n"
    assert started("list").output.startswith("i\t")


@pytest.mark.parametrize(
    ("url", "becomes"),
    [
        ("sqlite:///app.db", "sqlite:///app.db?mode=rw"),
        ("sqlite:///app.db?busy_timeout=1", "sqlite:///app.db?busy_timeout=1&mode=rw"),
        ("sqlite:///app.db?busy_timeout=1&mode=rwc", "sqlite:///app.db?busy_timeout=1&mode=rwc"),
        ("sqlite:///app.db?mode=", "sqlite:///app.db?mode="),
        ("memory://", "memory://"),
        ("fdb:///etc/fdb.cluster?prefix=shop", "fdb:///etc/fdb.cluster?prefix=shop"),
    ],
)
def test_what_is_added_to_a_url(url: str, becomes: str) -> None:
    with click.Context(cli) as before:
        before.params = {"store": url, "codec": None}
        assert given_store(None, None) == (becomes, None)
        assert given_store(None, None, creates=True) == (url, None)


def test_every_command_is_held_to_a_store_that_is_there() -> None:
    # `graph` reads definitions, and no store.
    assert {command[0] for command in COMMANDS} | {"start", "worker", "graph"} == set(cli.commands)


def test_a_store_that_fails(line: Line) -> None:
    (line.folder / "no.db").write_text("this is no database, but text that is long enough to be taken for one")
    assert line("list", "--store", f"sqlite:///{line.folder}/no.db", code=1).stdout == ""


def test_without_a_command_there_is_help() -> None:
    result = click.testing.CliRunner().invoke(cli, [])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Commands:" in result.stderr


@pytest.mark.parametrize("name", [None, *sorted(cli.commands)])
def test_every_command_has_help(name: str | None) -> None:
    result = click.testing.CliRunner().invoke(cli, [*([name] if name else []), "--help"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Usage:" in result.output


def test_the_version() -> None:
    assert click.testing.CliRunner().invoke(cli, ["--version"]).output.count(".") == 2


@pytest.mark.parametrize("command", [("list",), ("show", "f1"), ("show", "f1", "--json"), ("watch", "f1")])
def test_a_reader_that_has_had_enough(line: Line, command: tuple[str, ...]) -> None:
    line.run(fails, id="f1")
    process = line.process(*command, unread="stdout")
    assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk(line: Line) -> None:
    line.run(fails, id="f1")
    result = line.shell("show f1 > /dev/full")
    assert (result.returncode, result.stderr) == (1, "workflow: [Errno 28] No space left on device\n")


def test_streams_that_are_closed(line: Line) -> None:
    assert line.shell("list >&-").returncode == 0
    result = line.shell("start checkout - <&-")
    assert (result.returncode, "standard input is closed" in result.stderr) == (2, True)


def test_input_that_is_no_text(line: Line) -> None:
    result = line.shell("start checkout -", before="printf '\\377' |")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "standard input is no text" in result.stderr


def test_an_interrupt(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workflow_sdk.cli.history.find", interrupted)
    assert click.testing.CliRunner(env={"WORKFLOW_STORE": line.store}).invoke(cli, ["show", "i"]).exit_code == 130


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env=clean_environment(),
        timeout=PATIENCE,
        capture_output=True,
        text=True,
    )


def test_an_interrupt_before_anything_has_begun() -> None:
    program = """
import sys
class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "workflow_sdk.cli.instances":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from workflow_sdk.cli.__main__ import main
main()
"""
    result = run(program)
    assert (result.returncode, result.stderr) == (130, "")


def test_the_library_needs_neither_click_nor_rich() -> None:
    program = "import sys, workflow_sdk; sys.exit(bool({'click', 'rich'} & set(sys.modules)))"
    assert run(program).returncode == 0


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_the_extra_is_missing(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from workflow_sdk.cli.__main__ import main; main()"
    result = run(program)
    assert result.returncode == 1
    assert result.stderr == "workflow: the command line needs the extra `cli`: pip install 'workflow-sdk[cli]'\n"
