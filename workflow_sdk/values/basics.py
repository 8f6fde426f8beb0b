"""What all values are made of: the format's tags, values that hold no others, and the path to a value that fails."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from cbor2 import CBORError, CBORTag, loads

from workflow_sdk.errors import CodecError
from workflow_sdk.rows.wire import damaged


class Tag:
    """The CBOR tags of values. Bytes once written are an interface: a number never gets another meaning.

    A value is plain CBOR where CBOR has its exact type: None, bool, int, float, text, bytes, list, and dict whose keys
    are such scalars. Every other type is a tag, so that bytes can be read back without the hint that they were written
    under. Authors' classes are named once per value, in a table in front of it:

        DOCUMENT([TABLE([["app.models:Order", "id", "items"], ...]), body])      body: ... OBJECT([0, id, items]) ...

    A value without authors' classes is the body alone. A reader that meets a tag from this range that it does not know
    has bytes of a later release before it, and says so. Beside each tag stands what it holds.
    """

    DOCUMENT: Final = 57600  # [TABLE, body]
    TABLE: Final = 57601  # list of [module:qualname, attribute names ...]
    OBJECT: Final = 57602  # [index into the table, attribute values ...]
    ENUM_VALUE: Final = 57603  # [index into the table, value of the member]
    ENUM_NAME: Final = 57604  # [index into the table, name of the member]
    TUPLE: Final = 57605  # list
    SET: Final = 57606  # list
    FROZENSET: Final = 57607  # list
    PAIRS: Final = 57608  # dict whose keys are not all scalars: [key, value, key, value ...]
    BYTEARRAY: Final = 57609  # bytes
    DATETIME: Final = (
        57610  # ISO text; or [ISO text without offset, fold, TIMEZONE or ZONE or None, offset in µs or None]
    )
    DATE: Final = 57611  # ISO text
    TIME: Final = 57612  # ISO text; or [ISO text without offset, fold, TIMEZONE or ZONE or None]
    TIMEDELTA: Final = 57613  # [days, seconds, microseconds]
    TIMEZONE: Final = 57614  # [offset in microseconds, name or None]
    ZONE: Final = 57615  # key of a zoneinfo.ZoneInfo
    UUID: Final = 57616  # 16 bytes
    DECIMAL: Final = 57617  # text
    COMPLEX: Final = 57618  # [real, imaginary]
    FRACTION: Final = 57619  # [numerator, denominator]
    PATH: Final = 57620  # [class name in pathlib, text]
    DEQUE: Final = 57621  # [maxlen or None, items ...]
    ORDERED_DICT: Final = 57622  # as PAIRS
    COUNTER: Final = 57623  # as PAIRS
    SEALED: Final = 57624  # what a codec of the author's has made of the value

    FIRST: Final = DOCUMENT
    LAST: Final = 57727  # those from 57625 on are reserved


# -- Objects, taken apart ----------------------------------------------------------------------------------------------

Taken: TypeAlias = tuple[tuple[str, ...], Sequence[object]]
"""An object that was taken apart: the names and the values of its attributes."""
Take: TypeAlias = Callable[[Any], Taken]
Build: TypeAlias = Callable[[Sequence[object]], object]
"""Makes an object of the values of its attributes; of an enum, the member with a value, or with a name and a mark."""
BuilderOf: TypeAlias = Callable[[str, tuple[str, ...]], Build | None]
"""Gives what makes objects of a class, by its name and those of its attributes; None if there is no such class."""


# -- What goes wrong, and where ---------------------------------------------------------------------------------------

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
        parts, half = self.segments[::-1], PATH_SEGMENTS_MAX // 2
        if len(parts) > PATH_SEGMENTS_MAX:
            parts = [*parts[:half], " ... ", *parts[-half:]]
        path = "".join(parts)
        return self.reason + (f" at {path}" if path else "") + (f"; {self.remedy}" if self.remedy else "")


def at(segment: str, step: Callable[..., Any], *arguments: object) -> Any:
    """What `step` makes of its arguments. `segment` is added to the path of the `Problem` that it raises."""
    try:
        return step(*arguments)
    except Problem as problem:
        raise problem.under(segment) from problem.__cause__


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
    return f"[{short(key)}]"


def type_text(cls: type) -> str:
    """A class as a reader knows it: `int`, `app.models.Order`."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def class_name(cls: type) -> str:
    """The name under which a class is stored."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_class(name: str) -> type | None:
    """The loaded class of this name, if there is one. Only dictionaries are read, so that no module's hook runs."""
    module_name, _, qualname = name.partition(":")
    found: object = sys.modules.get(module_name)
    for part in qualname.split("."):
        try:
            found = cast("Mapping[str, object]", vars(found)).get(part)
        except TypeError:
            return None
    return cast(type, found) if is_a(found, type) else None


