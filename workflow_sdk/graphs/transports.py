"""What the calls of a graph are made with: functions by name, and `http`, which needs the extra of that name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

from workflow_sdk.errors import CriticalError, DefinitionError

Transport = Callable[..., Any]

TIMEOUT_SECONDS: Final = 60.0
"""How long a request over HTTP may take, if neither the step nor the payload says."""
_AGAIN: Final = frozenset({408, 425, 429})
"""Answers of the 400s that another attempt may mend."""
_KEYS: Final = frozenset({"url", "method", "headers", "params", "json", "body", "timeout"})


def transport_of(name: str, *known: Mapping[str, Transport]) -> Transport:
    """The function that makes calls of this name: the first that is known, or one that is built in."""
    for transports in (*known, BUILT_IN):
        if name in transports:
            return transports[name]
    names = ", ".join(sorted({*BUILT_IN, *(one for transports in known for one in transports)}))
    raise DefinitionError(f"there is no transport {name!r:.100}, only {names}; give it to Runtime(transports={{...}})")


async def http(payload: dict[str, Any], *, idempotency_key: str) -> dict[str, Any]:
    """Make a request over HTTP: `{"url":, "method": "GET", "headers":, "params":, "json":, "body":, "timeout":}`.

    It gives `{"status":, "headers":, "body":}`, where the body of an answer in JSON is its value, and any other a text.
    An answer from 400 on is a failure; only those that another attempt may mend are tried again. The header
    `Idempotency-Key` is the same for every attempt.
    """
    request = _request(payload)
    headers = {"Idempotency-Key": idempotency_key} | dict(request.get("headers") or {})
    client = _library()
    limit = request.get("timeout", TIMEOUT_SECONDS)
    async with client.AsyncClient(verify=_tls(), timeout=limit, follow_redirects=True) as session:
        answer = await session.request(
            request.get("method", "GET"),
            request["url"],
            headers=headers,
            params=request.get("params"),
            json=request.get("json"),
            content=request.get("body"),
        )
    if answer.status_code >= 400:
        raise _failure(answer)
    return {"status": answer.status_code, "headers": dict(answer.headers), "body": _body(answer)}


def _request(payload: Any) -> dict[str, Any]:
    request: dict[str, Any] = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    if not isinstance(request.get("url"), str):
        raise CriticalError("the payload of an http call is a dict with a `url`")
    if unknown := sorted(map(str, request.keys() - _KEYS)):
        raise CriticalError(f"an http call has no {', '.join(unknown)}; it has {', '.join(sorted(_KEYS))}")
    return request


def _library() -> Any:
    try:
        import httpx2
    except ImportError:
        raise DefinitionError("the transport `http` needs httpx2: pip install 'workflow-sdk[http]'") from None
    return httpx2


@lru_cache(maxsize=1)
def _tls() -> Any:
    """The certificates that are trusted. Reading them takes longer than most requests."""
    return _library().create_ssl_context()


def _body(answer: Any) -> Any:
    kind = answer.headers.get("content-type", "").partition(";")[0].strip()
    if answer.content and (kind == "application/json" or kind.endswith("+json")):
        return answer.json()
    return answer.text


def _failure(answer: Any) -> Exception:
    """What a call fails with: an error that says its kind."""
    status = answer.status_code
    words = f"{answer.request.method} {answer.request.url}: {status} {answer.reason_phrase}".rstrip()
    failure: HttpError | HttpRefusedError
    failure = HttpError(words) if status >= 500 or status in _AGAIN else HttpRefusedError(words)
    failure.status, failure.body = status, answer.text[:1_000]
    return failure


class HttpError(Exception):
    """A server has answered that it can't do what it was asked for now."""

    status: int = 0
    body: str = ""
    """The answer, as far as its first 1,000 characters."""


class HttpRefusedError(CriticalError):
    """A server has answered that it does not do what it was asked for: another attempt would come to the same."""

    status: int = 0
    body: str = ""
    """The answer, as far as its first 1,000 characters."""


BUILT_IN: Final[Mapping[str, Transport]] = {"http": http}
