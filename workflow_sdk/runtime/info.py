"""What the world can see of an instance."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.entries import Entry, EntryTrouble
from workflow_sdk.core.failures import unpack_error_info
from workflow_sdk.core.fields import unpack_wait
from workflow_sdk.core.keys import HISTORY, METADATA, ROOT, WAITS, Field, InstanceKeys
from workflow_sdk.core.status import Status
from workflow_sdk.core.tuples import pack, unpack
from workflow_sdk.core.wire import damaged, unpack_record
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError, ErrorInfo, InstanceNotFoundError
from workflow_sdk.execution.snapshot import read_fields

__all__ = ["InstanceInfo", "Page", "Wait", "read_info"]

T = TypeVar("T")


_LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Wait:
    """What a parked branch waits for."""

    kind: str
    """`sleep`, `retry` or `listen`."""
    name: str
    path: str
    message: str | None
    token: str
    """Names exactly this wait, for `send`."""
    version: int
    """Of the instance: it grows with everything that happens to its status."""
    until: datetime | None


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """An instance, as it was when it was looked at."""

    id: str
    workflow: str
    version: int
    fingerprint: str
    """Of the code that ran it last."""
    status: Status
    created_at: datetime
    updated_at: datetime
    wake_at: datetime | None
    waits: list[Wait]
    input: Any
    """Plain data, as the output."""
    output: Any
    error: ErrorInfo | None
    attempts: dict[str, int] = field(default_factory=dict[str, int])
    """How often steps that are under way have failed, by path."""
    code_changed: bool | None = None
    """Whether the workflow's code here is another than the one that ran it last; None if it is not known here."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list. `cursor` leads to the next part; None if this was the last."""

    items: list[T]
    cursor: str | None


def _time(at: float) -> datetime:
    return _LATEST if at >= _LATEST.timestamp() else datetime.fromtimestamp(at, UTC)


async def read_info(
    driver: Driver, instance_id: str, codec: Codec, workflow: Workflow[Any, Any] | None = None
) -> InstanceInfo:
    """Look at an instance; with its workflow, also at whether that has changed."""
    keys = InstanceKeys(instance_id)
    fields = await read_fields(driver, keys)
    if Field.STATUS not in fields:
        raise InstanceNotFoundError(f"there is no instance {instance_id!r}")
    name, version, fingerprint, counter, updated_at = unpack_record(fields[Field.VERSION])
    if workflow is not None and workflow.name != name:
        raise DefinitionError(f"instance {instance_id!r} runs workflow {name!r}, not {workflow.name!r}")
    waits = await _read_waits(driver, keys, counter)
    times = [wait.until for wait in waits if wait.until is not None]
    alarm = unpack_record(fields[Field.ALARM])[0] if Field.ALARM in fields else None
    status = Status(unpack_record(fields[Field.STATUS])[0])
    return InstanceInfo(
        id=instance_id,
        workflow=name,
        version=version,
        fingerprint=fingerprint,
        status=status,
        created_at=_time(float(unpack_record(fields[Field.BIRTH])[0])),
        updated_at=_time(float(updated_at)),
        wake_at=min(times) if times else None if alarm is None else _time(float(alarm)),
        waits=waits,
        input=codec.decode(unpack_record(fields[Field.INPUT])[0], plain=True),
        output=_plain(codec, fields, Field.OUTPUT),
        error=unpack_error_info(unpack_record(fields[Field.ERROR])[0], codec) if Field.ERROR in fields else None,
        code_changed=None if workflow is None else (workflow.version, workflow.fingerprint) != (version, fingerprint),
        attempts={} if status.is_terminal else await _read_attempts(driver, keys),
    )


def _plain(codec: Codec, fields: dict[Field, bytes], key: Field) -> Any:
    return codec.decode(unpack_record(fields[key])[0], plain=True) if key in fields else None


async def _read_waits(driver: Driver, keys: InstanceKeys, version: int) -> list[Wait]:
    waits: list[Wait] = []
    for key, raw in await driver.scan(*keys.range(WAITS)):
        kind, name, path, until, _, _ = unpack_wait(raw)
        message = unpack(key[len(ROOT) :])[3]
        if not isinstance(message, str):
            raise damaged("a wait")
        start = len(keys.space) + len(WAITS) + len(pack((message,)))
        when = None if until is None else _time(float(until))
        waits.append(Wait(kind, name, path, message or None, key[start:].hex(), version, when))
    return waits


async def _read_attempts(driver: Driver, keys: InstanceKeys) -> dict[str, int]:
    start = len(keys.space) + len(METADATA)
    found: dict[str, int] = {}
    for key, raw in await driver.scan(*keys.range(METADATA)):
        entry = await driver.get(keys.space + HISTORY + key[start:])
        if entry is not None and not Entry.unpack(entry).is_final:
            trouble = EntryTrouble.unpack(raw)
            found[trouble.path] = trouble.attempts
    return found
