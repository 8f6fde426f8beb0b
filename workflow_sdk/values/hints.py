"""What annotations say: of the parameters and results of functions, and of the fields of classes of data.

An annotation that is missing, or that can't be resolved, is `Any`; nothing here raises.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import sys
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import CodeType, FunctionType, MethodType
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, TypeVar, Union, cast

import msgspec

K = TypeVar("K")
V = TypeVar("V")

_CACHE_MAX: Final = 4096
_UNWRAP_MAX: Final = 50
_RETURN: Final = "return"
_AWAITABLES: Final = (collections.abc.Awaitable, collections.abc.Coroutine)
_QUALIFIERS: Final = (typing.Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)


def _keep(cache: MutableMapping[K, V], key: K, value: V) -> V:
    """Put a value into a cache. A full cache is emptied, so that a hit costs no more than that of a dict."""
    if len(cache) >= _CACHE_MAX:
        cache.clear()
    cache[key] = value
    return value


_caches: Final[list[dict[Any, Any]]] = []


def hint_cache(make: Callable[[Any], V]) -> Callable[[Any], V]:
    """Keeps what a function makes of a type hint. `remember_scope` empties it, as more names are known then."""
    cache: dict[Any, V] = {}
    _caches.append(cache)

    def kept(hint: Any) -> V:
        try:
            return cache[hint]
        except KeyError:
            pass
        except TypeError:  # not hashable, as Annotated[int, []]
            return make(hint)
        return _keep(cache, hint, make(hint))

    return kept


# -- Annotations of classes -------------------------------------------------------------------------------------------

_scopes: weakref.WeakKeyDictionary[type, weakref.WeakValueDictionary[str, type]] = weakref.WeakKeyDictionary()


def remember_scope(frame_locals: Mapping[str, object]) -> None:
    """Let the annotations of classes that were made in a function name the other classes made there."""
    found = {n: c for n, c in frame_locals.items() if isinstance(c, type) and "<locals>" in c.__qualname__}
    if found:
        _scopes.update((cls, weakref.WeakValueDictionary(found)) for cls in found.values())
        for cache in _caches:
            cache.clear()


@hint_cache
def field_hints(cls: type) -> Mapping[str, object]:
    """The annotations of a class and its bases, by name."""
    hints: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        module: dict[str, Any] = vars(sys.modules.get(base.__module__, sys)) if base.__module__ != "builtins" else {}
        names: dict[str, Any] = {**_scopes.get(base, {}), **vars(base), base.__name__: base, cls.__name__: cls}
        own = vars(base).get("__annotations__")
        for name, annotation in cast("Mapping[str, object]", own if isinstance(own, Mapping) else {}).items():
            hint = _resolved(annotation, module, names)
            if typing.get_origin(hint) is not ClassVar and hint is not ClassVar:
                hints[name] = hint
    return hints


def _resolved(annotation: object, global_names: Mapping[str, Any], local_names: Mapping[str, Any]) -> object:
    """The type that an annotation stands for: text is evaluated, and what can't be resolved is `Any`."""
    if annotation is None:
        return type(None)
    if isinstance(annotation, str):
        annotation = typing.ForwardRef(annotation, is_argument=False, is_class=True)
    try:
        holder = type("_Holder", (), {"__annotations__": {"it": annotation}})
        return typing.get_type_hints(holder, dict(global_names), dict(local_names), include_extras=True)["it"]
    except Exception:  # noqa: BLE001  # an annotation is an author's expression: it may raise anything
        return Any


def bare(hint: Any) -> Any:
    """The hint of the value alone, without qualifiers such as `Annotated`, `Final`, `Required` or `NewType`."""
    while True:
        if typing.get_origin(hint) in _QUALIFIERS:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, dataclasses.InitVar):
            hint = cast(Any, hint).type
        elif isinstance(hint, TypeVar):
            constraints, bound = hint.__constraints__, hint.__bound__
            hint = Union[constraints] if constraints else bound or Any  # noqa: UP007  # a tuple of them
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        else:
            return type(None) if hint is None else hint


