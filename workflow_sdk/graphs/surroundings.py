"""What the code of a firing finds around it: what expressions see and call, and what calls are made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workflow_sdk.graphs.evaluating import Sees
from workflow_sdk.graphs.moves import Moves
from workflow_sdk.graphs.names import Names
from workflow_sdk.graphs.rows import Firing
from workflow_sdk.graphs.transports import transport_of
from workflow_sdk.operations.handlers import KnownHandlers


class Surroundings:
    """What is around the firings of one run."""

    def __init__(self, moves: Moves, names: Names, known: KnownHandlers) -> None:
        self._moves = moves
        self._names = names
        self._known = known

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The functions that expressions may call."""
        return self._names.callable

    def sees(self, args: bytes, **ended: Any) -> Sees:
        """What the expressions of a part of a firing see."""
        return self._moves.sees(lambda: self._moves.codec.decode(args, plain=True), **ended)

    def args_of(self, firing: Firing) -> Any:
        """The arguments of a firing, as plain data."""
        return self._moves.args.of(firing)

    def raw_args_of(self, firing: Firing) -> bytes:
        """The arguments of a firing, as bytes."""
        return self._moves.args.raw(firing)

    def transport(self, name: str) -> Callable[..., Any]:
        """The function that makes calls of this name. DefinitionError, if there is none."""
        return transport_of(name, self._names.transports, self._known.transports)
