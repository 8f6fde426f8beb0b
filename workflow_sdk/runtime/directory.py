"""Listing instances: by time, status or workflow."""

from __future__ import annotations

import logging

from workflow_sdk.changes.snapshot import read_about
from workflow_sdk.core.codec import Codec
from workflow_sdk.core.keys import DIRECTORY, InstanceKeys, last_of, shards_of
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Status
from workflow_sdk.core.tuples import pack
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, DefinitionError, InstanceNotFoundError
from workflow_sdk.runtime.info import InstanceInfo, Page, read_info
from workflow_sdk.runtime.merging import Merged

__all__ = ["list_instances"]

_log = logging.getLogger("workflow_sdk.runtime")


async def list_instances(
    driver: Driver,
    codec: Codec,
    *,
    workflow: str | None,
    status: Status | None,
    reference: str | None,
    created_after: float | None,
    limit: int,
    cursor: str | None,
) -> Page[InstanceInfo]:
    """A page of instances, oldest first."""
    if reference is not None:
        part = pack((4, reference))
    elif status is not None:
        part = pack((2, status.value))
    elif workflow is not None:
        part = pack((3, workflow))
    else:
        part = pack((1,))
    begin = b""
    if created_after is not None:
        # After every key with that time, whatever its id.
        begin = pack((created_after,)) + b"\xff"
    if cursor is not None:
        begin = _from_cursor(cursor, part)
    rows = Merged(driver, shards_of(DIRECTORY + part), begin, b"\xff", page=max(8, limit // 8))
    items: list[InstanceInfo] = []
    while (found := await rows.next()) is not None:
        key, suffix = found
        try:
            info = await read_info(driver, last_of(key), codec)
        except InstanceNotFoundError:
            continue  # deleted since the row was read
        except CodecError as error:
            if await _can_be_read(driver, last_of(key)):
                raise  # it is a value, and this reader lacks its codec
            _log.warning("instance %s is not listed, as it can't be read: %s", last_of(key), error)
            continue
        wanted = (workflow is None or info.workflow == workflow) and (status is None or info.status is status)
        if wanted and (reference is None or info.reference == reference):
            items.append(info)
            if len(items) == limit:
                return Page(items, (part + suffix).hex())
    return Page(items, None)


async def _can_be_read(driver: Driver, id: str) -> bool:
    """Whether what the instance is can be read; not what authors have given it."""
    try:
        await read_about(driver, InstanceKeys(id))
    except CodecError:
        return False
    return True


def _from_cursor(cursor: str, part: bytes) -> bytes:
    try:
        key = bytes.fromhex(cursor)
    except (ValueError, TypeError):
        key = b""
    if not key.startswith(part):
        raise DefinitionError(f"the cursor {shown(cursor)} is not of a list with these filters")
    return key[len(part) :] + b"\x00"
