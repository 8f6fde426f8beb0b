"""Exceptions as records, and back: of the author's, of the library's, and groups of them.

A failure is recorded before the author's code sees it, and replayed with the same class, arguments and attributes.
Recording can't fail: what can't be encoded is left out, and what is large is cut, so that a record has a bound.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, cast

from msgspec import convert, to_builtins

from workflow_sdk import errors
from workflow_sdk.core.codec import Codec, SealedError
from workflow_sdk.core.codec.classes import class_name
from workflow_sdk.core.codec.problem import is_a
from workflow_sdk.core.error_row import ErrorRow
from workflow_sdk.core.kinds import kind_of
from workflow_sdk.core.rebuild import Parts, make, make_branches, make_group
from workflow_sdk.core.wire import Text, damaged
from workflow_sdk.errors import CodecError, ErrorInfo, JoinError, RaceError

__all__ = ["describe", "message_of", "pack_error_info", "pack_failure", "unpack_error_info", "unpack_failure"]

MESSAGE_CHARS_MAX: Final = 10_000
TRACEBACK_CHARS_MAX: Final = 8_000
VALUE_BYTES_MAX: Final = 64_000
ATTRIBUTES_BYTES_MAX: Final = 256_000
RECORD_BYTES_MAX: Final = 1_000_000
NESTING_MAX: Final = 20
VALUE_NESTING_MAX: Final = 3
_FRAMES_MAX: Final = 60
_SPENT_CHARS_MAX: Final = 200
_ROOM_MIN: Final = 1_000

_VERSION: Final = 1
_PLAIN, _GROUP, _BRANCHES = 0, 1, 2

_PACKAGE: Final = str(PurePath(errors.__file__).parent)
# `obj` of an AttributeError or NameError is whatever the author's code touched; it says nothing of the failure.
_NOT_RECORDED: Final = frozenset({"obj", "exceptions", "message", "characters_written"})


class _Budget:
    """How many bytes a record may still take. When they are spent, what is long is left out."""

    def __init__(self) -> None:
        self.left = RECORD_BYTES_MAX

    def spend(self, size: int) -> bool:
        """Whether there is room for `size` bytes more."""
        if size > self.left:
            return False
        self.left -= size
        return True


# -- A failure to read: ErrorInfo -------------------------------------------------------------------------------------


def describe(error: BaseException, codec: Codec, kind: str | None = None) -> ErrorInfo:
    """What is known of `error`, as it will read when it was recorded. Never raises."""
    attributes: dict[str, object] = {}
    left = ATTRIBUTES_BYTES_MAX
    for name, value in _state(error).items():
        try:
            data, same = codec.roundtrip(value)
        except CodecError:
            continue
        if not name.startswith("__") and len(data) <= min(VALUE_BYTES_MAX, left):
            attributes[name] = same
            left -= len(data)
    return ErrorInfo(_type_text(type(error)), message_of(error), _traceback(error), attributes, kind or kind_of(error))


def pack_error_info(info: ErrorInfo, codec: Codec) -> ErrorRow:
    """`info` as rows hold it."""
    return _pack_info(info, codec, _Budget())


def _pack_info(info: ErrorInfo, codec: Codec, budget: _Budget) -> ErrorRow:
    attributes: dict[str, bytes] = {}
    for name, value in info.attributes.items():
        try:
            data = codec.encode(value)
        except CodecError:
            continue
        if len(data) <= VALUE_BYTES_MAX and budget.spend(len(data)):
            attributes[_clean(name, MESSAGE_CHARS_MAX)] = data
    message = _clean(info.message, MESSAGE_CHARS_MAX)
    trace = _clean_tail(info.traceback)
    if not budget.spend(len(message)):
        message = _clean(message, _SPENT_CHARS_MAX)
    if not budget.spend(len(trace)):
        trace = ""
    texts = Text.of(codec.encode_text(message)), Text.of(codec.encode_text(trace))
    return ErrorRow(_clean(info.type, MESSAGE_CHARS_MAX), *texts, info.kind, attributes)


def unpack_error_info(row: ErrorRow, codec: Codec) -> ErrorInfo:
    """What `pack_error_info` was given. Attributes whose classes are not loaded are plain data."""
    attributes: dict[str, object] = {}
    for attribute, data in row.attributes.items():
        for plain in (False, True):
            try:
                attributes[attribute] = codec.decode(data, plain=plain)
            except CodecError:
                continue
            break
    texts = codec.decode_text(row.message.value), codec.decode_text(row.traceback.value)
    return ErrorInfo(row.type, *texts, attributes, row.kind)


# -- A failure to raise again: its record -----------------------------------------------------------------------------


def pack_failure(error: Exception, codec: Codec) -> list[object]:
    """A record of `error`, of nothing but None, int, text, bytes, lists and dicts. Never raises."""
    return _pack(error, codec, _Budget(), NESTING_MAX, cause=True)


def unpack_failure(record: object, codec: Codec) -> Exception:
    """The exception that was recorded: of its own class where that can be found, else of its nearest base."""
    try:
        return _unpack(record, codec)
    except CodecError:
        raise
    except Exception as error:  # there are as many as there are ways to be no such record
        raise damaged("a failure") from error


def _unpack(record: object, codec: Codec) -> Exception:
    _, form, names, text, args, state, cause, inner = cast("list[Any]", record)
    message = codec.decode_text(text)
    values = None if args is None else tuple(_unpack_value(arg, codec) for arg in args)
    attributes: dict[str, object] = {}
    for name, packed in state.items():
        try:
            attributes[name] = _unpack_value(packed, codec)
        except SealedError:
            raise
        except CodecError:
            continue
    parts = Parts(names, message, values, attributes)
    if form == _BRANCHES:
        made = make_branches(
            parts, codec.decode_text(inner[0]), {name: unpack_failure(r, codec) for name, r in inner[1].items()}
        )
    elif form == _GROUP:
        made = make_group(parts, codec.decode_text(inner[0]), [unpack_failure(r, codec) for r in inner[1:]])
    else:
        made = make(parts)
    if cause is not None:
        made.__cause__ = unpack_failure(cause, codec)
    return made


def _pack(error: BaseException, codec: Codec, budget: _Budget, depth: int, *, cause: bool) -> list[object]:
    names = [
        _clean(class_name(cls), MESSAGE_CHARS_MAX) for cls in type(error).__mro__ if issubclass(cls, BaseException)
    ]
    message = message_of(error)
    if not budget.spend(len(message) + 100):
        message = _clean(message, _SPENT_CHARS_MAX)
    # Exceptions may refer to each other in any way, so that a walk of them would never end: past the budget, only
    # those that the outermost group itself holds are still recorded with their class and arguments.
    if depth <= 0 or (budget.left < _ROOM_MIN and depth < NESTING_MAX - 1):
        text = codec.encode_text(message)
        return [_VERSION, _PLAIN, ["builtins:Exception"], text, [codec.encode(message)], {}, None, None]
    form, inner = _pack_inner(error, codec, budget, depth)
    args: list[object] | None = None
    if form == _PLAIN or not _args_are_group(error):
        args = [_pack_value(arg, codec, budget, depth) or _as_text(arg, codec) for arg in _raw_args(error)]
    state: dict[str, object] = {}
    for name, value in _state(error).items():
        if form == _BRANCHES and name == "errors":
            continue
        if (packed := _pack_value(value, codec, budget, depth)) is not None:
            state[name] = packed
    packed_cause = None
    if cause and isinstance(error.__cause__, Exception):
        packed_cause = _pack(error.__cause__, codec, budget, 1, cause=False)
    return [_VERSION, form, names, codec.encode_text(message), args, state, packed_cause, inner]


def _pack_inner(error: BaseException, codec: Codec, budget: _Budget, depth: int) -> tuple[int, object]:
    if isinstance(error, JoinError | RaceError):
        packed = {name: _pack(e, codec, budget, depth - 1, cause=True) for name, e in error.errors.items()}
        return _BRANCHES, [codec.encode_text(_clean(error.message, MESSAGE_CHARS_MAX)), packed]
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return _GROUP, [
            codec.encode_text(_clean(group.message, MESSAGE_CHARS_MAX)),
            *(_pack(e, codec, budget, depth - 1, cause=True) for e in group.exceptions),
        ]
    return _PLAIN, None


def _args_are_group(error: BaseException) -> bool:
    """Whether the arguments of a group are its message and its exceptions, which are recorded already."""
    group = cast("BaseExceptionGroup[BaseException]", error)
    args: Any = _raw_args(error)
    if len(args) != 2 or args[0] != group.message or not is_a(args[1], (list, tuple)):
        return False
    return [id(e) for e in args[1]] == [id(e) for e in group.exceptions]


def _pack_value(value: object, codec: Codec, budget: _Budget, depth: int) -> object:
    """Bytes of the codec; the record of an exception; a dict around several, or an ErrorInfo's; None for nothing."""
    inner = min(depth - 1, VALUE_NESTING_MAX)
    if isinstance(value, Exception):
        return _pack(value, codec, budget, inner, cause=False)
    if type(value) is ErrorInfo:
        return {"info": to_builtins(_pack_info(value, codec, budget), builtin_types=(bytes,))}
    if type(value) in (list, tuple, dict) and (packed := _pack_exceptions(value, codec, budget, inner)):
        return packed
    try:
        data = codec.encode(value)
    except CodecError:
        return None
    return data if len(data) <= VALUE_BYTES_MAX and budget.spend(len(data)) else None


