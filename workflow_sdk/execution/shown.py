"""The waits of an instance, as the world can see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.entries import EntryTrouble
from workflow_sdk.core.failures import unpack_error_info
from workflow_sdk.core.instance import WaitRow
from workflow_sdk.core.keys import METADATA, OUTSIDE, ROOT, WAITS, InstanceKeys, waits_of
from workflow_sdk.core.location import pack_segment
from workflow_sdk.core.outside import Hanging
from workflow_sdk.core.times import deadline_of
from workflow_sdk.core.tokens import proof_of, shown_token
from workflow_sdk.core.tuples import unpack
from workflow_sdk.core.wire import damaged
from workflow_sdk.driver import Driver
from workflow_sdk.errors import ErrorInfo

__all__ = ["Wait", "read_troubles", "read_waits"]

BYTES = b"\x01"
"""What a text of bytes begins with, in a key."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a parked branch waits for."""

    kind: str
    """`timer`, `message`, `retry`, `child` or `task`; or `thread`, for which a plain step waits."""
    name: str
    path: str
    message: str | None
    token: str
    """Names exactly this wait, for `send`."""
    version: int
    """Of the instance, when it began to wait."""
    until: datetime | None
    target: str | None = None
    """The id of the child or task that is awaited."""
    attempts: int = 0
    """How often what is retried has failed."""
    error: ErrorInfo | None = None
    """How it failed at last."""


async def read_waits(
    driver: Driver, keys: InstanceKeys, codec: Codec, troubles: dict[bytes, EntryTrouble], seed: bytes
) -> list[Wait]:
    """What the branches of an instance wait for. `troubles`: those of what is retried, as far as they were read."""
    waits: list[Wait] = []
    rows = await driver.scan(*keys.range(WAITS))
    outside: dict[bytes, Hanging] = {}
    if any(key.startswith(keys.space + WAITS + BYTES) for key, _ in rows):
        start = len(keys.space) + len(OUTSIDE)
        outside = {key[start:]: Hanging.unpack(raw) for key, raw in await driver.scan(*keys.range(OUTSIDE))}
    for key, raw in rows:
        row = WaitRow.unpack(raw)
        message = unpack(key[len(ROOT) :])[3]
        if not isinstance(message, (str, bytes)):
            raise damaged("a wait")
        location = key[len(keys.space) + len(waits_of(message)) :]
        trouble = troubles.get(location) if row.kind == "retry" else None
        hanging = outside.get(location)
        token = pack_segment(row.since) + location
        waits.append(
            Wait(
                kind=row.kind,
                name=row.name,
                path=row.path,
                message=message if isinstance(message, str) and message else None,
                token=shown_token(proof_of(seed, keys.instance_id, token), token),
                version=row.since,
                until=None if row.until is None else deadline_of(float(row.until)),
                target=None if hanging is None else hanging.id,
                attempts=0 if trouble is None else trouble.attempts,
                error=None if trouble is None else unpack_error_info(trouble.error, codec),
            )
        )
    return waits


async def read_troubles(driver: Driver, keys: InstanceKeys) -> dict[bytes, EntryTrouble]:
    """How often operations have failed, and how at last, by their locations."""
    start = len(keys.space) + len(METADATA)
    return {key[start:]: EntryTrouble.unpack(raw) for key, raw in await driver.scan(*keys.range(METADATA))}
