"""For pytest: a clock that jumps, a runtime on it, and tests repeated with the runtime killed at every commit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import anyio
import pytest
from _pytest.runner import runtestprotocol

from workflow_sdk import Client, Runtime, Workflow
from workflow_sdk.driver import Driver, open_driver
from workflow_sdk.testing._elsewhere import elsewhere, rewritten
from workflow_sdk.testing.clock import VirtualClock
from workflow_sdk.testing.drivers import FaultyDriver, SimulatedCrash
from workflow_sdk.worker.hosting import new_hosting

__all__ = ["RuntimeFactory", "virtual_clock", "workflow_runtime"]

OPTION = "--crash-everywhere"

RuntimeFactory: TypeAlias = "Callable[..., AbstractAsyncContextManager[Client]]"


class _Killing(NamedTuple):
    """At which commit the first runtime of a test is killed. 0 is none."""

    commit: int
    side: str
    seen: list[FaultyDriver]

    def __str__(self) -> str:
        return f"the runtime is killed {self.side} commit {self.commit}"


_killing = pytest.StashKey[_Killing]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.getgroup("workflow_sdk").addoption(
        OPTION,
        action="store_true",
        help="repeat every test that uses `workflow_runtime`, once for each commit of the runtime and each side of it, "
        "with the runtime killed there and started again",
    )


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that jumps to the next timer whenever all is idle."""
    return VirtualClock()


@pytest.fixture
def workflow_runtime(request: pytest.FixtureRequest, virtual_clock: VirtualClock) -> RuntimeFactory:
    """Opens runtimes on the virtual clock: `async with workflow_runtime(checkout) as runtime`.

    It takes the workflows, `store` (a new one in memory), and what else a Runtime takes.
    """
    killing = request.node.stash.get(_killing, None)

    @asynccontextmanager
    async def opened(
        *workflows: Workflow[Any, Any], store: str | Driver = "memory://", **options: Any
    ) -> AsyncGenerator[Client]:
        options = {"clock": virtual_clock, **options}
        if killing is None:
            async with Runtime(store, workflows=workflows, **options) as runtime:
                yield runtime
        else:
            with rewritten(workflows):
                async with _mortal(killing, store, workflows, options) as client:
                    yield client

    return opened


@asynccontextmanager
async def _mortal(
    killing: _Killing, store: str | Driver, workflows: tuple[Workflow[Any, Any], ...], options: dict[str, Any]
) -> AsyncGenerator[Client]:
    """A client, and beside it a runtime that is killed once and started again."""
    driver = await open_driver(store) if isinstance(store, str) else store
    commit = killing.commit if not killing.seen else None
    at_before = killing.side == "before"
    faulty = FaultyDriver(driver, crash_before=commit) if at_before else FaultyDriver(driver, crash_after=commit)
    killing.seen.append(faulty)
    of_client = {name: options[name] for name in ("clock", "codec", "max_value_bytes") if name in options}
    begun = anyio.Event()

    async def serve(through: Driver, process: int) -> None:
        with elsewhere(process):
            async with Runtime(through, workflows=workflows, **options):
                begun.set()
                await anyio.sleep_forever()

    async def live() -> None:
        try:
            await serve(faulty, 0)
        except* SimulatedCrash:
            pass
        await serve(driver, 1)

    try:
        async with Client(driver, **of_client) as client:
            # No task group in this generator: a fixture may be left by another task than the one that has entered it.
            hosting = new_hosting()
            group = await hosting.open()
            try:
                group.start_soon(live)
                await begun.wait()
                yield client
            finally:
                await hosting.close()
    finally:
        if isinstance(store, str):
            await driver.aclose()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """With the option, run the test once as it is, and then with the runtime killed at each commit that it made."""
    if not item.config.getoption(OPTION) or "workflow_runtime" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports, commits = _run(item, nextitem, _Killing(0, "before", []))
    if all(report.passed for report in reports):
        reports = _failed_when_killed(item, nextitem, commits) or reports
    item.session._setupstate.teardown_exact(nextitem)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # what the test shares
    for report in reports:
        if report.when == "call" and report.passed:
            report.sections.append(("workflow_sdk", f"passed also when killed at each of {commits} commits"))
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _failed_when_killed(item: pytest.Item, nextitem: pytest.Item | None, commits: int) -> list[pytest.TestReport]:
    """The reports of the first run that failed with the runtime killed at a commit; none if all have passed."""
    for number, side in product(range(1, commits + 1), ("before", "after")):
        killing = _Killing(number, side, [])
        reports, _ = _run(item, nextitem, killing)
        if any(report.failed for report in reports):
            for report in reports:
                report.sections.append(("workflow_sdk", str(killing)))
            return reports
    return []


class _Beside:
    """Stands for a test in the same module and class."""

    def __init__(self, item: pytest.Item) -> None:
        self._around = item.listchain()[:-1]

    def listchain(self) -> list[Any]:
        """What is around it."""
        return [*self._around, self]


def _run(item: pytest.Item, nextitem: pytest.Item | None, killing: _Killing) -> tuple[list[pytest.TestReport], int]:
    """The test once more, with fixtures of its own; its reports, and how many commits the runtimes made."""
    item.stash[_killing] = killing
    # This makes a test begin anew. pytest has no public name for it.
    begin_anew = getattr(item, "_initrequest", None)
    if begin_anew is not None:
        begin_anew()
    for made in ("_instance", "_obj"):  # the object of a class of tests, and its method
        vars(item).pop(made, None)
    # Fixtures that it shares with other tests stay, as if the next test were one beside it.
    reports = runtestprotocol(item, nextitem=_Beside(item), log=False)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return reports, sum(faulty.commits for faulty in killing.seen[:1])