def substituting(cls: Any, arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    """A function that puts the arguments of a generic class in place of its variables, in a hint."""
    parameters = getattr(cls, "__parameters__", ())
    given = dict(zip(parameters, arguments, strict=False)) if len(parameters) == len(arguments) else {}

    def substitute(hint: Any) -> Any:
        try:
            if hint in given:
                return given[hint]
            variables = getattr(hint, "__parameters__", ())
            if variables and not isinstance(hint, type):
                return hint[tuple(given.get(variable, variable) for variable in variables)]
        except TypeError:
            pass
        return hint

    return substitute


# -- Fields of classes of data ----------------------------------------------------------------------------------------

Making: TypeAlias = Literal["dataclass", "attrs", "named tuple", "struct", "model"]


class Field(NamedTuple):
    """One field of an author's class."""

    name: str
    argument: str | None
    """What the constructor calls it; None if the constructor does not take it."""
    default: Callable[[], object] | None = None
    is_made: bool = False
    """Whether the class itself gives it a value when an object is made, by running code of its own."""
    is_kept: bool = True
    """Whether objects have it: they do not have what a dataclass declares as `InitVar` or `ClassVar`."""

    @property
    def is_required(self) -> bool:
        """Whether an object can't be made without a value for it."""
        return self.argument is not None and self.default is None and not self.is_made


def making_of(cls: type) -> Making | None:
    """What a class of data was made with; None for any other class."""
    return next((making for making, (is_one, _) in _MAKINGS.items() if is_one(cls)), None)


def fields_of(cls: type) -> list[Field]:
    """The fields of a class of data; none for any other class."""
    making = making_of(cls)
    return [] if making is None else list(_MAKINGS[making][1](cls))


def _dataclass_fields(cls: Any) -> Iterator[Field]:
    missing, has_code = dataclasses.MISSING, hasattr(cls, "__post_init__")
    kept = {field.name for field in dataclasses.fields(cls)}
    for field in cls.__dataclass_fields__.values():
        default = None if field.default_factory is missing else field.default_factory
        if field.default is not missing:
            default = _constant(field.default)
        is_made = has_code and not field.init and default is None
        yield Field(field.name, field.name if field.init else None, default, is_made, field.name in kept)


def _attrs_fields(cls: Any) -> Iterator[Field]:
    attr: Any = sys.modules["attr"]
    for field in cls.__attrs_attrs__:
        argument = getattr(field, "alias", field.name.lstrip("_")) if field.init else None
        if field.default is attr.NOTHING:
            yield Field(field.name, argument, is_made=not field.init and hasattr(cls, "__attrs_post_init__"))
        elif not isinstance(field.default, attr.Factory):
            yield Field(field.name, argument, _constant(field.default))
        elif field.default.takes_self:
            yield Field(field.name, argument, is_made=True)
        else:
            yield Field(field.name, argument, field.default.factory)


def _tuple_fields(cls: Any) -> Iterator[Field]:
    defaults = cls._field_defaults
    return (Field(name, name, _constant(defaults[name]) if name in defaults else None) for name in cls._fields)


def _struct_fields(cls: Any) -> Iterator[Field]:
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    padded = [msgspec.NODEFAULT] * (len(names) - len(defaults)) + list(defaults)
    return (Field(n, n, is_made=default is not msgspec.NODEFAULT) for n, default in zip(names, padded, strict=True))


def _model_fields(cls: Any) -> Iterator[Field]:
    return (Field(name, name, is_made=not info.is_required()) for name, info in cls.__pydantic_fields__.items())


def _constant(value: object) -> Callable[[], object]:
    return lambda: value


def _is_model(cls: type) -> bool:
    # Neither pydantic nor attrs is imported: who has a class of theirs has imported them.
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return isinstance(base, type) and issubclass(cls, base)


_MAKINGS: Final[dict[Making, tuple[Callable[[Any], bool], Callable[[Any], Iterator[Field]]]]] = {
    "dataclass": (lambda cls: hasattr(cls, "__dataclass_fields__"), _dataclass_fields),
    "attrs": (lambda cls: hasattr(cls, "__attrs_attrs__"), _attrs_fields),
    "named tuple": (lambda cls: tuple in cls.__mro__ and hasattr(cls, "_fields"), _tuple_fields),
    "struct": (lambda cls: issubclass(cls, msgspec.Struct), _struct_fields),
    "model": (_is_model, _model_fields),
}


# -- Annotations of functions -----------------------------------------------------------------------------------------


class _Cached(NamedTuple):
    code: CodeType  # kept, so that its id stays its own
    names: Mapping[str, Any]
    raw: object
    hint: object


# By code rather than by function: a function nested in a workflow is made anew in every run. Code alone does not say
# what an annotation stands for: the entry holds for the same globals and the same annotation only, and annotations
# that name what the function closes over, or what is not known (yet), are kept by function.
_by_code: dict[tuple[int, str], _Cached] = {}
_by_function: weakref.WeakKeyDictionary[FunctionType, dict[str, tuple[object, object]]] = weakref.WeakKeyDictionary()
_locals: weakref.WeakKeyDictionary[FunctionType, dict[str, Any]] = weakref.WeakKeyDictionary()


def return_hint(fn: object) -> object:
    """The type of what calling `fn`, and awaiting it where that is needed, gives."""
    if type(fn) is FunctionType and not hasattr(fn, "__wrapped__"):  # mostly, and each step asks
        return _hint(fn, _RETURN)
    target, _, of_class = _target(fn)
    if target is None or of_class is not None:
        return of_class or Any
    return _hint(target, _RETURN)


def parameter_hint(fn: object, index: int) -> object:
    """The type of the positional parameter `index` of `fn`, counted as a caller does (without `self`)."""
    target, skipped, _ = _target(fn)
    if target is None or index < 0:
        return Any
    code = target.__code__
    index += skipped
    if index < code.co_argcount:
        return _hint(target, code.co_varnames[index])
    if code.co_flags & inspect.CO_VARARGS:
        hint = _hint(target, code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        return Any if typing.get_origin(hint) is typing.Unpack else hint
    return Any


def has_parameter(fn: object, name: str, given: int) -> bool:
    """Whether `fn` has a parameter `name` that a call with `given` positional arguments does not fill.

    Every function that wraps another must be able to hand it on.
    """
    for _ in range(_UNWRAP_MAX):
        if isinstance(fn, FunctionType):
            code = fn.__code__
            if name not in code.co_varnames and not code.co_flags & inspect.CO_VARKEYWORDS:  # mostly, and steps ask
                return False
            by_name = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
            if not callable(getattr(fn, "__wrapped__", None)):
                # What can only be given by its name comes after all that so many positional arguments can fill.
                return name in by_name and code.co_varnames.index(name) >= min(given, code.co_argcount)
            if name not in by_name and not code.co_flags & inspect.CO_VARKEYWORDS:
                return False
        elif name in _keywords(fn):
            return False
        fn, taken = _unwrapped(fn)
        given += taken
    return False


def _keywords(fn: object) -> Mapping[str, object]:
    """The arguments by name that a partial has already."""
    return cast("functools.partial[object]", fn).keywords if isinstance(fn, functools.partial) else {}


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
        _by_function.pop(target, None)


def _hint(fn: FunctionType, name: str) -> object:
    raw = _annotations(fn).get(name, Any)
    if raw is Any or isinstance(raw, type):
        return raw
    code = fn.__code__
    cached = _by_code.get((id(code), name))
    if cached is not None and cached.raw is raw and cached.names is fn.__globals__:
        return cached.hint
    kept = _by_function.get(fn, {}).get(name)
    return kept[1] if kept is not None and kept[0] is raw else _resolve(fn, name, raw)


def _annotations(fn: FunctionType) -> dict[str, Any]:
    try:
        return fn.__annotations__
    except Exception:  # noqa: BLE001  # computed on demand from 3.14 on, by an author's expressions
        return {}


def _resolve(fn: FunctionType, name: str, raw: object) -> object:
    local_names: dict[str, Any] = {**_locals.get(fn, {}), **_closure(fn)}
    hint = _resolved(raw, fn.__globals__, local_names)
    if name == _RETURN and not fn.__code__.co_flags & inspect.CO_COROUTINE and typing.get_origin(hint) in _AWAITABLES:
        hint = [Any, *typing.get_args(hint)][-1]
    # A quoted part of an annotation is in its text, too, so that a search in the text finds every name.
    text = raw if isinstance(raw, str) else repr(raw)
    if hint is Any or any(local in text for local in local_names):
        _keep(_by_function, fn, {**_by_function.get(fn, {}), name: (raw, hint)})
    else:
        _keep(_by_code, (id(fn.__code__), name), _Cached(fn.__code__, fn.__globals__, raw, hint))
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
        return _method(fn, "__init__", "__new__"), 1
    for name in ("__wrapped__",) if isinstance(fn, FunctionType) else ("fn", "__wrapped__"):
        if callable(inner := _instance_attribute(fn, name)):
            return inner, 0
    return _method(type(fn), "__call__"), 1


def _method(cls: type, *names: str) -> FunctionType | None:
    """The first of these methods of a class that is written in Python."""
    methods = (getattr(cls, name, None) for name in names)
    return next((method for method in methods if isinstance(method, FunctionType)), None)


def _instance_attribute(fn: object, name: str) -> object:
    try:
        return getattr(fn, name, None)
    except Exception:  # noqa: BLE001  # an author's __getattr__ may raise anything
        return None
