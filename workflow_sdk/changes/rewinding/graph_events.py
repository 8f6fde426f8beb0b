"""What a rewind forgets of graphs: the ends of firings are events in an order of their own, which clocks don't tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workflow_sdk.changes.rewinding.record import Tree, scopes_around
from workflow_sdk.rows.entries import Entry, FiringData, SubmitData
from workflow_sdk.rows.location import segments
from workflow_sdk.rows.status import Kind


class GraphEvents:
    """The events of one graph that are recorded in its history."""

    def __init__(self, tree: Tree, graph: bytes) -> None:
        self._graph = graph
        self._entries: Mapping[bytes, Entry] = {at: tree.entries[at] for at in tree.inside(graph)}

    def first_of(self, forgotten: set[bytes]) -> int | None:
        """The first event that is forgotten with these entries; None if none is."""
        found = [event for at, event in self._events() if not forgotten.isdisjoint([at, *self._around(at)])]
        # With what is in a firing, the end of the firing is forgotten.
        inside = [self._firing_of(at) for at in forgotten if at in self._entries]
        return min([*found, *(event for event in inside if event is not None)], default=None)

    def after(self, event: int) -> tuple[set[bytes], set[bytes]]:
        """What is to be forgotten with an event and all that came after it; and the firings that go on again."""
        dropped: set[bytes] = set()
        unended: set[bytes] = set()
        for at, entry in self._entries.items():
            match entry.data:
                case FiringData(began=began) if began >= event:
                    dropped |= {at, *(inside for inside in self._entries if inside.startswith(at))}
                case FiringData(ended=ended) if ended >= event:
                    unended.add(at)
                case SubmitData(event=submitted) if submitted >= event:
                    dropped.add(at)
                case _ if (number := self._received(at, entry)) is not None and number >= event:
                    dropped.add(at)
                case _:
                    pass
        return dropped, unended - dropped

    def _events(self) -> Iterator[tuple[bytes, int]]:
        for at, entry in self._entries.items():
            match entry.data:
                case FiringData(ended=event) | SubmitData(event=event):
                    yield at, event
                case _:
                    number = self._received(at, entry)
                    if number is not None:
                        yield at, number

    def _around(self, at: bytes) -> list[bytes]:
        return [around for around in scopes_around(at) if len(around) > len(self._graph)]

    def _firing_of(self, at: bytes) -> int | None:
        for around in self._around(at):
            data = self._entries[around].data if around in self._entries else None
            if isinstance(data, FiringData):
                return data.ended
        return None

    def _received(self, at: bytes, entry: Entry) -> int | None:
        """The number of an event that came from outside."""
        if entry.kind is not Kind.LISTEN:
            return None
        path = list(segments(at[len(self._graph) :]))
        return path[1][1] if len(path) == 2 and isinstance(path[0], int) and isinstance(path[1], tuple) else None


def firing_around(tree: Tree, location: bytes) -> bytes | None:
    """The firing of a graph that a location is in, or is; the innermost one."""
    for at in [location, *reversed(scopes_around(location))]:
        if tree.kind(at) is Kind.FIRING:
            return at
    return None
