"""Many instances in a store, quicker than by starting them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workflow_sdk import Batch, Driver
from workflow_sdk.rows.keys import ROOT, InstanceKeys, listed, listed_by_status, listed_by_workflow
from workflow_sdk.rows.location import pack, unpack

__all__ = ["clone"]

PAGE = 500


async def clone(driver: Driver, id: str, copies: Iterable[str]) -> None:
    """Store copies of an instance that nobody has, under other ids."""
    rows: list[tuple[list[Any], bytes]] = []
    for key, value in await driver.scan(b"", b"\xff"):
        parts = list(unpack(key[len(ROOT) :]))
        if id in parts:
            rows.append((parts, value))
    batch = Batch()
    for number, copy in enumerate(copies, 1):
        for parts, value in rows:
            batch.set(_key_of(parts, copy), value)
        if number % PAGE == 0:
            await driver.commit(batch)
            batch = Batch()
    await driver.commit(batch)


def _key_of(parts: list[Any], id: str) -> bytes:
    """The same key of another instance."""
    match parts:
        case [1, _, *rest]:
            return ROOT + pack((1, id, *rest))
        case [3, *_, time, _]:
            return InstanceKeys(id).alarm(time)
        case [5, 1, *_, time, _]:
            return listed(time, id)
        case [5, 2, status, *_, time, _]:
            return listed_by_status(status, time, id)
        case [5, 3, workflow, *_, time, _]:
            return listed_by_workflow(workflow, time, id)
        case _:
            raise AssertionError(f"{parts} is of an instance that somebody has")
