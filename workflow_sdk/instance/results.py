"""The result of a run: how the run left its instance, and what the instance waits for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver, StorageLimitError
from workflow_sdk.errors import (
    CodecError,
    DefinitionError,
    ErrorInfo,
)
from workflow_sdk.rows.entries import EntryTrouble
from workflow_sdk.rows.instance import InstanceRows, WaitRow
from workflow_sdk.rows.keys import METADATA, OUTSIDE, ROOT, WAITS, InstanceKeys, waits_of
from workflow_sdk.rows.location import pack_segment, unpack
from workflow_sdk.rows.outside import Hanging, proof_of, shown_token
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import NewerFormatError, damaged, deadline_of, shown
from workflow_sdk.values import Codec, SealedError
from workflow_sdk.values.failures import unpack_error_info

BYTES = b"\x01"
"""What a text of bytes begins with, in a key."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a parked branch waits for."""

    kind: str
    """`timer`, `message`, `retry`, `child` or `task`; `thread`, for which a plain step waits; or `admission`: a step of
    a graph whose rules do not allow it yet.
    """
    name: str
    path: str
    message: str | None
    token: str
    """The token of this wait, for `send`."""
    version: int
    """The version of the instance when the wait began."""
    until: datetime | None
    target: str | None = None
    """The id of the child, task or effect that is awaited."""
    attempts: int = 0
    """How often the operation that is tried again has failed."""
    error: ErrorInfo | None = None
    """Its last error."""


async def read_waits(
    driver: Driver, keys: InstanceKeys, codec: Codec, troubles: dict[bytes, EntryTrouble], seed: bytes
) -> list[Wait]:
    """Read what the branches of an instance wait for. `troubles`: the failed attempts that were read, by location."""
    waits: list[Wait] = []
    rows = await driver.scan(*keys.range(WAITS))
    outside: dict[bytes, Hanging] = {}
    if any(key.startswith(keys.space + WAITS + BYTES) for key, _ in rows):
        start = len(keys.space) + len(OUTSIDE)
        outside = {key[start:]: Hanging.unpack(raw) for key, raw in await driver.scan(*keys.range(OUTSIDE))}
    for key, raw in rows:
        row = WaitRow.unpack(raw)
        if row.kind == "graph":
            continue  # it is no wait for anything in particular
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
    """Read how often operations have failed, and their last errors, by location."""
    start = len(keys.space) + len(METADATA)
    return {key[start:]: EntryTrouble.unpack(raw) for key, raw in await driver.scan(*keys.range(METADATA))}


OutputT = TypeVar("OutputT")


VALUE_BYTES_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True)
class RunResult(Generic[OutputT]):
    """How one run of an instance left it."""

    status: Status
    output: OutputT | None = None
    error: ErrorInfo | None = None
    wake_at: datetime | None = None
    """When the first timer or retry is due."""
    waiting_for: list[str] = field(default_factory=list[str])
    """The names of the messages that are awaited."""
    instance_id: str = field(default="", compare=False)
    waits: list[Wait] = field(default_factory=list[Wait], compare=False)
    """All waits of the instance, and of its children that were run by the same call."""


def check_value_bytes(size: object) -> None:
    """Check that the limit of an author's values is one that every store can keep."""
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= VALUE_BYTES_LIMIT:
        raise DefinitionError(f"max_value_bytes is at most {VALUE_BYTES_LIMIT:,}, not {shown(size)}")


def innermost(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception inside groups of one: task groups wrap what passes through them."""
    if len(group.exceptions) != 1:
        return group
    (inside,) = group.exceptions
    return (
        innermost(cast("BaseExceptionGroup[BaseException]", inside))
        if isinstance(inside, BaseExceptionGroup)
        else inside
    )


def stored_result(
    workflow: Workflow[Any, Any], codec: Codec, about: InstanceRows, raw: bytes | None, id: str
) -> RunResult[Any]:
    """Make the result of an instance that is not running from its rows and its output."""
    error = about.result.error
    info = None if error is None or about.status is Status.COMPLETED else unpack_error_info(error, codec)
    # A graph that has failed has come to something all the same.
    output = None if raw is None else codec.decode(raw, workflow.output_hint)
    return RunResult(about.status, output, info, instance_id=id)


def stopping(reason: Exception, largest: str) -> tuple[Exception, str] | None:
    """What would fail again however often it is tried, in words for people, and its kind; None for all else.

    `largest`: what took the most room in a commit that was too large.
    """
    if isinstance(reason, StorageLimitError):
        return StorageLimitError(
            f"a commit is too large for the store: {reason}{largest and f' ({largest})'}; have it record less, "
            "with fewer messages in one `listen_many` or a reference in place of a large value, and run it with "
            "changed code, or `recover` it"
        ), "definition"
    if isinstance(reason, CodecError) and not isinstance(reason, (NewerFormatError, SealedError)):
        return CodecError(
            f"what is stored of it can't be read: {reason}; mend the row, or put it back from a backup, and "
            "`recover` the instance"
        ), "consistency"
    return None
