"""What anybody can see of an instance: `InstanceInfo`, and the pages of lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from workflow_sdk.changes.instances import read_about, read_output
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError, ErrorInfo, InstanceNotFoundError, InstanceStateError
from workflow_sdk.instance.results import Wait, read_troubles, read_waits
from workflow_sdk.rows.entries import Entry, EntryTrouble
from workflow_sdk.rows.instance import Head, InstanceRows
from workflow_sdk.rows.keys import HISTORY, Field, InstanceKeys
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import Text, deadline_of, due_since, shown, time_of
from workflow_sdk.values import Codec
from workflow_sdk.values.failures import unpack_error_info

__all__ = ["InstanceInfo", "Page", "Progress", "Wait", "after_cursor", "read_info"]


LOOKS_MAX = 5
"""How often an instance is read again, if it changes while it is read."""

T = TypeVar("T")


class Progress(NamedTuple):
    """How much of its work an instance says it has done."""

    done: float
    total: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """What anybody can see of an instance, at the moment it was read."""

    id: str
    workflow: str
    version: int
    """Grows by one with every commit that changes the instance. To be run again and wait as before changes nothing."""
    fingerprint: str
    """The fingerprint of the code that ran the instance last."""
    status: Status
    created_at: datetime
    updated_at: datetime
    wake_at: datetime | None
    waits: list[Wait]
    input: Any
    """Plain data, like the output."""
    output: Any
    error: ErrorInfo | None
    attempts: dict[str, int] = field(default_factory=dict[str, int])
    """How often each step that is under way has failed, by path."""
    workflow_version: int = 1
    """The version of the code that ran the instance last."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """The public state that the workflow assigned to `ctx.state`."""
    reference: str | None = None
    progress: Progress | None = None
    purge_at: datetime | None = None
    """When the instance is deleted, if it has ended and is not kept for ever."""
    code_changed: bool | None = None
    """Whether the code in this process differs from the code that ran the instance last; None if it is not known
    here."""

    @property
    def blocked(self) -> list[str]:
        """The steps of graphs that are not allowed to start, if there is nothing else left to be done."""
        denied = [wait.name for wait in self.waits if wait.kind == "admission"]
        return denied if len(denied) == len(self.waits) and self.status is Status.WAITING else []

    @property
    def recoverable(self) -> bool:
        """Whether `recover` can run the instance again: it has failed, or is stuck."""
        return self.status in (Status.FAILED, Status.STUCK)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list. `cursor` leads to the next part; None if this was the last."""

    items: list[T]
    cursor: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> T:
        return self.items[place]


def after_cursor(cursor: str, prefix: bytes) -> bytes:
    """Return where the next page begins, within a prefix; DefinitionError if the cursor is of another list."""
    try:
        key = bytes.fromhex(cursor)
    except (ValueError, TypeError):
        key = b""
    if not key.startswith(prefix):
        raise DefinitionError(f"the cursor {shown(cursor)} is not of a list with these filters")
    return key[len(prefix) :] + b"\x00"


async def read_info(
    driver: Driver, instance_id: str, codec: Codec, workflow: Workflow[Any, Any] | None = None
) -> InstanceInfo:
    """Read the info of an instance. With its workflow, the info also says whether the code has changed."""
    keys = InstanceKeys(instance_id)
    about, troubles, waits = await _read(driver, keys, codec)
    if not about:
        raise InstanceNotFoundError(f"there is no instance {instance_id!r}")
    head, result = about.head, about.result
    try:
        output = await read_output(driver, keys, about)
    except InstanceStateError:  # it was restarted meanwhile
        return await read_info(driver, instance_id, codec, workflow)
    return InstanceInfo(
        id=instance_id,
        workflow=head.workflow,
        version=about.tally.commits,
        fingerprint=head.fingerprint,
        status=head.status,
        created_at=time_of(head.created_at),
        updated_at=time_of(head.changed_at),
        wake_at=_wake_at(head, waits),
        waits=waits,
        input=codec.decode(about.birth.input, plain=True),
        output=_plain(codec, output),
        error=None if result.error is None else unpack_error_info(result.error, codec),
        code_changed=_is_other_code(instance_id, head, workflow),
        attempts={} if head.status.is_terminal else await _attempts(driver, keys, troubles),
        workflow_version=head.version,
        state=_plain(codec, about.state) or {},
        reference=about.shown.reference,
        purge_at=None if head.purge_at is None else deadline_of(head.purge_at),
        progress=None if about.shown.progress is None else _progress(codec, *about.shown.progress),
    )


def _wake_at(head: Head, waits: list[Wait]) -> datetime | None:
    """When an instance goes on by itself: at the first deadline of its waits, or once its alarm is due."""
    times = [wait.until for wait in waits if wait.until is not None]
    if times:
        return min(times)
    return None if head.alarm is None else deadline_of(due_since(head.alarm))


def _is_other_code(instance_id: str, head: Head, workflow: Workflow[Any, Any] | None) -> bool | None:
    if workflow is None:
        return None
    if workflow.name != head.workflow:
        raise DefinitionError(f"instance {instance_id!r} runs workflow {head.workflow!r}, not {workflow.name!r}")
    return (workflow.version, workflow.fingerprint) != (head.version, head.fingerprint)


def _progress(codec: Codec, done: float, total: float | None, note: Text | None) -> Progress:
    return Progress(done, total, None if note is None else codec.decode_text(note.value))


async def _read(
    driver: Driver, keys: InstanceKeys, codec: Codec
) -> tuple[InstanceRows, dict[bytes, EntryTrouble], list[Wait]]:
    """Read an instance as it was at one moment. If it changes all the time, parts of it may be of different moments."""
    about = await read_about(driver, keys)
    looks = 1
    while True:
        troubles = await read_troubles(driver, keys)
        seed = about.birth.seed if about else b""
        waits = await read_waits(driver, keys, codec, troubles, seed)
        if not (waits or troubles) or looks >= LOOKS_MAX:
            return about, troubles, waits
        before, about = about, await read_about(driver, keys)
        if all(before.raw.get(field) == about.raw.get(field) for field in (Field.TALLY, Field.HEAD, Field.BIRTH)):
            return about, troubles, waits
        looks += 1


def _plain(codec: Codec, raw: bytes | None) -> Any:
    return None if raw is None else codec.decode(raw, plain=True)


async def _attempts(driver: Driver, keys: InstanceKeys, troubles: dict[bytes, EntryTrouble]) -> dict[str, int]:
    found: dict[str, int] = {}
    for location, trouble in troubles.items():
        entry = await driver.get(keys.space + HISTORY + location)
        if entry is not None and not Entry.unpack(entry).is_final:
            found[trouble.path] = trouble.attempts
    return found
