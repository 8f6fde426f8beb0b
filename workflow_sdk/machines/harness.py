"""Machines in a test: cells in memory, a clock that the test moves, and effects that the test answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from workflow_sdk.changes.deliver import Delivery
from workflow_sdk.errors import DefinitionError, InstanceNotFoundError, InstanceStateError
from workflow_sdk.machines.cell import Answer
from workflow_sdk.machines.effects import STATUSES, ReceiptStatus
from workflow_sdk.machines.index import Replay, Snapshot, read_index, replay, snapshot_of
from workflow_sdk.machines.kernel import CellId, Entry, Kernel
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.manifest import Manifest, Route, route
from workflow_sdk.machines.schemas import plain
from workflow_sdk.machines.views import Cell, Intent, cell_of, intent_of
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.wire import shown

T = TypeVar("T")

_START: Final = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
MESSAGES_MAX: Final = 100_000
"""How many messages are taken in one call of `run_to_idle`, if it is not told otherwise."""


class Harness:
    """Runs machines in a test, in an order that is always the same, without a store and without waiting.

    `Harness(manifest)`, or `Harness(order, stock, routes=[...])`; without `routes`, the events of machines without keys
    reach them. What a call gives can be used at once, or awaited, so that a test can be written like the code that
    calls a client.
    """

    def __init__(self, *given: Manifest | Machine[Any], routes: Iterable[Route] | None = None) -> None:
        self.manifest: Manifest = _manifest_of(given, routes)
        self.clock: HarnessClock = HarnessClock()
        self.kernel: Kernel = Kernel(self.manifest)
        """The cells, in memory: for what the harness has no call for."""
        self._blobs: dict[str, bytes] = {}

    def __await__(self) -> Generator[Any, None, Harness]:
        return self
        yield

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is to be closed."""

    async def __aenter__(self) -> Harness:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Nothing is to be closed."""

    # What comes from outside.

    def emit(self, event: object, *, id: str | None = None) -> _Listed[Delivery]:
        """Send an event to the cells that it is routed to, and tell what became of it at each; the same `id` counts
        once. CodecError: it does not fit, and nothing was sent."""
        return _Listed(self.kernel.accept(event, self.clock.time(), id))

    def receipt(self, intent: Intent | str, payload: Any = None, *, status: ReceiptStatus = "ok") -> _Delivered:
        """Answer an effect, as its executor would. `STALE`: it was answered before, or was never asked for; `CLOSED`:
        its cell has ended.

        `payload` is an object of the type that the effect declares, or any plain data: what does not fit is rejected
        where the cell takes it.
        """
        if status not in STATUSES:
            raise DefinitionError(f"the status of a receipt is one of {', '.join(STATUSES)}, not {shown(status)}")
        id = intent.id if isinstance(intent, Intent) else intent
        return _Delivered(self.kernel.settle(id, Answer(status, plain(payload)), self.clock.time()))

    # What is done.

    def run_to_idle(self, limit: int = MESSAGES_MAX) -> _Counted:
        """Have cells take messages, in turns, and timers settle that are due, until there is nothing to do. It never
        moves the clock. Tells how many messages were taken.

        DefinitionError: there were more messages than `limit`, so that the machines will probably go on for ever.
        """
        taken = 0
        while True:
            while self.kernel.step():
                taken += 1
                if taken > limit:
                    raise DefinitionError(
                        f"{limit:,} messages were taken, and there are more: the machines send each other events for "
                        "ever, unless run_to_idle(limit=) has to be larger"
                    )
            due = self.kernel.next_due()
            # One time after the other: what a timer brings about may set another one, which is due before the next.
            if due is None or due > self.clock.time():
                return _Counted(taken)
            self.kernel.fire(due)

    def recover(self, machine: Machine[Any] | str, key: Any = None) -> Awaitable[None]:
        """Have a stuck cell take its first message again when it is run. InstanceStateError: it is not stuck."""
        id = self._id(machine, key)
        if not self.kernel.retry(*id):
            raise InstanceStateError(f"the cell {_text(id, key)} is not stuck")
        return _Done()

    def reopen(self, manifest: Manifest | None = None) -> Harness:
        """Make bytes of all there is, and go on from these alone, as another process would. With a manifest, with that
        one: stuck cells try again what was refused."""
        self.kernel = Kernel.restored(manifest or self.manifest, self.kernel.stored())
        if manifest is not None:
            self.manifest = manifest
            for id in list(self.kernel.cells):
                self.kernel.retry(*id)
        return self

    # What there is.

    def effects(self, machine: Machine[Any] | str | None = None) -> _Listed[Intent]:
        """The effects that were asked for and are not answered, timers among them, in the order of their requests."""
        name = None if machine is None else self._machine(machine).name
        return _Listed(
            intent_of(self.manifest.effects, one.machine, self._key(one.machine, one.key), one.pending)
            for one in self.kernel.intents.values()
            if name in (None, one.machine)
        )

    def cell(self, machine: Machine[Any] | str, key: Any = None) -> _Shown:
        """A cell; InstanceNotFoundError, if there is none."""
        id = self._id(machine, key)
        if not self.kernel.is_there(*id):
            raise InstanceNotFoundError(f"there is no cell {_text(id, key)}")
        return _Shown(**vars(self._view(id)))

    def cells(self, machine: Machine[Any] | str) -> _Listed[Cell[Any]]:
        """The cells of a machine, in the order in which their keys were first seen."""
        name = self._machine(machine).name
        kernel = self.kernel
        return _Listed(self._view(id) for id in kernel.cells if id[0] == name and kernel.is_there(*id))

    def problem(self, machine: Machine[Any] | str, key: Any = None) -> str | None:
        """Why a cell is stuck or has failed; None, if it is neither."""
        return self.kernel.problems.get(self._id(machine, key))

    def journal(self, machine: Machine[Any] | str) -> _Listed[Entry]:
        """The messages that the cells of a machine have taken."""
        name = self._machine(machine).name
        return _Listed(entry for entry in self.kernel.journal if entry.machine == name)

    def snapshot(self, machine: Machine[Any] | str | None = None) -> _Snapshotted:
        """A snapshot of the cells of a machine. InstanceStateError: something is queued for it, or in flight."""
        name = self._only(machine).name
        kernel = self.kernel
        queued = sum(len(queue) for id, queue in kernel.queues.items() if id[0] == name)
        out = sum(one.machine == name for one in kernel.intents.values())
        if queued or out:
            raise InstanceStateError(
                f"machine {name!r} has {queued} messages queued and {out} effects in flight; a snapshot needs none"
            )
        taken, blobs = snapshot_of(name, (data for id, data in kernel.cells.items() if id[0] == name))
        self._blobs |= blobs
        return _Snapshotted(name, taken.root, taken.count, self._blobs.__getitem__)

    def verify_replay(self, snapshot: Snapshot, journal: Iterable[Entry] | None = None) -> _Replayed:
        """Replay a journal from its beginning on, and compare what it leads to with a snapshot: every cell has the same
        bytes, or is among the mismatches."""
        machine = self._machine(snapshot.machine)
        entries = self.journal(machine) if journal is None else journal
        found = replay(machine, (), entries, read_index(snapshot.root, snapshot.read), manifest_hash=self.manifest.hash)
        return _Replayed(found.root, found.mismatches)

    # Names of things.

    def _machine(self, machine: Machine[Any] | str) -> Machine[Any]:
        name = machine.name if isinstance(machine, Machine) else machine
        if name not in self.manifest.machines:
            raise DefinitionError(f"there is no machine {name!r}; there are {', '.join(self.manifest.machines)}")
        return self.manifest.machines[name]

    def _only(self, machine: Machine[Any] | str | None) -> Machine[Any]:
        if machine is not None:
            return self._machine(machine)
        if len(self.manifest.machines) != 1:
            raise DefinitionError(f"say of which machine: {', '.join(self.manifest.machines)}")
        return next(iter(self.manifest.machines.values()))

    def _id(self, machine: Machine[Any] | str, key: Any) -> CellId:
        found = self._machine(machine)
        return found.name, found.key_bytes(key)

    def _key(self, machine: str, key: bytes | None) -> Any:
        return self._machine(machine).key_of(key)

    def _view(self, id: CellId) -> Cell[Any]:
        return cell_of(self._machine(id[0]), self.kernel.cells[id])


class HarnessClock:
    """The clock of a harness. It stands still, until `advance` moves it."""

    def __init__(self) -> None:
        self._now = _START

    def now(self) -> datetime:
        """What time it is."""
        return datetime.fromtimestamp(self._now, UTC)

    def time(self) -> float:
        """What time it is, in seconds since 1970."""
        return self._now

    def advance(self, duration: Duration) -> Awaitable[None]:
        """Move on by so many seconds, or by a timedelta. Timers that are due then settle at the next call of the
        harness that does something."""
        by = seconds(duration, "advance")
        if by < 0:
            raise DefinitionError(f"the clock can't go back, got {shown(duration)}")
        self._now += by
        return _Done()


def _manifest_of(given: tuple[Manifest | Machine[Any], ...], routes: Iterable[Route] | None) -> Manifest:
    match given:
        case (Manifest() as manifest,) if routes is None:
            return manifest
        case _:
            machines = [one for one in given if isinstance(one, Machine)]
    if not machines or len(machines) < len(given):
        raise DefinitionError("Harness takes one manifest, or machines and their routes=[...]")
    return Manifest(machines, _plain_routes(machines) if routes is None else routes)


def _plain_routes(machines: list[Machine[Any]]) -> list[Route]:
    return [route(arm.hint, one) for one in machines if not one.is_keyed for arm in one.arms.values()]


def _text(id: CellId, key: Any) -> str:
    return repr(id[0]) if id[1] is None else f"{shown(key)} of machine {id[0]!r}"


# What calls give: each is what it seems to be, and can be awaited.


class _Listed(list[T]):
    def __await__(self) -> Generator[Any, None, list[T]]:
        return list(self)
        yield


class _Counted(int):
    def __await__(self) -> Generator[Any, None, int]:
        return int(self)
        yield


class _Done:
    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class _Delivered(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return repr(Delivery(str(self)))

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)

    def __await__(self) -> Generator[Any, None, Delivery]:
        return Delivery(str(self))
        yield


class _Whole(Generic[T]):
    """An object of a dataclass `T`, and equal to it."""

    _kind: ClassVar[Callable[..., Any]]

    def _whole(self) -> T:
        made: T = self._kind(**vars(self))
        return made

    def __eq__(self, other: object) -> bool:
        theirs: object = cast("_Whole[object]", other)._whole() if isinstance(other, _Whole) else other
        return self._whole() == theirs

    def __hash__(self) -> int:
        return hash(self._whole())

    def __repr__(self) -> str:
        return repr(self._whole())

    def __await__(self) -> Generator[Any, None, T]:
        return self._whole()
        yield


class _Shown(_Whole[Cell[Any]], Cell[Any]):
    _kind = Cell


class _Snapshotted(_Whole[Snapshot], Snapshot):
    _kind = Snapshot


class _Replayed(_Whole[Replay], Replay):
    _kind = Replay
