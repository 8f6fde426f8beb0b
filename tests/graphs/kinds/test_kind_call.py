"""Calls of something outside, by transports: functions by name, and http."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import pytest

from tests.graphs.kinds.ends import end_of, seen, statuses
from tests.support import World
from workflow_sdk import Context, CriticalError, DefinitionError, NotAuthorizedError, Runtime
from workflow_sdk.graphs import E, Graph, arc
from workflow_sdk.testing import crash_everywhere

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


async def bank(payload: Any) -> Any:
    calls.append(payload)
    return {"receipt": payload}


def paying(transport: Any, **options: Any) -> Graph:
    graph = Graph("pays", transports={"bank": transport})
    late = arc("late", on="failed", when=E.error.kind == "timeout")
    failed = arc("failed", on="failed", args={"kind": E.error.kind, "type": E.error.type})
    graph.call(
        "pay", transport="bank", payload={"cents": E.workload}, result="paid", next=["done", late, failed], **options
    )
    for name in ("done", "late", "failed"):
        graph.step(name, seen)
    return graph


async def test_a_call_gives_what_the_transport_gave_and_puts_it_into_the_context(world: World) -> None:
    result = end_of(await world.run(paying(bank), 500))
    assert result.outputs["pay"] == {"receipt": {"cents": 500}}
    assert result.outputs["done"]["context"] == {"paid": {"receipt": {"cents": 500}}}
    assert calls == [{"cents": 500}]


async def test_a_call_without_a_payload_is_given_the_arguments_of_the_step(world: World) -> None:
    graph = Graph("pays", transports={"bank": bank})
    graph.call("pay", transport="bank")
    assert end_of(await world.run(graph, 7)).outputs["pay"] == {"receipt": 7}


async def test_transports_are_given_to_the_runtime(world: World) -> None:
    graph = Graph("pays")
    graph.call("pay", transport="bank")
    async with Runtime(world.driver, workflows=[graph], transports={"bank": bank}, clock=world.clock) as runtime:
        handle = await runtime.start(graph, 7)
        assert (await handle.result()).outputs["pay"] == {"receipt": 7}


def test_a_runtime_is_not_made_for_calls_that_nobody_can_make() -> None:
    graph = Graph("pays")
    graph.call("pay", transport="bank")
    graph.call("ask", transport="http")
    with pytest.raises(DefinitionError, match="step 'pay' of 'bank'; give"):
        Runtime("memory://", workflows=[graph], transports={"shop": bank})
    Runtime("memory://", workflows=[graph], transports={"bank": bank})
    Runtime("memory://", workflows=[paying(bank)])


async def test_a_transport_that_nobody_has_given_is_a_failure_of_the_kind_definition(world: World) -> None:
    graph = Graph("pays")
    graph.call("pay", transport="bank", next=arc("told", on="failed", args={"kind": E.error.kind}))
    graph.step("told", seen)
    result = end_of(await world.run(graph, 7))
    assert result.outputs["told"]["args"] == {"kind": "definition"}
    assert "no transport 'bank'" in result.outcomes["pay"].reason


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError("no route"), "transport"),
        (NotAuthorizedError("not you"), "authorization"),
        (ValueError("no answer"), "transport"),
    ],
)
async def test_a_failure_is_routed_with_its_kind(world: World, error: Exception, kind: str) -> None:
    async def broken(payload: Any) -> Any:
        calls.append(payload)
        raise error

    result = end_of(await world.run(paying(broken, retries=1), 500))
    assert result.outputs["failed"]["args"]["kind"] == kind
    assert "paid" not in result.outputs["failed"]["context"]
    assert len(calls) == 2, "the first call, and one more"


async def test_a_call_that_takes_too_long_takes_the_arc_of_timeouts(world: World) -> None:
    async def slow(payload: Any) -> Any:
        await anyio.sleep(30)

    result = end_of(await world.run(paying(slow, timeout=0.01, retries=0), 500))
    assert statuses(result) == {
        "pay": "failed",
        "done": "never_reached",
        "late": "completed",
        "failed": "never_reached",
    }


@pytest.mark.law(1)
async def test_a_call_is_tried_again_with_the_same_idempotency_key(world: World) -> None:
    async def shaky(payload: Any, *, idempotency_key: str) -> Any:
        calls.append(idempotency_key)
        if len(calls) < 3:
            raise ConnectionError("not now")
        return "paid"

    assert end_of(await world.run(paying(shaky), 500)).outputs["pay"] == "paid"
    assert len(calls) == 3
    assert len(set(calls)) == 1


@dataclass
class Payment:
    cents: int


async def test_a_transport_is_given_the_type_that_it_asks_for(world: World) -> None:
    async def typed(payment: Payment) -> Any:
        return payment.cents + 1

    assert end_of(await world.run(paying(typed), 500)).outputs["pay"] == 501


async def test_a_transport_may_have_operations(world: World) -> None:
    async def slowly(ctx: Context, payload: Any) -> Any:
        await ctx.sleep("rest", 100)
        return await ctx.step("bank", bank, payload)

    assert end_of(await world.run(paying(slowly), 500)).outputs["pay"] == {"receipt": {"cents": 500}}


def test_a_plain_function_can_be_a_transport_and_its_failure_is_final_if_it_says_so() -> None:
    with pytest.raises(DefinitionError, match="is neither"):
        Graph("pays", transports={"bank": "bank"})  # type: ignore[dict-item]
    with pytest.raises(DefinitionError, match="transport is a name"):
        Graph("pays").call("pay", transport="")


async def test_a_call_survives_every_crash() -> None:
    await crash_everywhere(paying(bank), 500)


async def broken_bank(payload: Any) -> Any:
    raise CriticalError("closed")


async def test_a_failing_call_survives_every_crash() -> None:
    await crash_everywhere(paying(broken_bank), 500)


# HTTP.


class _Bank(BaseHTTPRequestHandler):
    """Answers with what it was asked, and with the status that the path says."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length).decode()
        self.server.asked.append((self.command, self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        status = int(self.path.strip("/").partition("?")[0] or 200)
        if len(self.server.asked) > 1 and status == 503:  # type: ignore[attr-defined]
            status = 200
        raw = json.dumps({"got": body}).encode() if "text" not in self.path else b"plain"
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if "text" in self.path else "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = _answer

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Always the same: the answer stands in the output."""
        return "Tue, 01 Jan 2030 00:00:00 GMT"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def server() -> Generator[tuple[str, list[Any]]]:
    """A server on this machine: its address, and what it was asked."""
    bank = ThreadingHTTPServer(("127.0.0.1", 0), _Bank)
    bank.asked = asked = list[Any]()  # type: ignore[attr-defined]
    thread = threading.Thread(target=bank.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{bank.server_port}", asked
    finally:
        bank.shutdown()
        thread.join()
        bank.server_close()


def asking(**payload: Any) -> Graph:
    graph = Graph("asks")
    told = arc("told", on="failed", args={"kind": E.error.kind, "status": E.error.attributes.status})
    graph.call("ask", transport="http", payload={"url": E.workload, **payload}, next=["told", told])
    graph.step("told", seen)
    return graph


async def test_http_makes_a_request_and_gives_the_answer(world: World) -> None:
    with server() as (url, asked):
        graph = asking(method="POST", json={"cents": 5}, headers={"X-Shop": "1"}, params={"page": 2})
        result = end_of(await world.run(graph, f"{url}/200"))
    answer = result.outputs["ask"]
    assert (answer["status"], json.loads(answer["body"]["got"])) == (200, {"cents": 5})
    ((method, path, headers, _),) = asked
    assert (method, path, headers["X-Shop"]) == ("POST", "/200?page=2", "1")
    assert headers["Idempotency-Key"]


async def test_http_survives_every_crash() -> None:
    with server() as (url, asked):
        await crash_everywhere(asking(method="POST", json={"cents": 5}), f"{url}/200")
        await crash_everywhere(asking(), f"{url}/404")
    for path in ("/200", "/404"):
        keys = {headers["Idempotency-Key"] for _, at, headers, _ in asked if at == path}
        assert len(keys) == 1, "the same call, however often it was killed"


async def test_http_gives_what_is_no_json_as_text(world: World) -> None:
    with server() as (url, _):
        result = end_of(await world.run(asking(), f"{url}/200?text"))
    assert result.outputs["ask"]["body"] == "plain"


async def test_http_tries_again_what_another_attempt_may_mend(world: World) -> None:
    with server() as (url, asked):
        result = end_of(await world.run(asking(), f"{url}/503"))
    assert result.outputs["ask"]["status"] == 200
    keys = {headers["Idempotency-Key"] for _, _, headers, _ in asked}
    assert (len(asked), len(keys)) == (2, 1)


@pytest.mark.parametrize(("status", "kind"), [(404, "application"), (401, "authorization"), (403, "authorization")])
async def test_http_fails_at_once_with_what_no_other_attempt_would_mend(world: World, status: int, kind: str) -> None:
    with server() as (url, asked):
        result = end_of(await world.run(asking(), f"{url}/{status}"))
    assert result.outputs["told"]["args"] == {"kind": kind, "status": status}
    assert len(asked) == 1


async def test_http_that_reaches_nobody_fails_with_the_kind_transport(world: World) -> None:
    with server() as (url, _):
        pass
    graph = Graph("asks")
    graph.call(
        "ask", transport="http", payload={"url": url}, retries=1, next=arc("told", on="failed", args=E.error.kind)
    )
    graph.step("told", seen)
    assert end_of(await world.run(graph)).outputs["told"]["args"] == "transport"


@pytest.mark.parametrize("payload", [{}, {"url": 3}, {"url": "http://x", "verb": "GET"}])
async def test_http_refuses_a_payload_that_it_does_not_know(world: World, payload: Any) -> None:
    graph = Graph("asks")
    graph.call("ask", transport="http", payload=payload, next=arc("told", on="failed"))
    graph.noop("told")
    result = end_of(await world.run(graph))
    assert "http call" in result.outcomes["ask"].reason


async def test_http_says_which_extra_it_needs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    graph = Graph("asks")
    graph.call("ask", transport="http", payload={"url": "http://x"}, next=arc("told", on="failed"))
    graph.noop("told")
    result = end_of(await world.run(graph))
    assert "workflow-sdk[http]" in result.outcomes["ask"].reason
