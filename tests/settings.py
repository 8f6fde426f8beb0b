"""Where and how the tests run: the one place that says which test runs in which setting.

A setting has four parts:

- the **store**: `memory`, `sqlite`, `fdb` (a real cluster if there is one, else the double in `tests/drivers`);
- the **loop**: `asyncio`, `uvloop`, `trio`;
- the **mode** of `run_workflow`: `yield`, `live`;
- the **host**, which runs the event loop: `pytest-asyncio` (strict mode, a loop of its own for each test), `plain`
  (`asyncio.run`, and nothing else around it), `uvicorn` (inside a request to a server, which serves the FastAPI
  example over a socket; see `tests/hosts.py`), and `anyio`, whose pytest plugin runs what is for trio.

Not everything goes together: aiosqlite and the FoundationDB driver are asyncio's, and pytest-asyncio makes the loops of
its tests itself. `SETTINGS` has every pair of two that goes together: a test in `tests/house` holds it to that.

What a test runs in:

- A test with the fixture `setting`, `world` or `place` is not tied to one setting. In the quick tier (`make test`) it
  runs in one, each case of it in the next one of the table, so that all of them have their share of the cases. In the
  deep tier (`make deep`, `pytest --deep`) it runs in several, with every store and every host among them.
- A test with the fixture `host` has to do with no store: in the quick tier it runs in one host, with `--deep` on every
  loop.
- A test that holds only in some settings says so: `@pytest.mark.settings(store="sqlite", mode="yield")`.
- A test about the tasks and threads of a worker, which depend on who runs the loop most of all, is marked
  `@pytest.mark.every_host`: in the deep tier it runs in every host, on every loop. (One that has none of the fixtures
  above runs on those of asyncio.)
- Every other async test runs under pytest-asyncio.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from workflow_sdk.instance.execution import Mode

__all__ = ["HOSTS", "IN_MEMORY", "PYTEST_ASYNCIO", "SETTINGS", "TRIO", "Host", "Setting", "goes_together", "pick"]

Loop = Literal["asyncio", "uvloop", "trio"]
HostName = Literal["pytest-asyncio", "plain", "uvicorn", "anyio"]


@dataclass(frozen=True)
class Host:
    """Who runs the event loop, and which one."""

    name: HostName
    loop: Loop = "asyncio"

    @property
    def backend(self) -> Literal["asyncio", "trio"]:
        """What anyio calls the loop."""
        return "trio" if self.loop == "trio" else "asyncio"

    def __str__(self) -> str:
        return self.name if self.name in ("pytest-asyncio", "anyio") else f"{self.name}-{self.loop}"


PYTEST_ASYNCIO = Host("pytest-asyncio")
TRIO = Host("anyio", "trio")
HOSTS = (
    PYTEST_ASYNCIO,
    Host("plain"),
    Host("plain", "uvloop"),
    Host("uvicorn"),
    Host("uvicorn", "uvloop"),
    TRIO,
)


@dataclass(frozen=True)
class Setting:
    """A store, a mode, and a host with its loop."""

    store: str
    mode: Mode
    host: Host

    @property
    def loop(self) -> Loop:
        """The event loop."""
        return self.host.loop

    @property
    def backend(self) -> str:
        """What anyio calls the loop."""
        return self.host.backend

    def __str__(self) -> str:
        return f"{self.store}-{self.mode}-{self.host}"


SETTINGS = (
    # In an order in which neighbours have little in common: whoever takes a few gets a good mixture.
    Setting("memory", "yield", Host("pytest-asyncio")),
    Setting("sqlite", "live", Host("plain")),
    Setting("fdb", "live", Host("uvicorn", "uvloop")),
    Setting("memory", "live", TRIO),
    Setting("sqlite", "yield", Host("uvicorn", "uvloop")),
    Setting("fdb", "yield", Host("plain")),
    Setting("memory", "live", Host("uvicorn")),
    Setting("sqlite", "live", Host("pytest-asyncio")),
    Setting("memory", "yield", Host("plain", "uvloop")),
    Setting("fdb", "live", Host("pytest-asyncio")),
    Setting("memory", "yield", TRIO),
)


W = TypeVar("W", bound="Setting | Host")


IN_MEMORY = SETTINGS[0]
"""For a test that makes its own world: what it looks at has to do with no store and no loop."""


def goes_together(store: str, host: Host) -> bool:
    """Whether a test can run with this store under this host."""
    if host.loop == "trio":
        return store == "memory" and host.name == "anyio"
    return host.name != "anyio" and (host.loop == "asyncio" or host.name != "pytest-asyncio")


def pick(possible: Sequence[W], start: int, *, deep: bool, every_host: bool = False) -> Collection[W]:
    """The settings of a case among the possible ones: one, or if `deep` enough for every store, mode and host."""
    turned: list[W] = [*possible[start % len(possible) :], *possible[: start % len(possible)]]
    if not deep:
        return turned[:1]
    # The one that adds the most, as long as one adds something.
    found: list[W] = []
    seen: set[object] = set()
    while True:
        best = max(turned, key=lambda where: len(_parts(where, every_host) - seen))
        if _parts(best, every_host) <= seen:
            return found
        found.append(best)
        seen |= _parts(best, every_host)


def _parts(where: Setting | Host, every_host: bool) -> set[object]:
    if isinstance(where, Host):
        return {where if every_host else where.loop}
    return {where.store, where.mode, where.host if every_host else where.host.name}
