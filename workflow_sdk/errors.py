"""Every exception of workflow_sdk, and the record of a failure.

WorkflowSDKError
├── StepError                       a step ended without a value; .step .path .attempts .error
│   ├── StepExhaustedError          ... after its last attempt
│   ├── StepCriticalError           ... at once: CriticalError, `no_retry`, or a value that can't be stored
│   └── StepTimeoutError            ... because an attempt took longer than its timeout
├── JoinError                       branches of a join or map failed (an ExceptionGroup); .errors by branch
├── RaceError                       all branches of a race failed (an ExceptionGroup); .errors by branch
├── ListenTimeoutError              no message by the deadline (a TimeoutError)
├── ChildFailedError                a child workflow ended without a value
├── GraphFailedError                a graph has failed; .result tells what became of its steps
├── CriticalError                   raised by authors: do not retry this step
├── RollbackError                   raised by authors: unwind the workflow
├── HistoryDivergedError            the code no longer does what its history says
├── DefinitionError                 the call, the decorator or the workflow's code is wrong
│   ├── DuplicateNameError          a name used twice in one scope
│   ├── ConcurrentOperationError    two operations at once on one ctx
│   └── InputError                  the input does not fit its annotation (a CodecError, too)
├── CodecError                      a value can't be encoded, or not be read as its type
│   └── PayloadTooLargeError        ... or is larger than the limit
├── StorageError                    the store failed, or refuses
│   └── StorageLimitError           ... because a batch is over one of its limits; nothing was written
├── ConflictError                   a check of a batch did not hold; nothing was written
├── LeaseLostError                  another worker owns the instance now
├── InstanceNotFoundError           no instance has this id
├── InboxFullError                  the instance has as many messages as it may have
├── ScheduleNotFoundError           no schedule has this id
├── AlreadyExistsError              the id is taken by another workflow or input
├── InstanceStateError              the instance's status does not allow the call
├── ApplyBlockedError               something is under way under the manifest that is to be replaced
├── StaleError                      the wait is over, or is another one by now
├── NotAuthorizedError              the caller has none of the roles
├── WorkflowFailedError             the workflow failed
├── WorkflowCancelledError          the workflow was cancelled
└── WorkflowStuckError              the workflow can't go on until somebody looks at it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

__all__ = [
    "AlreadyExistsError",
    "ApplyBlockedError",
    "ChildFailedError",
    "CodecError",
    "ConcurrentOperationError",
    "ConflictError",
    "CriticalError",
    "DefinitionError",
    "DuplicateNameError",
    "ErrorInfo",
    "HistoryDivergedError",
    "InboxFullError",
    "InputError",
    "InstanceNotFoundError",
    "InstanceStateError",
    "JoinError",
    "LeaseLostError",
    "ListenTimeoutError",
    "NotAuthorizedError",
    "PayloadTooLargeError",
    "RaceError",
    "RollbackError",
    "ScheduleNotFoundError",
    "StaleError",
    "StepCriticalError",
    "StepError",
    "StepExhaustedError",
    "StepTimeoutError",
    "StorageError",
    "StorageLimitError",
    "WorkflowCancelledError",
    "WorkflowFailedError",
    "WorkflowSDKError",
    "WorkflowStuckError",
]


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A failure as it was recorded: readable in any process, whether or not it has the exception's class."""

    type: str
    """The qualified name of the exception's class: `app.errors.CardDeclined`."""
    message: str = ""
    traceback: str = ""
    attributes: Mapping[str, object] = field(default_factory=dict[str, object])
    """The attributes of the exception, as far as they can be encoded."""
    kind: str = "application"
    """`definition`, `expression`, `transport`, `timeout`, `authorization`, `consistency` or `application`; `cancelled`
    if the instance was.
    """

    @property
    def is_mendable(self) -> bool:
        """Whether somebody can remove the cause and `recover` the instance: true of all kinds but two.

        An `application` error is the outcome of the workflow, and `cancelled` instances are not to be recovered.
        """
        return self.kind not in ("application", "cancelled")

    def __str__(self) -> str:
        name = self.type.removeprefix("workflow_sdk.errors.")
        return f"{name}: {self.message}" if self.message else name


