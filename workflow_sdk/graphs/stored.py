"""Definitions as stores have them: that of an instance can be looked at without the code that it came from."""

from __future__ import annotations

from typing import Protocol

from workflow_sdk.client.access import Access
from workflow_sdk.graphs.graph import Graph
from workflow_sdk.graphs.pinning import read_definition


class Opened(Protocol):
    """A client of a store."""

    @property
    def access(self) -> Access:
        """The open store."""
        ...


async def stored_graph(client: Opened, definition: str) -> Graph | None:
    """The graph of a stored definition, by its hash (`entry.definition`); None if the store has none of that hash.

    It can be looked at and drawn, and not be run: it has no functions.
    """
    data = await read_definition(client.access.driver.get, bytes.fromhex(definition)) if definition else None
    return None if data is None else Graph.from_data(data, functions=None)
