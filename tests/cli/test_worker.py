"""`workflow worker`: it runs what is due, in one process or several, until it is told to stop."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.cli.launcher import Running
from tests.cli.line import Line
from tests.environment import clean_environment
from tests.patience import PATIENCE
from workflow_sdk import Driver
from workflow_sdk.cli.worker import End, Team
from workflow_sdk.rows.keys import WorkerKeys

ROOT = Path(__file__).parents[2]


@contextmanager
def working(
    line: Line, *args: str, constants: Mapping[str, object] | None = None
) -> Generator[tuple[Running, list[int]]]:
    """A worker, once every process of it runs; and the ids of those processes."""
    worker = line.process("worker", *args, constants=constants)
    try:
        processes = int(args[args.index("--processes") + 1]) if "--processes" in args else 1
        pids = [pid_in(worker.stderr.readline()) for _ in range(processes)]
        yield worker, pids
    finally:
        worker.kill()
        worker.communicate(timeout=PATIENCE)


def pid_in(text: str) -> int:
    found = re.fullmatch(r"workflow: shop:\w+ runs in process (\d+)\n", text)
    assert found is not None, text
    return int(found[1])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("target", ["shop:make", "shop:runtime"])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_runs_what_is_due_until_it_is_stopped(line: Line, target: str, sent: signal.Signals) -> None:
    line("start", "checkout", '"o"', "--id", "order-1")
    with working(line, target) as (worker, _):
        line("start", "checkout", '"o"', "--id", "order-2")
        for id in ("order-1", "order-2"):
            line("send", id, "packed", '"tea"')
            assert '"packed": "tea"' in line("result", id, "--timeout", str(PATIENCE)).output
        line("start", "checkout", '"o"', "--id", "order-3")
        worker.send_signal(sent)
        output, errors = worker.communicate(timeout=PATIENCE)
        assert (worker.returncode, output) == (0, ""), errors
    assert line("send", "order-3", "packed").output in ("accepted\n", "queued\n"), "it is left for the next"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_to_which_nobody_listens_ends_as_others_do(line: Line, processes: int) -> None:
    """Python makes an exit code of its own of what is left to be printed."""
    argv = [sys.executable, "-m", "workflow_sdk.cli", "worker", "shop:make", "--processes", str(processes)]
    folders = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    env = clean_environment(PYTHONPATH=folders, SHOP_STORE=line.store)
    worker = subprocess.Popen(argv, cwd=line.folder, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stderr is not None
        for _ in range(processes):
            pid_in(worker.stderr.readline())
        worker.stderr.close()
        line("start", "grumbles", "--id", "g1")
        assert line("result", "g1", "--timeout", str(PATIENCE)).output == '"done"\n'
        worker.terminate()
        assert worker.wait(timeout=PATIENCE) == 0
    finally:
        worker.kill()
        worker.wait()


def test_several_processes_are_stopped_together(line: Line) -> None:
    line("start", "fails", "--id", "f1")
    with working(line, "shop:make", "--processes", "2") as (worker, pids):
        assert "no tea" in line("result", "f1", "--timeout", str(PATIENCE), code=1).stderr
        worker.terminate()
        _, errors = worker.communicate(timeout=PATIENCE)
        assert worker.returncode == 0, errors
        assert not any(map(is_alive, pids))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_on_another_event_loop(line: Line, processes: int) -> None:
    with working(line, "shop:make", "--processes", str(processes), "--uvloop") as (worker, _):
        assert line("start", "tells_its_loop", "--id", f"l{processes}").output
        assert line("result", f"l{processes}", "--timeout", str(PATIENCE)).output == '"uvloop"\n'
        worker.terminate()
        assert worker.wait(timeout=PATIENCE) == 0


def test_a_process_that_ends_by_itself_is_started_again(line: Line) -> None:
    at_once = {"workflow_sdk.cli.worker.RESTART_SECONDS": 0.0, "workflow_sdk.cli.worker.RESTART_SECONDS_MAX": 0.0}
    with working(line, "shop:make", "--processes", "2", constants=at_once) as (worker, pids):

        def is_told_and_replaced(how: str) -> int:
            """The process that has ended, and is no more in `pids`."""
            told = worker.stderr.readline()
            found = re.fullmatch(rf"workflow: process (\d+) {how}; another is started in 0 s\n", told)
            assert found is not None, told
            pids.remove(int(found[1]))
            another = pid_in(worker.stderr.readline())
            assert another not in pids
            pids.append(another)
            return int(found[1])

        line("start", "kills_once", f'"{line.folder}/killed"', "--id", "k1")
        assert line("result", "k1", "--timeout", str(PATIENCE)).output == '"survived"\n'
        is_told_and_replaced("was killed by signal 9")

        line("start", "exits_once", f'"{line.folder}/exited"', "--id", "e1")
        assert line("result", "e1", "--timeout", str(PATIENCE)).output == '"survived"\n'
        is_told_and_replaced("has ended with exit code 3")

        stopped = pids[0]
        os.kill(stopped, signal.SIGTERM)
        assert is_told_and_replaced("has ended with exit code 0") == stopped

        worker.terminate()
        assert worker.wait(timeout=PATIENCE) == 0
        assert not any(map(is_alive, pids))


def test_processes_shut_down_when_the_one_that_keeps_them_is_killed(line: Line) -> None:
    with working(line, "shop:steady", "--processes", "2") as (worker, pids):
        line("start", "takes_its_time", f'"{line.folder}"', "--id", "i")
        wait_for((line.folder / "begun").exists)
        assert len(line.on_store(heartbeats)) == 2
        worker.kill()
        said = {worker.stderr.readline() for _ in pids}
        assert said == {f"workflow: process {pid} shuts down: the one that keeps it is gone\n" for pid in pids}
        (line.folder / "go").touch()
        assert worker.stderr.read() == "", "it ends when every process has let go of it"
    (step,) = json.loads(line("show", "i", "--json").output)["history"]
    assert (step["status"], step["attempts"]) == ("completed", 1)
    assert line.on_store(heartbeats) == [], "they have left, and nobody has to wait for their leases"


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


async def heartbeats(driver: Driver) -> list[tuple[bytes, bytes]]:
    return await driver.scan(*WorkerKeys.heartbeats())


def test_a_worker_whose_messages_nobody_reads_goes_on(line: Line) -> None:
    line("start", "fails", "--id", "f1")
    worker = line.process("worker", "shop:make", unread="stderr")
    try:
        assert "no tea" in line("result", "f1", "--timeout", str(PATIENCE), code=1).stderr
        worker.terminate()
        assert worker.wait(timeout=PATIENCE) == 0
    finally:
        worker.kill()
        worker.communicate(timeout=PATIENCE)


def test_the_pause_before_another_is_started_grows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [End(7, -9, True, 2.0)] * 7 + [End(7, -9, True, 40.0), End(7, 0, True, 1.0)]
    pauses: list[float] = []

    async def run() -> End:
        await anyio.lowlevel.checkpoint()
        end = ends.pop(0)
        if not ends:
            kept.stopping.set()
        return end

    def pause(seconds: float) -> anyio.CancelScope:
        pauses.append(seconds)
        return anyio.CancelScope(deadline=-math.inf)

    kept = Team("shop:make")
    monkeypatch.setattr(kept, "run", run)
    monkeypatch.setattr(anyio, "move_on_after", pause)
    anyio.run(kept.keep)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 1]
    told = [row.partition("; ")[2] for row in capsys.readouterr().err.splitlines()]
    assert told == [f"another is started in {seconds:.0f} s" for seconds in pauses]
    assert kept.code == 0


def test_a_process_that_fails_ends_them_all(line: Line) -> None:
    worker = line.process("worker", "shop:raises", "--processes", "2")
    _, errors = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 1
    assert "workflow: shop:raises has made no runtime: RuntimeError: no database (" in errors


@pytest.mark.parametrize(
    ("target", "says", "code"),
    [
        ("shop", "write module:runtime", 2),
        (":make", "write module:runtime", 2),
        ("shop_that_is_not:make", "there is no module 'shop_that_is_not'", 2),
        ("shop:nothing", "the module 'shop' has no 'nothing'", 2),
        ("shop:STORE", "shop:STORE is 'str'", 2),
        ("shop:no_runtime", "shop:no_runtime is 'int'", 2),
        ("shop:raises", "RuntimeError: no database (", 1),
    ],
)
def test_what_is_no_runtime(line: Line, target: str, says: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.path.dirname(__file__))
    assert says in line("worker", target, code=code).stderr


@pytest.mark.parametrize("source", ["import what_is_not_there", "1 / 0", "def"])
def test_a_module_that_can_not_be_imported(line: Line, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"broken_{abs(hash(source))}"
    (line.folder / f"{name}.py").write_text(f"# a comment\n{source}\n")
    monkeypatch.chdir(line.folder)
    error = line("worker", f"{name}:runtime", code=1).stderr
    assert f"the module '{name}' can't be imported: " in error
    assert source == "def" or f"{name}.py:2)" in error


def test_a_store_is_not_for_a_worker(line: Line) -> None:
    assert "a worker's store" in line("--store", line.store, "worker", "shop:make", code=2).stderr
    assert "a worker's codec" in line("--codec", "shop:Reversed", "worker", "shop:make", code=2).stderr
