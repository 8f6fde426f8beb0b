"""The type hints of the result and parameters of a function, or of anything else that can be called.

An annotation that is missing, or that can't be resolved, is `Any`; nothing here raises.
"""

from __future__ import annotations

import collections.abc
import functools
import typing
import weakref
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, NamedTuple, TypeVar, cast

from workflow_sdk.values.classes import remember_scope, resolve

V = TypeVar("V")

_CACHE_MAX: Final = 4096
_UNWRAP_MAX: Final = 50
_RETURN: Final = "return"
_AWAITABLES: Final = (collections.abc.Awaitable, collections.abc.Coroutine)
_CO_COROUTINE: Final = 0x80
_CO_VARKEYWORDS: Final = 0x08


class _Cached(NamedTuple):
    code: CodeType  # kept, so that its id stays its own
    names: Mapping[str, Any]
    raw: object
    hint: object


# By code rather than by function: a function nested in a workflow is made anew in every run. Code alone does not say
# what an annotation stands for: the entry holds for the same globals and the same annotation only, and annotations
# that name what the function closes over, or what is not known (yet), are kept by function.
_by_code: dict[tuple[int, str], _Cached] = {}
_by_function: dict[tuple[int, str], tuple[weakref.ref[FunctionType], object, object]] = {}
_locals: weakref.WeakKeyDictionary[FunctionType, dict[str, Any]] = weakref.WeakKeyDictionary()


def return_hint(fn: object) -> object:
    """The type of what calling `fn`, and awaiting it where that is needed, gives."""
    if type(fn) is not FunctionType or hasattr(fn, "__wrapped__"):
        target, _, of_class = _target(fn)
        if of_class is not None:
            return of_class
        if target is None:
            return Any
        fn = target
    try:
        raw = fn.__annotations__.get(_RETURN, Any)
    except Exception:  # noqa: BLE001  # computed on demand from 3.14 on, by an author's expressions
        return Any
    # Each step asks, and mostly it is a plain class.
    return raw if raw is Any or isinstance(raw, type) else _hint(fn, _RETURN)


def parameter_hint(fn: object, index: int) -> object:
    """The type of the positional parameter `index` of `fn`, counted as a caller does (without `self`)."""
    target, skipped, _ = _target(fn)
    if target is None or index < 0:
        return Any
    code = target.__code__
    index += skipped
    if index < code.co_argcount:
        return _hint(target, code.co_varnames[index])
    if code.co_flags & 0x04:  # *args
        hint = _hint(target, code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        return Any if typing.get_origin(hint) is typing.Unpack else hint
    return Any


def has_parameter(fn: object, name: str, given: int) -> bool:
    """Whether `fn` has a parameter `name` that a call with `given` positional arguments does not fill."""
    if type(fn) is FunctionType and not hasattr(fn, "__wrapped__"):
        return _is_open(fn.__code__, name, given)
    while isinstance(fn, functools.partial):
        partial = cast("functools.partial[object]", fn)
        if name in partial.keywords:
            return False
        fn, given = partial.func, given + len(partial.args)
    target, skipped, _ = _target(fn)
    return target is not None and _hands_on(fn, name) and _is_open(target.__code__, name, given + skipped)


def _is_open(code: CodeType, name: str, given: int) -> bool:
    if name not in code.co_varnames or name not in _named(code):  # mostly it is no variable, either
        return False
    # What can only be given by its name comes after all that so many positional arguments can fill.
    return code.co_varnames.index(name) >= min(given, code.co_argcount)


def _named(code: CodeType) -> tuple[str, ...]:
    """The parameters that can be given by their name."""
    return code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]


def _hands_on(fn: object, name: str) -> bool:
    """Whether every function that wraps another takes an argument of this name, so that it can hand it on."""
    for _ in range(_UNWRAP_MAX):
        if isinstance(fn, MethodType):
            fn = fn.__func__
        wrapped: object = getattr(fn, "__wrapped__", None) if isinstance(fn, FunctionType) else None
        if not isinstance(fn, FunctionType) or not callable(wrapped):
            return True
        if not fn.__code__.co_flags & _CO_VARKEYWORDS and name not in _named(fn.__code__):
            return False
        fn = wrapped
    return False


