"""Authors' classes by name, and the classes that a type hint leads to.

A class is named `module:qualname`. It is looked up among the classes of the hint first, then in the modules that are
loaded; nothing is ever imported for the sake of a value.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, TypeVar, cast

from workflow_sdk.core.codec.problem import Problem, is_a, type_text

_NONE: Final[Mapping[str, type]] = {}
_RESOLVED_MAX: Final = 4096


def class_name(cls: type) -> str:
    """The name of a class on the wire."""
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
    """The classes that a hint leads to: local ones can be found through it, and ones that have moved."""

    __slots__ = ("by_name", "by_qualname")

    def __init__(self, classes: Iterator[type] | tuple[type, ...] = ()) -> None:
        self.by_name: Mapping[str, type] = _NONE
        self.by_qualname: Mapping[str, type] = _NONE
        if found := list(classes):
            self.by_name = _unambiguous([(class_name(cls), cls) for cls in found])
            self.by_qualname = _unambiguous([(cls.__qualname__, cls) for cls in found])

    def find(self, name: str) -> type | None:
        """The class of this name."""
        if cls := self.by_name.get(name) or find_class(name):
            return cls
        return self.by_qualname.get(name.partition(":")[2])

    def leads_to(self, cls: type) -> bool:
        """Whether the hint leads to this class."""
        return self.by_name.get(class_name(cls)) is cls or self.by_qualname.get(cls.__qualname__) is cls

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


def not_loaded(name: str) -> Problem:
    """What to say of a class that can't be found."""
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


_field_hints: dict[type, dict[str, object]] = {}
_scopes: weakref.WeakKeyDictionary[type, weakref.WeakValueDictionary[str, type]] = weakref.WeakKeyDictionary()


def remember_scope(frame_locals: Mapping[str, object]) -> None:
    """Let the annotations of classes that were made in a function name the other classes made there."""
    found = {n: c for n, c in frame_locals.items() if isinstance(c, type) and "<locals>" in c.__qualname__}
    for cls in found.values():
        _scopes[cls] = weakref.WeakValueDictionary(found)
        _field_hints.pop(cls, None)


def field_hints(cls: type) -> dict[str, object]:
    """The annotations of a class and its bases, by name. One that can't be resolved is `Any`; never raises."""
    if (known := _field_hints.get(cls)) is not None:
        return known
    hints: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        module: dict[str, Any] = vars(sys.modules.get(base.__module__, sys)) if base.__module__ != "builtins" else {}
        names: dict[str, Any] = {**_scopes.get(base, {}), **vars(base), base.__name__: base, cls.__name__: cls}
        for name, annotation in own_annotations(base).items():
            hint = resolve(annotation, module, names)
            if typing.get_origin(hint) is not ClassVar and hint is not ClassVar:
                hints[name] = hint
    if len(_field_hints) >= _RESOLVED_MAX:
        _field_hints.clear()
    _field_hints[cls] = hints
    return hints


def own_annotations(cls: type) -> Mapping[str, object]:
    """What a class body annotates, unresolved."""
    found = vars(cls).get("__annotations__")
    return cast(Mapping[str, object], found) if isinstance(found, Mapping) else {}


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


def classes_of(hint: object) -> Iterator[type]:
    """Every author's class that a value under `hint` may hold, as far as the hint tells."""
    seen: set[int] = set()
    kept: list[object] = []  # ids are compared, so nothing that was seen may go away meanwhile
    todo: list[object] = [hint]
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        kept.append(current)
        if isinstance(current, type) and current.__module__ not in ("builtins", "typing", "collections.abc"):
            yield current
            if is_structured(current):
                todo.extend(field_hints(current).values())
        todo.extend(_parts(current))


def _parts(hint: Any) -> Iterator[object]:
    yield from typing.get_args(hint)
    if (origin := typing.get_origin(hint)) is not None:
        yield origin
    if is_a(hint, list):  # the arguments of a Callable or ParamSpec
        yield from hint
    if is_a(hint, TypeVar):
        yield from hint.__constraints__
        yield hint.__bound__
    if is_a(hint, dataclasses.InitVar):
        yield hint.type
    for attribute in ("__supertype__", "__value__"):  # NewType; a type alias of 3.12
        if not is_a(hint, type) and hasattr(hint, attribute):
            try:
                yield getattr(hint, attribute)
            except Exception:  # noqa: BLE001  # the right side of a lazy alias is evaluated here
                continue


def is_structured(cls: type) -> bool:
    """Whether the annotations of a class say what its objects hold."""
    return (
        hasattr(cls, "__dataclass_fields__")
        or hasattr(cls, "__attrs_attrs__")
        or hasattr(cls, "__struct_fields__")
        or hasattr(cls, "__pydantic_fields__")
        or hasattr(cls, "__total__")
        or (tuple in cls.__mro__ and hasattr(cls, "_fields"))
    )
