"""What a store says of its active manifest to those who have not the code: enough to send events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time
from functools import cached_property
from typing import Any, Final, NoReturn

import msgspec

from workflow_sdk.driver import Driver, Set
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.described import class_of, type_of, union_of
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.manifest import Manifest, Route
from workflow_sdk.machines.rows import ACTIVE, DESCRIBED, ActiveRow, DescribedRow, SchemaRow, all_described, schema_key
from workflow_sdk.machines.schemas import Schema, is_class, named, plain
from workflow_sdk.rows.keys import ROOT
from workflow_sdk.rows.location import unpack
from workflow_sdk.rows.wire import shown

_TIMES: Final[dict[Any, str]] = {datetime: "date-time", time: "time"}
BYTES_MAX: Final = 64_000
"""Of a schema that is stored: a larger one could be more than a store takes as one value."""


@dataclass(frozen=True, slots=True)
class PlainEvent:
    """An event of which the name and plain data are known, but not the class: `emit` takes it as it takes the object.

    What its data has to be is told by the class, if the manifest is here, or else by what the store says of it.
    """

    schema: str
    """The name of the event, such as `shop/OrderCreated@1`."""
    data: Any
    """Its fields, as JSON has them."""


def descriptions(manifest: Manifest) -> list[Set]:
    """The rows that say what a manifest declares."""
    machines = {one.name: _about(one) for one in manifest.machines.values()}
    found = [Set(DESCRIBED, DescribedRow(manifest.hash, canonical.bare(machines)).pack())]
    for name, schema in manifest.events.items():
        data = canonical.bare(schema.data)
        if len(data) <= BYTES_MAX:
            found.append(Set(schema_key(name), SchemaRow(data).pack()))
    return found


def _about(machine: Machine[Any]) -> dict[str, Any]:
    key = machine.key
    return {
        "version": machine.version,
        "key": None if key is None else _key_schema(key),
        "is_class": key is not None and is_class(key.hint),
        "retention": machine.retention,
    }


def _key_schema(key: Schema) -> Any:
    """The JSON schema of a key. Equal times may be different texts: so it has to say which texts are times."""
    form = _TIMES.get(key.hint)
    return key.data if form is None else {"type": "string", "format": form}


class _Described(Machine[Any]):
    """A machine of which the code is not here."""

    def __init__(self, name: str, about: Mapping[str, Any], events: list[type]) -> None:
        key = None if about["key"] is None else _key_type(about["key"])
        union = union_of(events)
        super().__init__(_no_code, name, int(about["version"]), Any, union, key, (), Any, about["retention"])
        self._is_class = bool(about["is_class"])

    @cached_property
    def fingerprint(self) -> str:
        """That of no code: whoever runs the cell has it."""
        return ""

    @property
    def has_text_keys(self) -> bool:
        return self._is_class


def _key_type(schema: Mapping[str, Any]) -> Any:
    """The type of a key; CodecError, if it is known to its code only: its cells could not be told apart."""
    if not schema:
        raise CodecError("no schema describes the type of the key")
    found = type_of(schema)
    return type(None) if found is None else found


def _has_known_keys(about: Mapping[str, Any]) -> bool:
    try:
        if about["key"] is not None:
            _key_type(about["key"])
    except CodecError:
        return False
    return True


def _no_code(state: Any, event: Any, ctx: Any) -> NoReturn:
    raise DefinitionError("the code of this machine is not here")


class _Stored(Manifest):
    """The manifest of a store, as far as it takes to send events."""

    def __init__(self, hash: str, machines: list[Machine[Any]], routes: list[Route]) -> None:
        super().__init__(machines, routes)
        self._hash = hash

    @cached_property
    def hash(self) -> str:
        """Of what it declares."""
        return self._hash


async def read_manifest(driver: Driver) -> tuple[Manifest, bytes]:
    """The active manifest of a store, without any code, and its row; DefinitionError, if there is none."""
    raw = await driver.get(ACTIVE)
    if raw is None:
        raise DefinitionError("the store has no machines: no runtime or client with a manifest has opened it yet")
    active = ActiveRow.unpack(raw)
    rows = await driver.scan(*all_described())
    about = None if not rows or rows[0][0] != DESCRIBED else DescribedRow.unpack(rows[0][1])
    if about is None or about.hash != active.hash:
        raise DefinitionError(
            "the store does not say what its events look like: its manifest was applied by an older version; "
            "`client.apply` of another one will say it, and code that has the classes can send them"
        )
    schemas = {_name(key): canonical.restored(SchemaRow.unpack(row).data) for key, row in rows[1:]}
    return _stored(active, canonical.restored(about.machines), schemas), raw


def _stored(active: ActiveRow, machines: dict[str, Any], schemas: dict[str, Any]) -> Manifest:
    classes = {name: found for name, schema in schemas.items() if (found := _class(name, schema)) is not None}
    data: dict[str, Any] = canonical.restored(active.data)
    for event, machine, _ in data["routes"]:
        if not _has_known_keys(machines[machine]):
            classes.pop(event, None)  # it would not come to all cells that it is for
    ways = [(event, machine, field) for event, machine, field in data["routes"] if event in classes]
    taken: dict[str, list[type]] = {}
    for event, machine, _ in ways:
        taken.setdefault(machine, []).append(classes[event])
    made = {name: _Described(name, machines[name], events) for name, events in taken.items()}
    routes = [Route(classes[event], made[machine], field) for event, machine, field in ways]
    return _Stored(active.hash, list(made.values()), routes)


def _name(key: bytes) -> str:
    return str(unpack(key[len(ROOT) :])[-1])


def _class(name: str, schema: Mapping[str, Any]) -> type[Any] | None:
    try:
        return named(class_of(name, schema), name)
    except CodecError:
        return None


def event_of(manifest: Manifest, event: PlainEvent) -> Any:
    """The event that plain data stands for; DefinitionError, if there is none of its name, or it does not fit."""
    schema, data = event.schema, event.data
    known = manifest.events.get(schema)
    if known is None:
        others = ", ".join(sorted(manifest.events)) or "none at all"
        raise DefinitionError(f"the manifest has no event {shown(schema)} that can be sent as data; it has: {others}")
    cls: Any = known.hint if isinstance(manifest, _Stored) else _class(schema, known.data)
    try:
        if cls is None:
            return known.read(data)
        read: Any = msgspec.json.decode(msgspec.json.encode(data), type=cls)
        return read if cls is known.hint else known.read(plain(read))
    except (CodecError, msgspec.MsgspecError, TypeError, ValueError) as error:
        raise DefinitionError(f"the event can't be sent: it is no {schema}: {error}") from error
