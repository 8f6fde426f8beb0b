"""`python -m tests.benchmarks.peers [--only SCENARIO,...] [--peers dbos,langgraph,...]`: what peers cost.

Prints one line of JSON per scenario and peer. Each scenario runs in a process of its own; servers are started before
the first of their scenarios, and stopped after the last. What can't be had here is told in a line as well, and why.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from tests.benchmarks.peers.measuring import Setting
from tests.benchmarks.peers.servers import MissingError, Server, postgres, restate, temporal, temporal_unlimited

SCENARIOS = [
    "sequential",
    "concurrent",
    "join",
    "growth",
    "replay_1000",
    "replay_10000",
    "round_trip",
    "cold_start",
    "parked",  # the last one: with a server, what waits remains
]
CELLS = ("cells_1", "cells_1000")
"""Of machines, and of what others have for entities with a key."""
GRAPHS = ("graph_firings_1000", "graph_fan_1000", "graph_fan_out_1000", "graph_chain_1000", "graph_dag_1000")
SCENARIO_SECONDS = 90


@contextmanager
def _sqlite(directory: Path) -> Generator[Server]:
    """No server at all."""
    yield Server(None, f"sqlite:///{directory}/{{name}}.db")


@dataclass(frozen=True)
class Peer:
    """Something to measure."""

    name: str
    subject: str
    package: str
    store: str
    open: Callable[[Path], AbstractContextManager[Server]]
    module: str
    mode: str = ""
    only: tuple[str, ...] = tuple(SCENARIOS)
    without: Mapping[str, str] = field(default_factory=dict[str, str])
    """Scenarios that can't be had, and why."""
    beside: str = ""
    """The store of ours that keeps as much, and that it is compared with; if it isn't the usual one."""


def _langgraph() -> list[Peer]:
    """How durable it can be. What would be lost with the process is compared with ours in memory."""
    return [
        Peer("langgraph", "LangGraph", "langgraph", store, _sqlite, "langgraph_run", mode, GRAPHS, beside=beside)
        for mode, store, beside in (
            ("", "nothing is kept", "memory"),
            ("memory", "memory", "memory"),
            ("exit", "SQLite WAL, durability=exit", "memory"),
            ("async", "SQLite WAL, durability=async", ""),
            ("sync", "SQLite WAL, durability=sync", ""),
        )
    ]


# At twenty steps a second these take minutes, and tell no more than that.
LONG_HISTORIES = ("growth", "replay_1000", "replay_10000")
TOO_LONG = {"replay_10000": "a history has 51,200 events at most, and a step makes six"}
PEERS = [
    Peer("bare", "bare loop", "", "SQLite full", _sqlite, "bare", mode="FULL", only=("sequential",)),
    Peer("bare", "bare loop", "", "SQLite normal", _sqlite, "bare", mode="NORMAL", only=("sequential",)),
    Peer("dbos", "DBOS", "dbos", "SQLite as installed", _sqlite, "dbos_run"),
    Peer("dbos", "DBOS", "dbos", "SQLite WAL", _sqlite, "dbos_run", mode="WAL"),
    Peer("dbos", "DBOS", "dbos", "PostgreSQL", postgres, "dbos_run"),
    Peer(
        "restate",
        "Restate",
        "restate-sdk",
        "server, RocksDB",
        restate,
        "restate_run",
        only=(*CELLS, *SCENARIOS),
    ),
    Peer(
        "temporal",
        "Temporal",
        "temporalio",
        "dev server, SQLite",
        temporal,
        "temporal_run",
        only=tuple(name for name in SCENARIOS if name not in LONG_HISTORIES),
    ),
    Peer(
        "temporal",
        "Temporal",
        "temporalio",
        "dev server, SQLite, no poll limit",
        temporal_unlimited,
        "temporal_run",
        only=("sequential", *LONG_HISTORIES),
        without=TOO_LONG,
    ),
    *_langgraph(),
    Peer(
        "pydantic-graph",
        "pydantic-graph",
        "pydantic-graph",
        "nothing is kept",
        _sqlite,
        "pydantic_graph_run",
        only=GRAPHS,
        beside="memory",
    ),
]


def _tell(peer: Peer, scenario: str | None, figures: Mapping[str, object]) -> None:
    try:
        version = metadata.version(peer.package) if peer.package else platform.python_version()
    except metadata.PackageNotFoundError:
        version = ""
    line = {"scenario": scenario, "subject": peer.subject, "version": version, "store": peer.store, **figures}
    print(json.dumps({**line, "beside": peer.beside} if peer.beside else line), flush=True)


def _measure(peer: Peer, scenario: str, server: Server, directory: Path) -> dict[str, object]:
    """Run a scenario in a new process; why it can't be had, if it ends badly or not at all."""
    setting = Setting(
        directory=str(directory),
        url=server.url.format(name=scenario),
        admin_url=server.admin_url,
        mode=peer.mode,
        servers=() if server.pid is None else (server.pid,),
    )
    command = [sys.executable, "-m", f"tests.benchmarks.peers.{peer.module}", scenario, setting.json()]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=SCENARIO_SECONDS)
        except subprocess.TimeoutExpired:
            return {"skipped": f"not done within {SCENARIO_SECONDS} s"}
        finally:
            # The session is its own, so that this ends whatever it has started as well.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        return {"skipped": (errors.strip().splitlines() or ["it ended without a word"])[-1][:300]}
    figures: dict[str, object] = json.loads(output.strip().splitlines()[-1])
    return {**figures, "server": server.version} if server.version else figures


def _all_of(peer: Peer, wanted: list[str]) -> None:
    """Every scenario of a peer that is wanted."""
    scenarios = [name for name in wanted if name in peer.only]
    if not scenarios:
        return
    directory = Path(tempfile.mkdtemp(prefix="benchmark-"))
    directory.chmod(0o755)  # PostgreSQL is another user
    try:
        if peer.package:
            metadata.version(peer.package)
        with peer.open(directory) as server:
            for scenario in scenarios:
                if scenario in peer.without:
                    _tell(peer, scenario, {"skipped": peer.without[scenario]})
                else:
                    _tell(peer, scenario, _measure(peer, scenario, server, directory))
    except (MissingError, metadata.PackageNotFoundError, subprocess.CalledProcessError, OSError) as missing:
        _tell(peer, None, {"skipped": str(missing)})
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Measure what is wanted, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[*CELLS, *SCENARIOS, *GRAPHS])
    parser.add_argument("--peers", type=lambda text: text.split(","), default=[peer.name for peer in PEERS])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        for peer in PEERS:
            if peer.name in arguments.peers:
                _all_of(peer, arguments.only)
    except KeyboardInterrupt:
        sys.exit(130)


main()
