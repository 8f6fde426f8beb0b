"""Machines: a pure function of a state and an event, with a cell for every key, and effects that are declared."""

from workflow_sdk.errors import ApplyBlockedError
from workflow_sdk.machines.cell import CellStatus
from workflow_sdk.machines.client import Frame
from workflow_sdk.machines.describing import PlainEvent
from workflow_sdk.machines.effects import Effect, EffectReceipt, EffectRejected, Receipt, Request, effect, timer
from workflow_sdk.machines.executor import Executor, executor
from workflow_sdk.machines.harness import Harness
from workflow_sdk.machines.index import Mismatch, Replay
from workflow_sdk.machines.journal import JournalEntry
from workflow_sdk.machines.machine import Machine, machine
from workflow_sdk.machines.manifest import Manifest, Route, route
from workflow_sdk.machines.model import MachineContext, Transition
from workflow_sdk.machines.schemas import event
from workflow_sdk.machines.shadowing import Difference, Horizon, Refusal, ShadowReport
from workflow_sdk.machines.snapshots import StoredSnapshot
from workflow_sdk.machines.views import Cell, Intent

__all__ = [
    "ApplyBlockedError",
    "Cell",
    "CellStatus",
    "Difference",
    "Effect",
    "EffectReceipt",
    "EffectRejected",
    "Executor",
    "Frame",
    "Harness",
    "Horizon",
    "Intent",
    "JournalEntry",
    "Machine",
    "MachineContext",
    "Manifest",
    "Mismatch",
    "PlainEvent",
    "Receipt",
    "Refusal",
    "Replay",
    "Request",
    "Route",
    "ShadowReport",
    "StoredSnapshot",
    "Transition",
    "effect",
    "event",
    "executor",
    "machine",
    "route",
    "timer",
]
