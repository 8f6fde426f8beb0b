"""Authors' classes: their names, their fields, and the types of these."""

from __future__ import annotations

import dataclasses
import sys
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, TypeVar, Union, cast

import msgspec

from workflow_sdk.values.basics import Cache, Problem, is_a, type_text

_QUALIFIERS: Final = (typing.Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)

K = TypeVar("K")
V = TypeVar("V")
_caches: Final[list[Cache[Any, Any]]] = []
_scopes: weakref.WeakKeyDictionary[type, weakref.WeakValueDictionary[str, type]] = weakref.WeakKeyDictionary()


def hint_cache(make: Callable[[K], V]) -> Cache[K, V]:
    """A cache of what was worked out from type hints. `remember_scope` empties it, as more names are known then."""
    _caches.append(Cache(make))
    return _caches[-1]


def remember_scope(frame_locals: Mapping[str, object]) -> None:
    """Let the annotations of classes that were made in a function name the other classes made there."""
    found = {n: c for n, c in frame_locals.items() if isinstance(c, type) and "<locals>" in c.__qualname__}
    if found:
        _scopes.update((cls, weakref.WeakValueDictionary(found)) for cls in found.values())
        for cache in _caches:
            cache.clear()


def field_hints(cls: type) -> Mapping[str, object]:
    """The annotations of a class and its bases, by name. One that can't be resolved is `Any`; never raises."""
    return _field_hints[cls]


def _resolved(cls: type) -> Mapping[str, object]:
    hints: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        module: dict[str, Any] = vars(sys.modules.get(base.__module__, sys)) if base.__module__ != "builtins" else {}
        names: dict[str, Any] = {**_scopes.get(base, {}), **vars(base), base.__name__: base, cls.__name__: cls}
        own = vars(base).get("__annotations__")
        for name, annotation in cast("Mapping[str, object]", own if isinstance(own, Mapping) else {}).items():
            hint = resolve(annotation, module, names)
            if typing.get_origin(hint) is not ClassVar and hint is not ClassVar:
                hints[name] = hint
    return hints


_field_hints: Final = hint_cache(_resolved)


def resolve(annotation: object, global_names: Mapping[str, Any], local_names: Mapping[str, Any]) -> object:
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


_NONE: Final[Mapping[str, type]] = {}


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


class Known:
    """The classes that a type hint leads to. Through it, local classes are found, and classes that have moved."""

    __slots__ = ("by_name", "by_qualname", "unambiguous")

    def __init__(self, classes: Iterator[type] | tuple[type, ...] = ()) -> None:
        self.by_name: Mapping[str, type] = _NONE
        self.by_qualname: Mapping[str, type] = _NONE
        if found := list(classes):
            self.by_name = _unambiguous([(class_name(cls), cls) for cls in found])
            self.by_qualname = _unambiguous([(cls.__qualname__, cls) for cls in found])
        self.unambiguous: frozenset[type] = frozenset((*self.by_name.values(), *self.by_qualname.values()))

    def find(self, name: str) -> type | None:
        """The class of this name, if there is one."""
        if cls := self.by_name.get(name) or find_class(name):
            return cls
        return self.by_qualname.get(name.partition(":")[2])

    def leads_to(self, cls: type) -> bool:
        """Whether the hint leads to this class."""
        return cls in self.unambiguous

    def check_writable(self, cls: type) -> str:
        """The name of a class that will be found again; raises `Problem` for one that will not."""
        name = class_name(cls)
        if (self.by_name.get(name) or find_class(name)) is cls:
            return name
        if "<locals>" in cls.__qualname__:
            raise Problem(
                f"an object of the local class {type_text(cls)} would not be found again",
                "annotate what holds it with the class, or define the class at module level",
            )
        raise Problem(
            f"an object of {type_text(cls)} would not be found again: that name does not lead to its class",
            "define the class at module level, under its own name",
        )


_NOTHING_KNOWN: Final = Known()


def known_of(hint: object) -> Known:
    """The classes that `hint` leads to."""
    if hint is Any or hint is object or hint is None:
        return _NOTHING_KNOWN
    try:
        return _known[hint]
    except TypeError:  # not hashable, as Annotated[int, []]
        return _make_known(hint)


def _make_known(hint: object) -> Known:
    return Known(classes_of(hint))


_known: Final = hint_cache(_make_known)


def not_loaded(name: str) -> Problem:
    """The problem of a class that can't be found."""
    module, _, qualname = name.partition(":")
    if module in sys.modules:
        return Problem(
            f"the class {module}.{qualname} does not exist any more",
            f"define it in {module}, or keep its old name there as an alias",
        )
    return Problem(f"the class {module}.{qualname} is not loaded", f"import the module {module} before")


def _unambiguous(pairs: list[tuple[str, type]]) -> dict[str, type]:
    found: dict[str, type] = {}
    twice: set[str] = set()
    for name, cls in pairs:
        if found.setdefault(name, cls) is not cls:
            twice.add(name)
    return {name: cls for name, cls in found.items() if name not in twice}


def classes_of(hint: object) -> Iterator[type]:
    """Every author's class that a value under `hint` may hold, as far as the hint tells."""
    seen: dict[int, object] = {}  # by id, and kept: nothing that was seen may go away meanwhile
    todo: list[object] = [hint]
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen[id(current)] = current
        if isinstance(current, type) and current.__module__ not in ("builtins", "typing", "collections.abc"):
            yield current
            if making_of(current) is not None or typing.is_typeddict(current):
                todo.extend(field_hints(current).values())
        todo.extend(_parts(current))


def _parts(hint: Any) -> Iterator[object]:
    yield bare(hint)
    yield typing.get_origin(hint)
    yield from typing.get_args(hint)
    yield getattr(hint, "__value__", None)  # of a type alias
    if is_a(hint, list):  # the arguments of a Callable or ParamSpec
        yield from hint