class WorkflowSDKError(Exception):
    """The root of every error of this library."""


class StepError(WorkflowSDKError):
    """A step ended without a value."""

    verb = "failed"

    def __init__(self, step: str, path: str, attempts: int, error: ErrorInfo) -> None:
        self.step = step
        self.path = path
        self.attempts = attempts
        self.error = error
        super().__init__(step, path, attempts, error)

    def __str__(self) -> str:
        times = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return f"step {self.path!r} {self.verb} after {times}: {self.error}"


class StepExhaustedError(StepError):
    """The step failed in every attempt that it had."""

    verb = "gave up"


class StepCriticalError(StepError):
    """The step failed in a way that another attempt would not mend."""

    verb = "failed for good"


class StepTimeoutError(StepError):
    """The step's last attempt took longer than its timeout."""

    verb = "timed out"


class _BranchErrors(WorkflowSDKError, ExceptionGroup[Exception]):
    """Failures by branch. A group, so that `except*` reaches what is inside."""

    errors: dict[str, Exception]

    def __new__(cls, message: str, errors: Mapping[str, Exception]) -> _BranchErrors:
        self = super().__new__(cls, message, list(errors.values()))
        self.errors = dict(errors)
        return self

    def __init__(self, message: str, errors: Mapping[str, Exception]) -> None:
        super().__init__(message, list(errors.values()))

    def __str__(self) -> str:
        first = next(iter(self.errors.items()), None)
        return f"{self.message}; {first[0]}: {first[1]}" if first else self.message

    def derive(self, excs: Sequence[Exception], /) -> _BranchErrors:  # type: ignore[override]  # typeshed: generic over the exception, which a closed subclass is not
        kept = {id(error) for error in excs}
        named = {name: error for name, error in self.errors.items() if id(error) in kept}
        others = {f"split-{i}": e for i, e in enumerate(excs) if id(e) not in {id(n) for n in named.values()}}
        return type(self)(self.message, named | others)


class JoinError(_BranchErrors):
    """Branches of a join or map failed; the others have finished. `.errors` has them by branch."""


class RaceError(_BranchErrors):
    """Every branch of a race failed. `.errors` has them by branch."""


class ListenTimeoutError(WorkflowSDKError, TimeoutError):
    """No message came before the deadline."""

    kind: ClassVar[str] = "timeout"

    path: str = ""
    """The path of the listen."""


class ChildFailedError(WorkflowSDKError):
    """A child workflow ended without a value."""

    path: str = ""
    """The path of the operation that waited for it."""

    def __init__(self, instance_id: str, error: ErrorInfo) -> None:
        self.instance_id = instance_id
        self.error = error
        super().__init__(instance_id, error)

    def __str__(self) -> str:
        return f"child {self.instance_id!r} failed: {self.error}"


class CriticalError(WorkflowSDKError):
    """Raise it in a step to say that another attempt would not help."""


class RollbackError(WorkflowSDKError):
    """Raise it, in a step or outside, to unwind the workflow and run its compensations."""


class HistoryDivergedError(WorkflowSDKError):
    """The workflow's code no longer does what its history says. Nothing was run, and nothing compensated."""

    kind: ClassVar[str] = "consistency"


class DefinitionError(WorkflowSDKError):
    """The call, the decorator or the code of the workflow is wrong; nothing was written for it."""

    kind: ClassVar[str] = "definition"


class DuplicateNameError(DefinitionError):
    """A name was used twice in one scope."""


class ConcurrentOperationError(DefinitionError):
    """Two operations were under way at once on one `ctx`."""


class CodecError(WorkflowSDKError):
    """A value can't be encoded, or the stored bytes can't be read as the type that is asked for."""


class PayloadTooLargeError(CodecError):
    """A value is larger, encoded, than the limit allows."""


class InputError(DefinitionError, CodecError):
    """The input of a workflow does not fit its annotation."""


