"""Takes one transition: of bytes, to bytes. Pure, and the only place that calls a machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.effects import ANSWERS, Effect, EffectReceipt, EffectRejected, Origin, Request
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.model import MachineContext, Transition
from workflow_sdk.machines.schemas import Schema, plain, schema_name
from workflow_sdk.rows.wire import shown
from workflow_sdk.values.basics import error_text

EFFECTS_MAX: Final = 64
EVENTS_MAX: Final = 256
BYTES_MAX: Final = 1 << 20
"""Of the state, the events and the parameters of effects of one transition together."""


class RefusedError(DefinitionError):
    """A transition can't be taken as the machine wants it. Nothing of it was stored."""


class EventData(NamedTuple):
    """An event as it is stored and sent."""

    schema: str
    value: bytes
    """Canonical, without the tag."""


class Intended(NamedTuple):
    """An effect that a transition asks for, as it is stored."""

    id: str
    effect: Effect
    params: bytes
    """Canonical, without the tag."""
    issuer: str | None


@dataclass(frozen=True, slots=True)
class Given:
    """What a transition is taken with."""

    state: bytes | None
    event: EventData
    key: bytes | None
    now: float
    sequence: int
    """How many transitions the cell has made before."""
    manifest_hash: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a transition has come to."""

    state: bytes | None
    events: tuple[EventData, ...] = ()
    effects: tuple[Intended, ...] = ()
    annotations: bytes | None = None
    done: bool = False


def take(machine: Machine[Any], given: Given) -> Taken:
    """What the machine makes of an event; `RefusedError`, if it can't be taken."""
    try:
        state = None if given.state is None else machine.state.decode(given.state)
        key = machine.key_of(given.key)
    except CodecError as error:
        raise RefusedError(f"machine {machine.name!r} can't read the state or the key of the cell: {error}") from error
    event = read_event(machine, given.event)
    context = MachineContext(
        key,
        now=datetime.fromtimestamp(given.now, UTC),
        machine=machine.name,
        version=machine.version,
        sequence=given.sequence,
        manifest_hash=given.manifest_hash,
    )
    try:
        transition: object = machine.transition(state, event, context)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise RefusedError(f"machine {machine.name!r} raised {error_text(error)}") from error
    if not isinstance(transition, Transition):
        raise RefusedError(f"machine {machine.name!r} returned {shown(transition)}, and not a Transition")
    return _taken(machine, given, transition)


def _taken(machine: Machine[Any], given: Given, transition: Transition[Any]) -> Taken:
    where = f"machine {machine.name!r}:"
    _check_counts(where, transition)
    origin = Origin(machine.name, machine.version, given.key, given.sequence + 1)
    try:
        state = None if transition.state is None else machine.state.encode(transition.state)
    except CodecError as error:
        raise RefusedError(f"{where} the new state: {error}") from error
    events = tuple(_told(where, event) for event in transition.events)
    effects = tuple(_intended(machine, origin, requests) for requests in enumerate(transition.effects))
    _check_size(where, [state or b"", *(event.value for event in events), *(one.params for one in effects)])
    try:
        notes = None if transition.annotations is None else machine.annotations.encode(transition.annotations)
    except CodecError as error:
        raise RefusedError(f"{where} the annotations: {error}") from error
    return Taken(state, events, effects, notes, transition.done)


def _check_counts(where: str, transition: Transition[Any]) -> None:
    for what, given, most in (("events", transition.events, EVENTS_MAX), ("effects", transition.effects, EFFECTS_MAX)):
        if len(given) > most:
            raise RefusedError(f"{where} {len(given)} {what} in one transition; at most {most}")


def _check_size(where: str, parts: list[bytes]) -> None:
    size = sum(map(len, parts))
    if size > BYTES_MAX:
        raise RefusedError(
            f"{where} the state, the events and the parameters of effects of one transition are {size:,} bytes; the "
            f"limit is {BYTES_MAX:,}"
        )


def _told(where: str, event: object) -> EventData:
    try:
        return event_data(event)
    except CodecError as error:
        raise RefusedError(f"{where} an event that it emits: {error}") from error


def _intended(machine: Machine[Any], origin: Origin, numbered: tuple[int, Request]) -> Intended:
    index, request = numbered
    effect = request.effect
    if machine.effects.get(effect.name) is not effect:
        raise RefusedError(
            f"machine {machine.name!r} asks for the effect {effect.name!r}, and effects=[...] has it not"
        )
    try:
        params = effect.params.encode(request.params)
    except CodecError as error:
        raise RefusedError(f"machine {machine.name!r}: the parameters of {effect.name!r}: {error}") from error
    return Intended(origin.intent_id(effect.name, params, index), effect, params, request.issuer)


def event_data(event: object) -> EventData:
    """An event as it is sent; CodecError, if nobody may send it or it does not fit its own type."""
    cls = type(event)
    if cls in ANSWERS:
        raise CodecError(f"{cls.__name__} comes from effects only, and can't be sent")
    if cls.__module__ == "builtins":
        raise CodecError(f"an event is an object of a class of its own, not {shown(event)}")
    schema = _schema_of(cls)
    return EventData(schema.name, schema.encode(event))


_schemas: Final[dict[type, Schema]] = {}


def _schema_of(cls: type) -> Schema:
    schema = _schemas.get(cls)
    if schema is None or schema.name != schema_name(cls):
        if len(_schemas) >= 4_096:
            _schemas.clear()
        schema = _schemas[cls] = Schema(cls)
    return schema


def read_event(machine: Machine[Any], event: EventData) -> Any:
    """The event that a machine is called with; `RefusedError`, if it has no arm for it, or it does not fit."""
    try:
        if (arm := machine.arms.get(event.schema)) is not None:
            return arm.decode(event.value)
        for cls, is_heard in ((EffectReceipt, machine.hears_receipts), (EffectRejected, machine.hears_rejections)):
            if is_heard and event.schema == schema_name(cls):
                return _answer(machine, cls, canonical.restored(event.value))
    except CodecError as error:
        raise RefusedError(f"machine {machine.name!r}: the event {event.schema}: {error}") from error
    raise RefusedError(f"machine {machine.name!r} has no arm for the event {event.schema}")


def _answer(machine: Machine[Any], cls: type[Any], data: dict[str, Any]) -> Any:
    fields = dict(data)
    if fields.get("key") is not None and machine.key is not None:
        fields["key"] = machine.key.read(fields["key"])
    effect = machine.effects.get(str(fields.get("effect")))
    if cls is EffectReceipt and fields.get("status", "ok") == "ok" and effect is not None:
        fields["payload"] = effect.receipt.read(fields.get("payload"))
    try:
        return cls(**fields)
    except TypeError as error:
        raise CodecError(f"it is no {cls.__name__}: {error}") from error


def answer_data(answer: EffectReceipt | EffectRejected) -> EventData:
    """A receipt as it is delivered."""
    return EventData(schema_name(type(answer)), canonical.bare(plain(answer)))
