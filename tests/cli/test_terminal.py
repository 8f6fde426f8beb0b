"""What a person sees, in a terminal of its width; and what comes over a pipe while an instance runs."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from rich.cells import cell_len

from tests.cli.launcher import the_launcher
from tests.cli.line import Line
from tests.cli.shop import checkout, claims, echoes, fails, mistakes, says
from tests.patience import PATIENCE
from workflow_sdk import Status, Workflow
from workflow_sdk.cli.output import age, in_json, local_time, span

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command in a terminal."""

    def __init__(self, line: Line, *args: str, width: int, height: int = 24, term: str = "xterm") -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.process = the_launcher().start(args, {"TERM": term, "WORKFLOW_STORE": line.store}, terminal=theirs)
        os.close(theirs)
        self.raw = b""
        self.is_over = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        while not self.is_over:
            try:
                found = os.read(self.ours, 65_536)
            except OSError:  # what a terminal says at its end
                found = b""
            with self.changed:
                self.raw += found
                self.is_over = not found
                self.changed.notify_all()

    def shows(self, *texts: bytes) -> None:
        """Wait until it has shown all of these."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_over or all(text in self.raw for text in texts), PATIENCE)
        if not all(text in self.raw for text in texts):
            self.process.kill()
            raise AssertionError(f"{texts} not in {self.raw!r}")

    def ends(self) -> tuple[int, str, str]:
        """Exit code, output without colours, and errors."""
        _, errors = self.process.communicate(timeout=PATIENCE)
        self.thread.join(timeout=PATIENCE)
        os.close(self.ours)
        return self.process.wait(PATIENCE), ESCAPES.sub("", self.raw.decode()).replace("\r\n", "\n"), errors


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_a_table_fits(line: Line, width: int) -> None:
    line.run(checkout, "o", id="order-1-" + "茶" * 100)
    line.run(fails, id="f1")
    code, output, errors = Terminal(line, "list", width=width).ends()
    assert (code, errors) == (0, "")
    rows = output.splitlines()
    assert len(rows) == 3
    assert max(map(cell_len, rows)) <= width
    assert rows[0].startswith("ID")


def test_ids_are_whole_where_there_is_room(line: Line) -> None:
    id = line("start", "checkout", '"o"').output.strip()
    _, output, _ = Terminal(line, "list", width=80).ends()
    assert output.splitlines()[1].split()[:3] == [id, "checkout", "pending"]


@pytest.mark.parametrize("width", [20, 80])
def test_a_tree_fits(line: Line, width: int) -> None:
    line.run(checkout, "o" * 500, id="order-1")
    code, output, _ = Terminal(line, "show", "order-1", width=width).ends()
    assert code == 0
    assert "└─" in output
    assert max(map(cell_len, output.splitlines())) <= width


def test_an_error_is_told_in_full_where_there_is_room(line: Line) -> None:
    line.run(says, "the kettle of the third floor is broken, and will be until Monday", id="i")
    _, output, _ = Terminal(line, "show", "i", width=40).ends()
    rows = output.splitlines()
    assert rows[1:] == [
        rows[1],
        rows[2],
        "  input     " + '"the kettle of the third',
        "            " + "floor is broken, and will be",
        "            " + 'until Monday"',
        "  error     " + "application: ValueError: the",
        "            " + "kettle of the third floor is",
        "            " + "broken, and will be until",
        "            " + "Monday",
    ]
    line.run(says, "tea " * 10_000, id="long")
    _, output, _ = Terminal(line, "show", "long", width=40).ends()
    assert len(output.splitlines()) < 25
    assert "…" in output.splitlines()[-1]


def test_tasks_in_a_terminal(line: Line) -> None:
    line.run(claims, "claim-7", id="c1")
    _, output, _ = Terminal(line, "tasks", width=120).ends()
    heading, row = output.splitlines()
    assert heading.split() == ["ID", "TASK", "INSTANCE", "FOR", "AGE", "UNTIL"]
    assert row.split()[1:6] == ["approve", "c1", "clerk", "or", "manager"]
    line("assign-task", row.split()[0], "clerk-7")
    _, output, _ = Terminal(line, "tasks", width=120).ends()
    assert output.splitlines()[1].split()[1:4] == ["approve", "c1", "clerk-7"]


EVIL = "\x1b[2J\x9b2J\x07\u202e"


@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("list", "--json"),
        ("show", EVIL),
        ("show", EVIL, "--json"),
        ("result", EVIL),
        ("result", "done"),
        ("watch", EVIL),
        ("send", EVIL, EVIL),
        ("cancel", "done"),
        ("recover", EVIL),
        ("restart-from", EVIL, EVIL),
        ("show", EVIL * 2),
        ("start", EVIL, EVIL),
        ("start", EVIL, "--id", EVIL),
        ("list", "--status", EVIL),
        ("list", "--store", EVIL),
        ("worker", f"shop:{EVIL}"),
        ("prune", "--older-than", EVIL),
        (EVIL,),
    ],
    ids=lambda command: command[0] if command[0] != EVIL else "evil",
)
def test_nothing_does_things_to_the_terminal(line: Line, command: tuple[str, ...]) -> None:
    line.run(says, EVIL, id=EVIL)
    line.run(echoes, EVIL, id="done")
    terminal = Terminal(line, *command, width=200)
    _, _, errors = terminal.ends()
    for text in (ESCAPES.sub("", terminal.raw.decode()), errors):
        assert all(c.isprintable() or c in "\r\n" for c in text), repr(text)
    assert b"\x1b[2J" not in terminal.raw
    assert b"2J" in terminal.raw or "2J" in errors or command[0] in ("cancel", "recover", "send")


def test_a_terminal_that_can_only_print(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    terminal = Terminal(line, "watch", "order-1", width=60, term="dumb")
    terminal.shows(b"for packed")
    line("cancel", "order-1")
    code, output, errors = terminal.ends()
    assert (code, errors) == (
        1,
        "workflow: instance 'order-1' is cancelled: WorkflowCancelledError: it was cancelled\n",
    )
    assert output.splitlines()[-1].startswith("order-1  cancelled")
    assert b"\x1b[" not in terminal.raw


def test_watching_over_a_pipe(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    watcher = line.process("watch", "order-1")
    assert watcher.stdout is not None
    seen = ""
    while not re.search(r"^order-1  waiting", seen, re.MULTILINE):
        seen += watcher.stdout.readline()
    assert re.search(r"^both/pack/packed  listen waiting .* for packed until ", seen, re.MULTILINE)
    line("send", "order-1", "packed", '"tea"')
    line.run(checkout, id="order-1")
    rest, errors = watcher.communicate(timeout=PATIENCE)
    assert (watcher.returncode, errors) == (0, "")
    events = [row.split("  ")[0] for row in rest.splitlines()]
    assert events[-1] == "order-1"
    assert events.index("both/pack/packed") < events.index("both/pack") < events.index("both")


def test_watching_in_a_terminal(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    terminal = Terminal(line, "watch", "order-1", width=60, height=6)
    # Of a tree that is too long, the heading and the end are shown.
    terminal.shows(b"\x1b[2m... ", b"undo")
    line("send", "order-1", "packed", '"tea"')
    line.run(checkout, id="order-1")
    assert "└─".encode() in terminal.raw.split(b"undo")[0]
    code, output, errors = terminal.ends()
    assert (code, errors) == (0, "")
    assert "checkout order-1  completed" in output
    assert '= "charge-o"' in output


@pytest.mark.parametrize(("workflow", "says"), [(fails, "failed: ValueError: no tea left"), (mistakes, "is stuck: ")])
def test_watching_what_ends_otherwise(line: Line, workflow: Workflow[Any, Any], says: str) -> None:
    line.run(workflow, id="i")
    assert says in line("watch", "i", code=1).stderr


def test_a_watcher_that_is_interrupted(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    watcher = line.process("watch", "order-1")
    assert watcher.stdout is not None
    watcher.stdout.readline()
    watcher.send_signal(signal.SIGINT)
    _, errors = watcher.communicate(timeout=PATIENCE)
    assert watcher.returncode == 130
    assert errors.strip() == ""


def test_an_interrupt_gives_the_cursor_back(line: Line) -> None:
    line.run(checkout, "o", id="order-1")
    terminal = Terminal(line, "watch", "order-1", width=80)
    terminal.shows(b"for packed")
    terminal.process.send_signal(signal.SIGINT)
    code, _, errors = terminal.ends()
    assert (code, errors.strip()) == (130, "")
    assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), '"nan"'),
        (b"\x01\xff", '"01ff"'),
        (datetime(2030, 1, 2, tzinfo=UTC), '"2030-01-02T00:00:00+00:00"'),
        (timedelta(minutes=1), "60.0"),
        ({(1, 2): {3}}, '{"[1, 2]": [3]}'),
        (Status.FAILED, '"failed"'),
        (Decimal("1.50"), '"1.50"'),
    ],
    ids=str,
)
def test_what_json_has_no_type_for(value: object, shown: str) -> None:
    assert in_json(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0ms"), (0.25, "250ms"), (59.5, "59.5s"), (61, "1m01s"), (3_660, "1h01m"), (90_000 + 86_400, "2d01h")],
)
def test_lengths_of_time(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


@pytest.mark.parametrize(("days", "shown"), [(0, "0s"), (3 / 24 + 0.01, "3h"), (40.1, "40d"), (0.01, "14m")])
def test_ages(days: float, shown: str) -> None:
    assert age(datetime.now(UTC) - timedelta(days=days)) == shown


def test_times_of_another_day() -> None:
    noon = datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0)
    assert local_time(noon, noon) == "12:00:00"
    assert local_time(noon, noon - timedelta(days=1)) == noon.strftime("%Y-%m-%d 12:00:00")
