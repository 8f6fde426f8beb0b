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
from workflow_sdk import cli as package
from workflow_sdk.cli.commands import cli

ROOT = Path(__file__).parents[2]


def test_the_script_is_announced() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert EntryPoint("workflow", scripts["workflow"], "console_scripts").load() is package.main


def test_the_store_can_be_given_before_or_after_the_command(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKFLOW_STORE", raising=False)
    line("start", "checkout", "--id", "order-1")
    runner = click.testing.CliRunner(env={"WORKFLOW_STORE": f"sqlite:///{line.folder}/other.db"})
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
    ],
)
def test_usage_errors(line: Line, args: tuple[str, ...], says: str) -> None:
    assert says in line(*args, code=2).stderr


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
    process = line.process(*command)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=30) == 1
    process.stderr.close()


def test_an_interrupt(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workflow_sdk.cli.instances.find", interrupted)
    assert click.testing.CliRunner(env={"WORKFLOW_STORE": line.store}).invoke(cli, ["show", "i"]).exit_code == 130


def test_the_library_needs_neither_click_nor_rich() -> None:
    program = "import sys, workflow_sdk; sys.exit(bool({'click', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=30).returncode == 0


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_the_extra_is_missing(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from workflow_sdk.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", program], check=False, timeout=30, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == "workflow: the command line needs the extra `cli`: pip install 'workflow-sdk[cli]'\n"