def _pack_exceptions(value: Any, codec: Codec, budget: _Budget, depth: int) -> dict[str, object] | None:
    """Exceptions in a list, a tuple, or a dict by text."""
    keyed = is_a(value, dict)
    inner: list[Any] = list(value.values() if keyed else value)
    if not inner or not all(isinstance(item, Exception) for item in inner):
        return None
    if keyed:
        keys: list[Any] = list(value)
        if not all(type(key) is str for key in keys):
            return None
        return {"dict": {k: _pack(e, codec, budget, depth, cause=False) for k, e in zip(keys, inner, strict=True)}}
    return {type(value).__name__: [_pack(e, codec, budget, depth, cause=False) for e in inner]}


def _as_text(value: object, codec: Codec) -> bytes:
    text = value if isinstance(value, str) else _text_of(repr, value)
    return codec.encode(_clean(text, _SPENT_CHARS_MAX * 10))


def _unpack_value(packed: Any, codec: Codec) -> object:
    if isinstance(packed, list):
        return unpack_failure(packed, codec)  # pyright: ignore[reportUnknownArgumentType]
    match packed:
        case {"info": record}:
            return unpack_error_info(convert(record, ErrorRow), codec)
        case {"list": records}:
            return [unpack_failure(record, codec) for record in records]
        case {"tuple": records}:
            return tuple(unpack_failure(record, codec) for record in records)
        case {"dict": records}:
            return {name: unpack_failure(record, codec) for name, record in records.items()}
        case _:
            pass
    try:
        return codec.decode(packed)
    except SealedError:
        raise
    except CodecError:
        return codec.decode(packed, plain=True)


