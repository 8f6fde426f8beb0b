"""What cells are run with: the store, the manifest, and the worker that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workflow_sdk.driver import Driver
from workflow_sdk.instance.clock import Clock
from workflow_sdk.machines import canonical
from workflow_sdk.machines.emitting import Address
from workflow_sdk.machines.manifest import Manifest, Target
from workflow_sdk.machines.room import Room
from workflow_sdk.machines.rows import IntentRow
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.values import Codec


class Surroundings:
    """What every cell of one worker is run with."""

    def __init__(
        self,
        driver: Driver,
        codec: Codec,
        clock: Clock,
        manifest: Manifest,
        worker: str,
        effects: frozenset[str],
        retention: float | None,
        is_here: Callable[[str], bool],
        tell: Callable[[str, str | None], None],
        *,
        journal: bool = False,
    ) -> None:
        self.driver = driver
        self.codec = codec
        self.clock = clock
        self.manifest = manifest
        self.active: bytes = b""
        """The row of the active manifest: as long as it is this one, cells may be changed."""
        self.worker = worker
        self.room: Room = Room(worker, effects)
        """For effects that this worker has executors for."""
        self.retention = retention
        self.is_here = is_here
        """Whether a worker is in this process."""
        self.tell = tell
        """Called with the id of an instance that a message was stored for, and the worker that has it."""
        self.journal = journal
        """Whether what cells take is written down."""
        self.begin: Callable[[str, IntentRow], None] = _ignore
        """Called with an intent that this worker is to run."""
        self.queued: Callable[[str], None] = _ignore
        """Called with an effect of which an intent was queued by this process."""
        self.fenced: Callable[[], None] = _ignore
        """Called when a commit was refused since another manifest is active."""

    def address(self, target: Target) -> Address:
        """Where messages to a cell go."""
        return address_of(target, self.codec, self.retention)


def address_of(target: Target, codec: Codec, retention: float | None) -> Address:
    """Where messages to a cell go, and what it begins with."""
    machine, key = target
    value: object = None if key is None else canonical.restored(key)
    kept = retention if machine.retention is None else machine.retention
    return Address(machine, InstanceKeys(machine.cell_id(key)), codec.encode(value), kept)


def _ignore(*_: Any) -> None:
    """Nobody wants to know."""
