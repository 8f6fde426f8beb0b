"""What values are made of: tags, plain values, and the path to a value that can't be stored."""

from __future__ import annotations

import pathlib
import typing
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from cbor2 import CBORTag

from workflow_sdk.values import tags

K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """Keeps what `make` gives for a key. When it is full, it is emptied: so a hit costs no more than that of a dict."""

    __slots__ = ("_make", "_most")

    def __init__(self, make: Callable[[K], V], most: int = 4096) -> None:
        super().__init__()
        self._make = make
        self._most = most

    def __missing__(self, key: K) -> V:
        value = self._make(key)
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value


PATH_SEGMENTS_MAX: Final = 12
TEXT_CHARS_MAX: Final = 80


class Problem(Exception):
    """A value can't be written or read. Every container that it passes on its way out adds its segment to the path."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.segments: list[str] = []

    def under(self, segment: str) -> Problem:
        """Add the segment of the container around what the path names so far."""
        self.segments.append(segment)
        return self

    def __str__(self) -> str:
        path = path_text(reversed(self.segments))
        return self.reason + (f" at {path}" if path else "") + (f"; {self.remedy}" if self.remedy else "")


def at(segment: str, step: Callable[..., Any], *arguments: object) -> Any:
    """What `step` makes of its arguments. `segment` is added to the path of the `Problem` that it raises."""
    try:
        return step(*arguments)
    except Problem as problem:
        raise problem.under(segment) from problem.__cause__


def path_text(segments: Iterable[str]) -> str:
    """The path as text, shortened in the middle if it is very long."""
    parts = list(segments)
    if len(parts) > PATH_SEGMENTS_MAX:
        half = PATH_SEGMENTS_MAX // 2
        parts = [*parts[:half], " ... ", *parts[-half:]]
    return "".join(parts)


def short(value: object) -> str:
    """A short, printable form of an author's value; never raises."""
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001  # an author's __repr__ may raise anything, and an error message must not
        text = f"<{type(value).__name__}>"
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 3] + "..."


def error_text(error: BaseException) -> str:
    """The class and message of an author's exception, shortened; never raises."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # an author's __str__ may raise anything
        message = ""
    message = ascii(message)[1:-1]
    return f"{type(error).__name__}: {message[:200]}" if message else type(error).__name__


def key_segment(key: object) -> str:
    """The path segment of a mapping's key."""
    return f"[{short(key)}]"


def is_a(value: object, classes: Any) -> bool:
    """`isinstance` that leaves the type of a value open: a type checker does not know what a list or dict holds."""
    return isinstance(value, classes)


def type_text(cls: type) -> str:
    """A class as a reader knows it: `int`, `app.models.Order`."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def hint_text(hint: object) -> str:
    """A hint as its author wrote it."""
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, type) and not typing.get_args(hint):
        return type_text(hint)
    return str(hint).replace("typing.", "")


def unfit(expected: str, value: object) -> Problem:
    """The problem of a value that is not what a hint asks for."""
    return Problem(f"expected {expected}, got {hint_text(None if value is None else type(value))}")


class Walk:
    """Rebuilds a wire form from its leaves up. A `Problem` that a part raises gets the path to that part.

    It is slow, and used only to find where in a value something is wrong that is known to be wrong.
    """

    def __init__(
        self, leaf: Callable[[Any], object], tagged: Callable[[int, Any], object], names: list[list[str]]
    ) -> None:
        self._leaf = leaf
        """Rebuilds a part that holds no others."""
        self._tagged = tagged
        """Rebuilds a tag, from its number and its content, which is rebuilt already."""
        self._names = names
        """The attribute names in the table of classes; whoever walks may add them on the way."""

    def __call__(self, wire: Any) -> object:
        """The wire form, rebuilt."""
        if is_a(wire, list):
            return self._parts(wire, map("[{}]".format, range(len(wire))))
        if is_a(wire, dict):
            segments = list(map(key_segment, wire))
            keys = [at(segment, self._leaf, key) for segment, key in zip(segments, wire, strict=True)]
            return dict(zip(keys, self._parts(wire.values(), segments), strict=True))
        if isinstance(wire, CBORTag):
            return self._tagged(wire.tag, self._content(wire.tag, wire.value))
        return self._leaf(wire)

    def _content(self, tag: int, content: Any) -> object:
        if tag == tags.DOCUMENT:
            return [self(part) for part in content]
        if tag == tags.OBJECT:
            index: int = content[0]
            return [index, *self._parts(content[1:], map(".{}".format, self._names[index]))]
        if tag in (tags.PAIRS, tags.ORDERED_DICT, tags.COUNTER):
            return self._parts(content, [key_segment(content[i & -2]) for i in range(len(content))])
        return self(content)

    def _parts(self, wires: Iterable[Any], segments: Iterable[str]) -> list[object]:
        return [at(segment, self, wire) for segment, wire in zip(segments, wires, strict=True)]


_MICROSECOND: Final = timedelta(microseconds=1)
_PATHS: Final[dict[str, type[pathlib.PurePath]]] = {
    cls.__name__: cls
    for cls in (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}


def _zone_to_wire(zone: tzinfo) -> CBORTag:
    """How a time zone is written, if another process can rebuild it exactly; raises `Problem` for others."""
    if type(zone) is timezone:
        name = None if _is_nameless(zone) else zone.tzname(None)
        return CBORTag(tags.TIMEZONE, [zone.utcoffset(None) // _MICROSECOND, name])
    if type(zone) is ZoneInfo:
        if (key := zone.key) is not None:  # pyright: ignore[reportUnnecessaryComparison]  # None after from_file
            return CBORTag(tags.ZONE, key)
        raise Problem("a ZoneInfo without a key can't be stored", "make it by its name: ZoneInfo('Europe/Paris')")
    raise Problem(f"a time zone of type {type_text(type(zone))} can't be stored", "use zoneinfo.ZoneInfo or timezone")


def _is_nameless(zone: tzinfo) -> bool:
    """Whether a zone is an offset without a name of its own: ISO text says all of it."""
    return type(zone) is timezone and zone.tzname(None) == timezone(zone.utcoffset(None)).tzname(None)


def _datetime_to_wire(value: datetime) -> CBORTag:
    zone = value.tzinfo
    if not value.fold and (zone is None or zone is UTC or _is_nameless(zone)):
        return CBORTag(tags.DATETIME, value.isoformat())
    if zone is None:
        return CBORTag(tags.DATETIME, [value.isoformat(), value.fold, None, None])
    # The offset goes beside the zone's key: where the rules of a zone have changed since, the instant is what is kept.
    offset = value.utcoffset() or timedelta(0)
    text = value.replace(tzinfo=None).isoformat()
    return CBORTag(tags.DATETIME, [text, value.fold, _zone_to_wire(zone), offset // _MICROSECOND])


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
    zone = None if value.tzinfo is None else _zone_to_wire(value.tzinfo)
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
    timezone: _zone_to_wire,
    ZoneInfo: _zone_to_wire,
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
