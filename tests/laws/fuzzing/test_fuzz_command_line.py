"""Command lines that nobody would type, and texts in the places of others."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click.testing
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.line import Line
from tests.laws.examples import examples
from tests.laws.fuzzing.hostile import SURROGATE, bounded
from tests.laws.fuzzing.instances import FLOWS, stored
from workflow_sdk import Batch, Context, Driver, workflow
from workflow_sdk.cli.__main__ import cli

pytestmark = pytest.mark.law(15)


@workflow
async def counts(ctx: Context) -> int:
    return await ctx.step("much", lambda: 10**5000)


COMMANDS = [name for name in cli.commands if name not in ("worker", "watch")]
WORDS = [
    *cli.commands,
    *FLOWS,
    *(
        "--store",
        "--codec",
        "--id",
        "--json",
        "--limit",
        "--status",
        "--workflow",
        "--timeout",
        "--older-than",
        "--key",
    ),
    *("--help", "-h", "--version", "--rollback", "--", "-", "--no-such", "--limit=0", "--timeout=0", "--status=stuck"),
    *(
        "0",
        "1s",
        "-1",
        "9" * 400,
        "1e999",
        "nan",
        "first",
        "turns/~1",
        "turns/~" + "9" * 30,
        "wait/l/go",
        "~",
        "%",
        "/",
    ),
    *('{"a": 1}', "[1", "NaN", "null", '"' + "x" * 5000 + '"', "[" * 5000, "1" * 5000, '"\\ud800"', '{"\\ud800": 1}'),
    *(
        "",
        "\0",
        "a\0b",
        SURROGATE,
        "\x1b[2J",
        "é",
        "\u202e",
        "x" * 5000,
        "json:loads",
        "os:nothing",
        "no.such:module",
        ":",
    ),
]
TEXTS = st.sampled_from(WORDS) | st.text(max_size=12)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """A store with instances of many kinds."""
    folder: Path = tmp_path_factory.mktemp("line")
    made = Line(f"sqlite:///{folder}/app.db?synchronous=normal", folder)
    rows = stored()

    async def fill(driver: Driver) -> None:
        batch = Batch()
        for key, raw in rows:
            batch.set(key, raw)
        await driver.commit(batch)

    made.on_store(fill)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        yield made


def said(line: Line, args: list[str], input: bytes | None = None) -> click.testing.Result:
    """What comes of a command line: an exit code, and one line if it is an error."""
    runner = click.testing.CliRunner(env={"WORKFLOW_STORE": line.store})
    result = runner.invoke(cli, args, input=input)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code in (0, 1, 2), result.output
    if result.exit_code and args and not result.stderr.startswith("Usage:"):
        assert result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.startswith("workflow: ")
        assert len(result.stderr) < 3000
    assert "Traceback" not in result.output
    return result


def with_time(command: str, args: list[str]) -> list[str]:
    """Not to wait for an end that does not come."""
    return [command, *args, "--timeout", "0"] if command == "result" else [command, *args]


def test_any_arguments_are_done_or_a_clear_error(line: Line) -> None:
    @given(st.sampled_from(COMMANDS), st.lists(TEXTS, max_size=5))
    @examples(80)
    def check(command: str, args: list[str]) -> None:
        said(line, with_time(command, args))

    check()


def test_any_command_is_done_or_a_clear_error(line: Line) -> None:
    @given(st.lists(TEXTS.filter(lambda word: word not in ("worker", "watch", "result")), max_size=4))
    @examples(40)
    def check(args: list[str]) -> None:
        said(line, args)

    check()


def test_any_store_is_opened_or_a_clear_error(line: Line) -> None:
    schemes = st.sampled_from(["", "sqlite://", "sqlite:///", "sqlite:////", "memory://", "x://", "://", "sqlite:"])
    ends = st.sampled_from(
        ["", "?", "?mode=rw", "?mode=x", "?busy_timeout=nan", "?synchronous=" + "9" * 99, "?\0", "#x"]
    )
    names = st.text(max_size=8) | st.sampled_from(["\0", "x" * 5000, "/", "..", "%00", "no/such/a.db"])

    @given(schemes, names, ends)
    @examples(30)
    def check(scheme: str, name: str, end: str) -> None:
        said(line, ["list", "--store", scheme + name + end])

    check()


def test_any_json_is_read_or_a_clear_error(line: Line) -> None:
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner),
        max_leaves=5,
    )

    @given(values.map(json.dumps).map(str.encode) | st.binary(max_size=20), st.booleans())
    @examples(25)
    def check(raw: bytes, sends: bool) -> None:
        said(line, ["send", "parks", "go", "-"] if sends else ["start", "anything", "-"], input=raw)

    check()


@pytest.mark.parametrize(
    "raw", [b"[" * 100_000, b"1" * 100_000, b'"\\ud800"', b"1e999", b"\xff\xfe", b'{"a":' * 50_000]
)
def test_json_that_is_a_bomb_is_a_clear_error(line: Line, raw: bytes) -> None:
    with bounded():
        assert said(line, ["start", "anything", "-"], input=raw).exit_code in (0, 1, 2)


@pytest.mark.parametrize("how", [["show"], ["show", "--json"], ["result", "--timeout", "0"]])
def test_a_number_of_very_many_digits_is_shown(line: Line, how: list[str]) -> None:
    line.run(counts, id="counts")
    assert said(line, [*how, "counts"]).exit_code == 0


def test_a_turn_of_very_many_digits_is_a_clear_error(line: Line) -> None:
    said(line, ["restart-from", "completes", "turns/~" + "9" * 5000])
