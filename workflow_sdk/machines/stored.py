"""Machines whose code is not at hand: the active manifest has their names, and all of their values are plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.effects import EffectReceipt
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.rows import ACTIVE, ActiveRow
from workflow_sdk.machines.schemas import plain
from workflow_sdk.rows.wire import shown


async def stored_machine(driver: Driver, name: str) -> Machine[Any]:
    """A machine of the active manifest, to look at its cells; DefinitionError, if it has none of this name."""
    raw = await driver.get(ACTIVE)
    if raw is None:
        raise DefinitionError("the store has no active manifest, and so no machines")
    declared: dict[str, Any] = canonical.restored(ActiveRow.unpack(raw).data)
    machines: dict[str, Any] = {one["name"]: one for one in declared["machines"]}
    if name not in machines:
        known = ", ".join(machines) or "none"
        raise DefinitionError(f"the active manifest has no machine {shown(name)}; it has: {known}")
    found = machines[name]
    key = None if found["key"] is None else Any
    return Machine(_is_not_here, name, found["version"], Any, EffectReceipt, key, (), Any, None)


def _is_not_here(state: Any, event: Any, ctx: Any) -> NoReturn:
    raise DefinitionError("the code of this machine is not at hand")


def ids_of(machine: Machine[Any], key: Any) -> Iterator[str]:
    """The ids that the cell of a key may have: that of a text depends on what else keys of the machine may be."""
    if isinstance(key, str) and machine.is_keyed:
        yield f"{machine.name}/{key}"
    try:
        yield machine.cell_id(None if key is None and not machine.is_keyed else canonical.bare(plain(key)))
    except CodecError as error:
        raise DefinitionError(f"machine {machine.name!r}: the key {shown(key)}: {error}") from error