def not_loaded(name: str) -> Problem:
    """The problem of a class that is not there."""
    module, _, qualname = name.partition(":")
    if module in sys.modules:
        return Problem(
            f"the class {module}.{qualname} does not exist any more",
            f"define it in {module}, or keep its old name there as an alias",
        )
    return Problem(f"the class {module}.{qualname} is not loaded", f"import the module {module} before")


def not_found_again(cls: type) -> Problem:
    """The problem of an object whose class could not be found when it is read."""
    text, remedy = type_text(cls), "define the class at module level"
    if "<locals>" in cls.__qualname__:
        what = f"an object of the local class {text} would not be found again"
        return Problem(what, f"annotate what holds it with the class, or {remedy}")
    what = f"an object of {text} would not be found again: that name does not lead to its class"
    return Problem(what, f"{remedy}, under its own name")


def is_a(value: object, classes: Any) -> bool:
    """`isinstance` that leaves the type of a value open: a type checker does not know what a list or dict holds."""
    return isinstance(value, classes)


def half_character(text: str) -> Problem:
    """The problem of a text that UTF-8 can't encode."""
    what = f"the text {short(text)} holds half of a surrogate pair, which is no character"
    return Problem(what, "clean it: text.encode(errors='replace').decode(), or pass bytes")


def checked_text(text: str) -> str:
    """The text; raises `Problem` if UTF-8 can't encode it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise half_character(text) from None
    return text


# -- One value of CBOR ------------------------------------------------------------------------------------------------

Decoder: TypeAlias = Callable[[Any, bool], object]
"""Makes a value of the content of a tag. The flag says whether the value has to be immutable, as a key has."""

FOREIGN_TAGS: Final = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""Tags that cbor2 reads by itself and nothing here writes: values that hold themselves, patterns to compile, emails to
parse. Bytes that hold them are refused. Of CBOR's own tags only 2 and 3 are written, for large integers."""

_MARK: Final = bytes.fromhex("c5a1d80b6e7f4c93b2f0174d9ae35c68")
# The value is read as the first item of a pair. The second is the mark, so a longer value leaves something else there.
_BEFORE, _AFTER = b"\x82", b"\x50" + _MARK
_LENGTHS: Final = {
    **dict.fromkeys((*range(24), *range(32, 56), *range(0xE0, 0xF8)), 1),
    **{text_or_bytes | size: 1 + size for text_or_bytes in (0x40, 0x60) for size in range(24)},
    **{number | 24 + power: 1 + 2**power for number in (0x00, 0x20, 0xE0) for power in range(4)},
}
"""The length of a value that holds no others, by its first byte, where that tells it."""


def read_one(
    data: bytes, decoders: Mapping[int, Decoder] | None = None, tag_hook: Decoder | None = None, depth: int = 400
) -> Any:
    """The value that `data` holds from its first byte to its last; raises `CodecError` if there are bytes after it.

    `decoders` read tags by their number, and `tag_hook` all other tags. `depth` is how deeply the value may be nested.
    """
    framed = _BEFORE + data + _AFTER
    value, mark = loads(framed, semantic_decoders=decoders, tag_hook=tag_hook, max_depth=depth)
    if type(mark) is not bytes or mark != _MARK:
        raise _behind() from None
    return value


def read_simple(data: bytes) -> Any:
    """The same for a value that holds no others."""
    value, length = loads(data), _LENGTHS.get(data[0])
    if length == len(data):
        return value
    if length is None:  # as of a long text
        with suppress(CBORError):
            return read_one(data)
    raise _behind()


def _behind() -> CodecError:
    return CodecError("there are bytes after the value; it is damaged, or was written with a codec")


def unpack_cbor(data: bytes) -> object:
    """The value of CBOR that has no tags but those of large integers; raises `CodecError`."""
    try:
        return read_one(data, _NO_TAGS)
    except Exception as error:
        raise damaged("a record") from error


def _refuse(content: object, immutable: bool) -> NoReturn:
    raise ValueError("a tag that no record has")


_NO_TAGS: Final[dict[int, Decoder]] = dict.fromkeys(FOREIGN_TAGS, _refuse)


# -- Values that hold no others ---------------------------------------------------------------------------------------

