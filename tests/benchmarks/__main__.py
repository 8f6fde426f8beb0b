"""`python -m tests.benchmarks [scenario ...]`: measure, and print one line of JSON per scenario and store.

The first line says on what. `--out FILE` keeps the lines, for `tests.benchmarks.report`; `--no-peers` leaves out what
is measured beside us: other engines, and a bare loop of commits. `--uvloop` measures us on that event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from tests.benchmarks.declaring import declare_graph
from tests.benchmarks.drawing import draw_graphs
from tests.benchmarks.graphs import GRAPHS
from tests.benchmarks.machine import machine
from tests.benchmarks.many import MEASUREMENTS
from tests.benchmarks.measuring import measured, timed
from tests.benchmarks.scenarios import SCENARIOS
from tests.benchmarks.stores import forget, stores_here

VERSION = version("workflow-sdk")
UVLOOP = ("sequential", "concurrent", "round_trip")
"""Where another event loop may make a difference."""
WITHOUT_STORES = {"draw_graph": draw_graphs, "graph_validate_1000": declare_graph}
"""What is measured where no store has a part in it."""


class Output:
    """Lines of JSON, on the standard output and in a file."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def line(self, figures: dict[str, object]) -> None:
        """One of them."""
        self.text(json.dumps(figures))

    def text(self, text: str) -> None:
        """One that is JSON already."""
        print(text, flush=True)
        if self._file is not None:
            print(text, file=self._file, flush=True)


async def ours(wanted: list[str], output: Output, subject: str) -> None:
    """Measure what is wanted, or all."""
    with tempfile.TemporaryDirectory() as directory:
        for scenario in (*SCENARIOS, *GRAPHS):
            for store in stores_here() if not wanted or scenario.name in wanted else ():
                url = store.fresh(Path(directory))
                output.line({"subject": subject, "version": VERSION, **await timed(scenario, store.name, url)})
                await forget(url)
        for measurement in MEASUREMENTS:
            for store in stores_here(measurement.stores) if not wanted or measurement.name in wanted else ():
                url = store.fresh(Path(directory))
                output.line({"subject": subject, "version": VERSION, **await measured(measurement, store.name, url)})
                await forget(url)


def others(command: list[str], output: Output) -> None:
    """What another process measures."""
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "it is a pipe"
        for line in process.stdout:
            output.text(line.rstrip("\n"))
    if process.returncode:
        print(f"{' '.join(command)} ended with {process.returncode}", file=sys.stderr)


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("scenario", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--uvloop", action="store_true")
    chosen = parser.parse_args()
    if chosen.uvloop:
        import_module("uvloop").run(ours(chosen.scenario or list(UVLOOP), Output(None), "workflow_sdk, uvloop"))
        return
    with open(chosen.out, "w") if chosen.out else tempfile.TemporaryFile("w") as file:
        output = Output(file)
        output.line({"machine": machine(), "date": datetime.now(UTC).date().isoformat()})
        for name, measure in WITHOUT_STORES.items():
            for figures in measure() if not chosen.scenario or name in chosen.scenario else ():
                output.line({"subject": "workflow_sdk", "version": VERSION, "store": "none", **figures})
        asyncio.run(ours(chosen.scenario, output, "workflow_sdk"))
        if chosen.no_peers:
            return
        again = [name for name in UVLOOP if not chosen.scenario or name in chosen.scenario]
        if again:
            others(["tests.benchmarks", "--uvloop", *again], output)
        only = ["--only", ",".join(chosen.scenario)] if chosen.scenario else []
        others(["tests.benchmarks.peers", *only], output)


if __name__ == "__main__":
    main()
