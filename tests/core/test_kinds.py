"""Every failure has a kind: said by its author, or known from its class, what it carries, or the answer it tells of."""

from __future__ import annotations

import decimal
import enum
import errno
import http
import socket
import ssl
import urllib.error
from email.message import Message
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest

from workflow_sdk import errors
from workflow_sdk.errors import ChildFailedError, ErrorInfo, JoinError, RaceError
from workflow_sdk.values import Codec
from workflow_sdk.values.exceptions import KINDS, is_divergence, kind_of
from workflow_sdk.values.failures import describe, pack_error_info, unpack_error_info

CODEC = Codec()
REQUEST = httpx2.Request("GET", "https://bank.example")


def info(kind: str) -> ErrorInfo:
    return ErrorInfo("app.Trouble", "no", kind=kind)


def step(kind: str) -> errors.StepError:
    return errors.StepExhaustedError("s", "s", 4, info(kind))


def foreign(*names: str) -> Exception:
    """An exception of a library that is not installed: `package.module.Class`, and the classes above it."""
    above: Any = Exception
    for name in reversed(names):
        module, _, cls = name.rpartition(".")
        above = type(cls, (above,), {"__module__": module})
    return above("no")  # type: ignore[no-any-return]


def answer(status: Any, *, on: str = "response", name: str = "status_code", base: type[Exception] = Exception) -> Any:
    """What an HTTP client makes of a response."""
    error: Any = type("Answer", (base,), {})("no")
    setattr(error, *(("response", SimpleNamespace(**{name: status})) if on == "response" else (name, status)))
    return error


def grpc(code: str) -> Exception:
    error: Any = foreign("grpc.aio._call.AioRpcError", "grpc.RpcError")
    error.code = lambda: SimpleNamespace(name=code)
    return error  # type: ignore[no-any-return]


class Color(enum.StrEnum):
    RED = "transport"


class Said(ValueError):
    kind = "consistency"


class SaidByEnum(Exception):
    kind = Color.RED


class SaidElse(KeyError):
    kind = "fruit"


class Refuses(Exception):
    @property
    def kind(self) -> str:
        raise RuntimeError("not today")

    status_code = response = kind


class Unhashable(OSError):
    errno: Any = {}  # noqa: RUF012  # nobody changes it


