"""By which names data knows the functions of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workflow_sdk.definitions import Step, Workflow, function_name
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions import function_name as expression_name
from workflow_sdk.operations.handlers import REMEDY, KnownHandlers, checked_transports
from workflow_sdk.rows.wire import shown


class Names:
    """The functions of one graph, by the names that data has for them."""

    def __init__(
        self, given: Mapping[str, Any] | Iterable[Any] = (), transports: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.transports: Mapping[str, Callable[..., Any]] = checked_transports(transports or {})
        """What makes calls, by name."""
        self._by_name: dict[str, Any] = {}
        self.functions: dict[str, Callable[..., Any]] = {}
        """Those that expressions may call."""
        named = given.items() if isinstance(given, Mapping) else [(name_in_data(one), one) for one in given]
        for name, one in named:
            self.add(name, one)

    def add(self, name: str, given: Any) -> None:
        """Make a function known, or a workflow or a type of exceptions."""
        before = self._by_name.setdefault(name, given)
        if before is not given:
            raise DefinitionError(f"two functions are called {name!r}; give one of them another name")
        if (called := expression_name(given)) is not None:
            self.functions[called] = given

    def meet(self, given: Any) -> None:
        """Make a function known by its own name, unless another one is called the same."""
        name = name_in_data(given)
        if self._by_name.get(name, given) is given:
            self.add(name, given)

    def find(self, name: str, known: KnownHandlers | None = None) -> Any:
        """What a name stands for. DefinitionError, if there is nothing of that name."""
        found = self._by_name.get(name)
        if found is None and known is not None and isinstance(name, str):
            found = known.find(name)
        if found is None:
            raise DefinitionError(f"there is no function {name!r:.200}; give it in `functions`, or {REMEDY}")
        return found

    def name_of(self, given: Any, known: KnownHandlers | None = None) -> str:
        """The name that leads back to a function. DefinitionError, if there is none."""
        name = name_in_data(given)
        if self._by_name.get(name) is given:
            return name
        found = known.name_of(given) if known is not None else None
        if found is None:
            raise DefinitionError(
                f"{shown(given)} can't be found again by its name in another process; give it in `functions` of the "
                f"graph, or {REMEDY}"
            )
        return found


def name_in_data(given: Any) -> str:
    """What data calls a function, a workflow or a type, if nothing else is said."""
    if isinstance(given, Workflow):
        return given.name
    return function_name(given.fn if isinstance(given, Step) else given)
