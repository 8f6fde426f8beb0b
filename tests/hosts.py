"""Who runs a test's event loop, where neither pytest-asyncio nor anyio's plugin does.

`plain` is what a program does: `asyncio.run`. With `uvicorn`, the test is a request to the FastAPI example, which
uvicorn serves over a socket of this machine; the runtime of the example lives in the same event loop all the while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar

import uvicorn
import uvloop
from fastapi import FastAPI

from examples.service import create_app
from tests.settings import Host

__all__ = ["Opening", "opening_its_fixtures", "run_in"]

T = TypeVar("T")
Main = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Opening(Generic[T]):
    """What a fixture gives that needs an event loop: it is opened and closed in the task of the test itself."""

    open: Callable[[], AbstractAsyncContextManager[T]]


def opening_its_fixtures(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    """The test, with what its fixtures have left to be opened open around it."""

    @wraps(test)
    async def opened(**fixtures: Any) -> None:
        async with AsyncExitStack() as stack:
            for name, value in fixtures.items():
                if isinstance(value, Opening):
                    fixtures[name] = await stack.enter_async_context(value.open())
            await test(**fixtures)

    return opened


def run_in(host: Host, main: Main) -> None:
    """Run a coroutine function in a host that is not a plugin of pytest."""
    if host.name == "plain":
        _run_plain(host, main)
    else:
        assert host.name == "uvicorn", f"{host} runs its tests itself"
        _Server(host, main).run_to_the_end()


def _run_plain(host: Host, main: Main) -> None:
    if host.loop == "asyncio":
        asyncio.run(main())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())


class _Server(uvicorn.Server):
    """uvicorn with the FastAPI example, and a request that is the test."""

    def __init__(self, host: Host, main: Main) -> None:
        self._main = main
        self._outcome: BaseException | None = None
        super().__init__(
            uvicorn.Config(
                self._app(),
                host="127.0.0.1",
                port=0,
                loop="asyncio" if host.loop == "asyncio" else "uvloop",
                lifespan="on",
                log_config=None,
                access_log=False,
            )
        )

    def run_to_the_end(self) -> None:
        """Serve until the test is over; raise what it raised."""
        self.run()
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            raise outcome

    def _app(self) -> FastAPI:
        app = create_app("memory://")
        app.add_api_route("/test", self._test)
        return app

    async def _test(self) -> str:
        try:
            await self._main()
        except BaseException as error:  # noqa: BLE001  # raised where pytest sees it
            self._outcome = error
        return "over"

    async def main_loop(self) -> None:
        """uvicorn looks ten times a second whether it should go on; this way it ends at once."""
        await _ask(self.servers[0].sockets[0].getsockname()[1])


async def _ask(port: int) -> None:
    """One request, by hand: no client could be simpler, and none times out."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /test HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 200"), answer