class StorageError(WorkflowSDKError):
    """The store failed. The instance is as its last commit left it."""

    kind: ClassVar[str] = "transport"


class StorageLimitError(StorageError):
    """A batch is over one of the store's limits, which the message names. Nothing was written."""


class ConflictError(WorkflowSDKError):
    """A check of a batch did not hold. Nothing was written."""


class LeaseLostError(WorkflowSDKError):
    """Another worker owns the instance now; this one can't write any more."""


class InstanceNotFoundError(WorkflowSDKError):
    """No instance has this id."""

    path: str = ""
    """The path of the operation that asked for it; empty if it was none."""


class InboxFullError(WorkflowSDKError):
    """The instance has as many messages that it has not taken as it may have. Nothing was stored."""

    path: str = ""
    """The path of the operation that sent the message; empty if it was none."""


class ScheduleNotFoundError(WorkflowSDKError):
    """No schedule has this id."""


class AlreadyExistsError(WorkflowSDKError):
    """The id belongs to an instance with another workflow or input."""

    path: str = ""
    """The path of the operation that asked for it; empty if it was none."""


class InstanceStateError(WorkflowSDKError):
    """The status of the instance does not allow the call."""


class ApplyBlockedError(WorkflowSDKError):
    """Something is under way under the active manifest, so no other one was applied. Nothing was changed.

    The message names the machines.
    """

    def __init__(self, message: str, *, cells: int = 0, intents: int = 0, timers: int = 0, queued: int = 0) -> None:
        super().__init__(message)
        self.cells = cells
        """How many cells have not ended."""
        self.intents = intents
        """How many effects are in flight, beside timers."""
        self.timers = timers
        """How many timers are pending."""
        self.queued = queued
        """How many messages cells have not taken yet."""


class StaleError(WorkflowSDKError):
    """The wait is over. Nothing was changed."""


class NotAuthorizedError(WorkflowSDKError):
    """The caller has none of the roles that the call asks for. Nothing was changed."""

    kind: ClassVar[str] = "authorization"


class _OutcomeError(WorkflowSDKError):
    """How an instance ended, other than with a value."""

    verb = "ended"
    result: Any = None
    """Of a graph: what it has come to."""

    def __init__(self, instance_id: str, status: str, error: ErrorInfo | None = None) -> None:
        self.instance_id = instance_id
        self.status = status
        self.error = error
        super().__init__(instance_id, status, error)

    def __str__(self) -> str:
        return f"workflow {self.instance_id!r} {self.verb}" + (f": {self.error}" if self.error else "")


class GraphFailedError(WorkflowSDKError):
    """A graph has failed. `.result` is what it has come to: the end of every step, and the outputs there are."""

    # Where the result is stored. Special by its name, and a slot, so that it is never recorded with the failure.
    __slots__ = ("__stored__",)

    def __init__(
        self, message: str = "", result: object = None, failed: Sequence[str] = (), kind: str = "application"
    ) -> None:
        super().__init__(message)
        # Special by its name, so that the description of a failure leaves it out. Where the failure is recorded by what
        # was around the graph, a branch or an attempt, it is kept.
        if result is not None:
            vars(self)["__result__"] = result
        self.__stored__: tuple[bytes | None, bytes | None] | None = None
        self.kind: str = kind
        """The kind that the failures of its steps have in common, as in `ErrorInfo`."""
        self.failed: list[str] = list(failed)
        """The paths of what has failed in it: `recover` tries that again."""

    @property
    def result(self) -> Any:
        """The `GraphResult`. None, if it is too large to be kept with a failure of a branch or an attempt."""
        return vars(self).get("__result__")


class WorkflowFailedError(_OutcomeError):
    """The workflow failed; `.status` tells whether it was rolled back."""

    verb = "failed"


class WorkflowCancelledError(_OutcomeError):
    """The workflow was cancelled."""

    verb = "was cancelled"


class WorkflowStuckError(_OutcomeError):
    """The workflow can't go on until somebody looks at it; `.error` tells why."""

    verb = "is stuck"
