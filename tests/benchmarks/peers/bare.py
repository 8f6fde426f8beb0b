"""The limit: SQLite commits in a loop, each with as many rows as a step of ours writes, and nothing else at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.benchmarks.peers.measuring import Figures, Setting, costs, repeated
from tests.benchmarks.peers.processes import main

__all__ = ["SCENARIOS"]

COMMITS = 1000


async def sequential(setting: Setting) -> Figures:
    """Three small rows a commit: the step's entry, its metadata, and the instance's counter."""
    connection = sqlite3.connect(Path(setting.directory) / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={setting.mode}")
    connection.execute("CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")

    async def run(number: int) -> None:
        for commit in range(COMMITS):
            rows = [(b"instance-%03d %d %08d" % (number, row, commit), b"x" * 60) for row in range(3)]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO entries VALUES (?, ?)", rows)
            connection.execute("COMMIT")

    try:
        return costs(COMMITS, await repeated(setting, run))
    finally:
        connection.close()


SCENARIOS = {"sequential": sequential}

if __name__ == "__main__":
    main(SCENARIOS, {})
