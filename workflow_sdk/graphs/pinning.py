"""The definition that an instance goes on with: the one that it began with, whatever the code declares by now.

Each definition is stored once, by its digest, and never changed. One that can't be exported is not stored: its
instances go on with what the code declares.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

import cbor2

from workflow_sdk.graphs.definitions.importing import Parts, parts_of
from workflow_sdk.graphs.names import Names
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.operations.engine import Engine, Reader
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.operations.place import make_room
from workflow_sdk.rows.keys import DEFINITIONS
from workflow_sdk.rows.location import pack, unpack
from workflow_sdk.rows.wire import damaged

PART_BYTES = 500_000
"""How much of a large definition is stored in one row."""


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
        for part, begin in zip(_parts(digest, len(raw)), range(0, len(raw), PART_BYTES), strict=True):
            await make_room(engine)
            engine.journal.write_outside(part, raw[begin : begin + PART_BYTES])
            engine.journal.unwritten.weight += PART_BYTES
        # Without this row, none of the others counts.
        engine.journal.write_outside(key, pack((len(raw),)))
    return digest


async def read_definition(get: Callable[[bytes], Awaitable[bytes | None]], digest: bytes) -> Any:
    """A definition as it is stored, in one row or several; None if it is not. `get` reads a row."""
    length = await get(DEFINITIONS + pack((digest,)))
    if length is None:
        return None
    parts = [await get(key) for key in _parts(digest, cast("int", unpack(length)[0]))]
    try:
        return cbor2.loads(b"".join(part for part in parts if part is not None))
    except Exception as error:
        raise damaged("the definition of a graph") from error


def _parts(digest: bytes, length: int) -> list[bytes]:
    """The keys of the rows that a definition of some length is stored in."""
    if length <= PART_BYTES:
        return [DEFINITIONS + pack((digest, ""))]
    return [DEFINITIONS + pack((digest, "", number)) for number in range(-(-length // PART_BYTES))]


async def plan_of(reader: Reader, graph: Definable, digest: bytes) -> Plan:
    """The plan that a run began with. DefinitionError, if some are gone."""
    current = graph.pinned
    if not digest or (current is not None and current[0] == digest):
        return graph.freeze()
    data = await read_definition(reader.stored.shared, digest)
    if data is None:
        raise damaged("the definition of a graph")
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
