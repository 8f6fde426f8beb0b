"""What a function's annotations say of its result and parameters, for anything that can be called.

An annotation that is missing, or that can't be resolved, is `Any`; nothing here raises.
"""

from __future__ import annotations

import collections.abc
import functools
import typing
import weakref
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, NamedTuple, cast

from workflow_sdk.core.codec.classes import remember_scope, resolve

__all__ = ["has_parameter", "parameter_hint", "remember_locals", "return_hint"]

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
_parameters: dict[int, tuple[CodeType, dict[str, int], int]] = {}
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
    return _hint(fn, _RETURN)


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
    """Whether `fn` has a parameter of that name, which a call with so many positional arguments leaves open."""
    if type(fn) is FunctionType and not hasattr(fn, "__wrapped__"):
        target, skipped = fn, 0
    else:
        while isinstance(fn, functools.partial):
            partial = cast("functools.partial[object]", fn)
            if name in partial.keywords:
                return False
            fn, given = partial.func, given + len(partial.args)
        found, skipped, _ = _target(fn)
        if found is None or not _hands_on(fn, name):
            return False
        target = found
    code = target.__code__
    known = _parameters.get(id(code))
    if known is None or known[0] is not code:
        if len(_parameters) >= _CACHE_MAX:
            _parameters.clear()
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        places = {name: place for place, name in enumerate(names) if place >= code.co_posonlyargcount}
        known = _parameters[id(code)] = (code, places, code.co_argcount)
    place = known[1].get(name)
    return place is not None and (place >= known[2] or place >= given + skipped)


def _hands_on(fn: object, name: str) -> bool:
    """Whether every function that is wrapped around another takes such an argument, to hand it on."""
    for _ in range(_UNWRAP_MAX):
        if isinstance(fn, MethodType):
            fn = fn.__func__
        wrapped: object = getattr(fn, "__wrapped__", None) if isinstance(fn, FunctionType) else None
        if not isinstance(fn, FunctionType) or not callable(wrapped):
            return True
        code = fn.__code__
        named = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
        if not code.co_flags & _CO_VARKEYWORDS and name not in named:
            return False
        fn = wrapped
    return False


def remember_locals(fn: object, frame_locals: Mapping[str, object]) -> None:
    """Let the annotations of `fn` name what is local to the function that it was defined in.

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
        arguments = typing.get_args(hint)
        hint = arguments[-1] if arguments else Any
    # A quoted part of an annotation is in its text, too, so that a search in the text finds every name.
    text = raw if isinstance(raw, str) else repr(raw)
    if hint is Any or any(local in text for local in local_names):
        key = (id(fn), name)
        if len(_by_function) >= _CACHE_MAX:
            _by_function.clear()
        _by_function[key] = (weakref.ref(fn, lambda _: _by_function.pop(key, None) and None), raw, hint)
    else:
        if len(_by_code) >= _CACHE_MAX:
            _by_code.clear()
        _by_code[id(fn.__code__), name] = _Cached(fn.__code__, fn.__globals__, raw, hint)
    return hint


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
        inner: object = None
        if isinstance(fn, functools.partial):
            taken = cast("functools.partial[object]", fn)
            inner, skipped = taken.func, skipped + len(taken.args)
        elif isinstance(fn, MethodType):
            inner, skipped = fn.__func__, skipped + 1
        elif isinstance(fn, type):
            of_class = of_class or fn
            inner, skipped = _constructor(fn), skipped + 1
        elif isinstance(fn, FunctionType):
            wrapped: object = getattr(fn, "__wrapped__", None)
            if not callable(wrapped):
                return fn, skipped, of_class
            inner = wrapped
        elif callable(wrapped := _instance_attribute(fn, "fn")) or callable(
            wrapped := _instance_attribute(fn, "__wrapped__")
        ):
            inner = wrapped
        else:
            call = getattr(type(fn), "__call__", None)  # noqa: B004  # the function itself is wanted
            if not isinstance(call, FunctionType):
                return None, skipped, of_class
            inner, skipped = call, skipped + 1
        fn = inner
    return None, skipped, of_class


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
