"""What a body of a graph sees while its code is walked over its history, for what it would have to undo.

The graph may be over by then, and its marking gone. So the context is made again from what is recorded.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from workflow_sdk.graphs.growing import replay_submission
from workflow_sdk.graphs.model import Limits, Used
from workflow_sdk.operations.engine import Walker
from workflow_sdk.operations.scope import Scope
from workflow_sdk.rows.entries import Entry, FiringData, GraphData, ListenData
from workflow_sdk.rows.location import segments


class WalkedContext:
    """The context of a graph as its firings saw it, one after the other."""

    def __init__(self, walker: Walker, graph: Entry, found: Iterable[Entry], received: Mapping[bytes, Entry]) -> None:
        """`found`: what is recorded of firings. `received`: what came from outside, by segment."""
        decode, data = walker.codec.decode, graph.data
        self._values: dict[str, Any] = {}
        if isinstance(data, GraphData) and data.context:
            self._values.update(decode(data.context, plain=True))
        changes: list[tuple[int, int, dict[str, Any]]] = [
            (one.data.ended, one.ordinal, decode(one.data.patches, plain=True))
            for one in found
            if isinstance(one.data, FiringData) and one.data.patches is not None
        ]
        for segment, one in received.items():
            (last,) = segments(segment)
            if isinstance(one.data, ListenData) and isinstance(last, tuple):
                said: dict[str, Any] = decode(one.data.taken[0].payload, plain=True)
                changes.append((last[1], 0, said.get("patch", {})))
        self._left = sorted(changes, key=lambda one: one[:2], reverse=True)

    def at(self, event: int) -> Mapping[str, Any]:
        """As it was after an event. Asked in the order of events."""
        while self._left and self._left[-1][0] <= event:
            self._values.update(self._left.pop()[2])
        return MappingProxyType(dict(self._values))


class WalkSeat:
    """What the code of a firing that is walked can do to its graph: nothing that is not recorded."""

    def __init__(self, context: Mapping[str, Any]) -> None:
        self._values = dict(context)

    @property
    def values(self) -> Mapping[str, Any]:
        """The context of the graph, as the firing saw it."""
        return MappingProxyType(self._values)

    @property
    def limits(self) -> Used:
        """No limits, and nothing used: what was used then is not recorded."""
        return Used(Limits(), Limits())

    def patch(self, values: Mapping[str, Any]) -> None:
        """Change the context, for the firing alone."""
        self._values.update(values)

    def submit(self, scope: Scope, nodes: Any) -> Coroutine[Any, Any, Any]:
        """The verdict as it is recorded."""
        return replay_submission(scope, nodes)

    def pass_by(self, location: bytes) -> None:
        """All scopes are entered."""

    def keep(self, location: bytes) -> None:
        """Nothing is kept."""

    def keep_turn(self, loop: bytes, turn: bytes) -> None:
        """No turn is run."""

    def drop(self, locations: Sequence[bytes]) -> None:
        """Nothing was kept."""

    def keep_begun(self) -> None:
        """It is recorded already."""
