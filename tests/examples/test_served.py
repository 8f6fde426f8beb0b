"""The FastAPI example as it is deployed: served by uvicorn, ended or killed, and started again."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
ORDER = {"sku": "teapot", "cents": 4990}
APP = """
import sys
from examples.service import create_app
app = create_app(sys.argv[1])
import uvicorn
uvicorn.run(app, port=0, loop=sys.argv[2])
"""


class Service:
    """The process, and what is asked of it."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request, on a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            raw = None if body is None else json.dumps(body)
            connection.request(method, path, raw, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def until_waiting(self) -> None:
        """Return once the order waits for its payment."""
        while self.ask("GET", "/orders/1001")[1]["status"] != "waiting":
            pass


@contextmanager
def served(store: str, loop: str) -> Generator[Service]:
    """The example behind uvicorn, on a port that is free."""
    process = subprocess.Popen(
        [sys.executable, "-c", APP, store, loop], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        told = ""
        for line in process.stderr:
            told += line
            if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", line):
                yield Service(process, int(found[1]))
                return
        raise AssertionError(f"it does not serve:\n{told}")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.deep
@pytest.mark.parametrize(("loop", "end"), [("asyncio", signal.SIGTERM), ("uvloop", signal.SIGKILL)])
def test_a_service_goes_on_with_its_orders_after_its_end(tmp_path: Path, loop: str, end: signal.Signals) -> None:
    store = f"sqlite:///{tmp_path}/orders.db"
    with served(store, loop) as service:
        assert service.ask("PUT", "/orders/1001", ORDER) == (202, {"id": "1001"})
        assert service.ask("PUT", "/orders/1001", ORDER | {"sku": "kettle"})[0] == 409
        assert service.ask("GET", "/orders/1002")[0] == 404
        service.until_waiting()
        service.process.send_signal(end)
        service.process.wait()
    with served(store, loop) as service:
        # After SIGKILL nobody has given it back: it is taken over when the lease has run out, some seconds from now.
        status, delivery = service.ask("POST", "/orders/1001/payment", {"reference": "card-42"})
        assert (status, delivery["delivery"]) in ((200, "accepted"), (200, "queued"))
        assert service.ask("GET", "/orders/1001/result") == (200, {"output": "teapot, paid with card-42"})
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE) in (0, -signal.SIGTERM), "it has shut down by itself"