def remember_locals(fn: object, frame_locals: Mapping[str, object]) -> None:
    """Let the annotations of `fn` use names that are local to the function that it was defined in.

    So may the annotations of the classes there. Of the rest, only what annotations name is kept.
    """
    remember_scope(frame_locals)
    target, _, _ = _target(fn)
    if target is None:
        return
    texts = [text for text in _annotations(target).values() if isinstance(text, str)]
    if named := {name: value for name, value in frame_locals.items() if any(name in text for text in texts)}:
        _locals[target] = named
        for name in _annotations(target):
            _by_function.pop((id(target), name), None)


def _hint(fn: FunctionType, name: str) -> object:
    raw = _annotations(fn).get(name, Any)
    if raw is Any or isinstance(raw, type):
        return raw
    code = fn.__code__
    cached = _by_code.get((id(code), name))
    if cached is not None and cached.raw is raw and cached.names is fn.__globals__:
        return cached.hint
    kept = _by_function.get((id(fn), name))
    if kept is not None and kept[0]() is fn and kept[1] is raw:
        return kept[2]
    return _resolve(fn, name, raw)


def _annotations(fn: FunctionType) -> dict[str, Any]:
    try:
        return fn.__annotations__
    except Exception:  # noqa: BLE001  # computed on demand from 3.14 on, by an author's expressions
        return {}


def _resolve(fn: FunctionType, name: str, raw: object) -> object:
    local_names: dict[str, Any] = {**_locals.get(fn, {}), **_closure(fn)}
    hint = resolve(raw, fn.__globals__, local_names)
    if name == _RETURN and not fn.__code__.co_flags & _CO_COROUTINE and typing.get_origin(hint) in _AWAITABLES:
        hint = [Any, *typing.get_args(hint)][-1]
    # A quoted part of an annotation is in its text, too, so that a search in the text finds every name.
    text = raw if isinstance(raw, str) else repr(raw)
    if hint is Any or any(local in text for local in local_names):
        key = (id(fn), name)
        _keep(_by_function, key, (weakref.ref(fn, lambda _: _by_function.pop(key, None) and None), raw, hint))
    else:
        _keep(_by_code, (id(fn.__code__), name), _Cached(fn.__code__, fn.__globals__, raw, hint))
    return hint


def _keep(cache: dict[tuple[int, str], V], key: tuple[int, str], value: V) -> None:
    if len(cache) >= _CACHE_MAX:
        cache.clear()
    cache[key] = value


def _closure(fn: FunctionType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _target(fn: object) -> tuple[FunctionType | None, int, type | None]:
    """The function behind `fn`, how many of its parameters are taken already, and the class if `fn` is one."""
    skipped, of_class = 0, None
    for _ in range(_UNWRAP_MAX):
        if isinstance(fn, FunctionType) and not callable(getattr(fn, "__wrapped__", None)):
            return fn, skipped, of_class
        if isinstance(fn, type):
            of_class = of_class or fn
        fn, taken = _unwrapped(fn)
        skipped += taken
    return None, skipped, of_class


def _unwrapped(fn: object) -> tuple[object, int]:
    """The callable directly behind a callable, or None, and how many of its parameters are taken."""
    if isinstance(fn, functools.partial):
        partial = cast("functools.partial[object]", fn)
        return partial.func, len(partial.args)
    if isinstance(fn, MethodType):
        return fn.__func__, 1
    if isinstance(fn, type):
        return _constructor(fn), 1
    for name in ("__wrapped__",) if isinstance(fn, FunctionType) else ("fn", "__wrapped__"):
        if callable(inner := _instance_attribute(fn, name)):
            return inner, 0
    call = getattr(type(fn), "__call__", None)  # noqa: B004  # the function itself is wanted
    return call if isinstance(call, FunctionType) else None, 1


def _constructor(cls: type) -> object:
    for method in (vars(cls).get("__init__"), getattr(cls, "__init__", None), getattr(cls, "__new__", None)):
        if isinstance(method, FunctionType):
            return method
    return None


def _instance_attribute(fn: object, name: str) -> object:
    try:
        return getattr(fn, name, None)
    except Exception:  # noqa: BLE001  # an author's __getattr__ may raise anything
        return None
