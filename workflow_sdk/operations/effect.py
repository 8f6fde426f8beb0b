"""`ctx.effect`: an effect of machines, as far as a workflow knows it. The machines do the rest."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from workflow_sdk.errors import DefinitionError
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.types import Coro
from workflow_sdk.rows.wire import shown

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Asks(Protocol[T_co]):
    """A request for an effect, which can be made as an operation."""

    def ask_in(self, scope: Any, name: str) -> Coro[T_co]:
        """Register it as an operation of a scope; its coroutine asks for the effect, and waits for its receipt."""
        ...


def start_asking(scope: Scope, name: str, request: Asks[T]) -> Coro[T]:
    """Register a request, which has to be one."""
    if not callable(getattr(request, "ask_in", None)):
        told = f"ctx.effect({name!r}, ...) takes a request for an effect, such as charge(...), not {shown(request)}"
        raise scope.engine.life.mistake(DefinitionError(told))
    return request.ask_in(scope, name)
