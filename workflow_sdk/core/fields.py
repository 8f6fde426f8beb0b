"""What the fields of an instance, its lease and its waits have to look like, whoever has read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from workflow_sdk.core.keys import Field
from workflow_sdk.core.status import Status
from workflow_sdk.core.wire import MOMENT_MIN, NOTHING, NUMBERS, Shapes, damaged, moment, shapes, unpack_record

__all__ = [
    "DUE_MAX",
    "WaitRow",
    "check_field",
    "check_fields",
    "check_lease",
    "unpack_name",
    "unpack_status",
    "unpack_wait",
]

_SHAPES: dict[Field, Shapes] = {
    Field.STATUS: shapes((str,)),
    Field.OUTPUT: shapes((bytes,)),
    Field.ERROR: shapes((list,), (list, NOTHING), (list,)),
    Field.VERSION: shapes((str,), (int,), (str,), (int,), NUMBERS),
    Field.INPUT: shapes((bytes,)),
    Field.BIRTH: shapes(NUMBERS, (bytes,)),
    Field.ALARM: shapes(NUMBERS),
    Field.DEATHS: shapes((int,)) | shapes((int,), (list,)),
    Field.COMMITS: shapes((int,)) | shapes((int,), (int,)),
    Field.HANDED: shapes((int,)),
    Field.STATE: shapes((bytes,)),
    Field.REFERENCE: shapes((str,)),
    Field.PROGRESS: shapes(NUMBERS, (*NUMBERS, NOTHING), (str, bytes, NOTHING)),
    Field.WATCHERS: shapes((list,)),
    Field.GENERATION: shapes((int,), NUMBERS),
    Field.RETENTION: shapes(NUMBERS),
    Field.PURGE: shapes(NUMBERS),
    Field.ANSWERED: shapes((int,)),
    Field.BASE: shapes((bytes,)),
    Field.FIRST: shapes((bytes,)),
    Field.SEALS: shapes((list,)),
    Field.RESTARTS: shapes((int,)),
}
_ALWAYS = (Field.STATUS, Field.VERSION, Field.INPUT, Field.BIRTH)
DUE_MAX = 253_402_300_800.0
"""The last microsecond that a `datetime` can be, as a float."""
_STATUSES = frozenset(status.value for status in Status)
_LEASE = shapes((str,), (int,), NUMBERS)
_WAIT = shapes((str,), (str,), (str,), (*NUMBERS, NOTHING), (int,), (int,), (int,))
_WAIT_BEFORE = shapes((str,), (str,), (str,), (*NUMBERS, NOTHING), (int,), (int,))
"""As it was before waits knew since when they are."""
_WATCHER = shapes((str,), (bytes,))


def check_fields(fields: Mapping[Field, bytes]) -> None:
    """CodecError, if these can't be the fields of an instance. None at all are those of one that is not there."""
    if not fields:
        return
    for field in _ALWAYS:
        if field not in fields:
            raise damaged(f"an instance without its {field.name.lower()}")
    for field, raw in fields.items():
        check_field(field, raw)


def check_field(field: Field, raw: bytes) -> None:
    """CodecError, if this can't be that field of an instance."""
    parts = unpack_record(raw)
    shape = _SHAPES.get(field)
    if shape is not None and tuple(map(type, parts)) not in shape:
        raise damaged(f"the {field.name.lower()} of an instance")
    if field is Field.STATUS:
        if parts[0] not in _STATUSES:
            raise damaged("the status of an instance")
    elif field is Field.VERSION:
        moment(parts[4])
    elif field is Field.BIRTH:
        moment(parts[0])
    elif field is Field.SEALS and not all(type(seal) is bytes for seal in parts[0]):
        raise damaged("the codecs of an instance")
    elif field is Field.GENERATION:
        moment(parts[1])
    elif field is Field.ALARM or field is Field.PURGE:
        _due(parts[0])
    elif field is Field.WATCHERS and not all(type(part) is list and _kinds(part) in _WATCHER for part in parts[0]):
        raise damaged("the watchers of an instance")
    elif field is Field.ERROR and not all(type(path) is str for path in parts[2]):
        raise damaged("the error of an instance")


def _kinds(parts: list[Any]) -> tuple[type, ...]:
    return tuple(map(type, parts))


def unpack_status(raw: bytes) -> Status:
    """The status that a field holds."""
    parts = unpack_record(raw)
    if len(parts) != 1 or type(parts[0]) is not str or parts[0] not in _STATUSES:
        raise damaged("the status of an instance")
    return Status(parts[0])


def _due(at: float) -> None:
    if not MOMENT_MIN <= at <= DUE_MAX:
        raise damaged("a time")


def check_lease(raw: bytes | None) -> None:
    """CodecError, if this is no lease."""
    if raw is not None and tuple(map(type, unpack_record(raw))) not in _LEASE:
        raise damaged("the lease of an instance")


class WaitRow(NamedTuple):
    """What a parked branch waits for, as it is stored."""

    kind: str
    name: str
    path: str
    until: float | None
    takes: int
    """How many messages it takes."""
    promised: int
    """How many of these are addressed to it already."""
    since: int = 0
    """Which state of the instance began to wait, by the number of its commits."""


def unpack_wait(raw: bytes) -> WaitRow:
    """The wait that a row holds."""
    parts: list[Any] = unpack_record(raw)
    kinds = _kinds(parts)
    if kinds not in _WAIT and kinds not in _WAIT_BEFORE:
        raise damaged("a wait")
    if parts[3] is not None:
        _due(parts[3])
    return WaitRow(*parts)


def unpack_name(raw: bytes) -> str:
    """The text of a name's row."""
    parts = unpack_record(raw)
    if not parts or type(parts[0]) is not str:
        raise damaged("a name")
    return parts[0]