# -- What an exception is made of -------------------------------------------------------------------------------------


def _raw_args(error: BaseException) -> tuple[object, ...]:
    # An author's class may define `args` anew; what the constructor was given is in the slot of the base.
    descriptor: Any = vars(BaseException)["args"]
    return cast("tuple[object, ...]", descriptor.__get__(error))


def _state(error: BaseException) -> dict[str, object]:
    """The attributes of an exception: of its `__dict__`, its slots, and of the built-in class under it."""
    found: dict[str, object] = {}
    for name in _members(type(error)):
        try:
            value = getattr(error, name, None)
        except Exception:  # noqa: BLE001  # an author's __getattr__ may raise anything
            continue
        if value is not None:
            found[name] = value
    try:
        found.update({name: value for name, value in vars(error).items() if type(name) is str})  # pyright: ignore[reportUnnecessaryComparison]
    except Exception:  # noqa: BLE001  # as may a property named __dict__
        return found
    return found


def _members(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        if base not in (BaseException, object):
            for name, member in vars(base).items():
                if name.startswith("__") or name in _NOT_RECORDED:
                    continue
                if isinstance(member, MemberDescriptorType | GetSetDescriptorType):
                    yield name


def message_of(error: BaseException) -> str:
    """What an exception says, as it is recorded. Never raises."""
    return _clean(_text_of(str, error), MESSAGE_CHARS_MAX)


def _text_of(form: Any, value: object) -> str:
    try:
        return str(form(value))
    except Exception as failure:  # noqa: BLE001  # an author's __str__ or __repr__ may raise anything
        return f"<{type(value).__name__}, whose {form.__name__}() raises {type(failure).__name__}>"


def _clean(text: object, chars_max: int) -> str:
    """Text that can be stored: whole characters, and not too many."""
    whole = str(text)
    if len(whole) > chars_max:
        whole = whole[:chars_max] + " ..."
    return whole.encode("utf-8", "backslashreplace").decode()


def _clean_tail(text: str) -> str:
    if len(text) > TRACEBACK_CHARS_MAX + 4:
        text = "...\n" + text[-TRACEBACK_CHARS_MAX:]
    return text.encode("utf-8", "backslashreplace").decode()


def _traceback(error: BaseException) -> str:
    """The traceback as text, its end if it is long, without the engine's own frames unless there are no others."""
    try:
        report = traceback.TracebackException.from_exception(error, limit=-_FRAMES_MAX, compact=True)
        for part in _chain(report):
            theirs = [frame for frame in part.stack if not frame.filename.startswith(_PACKAGE)]
            if theirs:
                part.stack = traceback.StackSummary.from_list(theirs)
        return _clean_tail("".join(report.format()))
    except Exception:  # noqa: BLE001  # it calls the author's __str__, and reads source files
        return ""


def _chain(report: traceback.TracebackException) -> Iterable[traceback.TracebackException]:
    todo: list[traceback.TracebackException | None] = [report]
    while todo:
        if (part := todo.pop()) is not None:
            yield part
            todo += [part.__cause__, part.__context__, *(part.exceptions or ())]


def _type_text(cls: type) -> str:
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    return _clean(name, MESSAGE_CHARS_MAX)
