"""Writes exceptions as records and reads them back: authors' exceptions, the library's, and groups of both.

A failure is recorded before the author's code sees it, and replayed with the same class, arguments and attributes.
Recording can't fail: what can't be encoded is left out, and what is large is cut, so that a record has a bound.

Exceptions are made again without running the `__init__` of their class, which may have effects, or take other arguments
than `args` holds. But the built-in class under it is initialised, as it keeps `errno` and the like where no dictionary
shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, cast

from msgspec import convert, to_builtins

from workflow_sdk.errors import CodecError, ErrorInfo, JoinError, RaceError
from workflow_sdk.rows.instance import Result
from workflow_sdk.rows.wire import ErrorRow, Text, damaged
from workflow_sdk.values import Codec, SealedError
from workflow_sdk.values.basics import class_name, find_class, is_a, type_text
from workflow_sdk.values.exceptions import (
    ARGS,
    clean,
    clean_tail,
    kind_of,
    message_of,
    raw_args,
    state_of,
    text_of,
    traceback_of,
)

VALUE_BYTES_MAX: Final = 64_000
ATTRIBUTES_BYTES_MAX: Final = 256_000
RECORD_BYTES_MAX: Final = 1_000_000
NESTING_MAX: Final = 20
VALUE_NESTING_MAX: Final = 3
_SPENT_CHARS_MAX: Final = 200
_ROOM_MIN: Final = 1_000

_VERSION: Final = 1
_PLAIN, _GROUP, _BRANCHES = 0, 1, 2


# -- A failure to read: ErrorInfo -------------------------------------------------------------------------------------


def describe(error: BaseException, codec: Codec, kind: str | None = None) -> ErrorInfo:
    """The description of `error`, just as it will be read back from a record. Never raises."""
    attributes: dict[str, object] = {}
    left = ATTRIBUTES_BYTES_MAX
    for name, value in state_of(error).items():
        try:
            data, same = codec.roundtrip(value)
        except CodecError:
            continue
        if not name.startswith("__") and len(data) <= min(VALUE_BYTES_MAX, left):
            attributes[name] = same
            left -= len(data)
    what = clean(type_text(type(error)))
    return ErrorInfo(what, message_of(error), traceback_of(error), attributes, kind or kind_of(error))


def pack_error_info(info: ErrorInfo, codec: Codec) -> ErrorRow:
    """The row of a description."""
    return _Packer(codec).info(info)


def unpack_error_info(row: ErrorRow, codec: Codec) -> ErrorInfo:
    """The description in a row. Attributes whose classes are not loaded are plain data."""
    attributes: dict[str, object] = {}
    for name, data in row.attributes.items():
        try:
            attributes[name] = _decoded(data, codec)
        except CodecError:
            continue
    texts = codec.decode_text(row.message.value), codec.decode_text(row.traceback.value)
    return ErrorInfo(row.type, *texts, attributes, row.kind)


def result_of(
    info: ErrorInfo, codec: Codec, original: ErrorRow | None = None, failed_operations: Sequence[str] = ()
) -> Result:
    """The result of an instance that a failure has stopped; `original` and `failed_operations` as in `Result`."""
    return Result(None, pack_error_info(info, codec), original, tuple(failed_operations))


# -- A failure to raise again: its record -----------------------------------------------------------------------------


def pack_failure(error: Exception, codec: Codec) -> list[object]:
    """A record of `error`, of nothing but None, int, text, bytes, lists and dicts. Never raises."""
    return _Packer(codec).failure(error, NESTING_MAX, cause=True)


class _Packer:
    """Packs one record, up to a size: once that is reached, long texts are cut and values are left out."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.left = RECORD_BYTES_MAX

    def spend(self, size: int) -> bool:
        """Take room for `size` bytes, and say whether there was so much left."""
        if size > self.left:
            return False
        self.left -= size
        return True

    def info(self, info: ErrorInfo) -> ErrorRow:
        """The row of a description."""
        attributes: dict[str, bytes] = {}
        for name, value in info.attributes.items():
            if (data := self.encoded(value)) is not None:
                attributes[clean(name)] = data
        message, trace = self.message(clean(info.message)), clean_tail(info.traceback)
        if not self.spend(len(trace)):
            trace = ""
        return ErrorRow(clean(info.type), Text.of(self.text(message)), Text.of(self.text(trace)), info.kind, attributes)

    def message(self, text: str, more: int = 0) -> str:
        """A message, or only its beginning if there is no room for it and `more` bytes beside it."""
        return text if self.spend(len(text) + more) else clean(text, _SPENT_CHARS_MAX)

    def failure(self, error: BaseException, depth: int, *, cause: bool = False) -> list[object]:
        """The record of an exception and what it holds, down to a depth; with its `__cause__` if `cause` says so."""
        message = self.message(message_of(error), 100)
        # Exceptions may refer to each other in any way, so that a walk of them would never end: past the budget, only
        # those that the outermost group itself holds are still recorded with their class and arguments.
        if depth <= 0 or (self.left < _ROOM_MIN and depth < NESTING_MAX - 1):
            text, arg = self.text(message), self.codec.encode(message)
            return [_VERSION, _PLAIN, ["builtins:Exception"], text, [arg], {}, None, None]
        names = [clean(class_name(cls)) for cls in type(error).__mro__ if issubclass(cls, BaseException)]
        form, inner = self.inner(error, depth)
        args = None if form != _PLAIN and _args_are_group(error) else self.args(error, depth)
        state = self.state(error, form, depth)
        why = error.__cause__ if cause else None
        packed_cause = self.failure(why, 1) if isinstance(why, Exception) else None
        return [_VERSION, form, names, self.text(message), args, state, packed_cause, inner]

    def inner(self, error: BaseException, depth: int) -> tuple[int, object]:
        """The form of a record, and the message and exceptions of a group or of branches."""
        if isinstance(error, JoinError | RaceError):
            packed = {name: self.failure(e, depth - 1, cause=True) for name, e in error.errors.items()}
            return _BRANCHES, [self.text(clean(error.message)), packed]
        if isinstance(error, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", error)
            failures = [self.failure(e, depth - 1, cause=True) for e in group.exceptions]
            return _GROUP, [self.text(clean(group.message)), *failures]
        return _PLAIN, None

    def args(self, error: BaseException, depth: int) -> list[object]:
        """The arguments of an exception. One that can't be stored is replaced by its text."""
        return [self.value(arg, depth) or self.codec.encode(_long_text(arg)) for arg in raw_args(error)]

    def state(self, error: BaseException, form: int, depth: int) -> dict[str, object]:
        """The attributes of an exception that can be stored."""
        state: dict[str, object] = {}
        for name, value in state_of(error).items():
            is_packed = form == _BRANCHES and name == "errors"
            if not is_packed and (packed := self.value(value, depth)) is not None:
                state[name] = packed
        return state

    def value(self, value: Any, depth: int) -> object:
        """A value as records have it: bytes, the record of an exception, a dict of several or an ErrorInfo, or None."""
        depth = min(depth - 1, VALUE_NESTING_MAX)
        if isinstance(value, Exception):
            return self.failure(value, depth)
        if type(value) is ErrorInfo:
            return {"info": to_builtins(self.info(value), builtin_types=(bytes,))}
        if _are_exceptions(value):
            if is_a(value, dict):
                return {"dict": {name: self.failure(e, depth) for name, e in value.items()}}
            return {type(value).__name__: [self.failure(e, depth) for e in value]}
        return self.encoded(value)

    def encoded(self, value: object) -> bytes | None:
        """The bytes of a value; None, if it can't be encoded or is too large."""
        try:
            data = self.codec.encode(value)
        except CodecError:
            return None
        return data if len(data) <= VALUE_BYTES_MAX and self.spend(len(data)) else None

    def text(self, text: str) -> str | bytes:
        """A text as records have it."""
        return self.codec.encode_text(text)


def _args_are_group(error: BaseException) -> bool:
    """Whether the arguments of a group are its message and its exceptions, which are recorded already."""
    group = cast("BaseExceptionGroup[BaseException]", error)
    args: Any = raw_args(error)
    if len(args) != 2 or args[0] != group.message or not is_a(args[1], (list, tuple)):
        return False
    return [id(e) for e in args[1]] == [id(e) for e in group.exceptions]


def _are_exceptions(value: Any) -> bool:
    """Whether a value is a list, a tuple, or a dict by text, of exceptions and nothing else."""
    kind = cast(Any, type(value))
    if kind is dict:
        return _are_exceptions(list(value.values())) and all(type(key) is str for key in value)
    return kind in (list, tuple) and len(value) > 0 and all(isinstance(item, Exception) for item in value)


def _long_text(value: object) -> str:
    return clean(value if isinstance(value, str) else text_of(repr, value), _SPENT_CHARS_MAX * 10)


# -- A record, made an exception again --------------------------------------------------------------------------------


def unpack_failure(record: object, codec: Codec) -> Exception:
    """The exception that was recorded: of its own class where that can be found, else of its nearest base."""
    try:
        _, form, names, text, args, state, cause, inner = cast("list[Any]", record)
        message = codec.decode_text(text)
        parts: Any = None
        if form != _PLAIN:
            message, parts = codec.decode_text(inner[0]), _unpack_inner(form, inner, codec)
        made = _made(form, names, message, _unpack_args(args, message, parts, codec), parts)
        _fill(made, _unpack_state(state, codec))
        if form == _PLAIN and class_name(type(made)) != names[0] and text_of(str, made) != message:
            ARGS.__set__(made, (message,))  # its own class worded the message; the base does not know how
        if cause is not None:
            made.__cause__ = unpack_failure(cause, codec)
    except CodecError:
        raise
    except Exception as error:  # there are as many as there are ways to be no such record
        raise damaged("a failure") from error
    return made


def _unpack_args(args: Any, message: str, parts: Any, codec: Codec) -> tuple[object, ...]:
    """The arguments of an exception. Those of a group may be its message and what it holds, which `args` leaves out."""
    if args is not None:
        return tuple(_unpack_value(arg, codec) for arg in args)
    return () if parts is None else (message, list(parts.values() if is_a(parts, dict) else parts))


def _unpack_inner(form: object, inner: Any, codec: Codec) -> object:
    if form == _BRANCHES:
        return _unpack_named(inner[1], codec)
    return [unpack_failure(record, codec) for record in inner[1:]]


def _made(form: object, names: Sequence[str], message: str, args: tuple[object, ...], parts: Any) -> Exception:
    """An exception of the first of these classes that can be found, with its arguments."""
    for cls in _classes_for(names):
        if (made := _blank(cls, form, message, args, parts)) is not None:
            ARGS.__set__(made, args)
            return made
    raise damaged("a failure")


def _blank(cls: Any, form: object, message: str, args: tuple[object, ...], parts: Any) -> Exception | None:
    """An exception of `cls` that only the class under it has made which is not the author's; None if it can't be."""
    if form == _BRANCHES:
        base: Any = next((base for base in (JoinError, RaceError) if issubclass(cls, base)), None)
        return None if base is None else base.__new__(cls, message, parts)
    if form == _GROUP:
        group: Any = ExceptionGroup
        return group.__new__(cls, message, parts) if issubclass(cls, group) else None
    if issubclass(cls, BaseExceptionGroup):
        return None
    return _initialised(cls, args)


def _initialised(cls: Any, args: tuple[object, ...]) -> Exception | None:
    base: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    try:
        made: Exception = base.__new__(cls, *args)
    except Exception:  # noqa: BLE001  # a class of an extension module, which only its own code can make
        return None
    try:
        base.__init__(made, *args)
    except Exception:  # noqa: BLE001  # an argument was too large, or is text now
        return made if base in (BaseException, Exception) else None
    return made


def _classes_for(names: Sequence[str]) -> Iterator[type[Exception]]:
    """The classes of these names that can be found, in order; and `Exception`."""
    named = [(place, find_class(name)) for place, name in enumerate(names)]
    found = [(place, cls) for place, cls in named if cls is not None and issubclass(cls, Exception)]
    if found and found[0][0] > 0 and (local := _subclass_named(found[0][1], names[0])):
        yield local
    for _, cls in found:
        yield cls
    yield Exception


def _subclass_named(base: type[Exception], name: str) -> type[Exception] | None:
    """The subclass of this name, as one made in a function is not found by its name. The last one made wins."""
    found: type[Exception] | None = None
    todo, seen = [base], {base}
    while todo:
        for cls in todo.pop().__subclasses__():
            if cls not in seen:
                seen.add(cls)
                todo.append(cls)
                if class_name(cls) == name:
                    found = cls
    return found


def _fill(made: Exception, attributes: Mapping[str, object]) -> None:
    for name, value in attributes.items():
        try:
            if _is_slot(type(made), name):
                object.__setattr__(made, name, value)
            else:
                # Where it was found. A property of this name is code, which a record must not run.
                object.__getattribute__(made, "__dict__")[name] = value
        except Exception:  # noqa: BLE001  # a value of another type than the slot takes
            continue


def _is_slot(cls: type, name: str) -> bool:
    """Whether an attribute is kept in a slot, or by the built-in class under the exception."""
    for base in cls.__mro__:
        if name in vars(base):
            return isinstance(vars(base)[name], MemberDescriptorType | GetSetDescriptorType)
    return False


def _unpack_named(records: Mapping[str, Any], codec: Codec) -> dict[str, Exception]:
    return {name: unpack_failure(record, codec) for name, record in records.items()}


def _unpack_state(state: Mapping[str, Any], codec: Codec) -> dict[str, object]:
    attributes: dict[str, object] = {}
    for name, packed in state.items():
        try:
            attributes[name] = _unpack_value(packed, codec)
        except SealedError:
            raise
        except CodecError:
            continue
    return attributes


def _unpack_value(packed: Any, codec: Codec) -> object:
    if is_a(packed, list):
        return unpack_failure(packed, codec)
    if is_a(packed, dict):
        ((what, records),) = packed.items()
        if what == "info":
            return unpack_error_info(convert(records, ErrorRow), codec)
        if what == "dict":
            return _unpack_named(records, codec)
        return _SEVERAL[what](unpack_failure(record, codec) for record in records)
    return _decoded(packed, codec)


_SEVERAL: Final = {"list": list[Exception], "tuple": tuple[Exception, ...]}


def _decoded(data: bytes, codec: Codec) -> object:
    """The value in the bytes; as plain data, if its classes are not loaded."""
    try:
        return codec.decode(data)
    except SealedError:
        raise
    except CodecError:
        return codec.decode(data, plain=True)
