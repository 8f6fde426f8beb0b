"""By which names data knows the functions of a graph."""

from __future__ import annotations

import builtins
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast, get_origin

from workflow_sdk.definitions import Step, Workflow, function_name
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions import REGISTERED, place_of
from workflow_sdk.graphs.expressions import function_name as expression_name
from workflow_sdk.operations.handlers import REMEDY, KnownHandlers, checked_transports
from workflow_sdk.rows.wire import shown

BUILTINS: Final[Mapping[str, Any]] = {
    name: found
    for name, found in vars(builtins).items()
    if isinstance(found, type) and (issubclass(found, Exception) or found in (bool, bytes, dict, float, int, list, str))
}
"""Types that data may name in every process."""


class Names:
    """The functions of one graph, by the names that data has for them."""

    def __init__(
        self, given: Mapping[str, Any] | Iterable[Any] = (), transports: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.transports: Mapping[str, Callable[..., Any]] = checked_transports(transports or {})
        """What makes calls, by name."""
        self._by_name: dict[str, Any] = {}
        self._own: dict[int, str] = {}
        """The first name of each function, by its identity: not everything that can be called can be hashed."""
        self.functions: dict[str, Callable[..., Any]] = {}
        """Those of them that expressions may call."""
        self.callable: Mapping[str, Callable[..., Any]] = ChainMap(self.functions, REGISTERED)
        """All that expressions may call: these, and others that were marked; only these, if the graph was read."""
        for name, one in named(given).items():
            self.add(name, one)

    def __iter__(self) -> Iterator[Any]:
        """Everything that has a name."""
        return iter(self._by_name.values())

    def add(self, name: str, given: Any) -> None:
        """Make a function known, or a workflow or a type of exceptions."""
        before = self._by_name.setdefault(name, given)
        if before is not given:
            raise DefinitionError(two_of(name))
        self._own.setdefault(id(given), name)
        if (called := expression_name(given)) is not None:
            self.functions[called] = self.functions[name] = given

    def meet(self, given: Any) -> None:
        """Make a function known by its own name, unless it has one, or another function is called the same.

        Two functions of one name can be run. Only data can't tell them apart.
        """
        name = name_in_data(given)
        if id(given) not in self._own and name not in self._by_name and get_origin(given) is None:
            self.add(name, given)

    @property
    def by_name(self) -> Mapping[str, Any]:
        """Everything that has a name."""
        return self._by_name

    def given_name(self, given: Any) -> str | None:
        """The name under which something became known; None if it did not."""
        return self._own.get(id(given))

    def get(self, name: str, default: Any = None) -> Any:
        """What a name stands for, if it stands for anything."""
        return self._by_name.get(name, BUILTINS.get(name, default))

    def find(self, name: str, known: KnownHandlers | None = None) -> Any:
        """What a name stands for. DefinitionError, if there is nothing of that name."""
        found = self._by_name.get(name)
        if found is None and isinstance(name, str):
            found = self._as_others_say(name) or (known.find(name) if known is not None else None)
        found = BUILTINS.get(name) if found is None else found
        if found is None:
            raise DefinitionError(f"there is no function {name!r:.200}; give it in `functions`, or {REMEDY}")
        return found

    def _as_others_say(self, name: str) -> Any:
        """What another process calls `module:name`, which does not know this graph's own names."""
        own = self._by_name.get(name.rpartition(":")[2].rpartition(".")[2]) if ":" in name else None
        return own if own is not None and own_name(own) == name else None

    def name_of(self, given: Any, known: KnownHandlers | None = None) -> str:
        """The name that leads back to a function. DefinitionError, if there is none."""
        if (name := self._own.get(id(given))) is not None:
            return name
        name = name_in_data(given)
        if BUILTINS.get(name) is given:
            return name
        found = known.name_of(given) if known is not None else None
        if found is None:
            raise DefinitionError(
                f"{place_of(given)} can't be found again by its name in another process; give it in `functions` of the "
                f"graph, or {REMEDY}"
            )
        return found


def own_name(given: Any) -> str:
    """The name of a function that every process knows. DefinitionError, if it has none."""
    if isinstance(given, Workflow):
        return given.name
    fn: object = cast("Any", given).fn if isinstance(given, Step) else given
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or "<lambda>" in qualname:
        raise DefinitionError(f"{place_of(fn)} has no name by which another process could find it")
    return f"{module}:{qualname}"


def named(given: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """What an author has given as `functions=`, by name."""
    if isinstance(given, Mapping):
        return dict(cast("Mapping[str, Any]", given))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DefinitionError(f"`functions` takes functions, or a mapping of names to functions, not {shown(given)}")
    found: dict[str, Any] = {}
    for one in given:
        name = name_in_data(one)
        if found.setdefault(name, one) is not one:
            raise DefinitionError(two_of(name))
    return found


def two_of(name: str) -> str:
    """What is said where two functions have one name."""
    return f"two functions are called {name!r}; give them names of their own: functions={{name: function}}"


def name_in_data(given: Any) -> str:
    """What data calls a function, a workflow or a type, if nothing else is said."""
    if isinstance(given, Workflow):
        return given.name
    return function_name(given.fn if isinstance(given, Step) else given)
