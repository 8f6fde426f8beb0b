"""Rows of an instance, looked at and changed behind the engine's back."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from workflow_sdk import Driver
from workflow_sdk.changes.instances import read_about
from workflow_sdk.driver import Batch
from workflow_sdk.rows.instance import InstanceRows, unpack
from workflow_sdk.rows.keys import Field, InstanceKeys

__all__ = ["about", "change_row"]


async def about(driver: Driver, id: str) -> InstanceRows:
    """What is stored of an instance beside its history."""
    return await read_about(driver, InstanceKeys(id))


async def change_row(driver: Driver, id: str, field: Field, **changes: Any) -> None:
    """Store a row of an instance with other fields."""
    key = InstanceKeys(id).field(field)
    raw = await driver.get(key)
    assert raw is not None, f"{id} has no {field.name}"
    batch = Batch()
    batch.set(key, replace(unpack(field, raw), **changes).pack())
    await driver.commit(batch)
