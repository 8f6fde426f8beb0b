"""A manifest: which machines there are, which events reach them, and what they may ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.effects import ANSWERS, Effect
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.schemas import Schema, schema_name
from workflow_sdk.machines.stepping import EventData
from workflow_sdk.rows.wire import shown
from workflow_sdk.values.hints import field_hints

_VALUE: Final = "$value"
"""How a path to a key may begin: what follows is looked for in the event itself."""


@dataclass(frozen=True, slots=True)
class Route:
    """Events of a type reach the cells of a machine."""

    event: type
    machine: Machine[Any]
    key_field: str | None = None
    """Where in the event the key of the cell stands."""

    @property
    def path(self) -> list[str]:
        """The names of the fields that lead to the key."""
        names = (self.key_field or "").split(".")
        return names[1:] if names[0] == _VALUE else names


def route(event: type, machine: Machine[Any], key_field: str | None = None) -> Route:
    """Have events of a type reach a machine: the cell whose key stands in `key_field`, such as `note.id`."""
    if not isinstance(machine, Machine):
        raise DefinitionError(f"a route leads to a machine, not {shown(machine)}")
    if not isinstance(event, type):
        raise DefinitionError(f"a route is for the class of an event, not {shown(event)}")
    if event in ANSWERS:
        raise DefinitionError(f"{event.__name__} comes to the cell that asked for the effect, without a route")
    made = Route(event, machine, key_field)
    _check(made)
    return made


class Target(NamedTuple):
    """A cell that an event reaches."""

    machine: Machine[Any]
    key: bytes | None


class Manifest:
    """Machines, the routes to them, and their effects."""

    def __init__(
        self, machines: Iterable[Machine[Any]] = (), routes: Iterable[Route] = (), effects: Iterable[Effect] = ()
    ) -> None:
        self.machines: dict[str, Machine[Any]] = {}
        for one in machines:
            if not isinstance(one, Machine):
                raise DefinitionError(f"Manifest(machines=[...]) takes machines, not {shown(one)}")
            if self.machines.setdefault(one.name, one) is not one:
                raise DefinitionError(f"two machines are named {one.name!r}")
        _check_names(self.machines)
        self.routes: tuple[Route, ...] = tuple(routes)
        self.effects: dict[str, Effect] = {}
        """By name: of its machines, and others that workflows ask for."""
        for each in [*effects, *(its for one in self.machines.values() for its in one.effects.values())]:
            if not isinstance(each, Effect):
                raise DefinitionError(f"Manifest(effects=[...]) takes effects, not {shown(each)}")
            if self.effects.setdefault(each.name, each) is not each:
                raise DefinitionError(f"two effects are named {each.name!r}")
        self._routes: dict[str, list[Route]] = {}
        for way in self.routes:
            self._add(way)

    def __repr__(self) -> str:
        return f"<manifest {self.hash[:12]} of {', '.join(self.machines) or 'no machine'}>"

    @cached_property
    def data(self) -> Any:
        """All that it declares, as plain data. Code is not in it: mended code has the same manifest."""
        return {
            "machines": [one.data for one in self.machines.values()],
            "routes": [[schema_name(way.event), way.machine.name, way.key_field] for way in self.routes],
            "effects": {name: self.effects[name].data for name in sorted(self.effects)},
        }

    @cached_property
    def hash(self) -> str:
        """Of what it declares."""
        return sha256(canonical.bare(self.data)).hexdigest()

    @cached_property
    def events(self) -> dict[str, Schema]:
        """Every type of event that a machine or a route knows, by name."""
        found = {name: arm for one in self.machines.values() for name, arm in one.arms.items()}
        return found | {schema_name(way.event): Schema(way.event) for way in self.routes}

    def targets(self, event: EventData) -> list[Target]:
        """The cells that an event reaches, in the order of the routes; CodecError, if a key does not fit."""
        ways = self._routes.get(event.schema)
        if not ways:
            return []
        data: Any = canonical.restored(event.value) if any(way.machine.is_keyed for way in ways) else None
        return [Target(way.machine, _key_in(way, data)) for way in ways]

    def _add(self, way: Route) -> None:
        if not isinstance(way, Route):
            raise DefinitionError(f"Manifest(routes=[...]) takes routes, not {shown(way)}")
        if self.machines.get(way.machine.name) is not way.machine:
            raise DefinitionError(f"a route leads to machine {way.machine.name!r}, which is not in the manifest")
        ways = self._routes.setdefault(schema_name(way.event), [])
        if way in ways:
            raise DefinitionError(f"{_text(way)} is there twice")
        ways.append(way)


def _text(way: Route) -> str:
    return f"the route of {schema_name(way.event)} to {way.machine.name!r}"


def _check(way: Route) -> None:
    name = schema_name(way.event)
    arm = way.machine.arms.get(name)
    if arm is None or arm.hint is not way.event:
        raise DefinitionError(f"{_text(way)}: the machine does not take it; it takes {', '.join(way.machine.arms)}")
    if not way.machine.is_keyed:
        if way.key_field is not None:
            raise DefinitionError(f"{_text(way)} has a key_field, and the machine has one cell, without a key")
        return
    if not way.key_field or not isinstance(way.key_field, str) or not all(way.path):
        raise DefinitionError(f"{_text(way)} needs a key_field: where in the event the key of the cell stands")
    _check_path(way)


def _check_path(way: Route) -> None:
    """DefinitionError, if it can be seen already that no event has a key there."""
    hint: Any = way.event
    for field in way.path:
        hints: Mapping[str, Any] = field_hints(cast("Any", hint)) if isinstance(hint, type) else {}
        if not hints:
            return  # a dict, a union or a class that does not say what it holds
        if field not in hints:
            raise DefinitionError(
                f"{_text(way)}: {schema_name(hint)} has no field {field!r}; it has {', '.join(hints)}"
            )
        hint = hints[field]


def _key_in(way: Route, data: Any) -> bytes | None:
    key = way.machine.key
    if key is None:
        return None
    found: Any = data
    for field in way.path:
        inside = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        if field not in inside:
            raise CodecError(f"{_text(way)}: the event has no {way.key_field}")
        found = inside[field]
    try:
        return key.encode(key.read(found))
    except CodecError as error:
        raise CodecError(f"{_text(way)}: {way.key_field}: {error}") from error


def _check_names(machines: dict[str, Machine[Any]]) -> None:
    """DefinitionError, if a cell of one machine could have the id of another's."""
    for one in machines:
        for other in machines:
            if other.startswith(f"{one}/"):
                raise DefinitionError(
                    f"the machines {one!r} and {other!r} can't be in one manifest: a cell of the first whose key is "
                    f"{other[len(one) + 1 :]!r} would be the second; give one of them another name"
                )
