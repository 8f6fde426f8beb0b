"""One transition as canonical bytes: for hosts in other languages, for audits, and for tests of machines."""

from __future__ import annotations

from typing import Any, Final, cast

from workflow_sdk.errors import CodecError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.effects import ANSWERS
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.schemas import plain, schema_name
from workflow_sdk.machines.stepping import EventData, Given, RefusedError, Taken, read_event, take

VERSION: Final = 1
"""Of the envelope."""

_ANSWERS: Final = frozenset(map(schema_name, ANSWERS))
_NANOSECONDS: Final = 1_000_000_000
_YEAR_9999: Final = 253_370_764_800 * _NANOSECONDS
"""When the last year of a datetime begins."""


def invoke(machine: Machine[Any], raw: bytes) -> bytes:
    """The envelope of what the machine makes of an envelope."""
    given = _given(machine, raw)
    return canonical.encode(_envelope(take(machine, given)))


def context_bytes(given: Given) -> bytes:
    """What a machine is told beside its state and its event, as canonical bytes."""
    key = None if given.key is None else canonical.TAG + given.key
    return canonical.encode(
        {
            "now_ns": round(given.now * _NANOSECONDS),
            "sequence": given.sequence,
            "manifest_hash": given.manifest_hash,
            "key": key,
            "cell_mode": key is not None,
        }
    )


def _given(machine: Machine[Any], raw: bytes) -> Given:
    data = _map(canonical.decode(raw), "the envelope", {"version", "state", "event"}, {"ctx"})
    if data["version"] != VERSION:
        raise CodecError(f"the envelope has version {data['version']!r}; {VERSION} is known")
    event = _map(data["event"], "event", {"schema", "value"}, {"key"})
    if not isinstance(event["schema"], str):
        raise CodecError("event.schema is no text")
    context = data.get("ctx")
    facts = _map(_nested(context, "ctx"), "ctx", set(), None) if context is not None else {}
    key = event.get("key", facts.get("key"))
    if facts.get("key") is not None and _nested(facts["key"], "ctx.key") != _nested(key, "event.key"):
        raise CodecError("event.key and ctx.key differ")
    return Given(
        _state(machine, data["state"]),
        _event(machine, event["schema"], event["value"]),
        _key(machine, key),
        _number(facts, "now_ns", _YEAR_9999) / _NANOSECONDS,
        _number(facts, "sequence"),
        _text(facts, "manifest_hash"),
    )


def _state(machine: Machine[Any], found: object) -> bytes | None:
    if found is None:
        return None
    # What is left out of it, and has a default, is put in.
    return machine.state.encode(machine.state.read(_nested(found, "state")))


def _event(machine: Machine[Any], name: str, found: object) -> EventData:
    value = _nested(found, "event.value")
    if (arm := machine.arms.get(name)) is not None:
        return EventData(name, arm.encode(arm.read(value)))
    event = EventData(name, canonical.bare(value))
    if name in _ANSWERS:
        try:
            return EventData(name, canonical.bare(plain(read_event(machine, event))))
        except RefusedError as error:
            raise CodecError(str(error)) from error
    return event


def _key(machine: Machine[Any], found: object) -> bytes | None:
    if machine.key is None:
        if found is not None:
            raise CodecError(f"machine {machine.name!r} has one cell, without a key")
        return None
    if found is None:
        raise CodecError(f"machine {machine.name!r} has a cell for every key, and no key was given")
    return machine.key.encode(machine.key.read(_nested(found, "key")))


def _envelope(taken: Taken) -> dict[str, Any]:
    found: dict[str, Any] = {"state": None if taken.state is None else canonical.TAG + taken.state}
    if taken.events:
        found["domain_events"] = [{"schema": e.schema, "value": canonical.TAG + e.value} for e in taken.events]
    if taken.effects:
        found["effects"] = [
            {"effect": one.effect.name, "params": canonical.TAG + one.params, "intent_id": one.id}
            | ({} if one.issuer is None else {"issuer": one.issuer})
            for one in taken.effects
        ]
    if taken.annotations is not None:
        found["ann"] = canonical.TAG + taken.annotations
    if taken.done:
        found["done"] = True
    return found


def _nested(found: object, what: str) -> Any:
    if not isinstance(found, bytes):
        raise CodecError(f"{what} is canonical bytes, not {type(found).__name__}")
    try:
        return canonical.decode(found)
    except CodecError as error:
        raise CodecError(f"{what}: {error}") from error


def _map(found: object, what: str, needed: set[str], more: set[str] | None) -> dict[str, Any]:
    """A map with all the keys that are needed and, unless `more` is None, no others than these and `more`."""
    if not isinstance(found, dict):
        raise CodecError(f"{what} is no map")
    data = cast("dict[str, Any]", found)
    if missing := sorted(needed - data.keys()):
        raise CodecError(f"{what} has no {missing[0]}")
    if more is not None and (unknown := sorted(data.keys() - needed - more)):
        raise CodecError(f"{what} has a key that is not known: {unknown[0]!r}")
    return data


def _number(facts: dict[str, Any], name: str, most: int = 1 << 63) -> int:
    found = facts.get(name, 0)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < most:
        raise CodecError(f"ctx.{name} is no whole number from 0 to {most - 1}")
    return found


def _text(facts: dict[str, Any], name: str) -> str:
    found = facts.get(name, "")
    if not isinstance(found, str):
        raise CodecError(f"ctx.{name} is no text")
    return found
