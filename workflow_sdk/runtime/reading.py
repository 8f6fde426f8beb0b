"""Reading what is recorded of an instance, without running it."""

from __future__ import annotations

from workflow_sdk.changes.snapshot import read_about
from workflow_sdk.core.codec import Codec, Wrappers
from workflow_sdk.core.compensation import Compensation
from workflow_sdk.core.entries import EntryTrouble
from workflow_sdk.core.failures import unpack_error_info
from workflow_sdk.core.history import History, build_history
from workflow_sdk.core.keys import COMPENSATIONS, HISTORY, METADATA, NAMES, InstanceKeys
from workflow_sdk.core.location import segments
from workflow_sdk.core.names import NameRow
from workflow_sdk.core.wire import damaged
from workflow_sdk.driver import Driver
from workflow_sdk.errors import InstanceNotFoundError

__all__ = ["read_history"]

LOOKS_MAX = 5
"""How often an instance is looked at that changes meanwhile."""


async def read_history(driver: Driver, instance_id: str, *, codec: Wrappers | None = None) -> History:
    """The recorded operations of an instance, as a tree; `print` draws it."""
    keys = InstanceKeys(instance_id)
    values = Codec(wrapper=codec)
    about = await read_about(driver, keys)
    for look in range(LOOKS_MAX):
        if not about:
            raise InstanceNotFoundError(f"there is no instance {instance_id!r}")
        parts = await _read_parts(driver, keys)
        before, after = about, await read_about(driver, keys)
        about = after or before
        if not after or before.tally == after.tally or look == LOOKS_MAX - 1:
            break
    else:
        raise AssertionError("there is a last look")
    error = about.result.error
    return build_history(
        instance_id=instance_id,
        workflow=about.head.workflow,
        status=about.status,
        error=None if error is None else unpack_error_info(error, values),
        texts={_number(key): NameRow.unpack(raw).text for key, raw in parts[NAMES]},
        entries=parts[HISTORY],
        troubles={key: EntryTrouble.unpack(raw) for key, raw in parts[METADATA]},
        compensations=[Compensation.unpack(_number(key), raw) for key, raw in parts[COMPENSATIONS]],
        codec=values,
    )


async def _read_parts(driver: Driver, keys: InstanceKeys) -> dict[bytes, list[tuple[bytes, bytes]]]:
    """The rows of its history. What lies between them is not read: its inbox may be large."""
    start = len(keys.space)
    parts: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for first, last in ((NAMES, HISTORY), (METADATA, COMPENSATIONS)):
        parts[first], parts[last] = [], []
        for key, raw in await driver.scan(keys.range(first)[0], keys.range(last)[1]):
            parts[key[start : start + 2]].append((key[start + 2 :], raw))
    return parts


def _number(packed: bytes) -> int:
    number = next(segments(packed), None)
    if not isinstance(number, int):
        raise damaged("a number")
    return number
