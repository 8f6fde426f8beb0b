"""Takes exceptions apart, and makes them again without running the `__init__` of their class.

Such an `__init__` may have effects, or take other arguments than `args` holds. But the built-in class under it is
initialised, as it keeps `errno` and the like where no dictionary shows them.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, cast

from msgspec import Struct

from workflow_sdk import errors
from workflow_sdk.errors import JoinError, RaceError
from workflow_sdk.values.basics import class_name, find_class

MESSAGE_CHARS_MAX: Final = 10_000
TRACEBACK_CHARS_MAX: Final = 8_000
_FRAMES_MAX: Final = 60

_PACKAGE: Final = str(PurePath(errors.__file__).parent)
# `obj` of an AttributeError or NameError is whatever the author's code touched; it says nothing of the failure.
_NOT_RECORDED: Final = frozenset({"obj", "exceptions", "message", "characters_written"})
# An author's class may define `args` anew; what the constructor was given is in the slot of the base.
_ARGS: Final[Any] = vars(BaseException)["args"]


class Parts(Struct, frozen=True):
    """What an exception consists of."""

    names: Sequence[str]
    """The names of its class and of the bases, nearest first."""
    message: str
    args: tuple[object, ...] | None
    """None for a group whose arguments are its message and exceptions."""
    attributes: Mapping[str, object]


def classes_for(names: Sequence[str]) -> Iterator[type[Exception]]:
    """The classes of these names that can be found, in order; and `Exception`."""
    found = [(i, cls) for i, name in enumerate(names) if (cls := _exception_class(name)) is not None]
    if found and found[0][0] > 0 and (local := _subclass_named(found[0][1], names[0])):
        yield local
    for _, cls in found:
        yield cls
    yield Exception


def _exception_class(name: str) -> type[Exception] | None:
    cls = find_class(name)
    return cls if cls is not None and issubclass(cls, Exception) else None


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


def make(parts: Parts) -> Exception:
    """The exception of these parts, which is no group."""
    args = parts.args or ()
    for cls in classes_for(parts.names):
        if issubclass(cls, BaseExceptionGroup) or (made := _initialised(cls, args)) is None:
            continue
        _set_args(made, args)
        _fill(made, parts.attributes)
        if class_name(cls) != parts.names[0] and text_of(str, made) != parts.message:
            _set_args(made, (parts.message,))  # its own class worded the message; the base does not know how
        return made
    return Exception(parts.message)


def _initialised(cls: type[Exception], args: tuple[object, ...]) -> Exception | None:
    """An exception of `cls` that only the built-in class under it has initialised; None if that is not possible."""
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


def make_group(parts: Parts, message: str, inner: Sequence[Exception]) -> Exception:
    """An exception group around `inner`."""
    for cls in classes_for(parts.names):
        if issubclass(cls, ExceptionGroup):
            made: Any = ExceptionGroup.__new__(cast(Any, cls), message, inner)
            return _fill_group(made, parts, message, inner)
    return ExceptionGroup(message, inner)


def make_branches(parts: Parts, message: str, branches: Mapping[str, Exception]) -> Exception:
    """A `JoinError` or `RaceError` around the failures of its branches."""
    for cls in classes_for(parts.names):
        if issubclass(cls, JoinError | RaceError):
            base = JoinError if issubclass(cls, JoinError) else RaceError
            return _fill_group(base.__new__(cls, message, branches), parts, message, list(branches.values()))
    return ExceptionGroup(message, list(branches.values()))


def _fill_group(made: Exception, parts: Parts, message: str, inner: Sequence[Exception]) -> Exception:
    _set_args(made, (message, list(inner)) if parts.args is None else parts.args)
    _fill(made, parts.attributes)
    return made


def _set_args(made: Exception, args: tuple[object, ...]) -> None:
    _ARGS.__set__(made, args)


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


# -- What an exception consists of -------------------------------------------------------------------------------------


def raw_args(error: BaseException) -> tuple[object, ...]:
    """What the constructor of an exception was given."""
    return cast("tuple[object, ...]", _ARGS.__get__(error))


def state_of(error: BaseException) -> dict[str, object]:
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
    """The message of an exception, as it is recorded. Never raises."""
    return clean(text_of(str, error))


def text_of(form: Any, value: object) -> str:
    """The `str` or `repr` of a value of the author's. Never raises."""
    try:
        return str(form(value))
    except Exception as failure:  # noqa: BLE001  # an author's __str__ or __repr__ may raise anything
        return f"<{type(value).__name__}, whose {form.__name__}() raises {type(failure).__name__}>"


def clean(text: object, chars_max: int = MESSAGE_CHARS_MAX) -> str:
    """The beginning of a text, with only characters that can be stored."""
    whole = str(text)
    return _whole(whole if len(whole) <= chars_max else whole[:chars_max] + " ...")


def clean_tail(text: str) -> str:
    """The end of a text, with only characters that can be stored."""
    return _whole(text if len(text) <= TRACEBACK_CHARS_MAX + 4 else "...\n" + text[-TRACEBACK_CHARS_MAX:])


def _whole(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def traceback_of(error: BaseException) -> str:
    """The traceback as text, its end if it is long, without the engine's own frames unless there are no others."""
    try:
        report = traceback.TracebackException.from_exception(error, limit=-_FRAMES_MAX, compact=True)
        for part in _chain(report):
            theirs = [frame for frame in part.stack if not frame.filename.startswith(_PACKAGE)]
            if theirs:
                part.stack = traceback.StackSummary.from_list(theirs)
        return clean_tail("".join(report.format()))
    except Exception:  # noqa: BLE001  # it calls the author's __str__, and reads source files
        return ""


def _chain(report: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    todo: list[traceback.TracebackException | None] = [report]
    while todo:
        if (part := todo.pop()) is not None:
            yield part
            todo += [part.__cause__, part.__context__, *(part.exceptions or ())]
