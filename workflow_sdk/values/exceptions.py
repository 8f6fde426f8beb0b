"""What an exception is: its kind, its message, its arguments and attributes, its traceback.

The kind of a failure says on which side its cause is, and so who can mend it.
An author's exception may say its kind itself, with an attribute `kind`. All others are told by their classes, or by the
status of an HTTP response. The classes of HTTP clients and the like are known by name, as they need not be installed.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from pathlib import PurePath
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from workflow_sdk import errors
from workflow_sdk.errors import (
    ChildFailedError,
    CodecError,
    ConflictError,
    DefinitionError,
    ErrorInfo,
    HistoryDivergedError,
    InboxFullError,
    LeaseLostError,
    NotAuthorizedError,
    StepError,
    StepTimeoutError,
    StorageError,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStuckError,
)

ErrorKind: TypeAlias = Literal[
    "definition",  # the code of the workflow, or how it is called, is wrong
    "expression",  # the code failed in itself: a wrong type, a name or key that is not there
    "transport",  # something else could not be reached, or could not answer
    "timeout",  # it took too long
    "authorization",  # whoever asked may not
    "consistency",  # what is recorded does not fit the code, or what it is about
    "application",  # the author's own reasons: as far as anybody knows, trying again would end the same
]
KINDS: Final[tuple[ErrorKind, ...]] = get_args(ErrorKind)

_Classes: TypeAlias = tuple[type[BaseException], ...]
# The first that fits: a StepTimeoutError is asked before the failure that it is about.
_BY_CLASS: Final[tuple[tuple[_Classes, ErrorKind], ...]] = (
    ((DefinitionError, CodecError), "definition"),
    ((HistoryDivergedError, ConflictError, LeaseLostError), "consistency"),
    ((StorageError, InboxFullError, ConnectionError), "transport"),
    ((NotAuthorizedError, PermissionError), "authorization"),
    ((TimeoutError, StepTimeoutError), "timeout"),
)
_CARRIERS: Final = (StepError, ChildFailedError, WorkflowFailedError, WorkflowCancelledError, WorkflowStuckError)
_MISTAKES: Final = (TypeError, AttributeError, NameError, LookupError, ArithmeticError, AssertionError)

# By package and class. The module between them is where the class happens to be written, and moves.
_TIMEOUTS: Final = frozenset({
    "botocore.ConnectTimeoutError",
    "botocore.ReadTimeoutError",
    "httpcore.TimeoutException",
    "httpx.TimeoutException",
    "httpx2.TimeoutException",
    "redis.TimeoutError",
    "requests.Timeout",
    "urllib3.TimeoutError",
})  # fmt: skip
_TRANSPORTS: Final = frozenset({
    "aiohttp.ClientConnectionError",
    "aiohttp.ClientPayloadError",
    "anyio.BrokenResourceError",
    "botocore.ConnectionError",
    "botocore.HTTPClientError",
    "grpc.RpcError",
    "httpcore.NetworkError",
    "httpcore.ProtocolError",
    "httpcore.ProxyError",
    "httpx.TransportError",
    "httpx2.TransportError",
    "redis.ConnectionError",
    "requests.ChunkedEncodingError",
    "requests.ConnectionError",
    "socket.gaierror",
    "ssl.SSLError",
    "urllib.URLError",
    "urllib3.MaxRetryError",
    "urllib3.NewConnectionError",
    "urllib3.ProtocolError",
    "urllib3.SSLError",
    "websockets.ConnectionClosed",
})  # fmt: skip
# These have no class of their own among the built-in ones.
_UNREACHABLE: Final = frozenset({errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH})
_GRPC: Final[dict[str, ErrorKind]] = {
    "DEADLINE_EXCEEDED": "timeout",
    "PERMISSION_DENIED": "authorization",
    "UNAUTHENTICATED": "authorization",
}

_DIVERGED: Final = f"{HistoryDivergedError.__module__}.{HistoryDivergedError.__qualname__}"


def kind_of(error: BaseException) -> ErrorKind:
    """The kind of `error`; of a group, the kind that all in it have in common. Never raises."""
    try:
        return _common(error)
    except Exception:  # noqa: BLE001  # an author's class may answer any question with an exception
        return "application"


def is_divergence(info: ErrorInfo) -> bool:
    """Whether the code did not fit its history. The kind does not tell that: crash loops have the same kind."""
    return info.type == _DIVERGED


def _common(error: BaseException) -> ErrorKind:
    kinds: set[ErrorKind] = set()
    todo: list[Any] = [error]
    seen: set[int] = set()
    while todo and len(kinds) < 2:
        one = todo.pop()
        if not isinstance(one, BaseExceptionGroup) or _said(cast("BaseException", one)) is not None:
            kinds.add(_kind_of_one(cast("BaseException", one)))
        elif id(cast("object", one)) not in seen:
            # An author's class may define them anew, and even hold itself.
            seen.add(id(cast("object", one)))
            todo += cast("Any", _attribute(cast("object", one), "exceptions")) or ()
    return kinds.pop() if len(kinds) == 1 else "application"


def _kind_of_one(error: BaseException) -> ErrorKind:
    for rule in _RULES:
        if (kind := rule(error)) is not None:
            return kind
    return "application"


def _said(error: object) -> ErrorKind | None:
    """The `kind` of the exception if it is one of `KINDS`: other classes may use the attribute for anything."""
    return _one_of_ours(_attribute(error, "kind"))


def _one_of_ours(said: object) -> ErrorKind | None:
    # Not `said` itself: that may be of a class that is text and something else, as an enum's members are.
    return next((kind for kind in KINDS if kind == said), None) if isinstance(said, str) else None


def _by_class(error: BaseException) -> ErrorKind | None:
    for classes, kind in _BY_CLASS:
        if isinstance(error, classes):
            return kind
    return None


def _carried(error: BaseException) -> ErrorKind | None:
    """The kind of the failure that an error of this library passes on."""
    if not isinstance(error, _CARRIERS):
        return None
    info = _attribute(error, "error")
    if isinstance(info, ErrorInfo):
        return _one_of_ours(info.kind) or "application"
    return "consistency" if isinstance(error, WorkflowStuckError) else "application"


def _by_http_status(error: BaseException) -> ErrorKind | None:
    """The kind by the HTTP status of the exception, or of its response."""
    response = _attribute(error, "response")
    for owner, name in ((response, "status_code"), (response, "status"), (error, "status_code"), (error, "status")):
        status = _attribute(owner, name)
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
            if status in (401, 403):
                return "authorization"
            return "transport" if status == 429 or status >= 500 else "application"
    return None


def _by_name(error: BaseException) -> ErrorKind | None:
    names = {f"{str(cls.__module__).partition('.')[0]}.{cls.__name__}" for cls in type(error).__mro__}
    if names & _TIMEOUTS:
        return "timeout"
    if "grpc.RpcError" in names:
        return _kind_of_grpc(error)
    return "transport" if names & _TRANSPORTS else None


def _kind_of_grpc(error: BaseException) -> ErrorKind:
    try:
        code = cast("Any", error).code().name
    except Exception:  # noqa: BLE001  # not every RpcError has one
        return "transport"
    return _GRPC.get(str(code), "transport")


def _by_errno(error: BaseException) -> ErrorKind | None:
    return "transport" if isinstance(error, OSError) and error.errno in _UNREACHABLE else None


def _mistake(error: BaseException) -> ErrorKind | None:
    return "expression" if isinstance(error, _MISTAKES) else None


# The first that knows.
_RULES: Final = (_said, _by_class, _carried, _by_http_status, _by_name, _by_errno, _mistake)


def _attribute(owner: object, name: str) -> object:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001  # an author's property may raise anything
        return None


# -- What an exception consists of -------------------------------------------------------------------------------------

MESSAGE_CHARS_MAX: Final = 10_000
TRACEBACK_CHARS_MAX: Final = 8_000
_FRAMES_MAX: Final = 60

_PACKAGE: Final = str(PurePath(errors.__file__).parent)
# `obj` of an AttributeError or NameError is whatever the author's code touched; it says nothing of the failure.
_NOT_RECORDED: Final = frozenset({"obj", "exceptions", "message", "characters_written"})
# An author's class may define `args` anew; what the constructor was given is in the slot of the base.
ARGS: Final[Any] = vars(BaseException)["args"]


def raw_args(error: BaseException) -> tuple[object, ...]:
    """What the constructor of an exception was given."""
    return cast("tuple[object, ...]", ARGS.__get__(error))


def state_of(error: BaseException) -> dict[str, object]:
    """The attributes of an exception: of its `__dict__`, its slots, and of the built-in class under it."""
    found: dict[str, object] = {}
    for name in _members(type(error)):
        try:
            value = getattr(error, name, None)
        except Exception:  # noqa: BLE001  # an author's __getattr__ may raise anything
            continue
        if value is not None:
            found[name] = value
    try:
        found.update({name: value for name, value in vars(error).items() if type(name) is str})  # pyright: ignore[reportUnnecessaryComparison]
    except Exception:  # noqa: BLE001  # as may a property named __dict__
        return found
    return found


def _members(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        if base not in (BaseException, object):
            for name, member in vars(base).items():
                if name.startswith("__") or name in _NOT_RECORDED:
                    continue
                if isinstance(member, MemberDescriptorType | GetSetDescriptorType):
                    yield name


def message_of(error: BaseException) -> str:
    """The message of an exception, as it is recorded. Never raises."""
    return clean(text_of(str, error))


def text_of(form: Any, value: object) -> str:
    """The `str` or `repr` of a value of the author's. Never raises."""
    try:
        return str(form(value))
    except Exception as failure:  # noqa: BLE001  # an author's __str__ or __repr__ may raise anything
        return f"<{type(value).__name__}, whose {form.__name__}() raises {type(failure).__name__}>"


