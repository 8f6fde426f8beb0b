"""What the end of an instance brings about elsewhere, in the commit that ends it: whoever waits for it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workflow_sdk.core.entries import read_token
from workflow_sdk.core.instance import InstanceRows
from workflow_sdk.core.keys import OUTSIDE, InstanceKeys
from workflow_sdk.core.outside import Ending, Hanging
from workflow_sdk.driver import Batch, Driver
from workflow_sdk.execution.posting import Letter, post
from workflow_sdk.execution.snapshot import read_standing

__all__ = ["ending_of", "purge_time", "still_waits", "tell_watchers"]


def ending_of(about: InstanceRows) -> Ending:
    """How an instance ended, from its rows as they are then."""
    return Ending(about.status, about.result.output, about.result.error)


async def tell_watchers(
    driver: Driver,
    batch: Batch,
    instance_id: str,
    ending: Ending,
    watchers: Iterable[tuple[str, bytes]],
    now: float,
    is_here: Callable[[str], bool],
) -> list[str]:
    """Tell whoever waits for the end, with the commit of the batch; return who is to be told here as well."""
    here: list[str] = []
    for id, token in watchers:
        keys = InstanceKeys(id)
        row = hanging_row(id, token)
        found = await read_standing(driver, keys)
        raw = await driver.get(row)
        if not found.about or not is_wait(raw, instance_id, token):
            continue
        # If the wait ends just now, there is nobody to be told.
        batch.check(row, raw)
        posted = await post(driver, batch, keys, found, Letter(token, ending.pack()), now, is_here)
        if posted.is_here:
            here.append(id)
    return here


def hanging_row(watcher: str, token: bytes) -> bytes:
    """The key of what hangs on a wait, as long as that lasts."""
    return InstanceKeys(watcher).space + OUTSIDE + read_token(token)[1]


def is_wait(raw: bytes | None, instance_id: str, token: bytes) -> bool:
    """Whether that row is of the wait with this token, for this instance."""
    hanging = None if raw is None else Hanging.unpack(raw)
    return hanging is not None and (hanging.id, hanging.since) == (instance_id, read_token(token)[0])


async def still_waits(driver: Driver, watcher: str, instance_id: str, token: bytes) -> bool:
    """Whether the wait is not over yet."""
    return is_wait(await driver.get(hanging_row(watcher, token)), instance_id, token)


def purge_time(about: InstanceRows, now: float) -> float | None:
    """When an instance that ends now is to be forgotten; None if it never is."""
    retention = about.birth.retention
    return None if retention is None else now + retention
