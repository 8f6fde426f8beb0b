"""Types of the standard library that are one value to an author (a time, a decimal, a path): to the wire and back.

The only module of `core` that names `UUID`, as a type; making one is for those who may use chance.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from cbor2 import CBORTag

from workflow_sdk.core.codec import tags
from workflow_sdk.core.codec.problem import Problem, short, type_text

_MICROSECOND: Final = timedelta(microseconds=1)
_PATHS: Final[dict[str, type[pathlib.PurePath]]] = {
    cls.__name__: cls
    for cls in (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}


def zone_to_wire(zone: tzinfo) -> CBORTag:
    """A time zone; only those that another process can rebuild exactly."""
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        return CBORTag(tags.TIMEZONE, [offset // _MICROSECOND, None if name == timezone(offset).tzname(None) else name])
    if type(zone) is ZoneInfo:
        if (key := zone.key) is not None:  # pyright: ignore[reportUnnecessaryComparison]  # None after from_file
            return CBORTag(tags.ZONE, key)
        raise Problem("a ZoneInfo without a key can't be stored", "make it by its name: ZoneInfo('Europe/Paris')")
    raise Problem(f"a time zone of type {type_text(type(zone))} can't be stored", "use zoneinfo.ZoneInfo or timezone")


def _datetime_to_wire(value: datetime) -> CBORTag:
    zone = value.tzinfo
    if not value.fold:
        if zone is None or zone is UTC:
            return CBORTag(tags.DATETIME, value.isoformat())
        if type(zone) is timezone and zone.tzname(None) == timezone(zone.utcoffset(None)).tzname(None):
            return CBORTag(tags.DATETIME, value.isoformat())
    if zone is None:
        return CBORTag(tags.DATETIME, [value.isoformat(), value.fold, None, None])
    # The offset goes beside the zone's key: where the rules of a zone have changed since, the instant is what is kept.
    offset = value.utcoffset() or timedelta(0)
    text = value.replace(tzinfo=None).isoformat()
    return CBORTag(tags.DATETIME, [text, value.fold, zone_to_wire(zone), offset // _MICROSECOND])


def _datetime_from_wire(wire: Any) -> datetime:
    if type(wire) is str:
        return datetime.fromisoformat(wire)
    text, fold, zone, offset_us = wire
    value = datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)
    offset = timedelta(microseconds=offset_us or 0)
    if zone is None or value.utcoffset() == offset:
        return value
    return (datetime.fromisoformat(text) - offset).replace(tzinfo=UTC).astimezone(zone)


def _time_to_wire(value: time) -> CBORTag:
    if value.tzinfo is None and not value.fold:
        return CBORTag(tags.TIME, value.isoformat())
    zone = None if value.tzinfo is None else zone_to_wire(value.tzinfo)
    return CBORTag(tags.TIME, [value.replace(tzinfo=None).isoformat(), value.fold, zone])


def _time_from_wire(wire: Any) -> time:
    if type(wire) is str:
        return time.fromisoformat(wire)
    text, fold, zone = wire
    return time.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _path_from_wire(wire: Any) -> pathlib.PurePath:
    name, text = wire
    try:
        return _PATHS[name](text)
    except (KeyError, NotImplementedError):
        raise Problem(f"a {name} can't be made on this system", "store a pathlib.PurePath, or text") from None


def _path_to_wire(value: pathlib.PurePath) -> CBORTag:
    return CBORTag(tags.PATH, [type(value).__name__, str(value)])


TO_WIRE: Final[dict[type, Callable[[Any], CBORTag]]] = {
    bytearray: lambda v: CBORTag(tags.BYTEARRAY, bytes(v)),
    datetime: _datetime_to_wire,
    date: lambda v: CBORTag(tags.DATE, v.isoformat()),
    time: _time_to_wire,
    timedelta: lambda v: CBORTag(tags.TIMEDELTA, [v.days, v.seconds, v.microseconds]),
    timezone: zone_to_wire,
    ZoneInfo: zone_to_wire,
    UUID: lambda v: CBORTag(tags.UUID, v.bytes),
    Decimal: lambda v: CBORTag(tags.DECIMAL, str(v)),
    complex: lambda v: CBORTag(tags.COMPLEX, [v.real, v.imag]),
    Fraction: lambda v: CBORTag(tags.FRACTION, [v.numerator, v.denominator]),
    **dict.fromkeys(_PATHS.values(), _path_to_wire),
}


def _zone_from_wire(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except (KeyError, ValueError, OSError):
        raise Problem(f"there is no time zone {short(key)} here", "install the package tzdata") from None


def _bytearray_from_wire(wire: Any) -> bytearray:
    if type(wire) is not bytes:  # a number would be the size of one
        raise Problem("a bytearray is stored as bytes")
    return bytearray(wire)


def _fraction_from_wire(wire: Any) -> Fraction:
    numerator, denominator = wire
    if type(numerator) is not int or type(denominator) is not int:  # a text such as 1e999999999 would never end
        raise Problem("a fraction is stored as two integers")
    return Fraction(numerator, denominator)


FROM_WIRE: Final[dict[int, Callable[[Any], object]]] = {
    tags.BYTEARRAY: _bytearray_from_wire,
    tags.DATETIME: _datetime_from_wire,
    tags.DATE: date.fromisoformat,
    tags.TIME: _time_from_wire,
    tags.TIMEDELTA: lambda w: timedelta(*w),
    tags.TIMEZONE: lambda w: (
        timezone(timedelta(microseconds=w[0])) if w[1] is None else timezone(timedelta(microseconds=w[0]), w[1])
    ),
    tags.ZONE: _zone_from_wire,
    tags.UUID: lambda w: UUID(bytes=w),
    tags.DECIMAL: Decimal,
    tags.COMPLEX: lambda w: complex(*w),
    tags.FRACTION: _fraction_from_wire,
    tags.PATH: _path_from_wire,
}
