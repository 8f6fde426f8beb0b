"""What we test workflow_sdk with, for those who test what they build on it."""

from workflow_sdk import ReplayProblem, ReplayReport, dump_histories, replay_check
from workflow_sdk.machines import Harness
from workflow_sdk.testing._cells_report import CellCrashReport, CellCrashRun
from workflow_sdk.testing.clock import VirtualClock
from workflow_sdk.testing.crash_report import CrashReport, CrashRun
from workflow_sdk.testing.crashing import crash_everywhere
from workflow_sdk.testing.drivers import FaultyDriver, SimulatedCrash
from workflow_sdk.testing.exploration import Exploration, Finding
from workflow_sdk.testing.exploring import explore

__all__ = [
    "CellCrashReport",
    "CellCrashRun",
    "CrashReport",
    "CrashRun",
    "Exploration",
    "FaultyDriver",
    "Finding",
    "Harness",
    "ReplayProblem",
    "ReplayReport",
    "SimulatedCrash",
    "VirtualClock",
    "crash_everywhere",
    "dump_histories",
    "explore",
    "replay_check",
]
