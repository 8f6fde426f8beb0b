"""`python -m tests.mutants [NAME ...]`: break copies of the engine, and show which test notices each break.

For each mutant, the sources and tests are copied to a temporary folder and one piece of source is replaced. Then the
test that is recorded for the mutant runs, and if that stays green, every test of the law that is broken (`pytest --law
N -x`). The run fails if a mutant survives, if its tests hang, if the broken copy can't even be imported, or if the test
that noticed it is red without the mutant, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutants import ROOT, Mutant, read_mutants

PATIENCE = 20.0
"""Seconds that a test waits for what never happens, as it often does where a mutant is."""

_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "bench.jsonl")
_RED = re.compile(r"^(?:FAILED|ERROR) (\S+?::[\w:]+)(.*?\](?= - |$))?", re.MULTILINE)


class Outcome(StrEnum):
    """What became of a mutant."""

    NOTICED = "noticed"
    SURVIVED = "SURVIVED"
    HUNG = "HUNG"
    """Its tests did not end."""
    BROKEN = "BROKEN"
    """No test ran: the mutant is no mutant, but a mistake in the table."""
    RED_ANYWAY = "RED ANYWAY"
    """The test that noticed it is red without the mutant, too."""


@dataclass
class Result:
    """What became of one mutant."""

    mutant: Mutant
    outcome: Outcome
    test: str
    """The node id of the first red test, with its parameters."""
    seconds: float
    output: str
    is_deep: bool = False
    """Whether it took the deep tier."""


@dataclass(frozen=True)
class Limits:
    """What one mutant may take."""

    workers: int
    timeout: float


def copy_tree(target: Path) -> None:
    """Copy what the tests need."""
    shutil.copytree(ROOT, target, ignore=_NOT_COPIED)


def run_pytest(
    root: Path, arguments: Sequence[str], timeout: float, patience: float = PATIENCE
) -> tuple[int | None, str]:
    """Run pytest on the copy under `root`: its exit code, None if it did not end in time, and what it printed."""
    sources = os.pathsep.join([str(root), str(root / "drivers")])
    environment = {**os.environ, "PYTHONPATH": sources, "WORKFLOW_SDK_PATIENCE": str(patience)}
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", *arguments]
    with tempfile.TemporaryFile("w+") as output:
        # In a session of its own: what the tests have started ends with it.
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        code: int | None = None
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read()


def try_mutant(mutant: Mutant, limits: Limits) -> Result:
    """Break a copy, and run what should notice it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        root = Path(folder, "copy")
        copy_tree(root)
        mutant.apply(root)
        law = ["-x", "--law", str(mutant.law)]
        test = mutant.test(root)
        # The quick tier has each case in one setting: some breaks show only in another one.
        tries = [[test], ["--deep", test], ["--deep", "-n", str(limits.workers)]]
        outcome, red, output = judge(*run_pytest(root, [*law, *tries[0]], limits.timeout))
        is_deep = outcome is Outcome.SURVIVED
        for arguments in tries[1:]:
            if outcome is Outcome.SURVIVED:
                outcome, red, output = judge(*run_pytest(root, [*law, *arguments], limits.timeout))
    return Result(mutant, outcome, red, time.monotonic() - began, output, is_deep)


def judge(code: int | None, output: str) -> tuple[Outcome, str, str]:
    """What a run of pytest says of the mutant that it ran with."""
    if code is None:
        return Outcome.HUNG, "", output
    if code in (0, 5):  # 5: the test is for the deep tier only
        return Outcome.SURVIVED, "", output
    red = _RED.search(output)
    if code not in (1, 2) or red is None:  # 2: stopped at the first failure, with several workers
        return Outcome.BROKEN, "", output
    return Outcome.NOTICED, red[1] + (red[2] or ""), output


def check_without_mutants(results: Sequence[Result], limits: Limits) -> None:
    """Run the tests that noticed something on a copy that is whole: there they have to be green."""
    tests = sorted({result.test for result in results if result.outcome is Outcome.NOTICED})
    if not tests:
        return
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        root = Path(folder, "copy")
        copy_tree(root)
        arguments = ["--deep", "-n", str(limits.workers), *tests]
        code, output = run_pytest(root, arguments, limits.timeout * len(tests), 3 * PATIENCE)
    red = {match[1] + (match[2] or "") for match in _RED.finditer(output)}
    for result in results:
        if result.outcome is Outcome.NOTICED and (result.test in red or code not in (0, 1)):
            result.outcome, result.output = Outcome.RED_ANYWAY, output


def chosen(names: Sequence[str]) -> list[Mutant]:
    """The mutants with these names; all, if there are none."""
    mutants = {mutant.name: mutant for mutant in read_mutants()}
    for name in names:
        if name not in mutants:
            raise SystemExit(f"there is no mutant {name!r}; there are: {', '.join(mutants)}")
    return [mutants[name] for name in names] or list(mutants.values())


def show(results: Sequence[Result]) -> None:
    """Print the table."""
    print(f"\n{'mutant':44} law  {'seconds':>7}  first red test")
    for result in results:
        name, law = result.mutant.name, result.mutant.law
        noticed_by = result.test.partition("[")[0].rpartition("/")[2]
        test = noticed_by + " (deep)" * result.is_deep if result.outcome is Outcome.NOTICED else str(result.outcome)
        print(f"{name:44} {law:3}  {result.seconds:7.1f}  {test}")
    noticed = sum(result.outcome is Outcome.NOTICED for result in results)
    print(f"\n{noticed} of {len(results)} mutants were noticed")


def main() -> int:
    """Try the mutants; 1 if one of them was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    parser.add_argument("-n", type=int, default=os.cpu_count() or 1, help="how many at a time (one for each core)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that the tests of one mutant may take")
    options = parser.parse_args()
    mutants = chosen(options.names)
    limits = Limits(options.n, options.timeout)
    results: list[Result] = []
    with ThreadPoolExecutor(options.n) as pool:
        for result in pool.map(lambda mutant: try_mutant(mutant, limits), mutants):
            results.append(result)
            print(f"{result.mutant.name}: {result.outcome} {result.test.partition('::')[2]}", flush=True)
    check_without_mutants(results, limits)
    for result in results:
        if result.outcome is not Outcome.NOTICED:
            lines = "\n".join(result.output.splitlines()[-30:])
            print(f"\n== {result.mutant.name}: {result.outcome}\n   {result.mutant.lost}\n{lines}")
    show(results)
    return int(any(result.outcome is not Outcome.NOTICED for result in results))


if __name__ == "__main__":
    sys.exit(main())
