"""Where the benchmarks run: every store that is to be had here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from workflow_sdk import Batch, open_driver

__all__ = ["FOUNDATIONDB", "MEMORY", "SQLITE_FULL", "SQLITE_NORMAL", "STORES", "Store", "forget", "stores_here"]

CLUSTER_FILE = "WORKFLOW_SDK_FDB_CLUSTER_FILE"


@dataclass(frozen=True)
class Store:
    """A kind of store, and how a fresh one is opened."""

    name: str
    url: str
    """With `{path}` for a path of its own, and `{prefix}` for a prefix."""

    def fresh(self, directory: Path) -> str:
        """The URL of an empty one."""
        return self.url.format(
            path=directory / f"{uuid4().hex}.db",
            prefix=f"bench-{uuid4().hex}",
            cluster=os.environ.get(CLUSTER_FILE, ""),
        )


MEMORY = Store("memory", "memory://")
SQLITE_FULL = Store("SQLite full", "sqlite:///{path}?synchronous=full")
SQLITE_NORMAL = Store("SQLite normal", "sqlite:///{path}?synchronous=normal")
FOUNDATIONDB = Store("FoundationDB", "fdb://{cluster}?prefix={prefix}")
STORES = (MEMORY, SQLITE_FULL, SQLITE_NORMAL, FOUNDATIONDB)


def stores_here(among: Sequence[Store] = STORES) -> list[Store]:
    """Those of them that can be had: FoundationDB where a cluster is named."""
    return [store for store in among if store is not FOUNDATIONDB or os.environ.get(CLUSTER_FILE)]


async def forget(url: str) -> None:
    """Leave nothing behind in a store that outlives the benchmarks."""
    if url.startswith("fdb:"):
        driver = await open_driver(url)
        batch = Batch()
        batch.clear_range(b"", b"\xff")
        await driver.commit(batch)
        await driver.aclose()
