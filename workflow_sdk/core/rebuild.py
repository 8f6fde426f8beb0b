"""Exceptions put together from their parts, without running the `__init__` of their class.

That may have effects, or take other arguments than `args` holds. The built-in class under it is initialised: it keeps
`errno` and the like where no dictionary shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, cast

from workflow_sdk.core.codec.classes import class_name, find_class
from workflow_sdk.errors import JoinError, RaceError


@dataclass(frozen=True, slots=True)
class Parts:
    """What an exception consists of."""

    names: Sequence[str]
    """Its class and the bases of that, nearest first."""
    message: str
    args: tuple[object, ...] | None
    """`None` for a group whose arguments are its message and its exceptions."""
    attributes: Mapping[str, object]


def classes_for(names: Sequence[str]) -> Iterator[type[Exception]]:
    """The class that is named first, if it can be found; then its bases, nearest first."""
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
    """The class of this name under `base`: one made in a function, in this process. The last one made wins."""
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
    """An exception that is no group."""
    args = parts.args or ()
    for cls in classes_for(parts.names):
        if issubclass(cls, BaseExceptionGroup):
            continue
        base: Any = next(b for b in cls.__mro__ if b.__module__ == "builtins")
        try:
            made: Exception = base.__new__(cls, *args)
        except Exception:  # noqa: BLE001  # a class of an extension module, which only its own code can make
            continue
        try:
            base.__init__(made, *args)
        except Exception:  # noqa: BLE001  # an argument was too large, or is text now
            if base not in (BaseException, Exception):
                continue
        _set_args(made, args)
        _fill(made, parts.attributes)
        if class_name(cls) != parts.names[0] and _text(made) != parts.message:
            _set_args(made, (parts.message,))  # its own class worded the message; the base does not know how
        return made
    return Exception(parts.message)


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
    descriptor: Any = vars(BaseException)["args"]  # an author's class may define `args` anew
    descriptor.__set__(made, args)


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


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # an author's __str__ may raise anything
        return ""