_MICROSECOND: Final = timedelta(microseconds=1)
_PATHS: Final[dict[str, type[pathlib.PurePath]]] = {
    cls.__name__: cls
    for cls in (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}


class Leaf(NamedTuple):
    """How values of one type are written: as a tag, whose content is made of a value and made a value again."""

    tag: int
    to_content: Callable[[Any], object]
    from_content: Callable[[Any], object]


def _is_nameless(zone: tzinfo) -> bool:
    """Whether a zone is an offset without a name of its own: ISO text says all of it."""
    return type(zone) is timezone and zone.tzname(None) == timezone(zone.utcoffset(None)).tzname(None)


def _timezone_content(zone: timezone) -> object:
    return [zone.utcoffset(None) // _MICROSECOND, None if _is_nameless(zone) else zone.tzname(None)]


def _timezone(content: Any) -> timezone:
    offset, name = timedelta(microseconds=content[0]), content[1]
    return timezone(offset) if name is None else timezone(offset, name)


def _zone_content(zone: ZoneInfo) -> object:
    if zone.key is None:  # pyright: ignore[reportUnnecessaryComparison]  # None after from_file
        raise Problem("a ZoneInfo without a key can't be stored", "make it by its name: ZoneInfo('Europe/Paris')")
    return zone.key


def _zone(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except (KeyError, ValueError, OSError):
        raise Problem(f"there is no time zone {short(key)} here", "install the package tzdata") from None


def _tzinfo_to_wire(zone: tzinfo | None) -> CBORTag | None:
    """How the time zone of a datetime is written; raises `Problem` if another process could not rebuild it exactly."""
    if zone is None:
        return None
    if type(zone) not in (timezone, ZoneInfo):
        raise Problem(
            f"a time zone of type {type_text(type(zone))} can't be stored", "use zoneinfo.ZoneInfo or timezone"
        )
    leaf = LEAVES[type(zone)]
    return CBORTag(leaf.tag, leaf.to_content(zone))


def _datetime_content(value: datetime) -> object:
    zone = value.tzinfo
    if not value.fold and (zone is None or zone is UTC or _is_nameless(zone)):
        return value.isoformat()
    # The offset goes beside the zone's key: where the rules of a zone have changed since, the instant is what is kept.
    offset = None if zone is None else (value.utcoffset() or timedelta(0)) // _MICROSECOND
    return [value.replace(tzinfo=None).isoformat(), value.fold, _tzinfo_to_wire(zone), offset]


def _datetime(content: Any) -> datetime:
    if type(content) is str:
        return datetime.fromisoformat(content)
    text, fold, zone, offset_us = content
    value = datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)
    offset = timedelta(microseconds=offset_us or 0)
    if zone is None or value.utcoffset() == offset:
        return value
    return (datetime.fromisoformat(text) - offset).replace(tzinfo=UTC).astimezone(zone)


def _time_content(value: time) -> object:
    if value.tzinfo is None and not value.fold:
        return value.isoformat()
    return [value.replace(tzinfo=None).isoformat(), value.fold, _tzinfo_to_wire(value.tzinfo)]


def _time(content: Any) -> time:
    if type(content) is str:
        return time.fromisoformat(content)
    text, fold, zone = content
    return time.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _path_content(value: pathlib.PurePath) -> object:
    return [type(value).__name__, checked_text(str(value))]


def _path(content: Any) -> pathlib.PurePath:
    name, text = content
    try:
        return _PATHS[name](text)
    except (KeyError, NotImplementedError):
        raise Problem(f"a {name} can't be made on this system", "store a pathlib.PurePath, or text") from None


def _bytearray(content: Any) -> bytearray:
    if type(content) is not bytes:  # a number would be the size of one
        raise Problem("a bytearray is stored as bytes")
    return bytearray(content)


def _fraction(content: Any) -> Fraction:
    numerator, denominator = content
    if type(numerator) is not int or type(denominator) is not int:  # a text such as 1e999999999 would never end
        raise Problem("a fraction is stored as two integers")
    return Fraction(numerator, denominator)


def _uuid(content: bytes) -> UUID:
    return UUID(bytes=content)


def _spread(make: Callable[..., object]) -> Callable[[Any], object]:
    return lambda content: make(*content)


LEAVES: Final[dict[type, Leaf]] = {
    bytearray: Leaf(Tag.BYTEARRAY, bytes, _bytearray),
    datetime: Leaf(Tag.DATETIME, _datetime_content, _datetime),
    date: Leaf(Tag.DATE, date.isoformat, date.fromisoformat),
    time: Leaf(Tag.TIME, _time_content, _time),
    timedelta: Leaf(Tag.TIMEDELTA, attrgetter("days", "seconds", "microseconds"), _spread(timedelta)),
    timezone: Leaf(Tag.TIMEZONE, _timezone_content, _timezone),
    ZoneInfo: Leaf(Tag.ZONE, _zone_content, _zone),
    UUID: Leaf(Tag.UUID, attrgetter("bytes"), _uuid),
    Decimal: Leaf(Tag.DECIMAL, str, Decimal),
    complex: Leaf(Tag.COMPLEX, attrgetter("real", "imag"), _spread(complex)),
    Fraction: Leaf(Tag.FRACTION, attrgetter("numerator", "denominator"), _fraction),
    **dict.fromkeys(_PATHS.values(), Leaf(Tag.PATH, _path_content, _path)),
}
