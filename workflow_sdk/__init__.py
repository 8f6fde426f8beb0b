"""Durable execution for Python: ordinary `async def` functions that survive crashes, deploys and months of sleep."""

from workflow_sdk.changes.deliver import Delivery
from workflow_sdk.client.asking import send_message
from workflow_sdk.client.handle import Handle
from workflow_sdk.client.history import History, HistoryEntry, read_history
from workflow_sdk.client.inboxes import QueuedMessage
from workflow_sdk.client.info import InstanceInfo, Page, Progress, Wait
from workflow_sdk.client.tasks import Task, TaskChange, Tasks
from workflow_sdk.context import Context
from workflow_sdk.definitions import ContinueAsNew, Step, Workflow, step, workflow
from workflow_sdk.doors.client import Client
from workflow_sdk.doors.runtime import Runtime
from workflow_sdk.driver import Batch, Driver, open_driver
from workflow_sdk.errors import (
    AlreadyExistsError,
    ApplyBlockedError,
    ChildFailedError,
    CodecError,
    ConcurrentOperationError,
    ConflictError,
    CriticalError,
    DefinitionError,
    DuplicateNameError,
    ErrorInfo,
    GraphFailedError,
    HistoryDivergedError,
    InboxFullError,
    InputError,
    InstanceNotFoundError,
    InstanceStateError,
    JoinError,
    LeaseLostError,
    ListenTimeoutError,
    NotAuthorizedError,
    PayloadTooLargeError,
    RaceError,
    RollbackError,
    ScheduleNotFoundError,
    StaleError,
    StepCriticalError,
    StepError,
    StepExhaustedError,
    StepTimeoutError,
    StorageError,
    StorageLimitError,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowSDKError,
    WorkflowStuckError,
)
from workflow_sdk.features.replay_check import ReplayProblem, ReplayReport, dump_histories, replay_check
from workflow_sdk.features.schedules.schedules import Schedule, Schedules
from workflow_sdk.instance.results import RunResult
from workflow_sdk.operations.attempt import Failure, Success
from workflow_sdk.operations.listen import Message
from workflow_sdk.operations.loop import Break, Continue
from workflow_sdk.operations.race import RaceResult
from workflow_sdk.operations.task import TaskResult
from workflow_sdk.rows.outside import TaskStatus
from workflow_sdk.rows.retry import Backoff
from workflow_sdk.rows.status import EntryStatus, Kind, Status
from workflow_sdk.verdicts import Verdict
from workflow_sdk.worker.run_workflow import run_workflow

__all__ = [
    "AlreadyExistsError",
    "ApplyBlockedError",
    "Backoff",
    "Batch",
    "Break",
    "ChildFailedError",
    "Client",
    "CodecError",
    "ConcurrentOperationError",
    "ConflictError",
    "Context",
    "Continue",
    "ContinueAsNew",
    "CriticalError",
    "DefinitionError",
    "Delivery",
    "Driver",
    "DuplicateNameError",
    "EntryStatus",
    "ErrorInfo",
    "Failure",
    "GraphFailedError",
    "Handle",
    "History",
    "HistoryDivergedError",
    "HistoryEntry",
    "InboxFullError",
    "InputError",
    "InstanceInfo",
    "InstanceNotFoundError",
    "InstanceStateError",
    "JoinError",
    "Kind",
    "LeaseLostError",
    "ListenTimeoutError",
    "Message",
    "NotAuthorizedError",
    "Page",
    "PayloadTooLargeError",
    "Progress",
    "QueuedMessage",
    "RaceError",
    "RaceResult",
    "ReplayProblem",
    "ReplayReport",
    "RollbackError",
    "RunResult",
    "Runtime",
    "Schedule",
    "ScheduleNotFoundError",
    "Schedules",
    "StaleError",
    "Status",
    "Step",
    "StepCriticalError",
    "StepError",
    "StepExhaustedError",
    "StepTimeoutError",
    "StorageError",
    "StorageLimitError",
    "Success",
    "Task",
    "TaskChange",
    "TaskResult",
    "TaskStatus",
    "Tasks",
    "Verdict",
    "Wait",
    "Workflow",
    "WorkflowCancelledError",
    "WorkflowFailedError",
    "WorkflowSDKError",
    "WorkflowStuckError",
    "dump_histories",
    "open_driver",
    "read_history",
    "replay_check",
    "run_workflow",
    "send_message",
    "step",
    "workflow",
]
