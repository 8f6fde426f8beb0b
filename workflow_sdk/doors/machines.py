"""Machines, as clients and runtimes have them. Who uses none does not load them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, overload

from workflow_sdk.changes.deliver import Delivery
from workflow_sdk.client.access import Access
from workflow_sdk.client.info import Page
from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import DefinitionError
from workflow_sdk.rows.wire import shown

if TYPE_CHECKING:
    from workflow_sdk.machines.client import Frame, Machines
    from workflow_sdk.machines.effects import ReceiptStatus
    from workflow_sdk.machines.executor import Executor
    from workflow_sdk.machines.hosting import CellHost
    from workflow_sdk.machines.index import Replay
    from workflow_sdk.machines.journal import JournalEntry
    from workflow_sdk.machines.machine import Machine
    from workflow_sdk.machines.manifest import Manifest
    from workflow_sdk.machines.shadowing import ShadowReport
    from workflow_sdk.machines.snapshots import StoredSnapshot
    from workflow_sdk.machines.views import Cell


StateT = TypeVar("StateT")


class MachineClient:
    """Reaches the machines of a store, whichever process runs them."""

    _manifest: Manifest | None = None
    _access: Access | None
    _retention: float | None

    @property
    def access(self) -> Access:
        """The open store."""
        raise NotImplementedError

    @cached_property
    def _machines(self) -> Machines:
        from workflow_sdk.machines.client import Machines

        return Machines(lambda: self.access, self._manifest, lambda: self._retention)

    async def emit(self, event: Any, *, id: str | None = None) -> list[Delivery]:
        """Send an event to the cells that the manifest routes it to, all in one commit; return what became of each.

        A cell that is not there begins with it. Without a route, nothing is stored, and the list is empty. With an
        `id`, only the first of several events with it counts. Who has not the class of the event sends a `PlainEvent`.
        """
        return await self._machines.emit(event, id)

    @overload
    async def cell(self, machine: Machine[StateT], key: Any = None) -> Cell[StateT]: ...
    @overload
    async def cell(self, machine: str, key: Any = None) -> Cell[Any]: ...
    async def cell(self, machine: Machine[Any] | str, key: Any = None) -> Cell[Any]:
        """A cell as it is stored now. InstanceNotFoundError, if there is none with this key."""
        return await self._machines.cell(machine, key)

    @overload
    async def cells(
        self, machine: Machine[StateT], *, limit: int = 100, cursor: str | None = None
    ) -> Page[Cell[StateT]]: ...
    @overload
    async def cells(self, machine: str, *, limit: int = 100, cursor: str | None = None) -> Page[Cell[Any]]: ...
    async def cells(
        self, machine: Machine[Any] | str, *, limit: int = 100, cursor: str | None = None
    ) -> Page[Cell[Any]]:
        """The cells of a machine, oldest first, a page at a time."""
        return await self._machines.cells(machine, limit, cursor)

    async def settle(self, intent_id: str, payload: Any = None, *, status: ReceiptStatus = "ok") -> Delivery:
        """Settle an effect from outside, as a webhook does: the cell that asked for it gets the receipt.

        Of several answers to one effect, the first counts; the others are `STALE`.
        """
        return await self._machines.settle(intent_id, payload, status)

    async def apply(self, manifest: Manifest, *, allow_idle: bool = False, allow_timers: bool = False) -> None:
        """Make another manifest the active one of the store: other machines, routes or effects, or other types.

        ApplyBlockedError, and nothing has changed, while cells have not ended, effects are in flight or messages are
        queued. With `allow_idle`, cells may wait: they go on under the new manifest, with the state that they have.
        With `allow_timers`, timers may be pending: they settle under the new one. Nothing is done if the manifest is
        the active one already, whatever is under way.

        Runtimes and clients that have the manifest before are refused from then on, and have to be opened again with
        this one; so does the one that has applied it.
        """
        await self._machines.apply(manifest, allow_idle=allow_idle, allow_timers=allow_timers)

    async def shadow(self, manifest: Manifest, events: Iterable[Any] = ()) -> ShadowReport:
        """Try another manifest on a copy of the store's cells in memory: what it makes of what is queued and of events.

        Nothing is stored, and no executor is called. The report says how far it has looked: what would follow from
        receipts, from later events or in other branches is not in it.
        """
        return await self._machines.shadow(manifest, events)

    async def frames(self, intent_id: str, *, after: str | None = None) -> list[Frame]:
        """What the executor of an effect has sent while it runs, in order, or what came after a cursor of these.

        It can be read until the cell hears of another effect, or is over.
        """
        return await self._machines.frames(intent_id, after)

    async def journal(
        self, machine: Machine[Any] | str, *, limit: int = 1000, cursor: str | None = None, newest_first: bool = False
    ) -> Page[JournalEntry]:
        """What the cells of a machine have taken, in the order of the commits, a page at a time.

        It has what was taken by runtimes with `journal=True`. `cursor` is that of a page, or of any entry: the list
        goes on after it.
        """
        return await self._machines.journal(machine, limit, cursor, newest_first=newest_first)

    async def trace(self, intent_id: str) -> list[JournalEntry]:
        """What the journals have of an effect: what its cell took when it asked for it, and the answer, if it came.

        It reads the whole journal of a machine, or of several.
        """
        return await self._machines.trace(intent_id)

    async def snapshot(self, machine: Machine[Any] | str) -> StoredSnapshot:
        """Store all cells of a machine as they are now, by their content: equal cells have the same `root`.

        Nothing may be queued for the machine or in flight: then, InstanceStateError says how much. Cells that wait are
        fine. If nothing has changed since the newest snapshot, nothing is stored, and it is that one. A snapshot can be
        read until a newer one is stored and `gc` is called, or as long as its root is pinned.
        """
        return await self._machines.snapshot(machine)

    async def verify_replay(self, snapshot: StoredSnapshot, journal: Iterable[JournalEntry] | None = None) -> Replay:
        """Replay a journal from a snapshot on, and compare what it leads to with the cells that there are now.

        Without a journal, the stored one is read. With one, it is a page or a list of what `client.journal` returns;
        what lies before the snapshot is skipped. The answer says whether `is_equal`; `mismatches` are the cells that
        differ, each with a reason. Nothing is changed, and no effect begins.
        """
        return await self._machines.verify_replay(snapshot, journal)

    async def pin(self, root: str) -> None:
        """Have `gc` keep the snapshot with this root, and all that it leads to."""
        await self._machines.pin(root, pinned=True)

    async def unpin(self, root: str) -> None:
        """Let `gc` delete the snapshot with this root, unless it is the newest one of a machine."""
        await self._machines.pin(root, pinned=False)

    async def gc(self) -> int:
        """Delete what neither a pinned root nor the newest snapshot of a machine leads to; return how many rows."""
        return await self._machines.gc()


class NoCells:
    """What a runtime has that runs no machines."""

    flows: Mapping[str, Workflow[Any, Any]] = {}

    def attach(self, *_: object) -> None:
        """Do nothing."""

    async def begin(self) -> None:
        """Do nothing."""

    def run(self, *_: object) -> None:
        """No instance is a cell here."""

    def loops(self) -> list[Callable[[], Awaitable[None]]]:
        """None."""
        return []


def cells_of(manifest: Manifest | None, executors: Iterable[Executor], journal: bool) -> CellHost | NoCells:
    """The machines and executors of a runtime."""
    if not isinstance(journal, bool):
        raise DefinitionError(f"journal is True or False, not {shown(journal)}")
    given = list(executors)
    if manifest is None and not given:
        return NoCells()
    from workflow_sdk.machines.hosting import CellHost

    return CellHost(manifest, given, journal=journal)
