"""The definition that an instance goes on with: the one that it began with, whatever the code declares by now.

Each definition is stored once, by its digest, and never changed. One that can't be exported is not stored: its
instances go on with what the code declares.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

import cbor2

from workflow_sdk.graphs.definitions.importing import Parts, parts_of
from workflow_sdk.graphs.names import Names
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.operations.engine import Engine, Reader
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.rows.keys import DEFINITIONS
from workflow_sdk.rows.location import pack
from workflow_sdk.rows.wire import damaged


class Definable(Protocol):
    """A graph, as far as its definition is concerned."""

    names: Names
    __module__: str

    @property
    def pinned(self) -> tuple[bytes, dict[str, Any]] | None:
        """The digest of the definition, and the definition; None if it can't be exported."""
        ...

    def freeze(self) -> Plan:
        """The plan of a run."""
        ...


async def pin(engine: Engine, graph: Definable) -> bytes:
    """Have the definition of a graph stored, if it is not, with the next commit. Returns its digest."""
    found = graph.pinned
    if found is None:
        return b""
    digest, data = found
    key = DEFINITIONS + pack((digest,))
    if await engine.stored.shared(key) is None:
        raw = cbor2.dumps(data, canonical=True)
        engine.journal.write_outside(key, pack((len(raw),)))
        engine.journal.write_outside(DEFINITIONS + pack((digest, "")), raw)
    return digest


async def plan_of(reader: Reader, graph: Definable, digest: bytes) -> Plan:
    """The plan that a run began with. DefinitionError, if some are gone."""
    current = graph.pinned
    if not digest or (current is not None and current[0] == digest):
        return graph.freeze()
    raw = await reader.stored.shared(DEFINITIONS + pack((digest, "")))
    if raw is None:
        raise damaged("the definition of a graph")
    try:
        data = cbor2.loads(raw)
    except Exception as error:
        raise damaged("the definition of a graph") from error
    parts: Parts = parts_of(data, _functions(graph, reader.known), graph.names.transports)
    settings = {key: parts.settings[key] for key in Plan.SETTINGS if key in parts.settings}
    return Plan(parts.nodes, **settings)


def _functions(graph: Definable, known: KnownHandlers) -> Mapping[str, Any]:
    """What names in the definition may stand for: the graph's own functions, and those of its module."""
    module = graph.__module__
    found: dict[str, Any] = {}
    for name in vars(sys.modules.get(module, sys)):
        if (fn := known.find(f"{module}:{name}")) is not None:
            found[name] = fn
    return {**found, **graph.names.by_name}