class Endless(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        return (self, self)


def said(error: Exception, kind: object) -> Exception:
    error.kind = kind  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return error


CASES: dict[str, list[BaseException]] = {
    "definition": [
        errors.DefinitionError("x"),
        errors.DuplicateNameError("x"),
        errors.ConcurrentOperationError("x"),
        errors.InputError("x"),
        errors.CodecError("x"),
        errors.PayloadTooLargeError("x"),
        errors.StepCriticalError("s", "s", 1, info("definition")),
    ],
    "expression": [
        TypeError("x"),
        AttributeError("x"),
        NameError("x"),
        UnboundLocalError("x"),
        KeyError("x"),
        IndexError("x"),
        ZeroDivisionError("x"),
        decimal.InvalidOperation("x"),
        AssertionError("x"),
        SaidElse("x"),
        step("expression"),
    ],
    "transport": [
        errors.StorageError("x"),
        errors.StorageLimitError("x"),
        ConnectionError("x"),
        ConnectionRefusedError("x"),
        socket.gaierror(-2, "x"),
        ssl.SSLError("x"),
        ssl.SSLCertVerificationError("x"),
        OSError(errno.EHOSTUNREACH, "x"),
        anyio.BrokenResourceError(),
        urllib.error.URLError("x"),
        urllib.error.HTTPError("https://bank.example", 503, "x", Message(), None),
        httpx2.ConnectError("x"),
        httpx2.HTTPStatusError("x", request=REQUEST, response=httpx2.Response(502)),
        foreign("httpx.ReadError", "httpx.NetworkError", "httpx.TransportError"),
        foreign("aiohttp.client_exceptions.ClientConnectorError", "aiohttp.client_exceptions.ClientConnectionError"),
        foreign("requests.exceptions.ConnectionError", "requests.exceptions.RequestException"),
        foreign("grpc._channel._InactiveRpcError", "grpc.RpcError"),
        grpc("UNAVAILABLE"),
        foreign("redis.exceptions.ConnectionError"),
        foreign("botocore.exceptions.EndpointConnectionError", "botocore.exceptions.ConnectionError"),
        answer(500),
        answer(429),
        answer(503, name="status"),
        answer(599, on="error"),
        answer(http.HTTPStatus.BAD_GATEWAY, on="error", name="status"),
        said(ValueError("x"), "transport"),
        SaidByEnum("x"),
        step("transport"),
    ],
    "timeout": [
        TimeoutError("x"),
        errors.ListenTimeoutError("x"),
        errors.StepTimeoutError("s", "s", 1, info("application")),
        httpx2.ConnectTimeout("x"),
        foreign("httpx.ReadTimeout", "httpx.TimeoutException", "httpx.TransportError"),
        foreign("requests.exceptions.ConnectTimeout", "requests.exceptions.ConnectionError", "requests.Timeout"),
        grpc("DEADLINE_EXCEEDED"),
    ],
    "authorization": [
        errors.NotAuthorizedError("x"),
        PermissionError("x"),
        httpx2.HTTPStatusError("x", request=REQUEST, response=httpx2.Response(403)),
        answer(401),
        answer(403, name="status"),
        answer(401, on="error"),
        answer(403, on="error", name="status"),
        grpc("UNAUTHENTICATED"),
        grpc("PERMISSION_DENIED"),
    ],
    "consistency": [
        errors.HistoryDivergedError("x"),
        errors.ConflictError("x"),
        errors.LeaseLostError("x"),
        errors.WorkflowStuckError("i", "stuck", None),
        errors.WorkflowStuckError("i", "stuck", info("consistency")),
        Said("x"),
    ],
    "application": [
        ValueError("x"),
        RuntimeError("x"),
        Exception("x"),
        KeyboardInterrupt(),
        OSError("x"),
        FileNotFoundError(errno.ENOENT, "x"),
        errors.CriticalError("x"),
        errors.RollbackError("x"),
        errors.StaleError("x"),
        Refuses("x"),
        Unhashable("x"),
        answer(404),
        answer(404, base=LookupError),
        answer(200),
        answer(True, on="error", name="status"),
        answer("503"),
        answer(7, on="error", name="status"),
        urllib.error.HTTPError("https://bank.example", 404, "x", Message(), None),
        foreign("app.httpx.TransportError"),
        said(ConnectionError("x"), "application"),
        said(ValueError("x"), ["transport"]),
        step("application"),
        errors.WorkflowFailedError("i", "failed", None),
    ],
}


@pytest.mark.parametrize(
    ("error", "kind"),
    [pytest.param(error, kind, id=f"{kind}-{error!r:.60}") for kind, errors in CASES.items() for error in errors],
)
def test_the_kind_of_a_failure(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind
    assert type(kind_of(error)) is str
    described = describe(error, CODEC)
    assert described.kind == kind
    assert unpack_error_info(pack_error_info(described, CODEC), CODEC).kind == kind


def test_there_is_a_case_of_each() -> None:
    assert tuple(CASES) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_what_carries_a_failure_is_of_its_kind(kind: str) -> None:
    assert kind_of(step(kind)) == kind
    assert kind_of(ChildFailedError("i", info(kind))) == kind
    assert kind_of(errors.WorkflowFailedError("i", "failed", info(kind))) == kind
    # Whose child was cancelled has failed, and was not cancelled.
    assert kind_of(ChildFailedError("i", info("cancelled"))) == "application"


@pytest.mark.parametrize("group", [JoinError, RaceError])
def test_a_group_is_of_the_kind_that_all_in_it_have(group: Any) -> None:
    one, two = step("transport"), ConnectionError("x")
    assert kind_of(group("x", {"one": one, "two": two})) == "transport"
    assert kind_of(group("x", {"one": one, "two": group("y", {"two": two})})) == "transport"
    assert kind_of(group("x", {"one": one, "two": ValueError("x")})) == "application"
    assert kind_of(group("x", {"one": one, "two": TimeoutError("x")})) == "application"
    assert kind_of(said(group("x", {"one": one, "two": TimeoutError("x")}), "timeout")) == "timeout"
    assert kind_of(ExceptionGroup("x", [one, two])) == "transport"


def test_a_deep_group_is_no_trouble() -> None:
    deep: Any = ConnectionError("x")
    for _ in range(5_000):
        deep = ExceptionGroup("x", [deep])
    assert kind_of(deep) == "transport"


def test_a_group_that_holds_itself_comes_to_an_end() -> None:
    assert kind_of(Endless("x", [ValueError("x")])) == "application"


def test_what_can_be_mended() -> None:
    assert [kind for kind in (*KINDS, "cancelled") if not info(kind).is_mendable] == ["application", "cancelled"]
    assert not ErrorInfo("app.Trouble").is_mendable


def test_divergence_and_crash_loops_are_of_one_kind_and_told_apart() -> None:
    diverged = describe(errors.HistoryDivergedError("x"), CODEC)
    crashed = describe(errors.WorkflowStuckError("i", "stuck", None), CODEC)
    assert diverged.kind == crashed.kind
    assert (is_divergence(diverged), is_divergence(crashed)) == (True, False)
