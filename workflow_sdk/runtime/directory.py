"""Listing instances: by time, status or workflow."""

from __future__ import annotations

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.keys import DIRECTORY, last_of
from workflow_sdk.core.location import subtree
from workflow_sdk.core.status import Status
from workflow_sdk.core.tuples import pack
from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError, InstanceNotFoundError
from workflow_sdk.runtime.info import InstanceInfo, Page, read_info

__all__ = ["list_instances"]


async def list_instances(
    driver: Driver,
    codec: Codec,
    *,
    workflow: str | None,
    status: Status | None,
    created_after: float | None,
    limit: int,
    cursor: str | None,
) -> Page[InstanceInfo]:
    """A page of instances, oldest first."""
    if status is not None:
        prefix = DIRECTORY + pack((2, status.value))
    elif workflow is not None:
        prefix = DIRECTORY + pack((3, workflow))
    else:
        prefix = DIRECTORY + pack((1,))
    begin, end = subtree(prefix)
    if created_after is not None:
        # After every key with that time, whatever its id.
        begin = prefix + pack((created_after,)) + b"\xff"
    if cursor is not None:
        begin = _from_cursor(cursor, prefix)
    items: list[InstanceInfo] = []
    while True:
        rows = await driver.scan(begin, end, limit=limit)
        for key, _ in rows:
            begin = key + b"\x00"
            try:
                info = await read_info(driver, last_of(key), codec)
            except InstanceNotFoundError:
                continue  # deleted since the row was read
            if (workflow is None or info.workflow == workflow) and (status is None or info.status is status):
                items.append(info)
                if len(items) == limit:
                    return Page(items, key.hex())
        if len(rows) < limit:
            return Page(items, None)


def _from_cursor(cursor: str, prefix: bytes) -> bytes:
    try:
        key = bytes.fromhex(cursor)
    except ValueError:
        key = b""
    if not key.startswith(prefix):
        raise DefinitionError(f"the cursor {cursor!r} is not of a list with these filters")
    return key + b"\x00"
