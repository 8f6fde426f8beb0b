"""Which functions a stored row may name: those that this process was given, and no others.

A name is looked up among them. Nothing is imported, and no attribute of a module or class is asked for, so that bytes
in a store choose no code that runs here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, cast

from workflow_sdk.definitions import Step, Workflow
from workflow_sdk.errors import DefinitionError, HistoryDivergedError
from workflow_sdk.journal.compensation import HandlerRef

Handler = Callable[..., Any]

REMEDY: Final = (
    "decorate it with @step and import its module, define it in the module of the workflow, or give it as "
    "handlers=[...] to Runtime or run_workflow"
)
"""What to do so that rows may name a function, in words for errors."""


class KnownHandlers:
    """The functions that this process was given: steps, those in the modules of its workflows, and `handlers=`."""

    __slots__ = ("_given", "_modules", "transports")

    def __init__(
        self,
        workflows: Iterable[Workflow[Any, Any]],
        handlers: Iterable[Handler] = (),
        transports: Mapping[str, Handler] | None = None,
    ) -> None:
        self._modules = frozenset(flow.__module__ for flow in workflows)
        self._given = _by_name(handlers)
        self.transports: Mapping[str, Handler] = checked_transports(transports or {})
        """What makes the calls of graphs, by name."""

    @classmethod
    def of(cls, workflows: Iterable[Workflow[Any, Any]], handlers: Iterable[Handler]) -> KnownHandlers:
        """The functions that are known with these workflows and handlers."""
        return handlers if isinstance(handlers, KnownHandlers) else cls(workflows, handlers)

    def beside(self, workflow: Workflow[Any, Any]) -> KnownHandlers:
        """These functions, with those in the module of one more workflow."""
        if workflow.__module__ in self._modules:
            return self
        made = KnownHandlers([])
        made._modules, made._given = self._modules | {workflow.__module__}, self._given
        made.transports = self.transports
        return made

    def __iter__(self) -> Iterator[Handler]:
        """The handlers that were given."""
        return iter(self._given.values())

    def name_of(self, handler: Handler) -> str | None:
        """The name that leads back to a function, in every process that knows it; None if there is none."""
        name = _own_name(handler)
        return name if name is not None and _is_same(self.find(name), handler) else None

    def find(self, name: str) -> Handler | None:
        """The function of this name, if it is known."""
        if (given := self._given.get(name)) is not None:
            return given
        module, _, qualname = name.partition(":")
        found = _look_up(sys.modules.get(module), qualname.split("."))
        if not issubclass(type(found), Step) and module not in self._modules:
            return None
        # Left out are functions that the module imports from others, and classes.
        if isinstance(found, type) or not callable(found) or _own_name(found) != name:
            return None
        return cast(Handler, found)


def find_handler(known: KnownHandlers, ref: HandlerRef) -> Handler:
    """The function that a row names. HistoryDivergedError if it is not a known one."""
    found = known.find(ref.name)
    if found is None:
        raise HistoryDivergedError(
            f"the record names {ref.name!r:.200} as a rollback handler, and this process was given no such function. "
            f"If it is yours: {REMEDY}"
        )
    return found


def checked_transports(given: Mapping[str, Handler]) -> Mapping[str, Handler]:
    """Functions by the names that graphs have for them."""
    if not isinstance(given, Mapping):
        raise DefinitionError(f"transports are a dict of name: function, not {type(given).__name__}")
    for name, transport in given.items():
        if not isinstance(name, str) or not name or not callable(transport) or isinstance(transport, Workflow):
            raise DefinitionError(
                f"transports are a dict of name: function; {name!r:.100}: {transport!r:.100} is neither"
            )
    return dict(given)


def _by_name(handlers: Iterable[Handler]) -> dict[str, Handler]:
    found: dict[str, Handler] = {}
    for given in handlers:
        handler: Any = given
        while isinstance(handler, partial):
            handler = handler.func
        name = _own_name(handler)
        if not callable(handler) or isinstance(handler, (type, Workflow)) or name is None:
            raise DefinitionError(f"handlers are functions with a name of their own, not {given!r:.200}")
        if not _is_same(found.setdefault(name, handler), handler):
            raise DefinitionError(f"two handlers are called {name!r}; give one of them another name")
    return found


def _own_name(fn: object) -> str | None:
    """The name `module:qualname` of a function, from its own attributes."""
    try:
        module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    except Exception:  # noqa: BLE001  # an author's object may answer with an exception
        return None
    if not isinstance(module, str) or not isinstance(qualname, str) or "<lambda>" in qualname:
        return None
    return f"{module}:{qualname}"


def _is_same(one: object, other: object) -> bool:
    """Whether both are the same function. Bound methods are compared by value: each access makes a new one."""
    if one is other:
        return True
    own, its = getattr(one, "__self__", None), getattr(other, "__self__", None)
    return own is not None and own is its and getattr(one, "__func__", None) is getattr(other, "__func__", one)


def _look_up(owner: object, path: list[str]) -> object:
    """The object at a path of names in a module. Only dictionaries are read, so that no code of others runs."""
    *classes, last = path
    for name in classes:
        owner = _own(owner).get(name)
        # `type`, not `isinstance`, which may run code of the object.
        if not issubclass(type(owner), type):
            return None
    found = _own(owner).get(last)
    return cast("staticmethod[..., object]", found).__func__ if type(found) is staticmethod else found


def _own(owner: object) -> Mapping[str, object]:
    try:
        return cast("Mapping[str, object]", vars(owner))
    except TypeError:
        return {}
