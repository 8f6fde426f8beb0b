"""Putting messages into the inboxes of cells, which begin with the first one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import Assume, Draw, Get, Steps, change
from workflow_sdk.changes.deliver import Delivery, NewMessage, Posted, deliver, is_used, use_key
from workflow_sdk.changes.instances import find, new_rows, store
from workflow_sdk.changes.waits import awaits_end
from workflow_sdk.driver import ClearRange, Driver, Set, Write
from workflow_sdk.errors import DefinitionError, InstanceNotFoundError, InstanceStateError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.describing import descriptions
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.manifest import Manifest
from workflow_sdk.machines.rows import ACTIVE, ActiveRow, all_described, emitted_space
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import due_at_once


class Address(NamedTuple):
    """A cell that a message goes to, and what it begins with if there is none."""

    machine: Machine[Any]
    keys: InstanceKeys
    input: bytes
    """The key of the cell, as the codec stores it."""
    retention: float | None


class Told(NamedTuple):
    """What became of a message to a cell."""

    id: str
    posted: Posted

    @property
    def delivery(self) -> Delivery:
        """As senders see it."""
        return self.posted.delivery


class OtherManifestError(DefinitionError):
    """The manifest is not the active one any more. Nothing was written."""


def unmarked(raw: bytes) -> tuple[ActiveRow, bytes]:
    """The row of the active manifest without the mark of who is about to replace it, and as it is stored."""
    row = ActiveRow.unpack(raw)
    if row.judged is None:
        return row, raw
    row = replace(row, judged=None)
    return row, row.pack()


def make_active(made: bytes, described: Sequence[Write]) -> Steps[None]:
    """Make a manifest the active one, whatever is active now."""
    yield [Set(ACTIVE, made), ClearRange(*all_described()), *described]


@change
def activate(manifest: Manifest, made: bytes, described: Sequence[Write]) -> Steps[bytes]:
    """Make a manifest the active one of a store that has none; return the row of the active one.

    DefinitionError, if another one is active.
    """
    raw = yield Get(ACTIVE)
    if raw is None:
        yield from make_active(made, described)
        return made
    found, active = unmarked(raw)
    if found.hash != manifest.hash:
        raise DefinitionError(
            f"the store has another active manifest ({found.hash[:12]}; this one is {manifest.hash[:12]}): machines, "
            "routes, effects or their types have changed; `client.apply(manifest)` makes it the active one"
        )
    if active != raw:
        yield Set(ACTIVE, active)
    return active


def under(active: bytes) -> Steps[None]:
    """Have the commit succeed only while this is the active manifest; OtherManifestError, if it is not by now.

    Who is about to apply another one marks the row, looks whether anything is under way, and applies it only if the
    mark is still there. What begins meanwhile takes the mark back in its own commit: then it has to be looked again.
    So nobody waits for anybody, and a mark that a crash has left does no harm.
    """
    raw: bytes | None = yield Assume(ACTIVE, active)
    if raw == active:
        return
    if raw is None or unmarked(raw)[1] != active:
        raise OtherManifestError(
            "another manifest was applied meanwhile, and nothing was written under the one before: open the client or "
            "runtime again, with the one that is active"
        )
    yield Set(ACTIVE, active)


@change
def emit(
    active: bytes,
    targets: list[Address],
    new: NewMessage,
    event_id: str | None,
    now: float,
    is_here: Callable[[str], bool],
) -> Steps[list[Told]]:
    """Deliver an event to cells, all of them or none; an id that was used before delivers nothing."""
    yield from under(active)
    if not targets:
        return []
    if event_id is not None:
        space = emitted_space(event_id)
        if (yield from is_used(space, event_id)):
            return [Told(each.keys.instance_id, Posted(Delivery.DUPLICATE)) for each in targets]
        yield from use_key(space, event_id, now)
    return (yield from deliver_all([(each, new) for each in targets], now, is_here))


def deliver_all(
    out: Iterable[tuple[Address, NewMessage]], now: float, is_here: Callable[[str], bool]
) -> Steps[list[Told]]:
    """Deliver messages to cells, in order."""
    told: list[Told] = []
    for to, new in out:
        told += [(yield from deliver_to_cell(to, new, now, is_here))]
    return told


def deliver_to_cell(to: Address, new: NewMessage, now: float, is_here: Callable[[str], bool]) -> Steps[Told]:
    """Deliver a message to a cell, which begins if there is none."""
    keys, machine = to.keys, to.machine
    found = yield from find(keys)
    if not found.about:
        yield Get(keys.field(Field.HEAD))
        seed: int = yield Draw(1 << 128)
        rows = new_rows(
            machine, Status.PENDING, to.input, now, seed.to_bytes(16, "big"), to.retention, due_at_once(now)
        )
        rows.set(Field.BIRTH, replace(rows.birth, is_cell=True))
        yield store(keys, InstanceRows(), rows)
        posted = yield from deliver(keys, new, now, is_here)
        return Told(keys.instance_id, Posted(Delivery.ACCEPTED, posted.worker, posted.count))
    if found.about.head.workflow != machine.name:
        raise InstanceStateError(
            f"instance {keys.instance_id!r} runs {found.about.head.workflow!r}, and has the id of a cell of machine "
            f"{machine.name!r}"
        )
    posted = yield from deliver(keys, new, now, is_here, found)
    if posted.is_stored:
        # A cell waits for every event; a stuck one takes none before it is mended.
        posted.delivery = Delivery.QUEUED if found.status is Status.STUCK else Delivery.ACCEPTED
    return Told(keys.instance_id, posted)


def answer_to_wait(
    keys: InstanceKeys, intent_id: str, token: bytes, payload: bytes, now: float, is_here: Callable[[str], bool]
) -> Steps[Told]:
    """Deliver a receipt to the wait of a workflow that has asked for the effect; `CLOSED`, if that is over."""
    # The commit succeeds only if the wait stays open.
    if not (yield from awaits_end(keys.instance_id, intent_id, token)):
        return Told(keys.instance_id, Posted(Delivery.CLOSED))
    return (yield from answer_to(keys, NewMessage(token, payload), now, is_here))


def answer_to(keys: InstanceKeys, new: NewMessage, now: float, is_here: Callable[[str], bool]) -> Steps[Told]:
    """Deliver a receipt to the instance that has asked for the effect; `CLOSED`, if it is not there any more."""
    try:
        posted = yield from deliver(keys, new, now, is_here)
    except InstanceNotFoundError:
        return Told(keys.instance_id, Posted(Delivery.CLOSED))
    if posted.is_stored:
        posted.delivery = Delivery.ACCEPTED
    return Told(keys.instance_id, posted)


def active_row(manifest: Manifest, now: float) -> bytes:
    """The row of a manifest that becomes the active one."""
    return ActiveRow(manifest.hash, canonical.bare(manifest.data), float(now)).pack()


async def begin_manifest(driver: Driver, manifest: Manifest, now: float) -> bytes:
    """Make a manifest the active one of a store that has none; return its row. DefinitionError, if another one is."""
    return await apply(driver, activate(manifest, active_row(manifest, now), descriptions(manifest)))