def clean(text: object, chars_max: int = MESSAGE_CHARS_MAX) -> str:
    """The beginning of a text, with only characters that can be stored."""
    whole = str(text)
    return _whole(whole if len(whole) <= chars_max else whole[:chars_max] + " ...")


def clean_tail(text: str) -> str:
    """The end of a text, with only characters that can be stored."""
    return _whole(text if len(text) <= TRACEBACK_CHARS_MAX + 4 else "...\n" + text[-TRACEBACK_CHARS_MAX:])


def _whole(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def traceback_of(error: BaseException) -> str:
    """The traceback as text, its end if it is long, without the engine's own frames unless there are no others."""
    try:
        report = traceback.TracebackException.from_exception(error, limit=-_FRAMES_MAX, compact=True)
        for part in _chain(report):
            theirs = [frame for frame in part.stack if not frame.filename.startswith(_PACKAGE)]
            if theirs:
                part.stack = traceback.StackSummary.from_list(theirs)
        return clean_tail("".join(report.format()))
    except Exception:  # noqa: BLE001  # it calls the author's __str__, and reads source files
        return ""


def _chain(report: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    todo: list[traceback.TracebackException | None] = [report]
    while todo:
        if (part := todo.pop()) is not None:
            yield part
            todo += [part.__cause__, part.__context__, *(part.exceptions or ())]
