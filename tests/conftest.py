"""Fixtures for every test. Async tests run by anyio's plugin; those of the engine, in every setting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import fdb_store
from tests.cluster_clock import be_patient
from tests.patience import PATIENCE
from tests.support import SETTINGS, Setting, World, open_store

pytest_plugins = ["tests.by_law"]

# What is slow is no failure, however slow.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_report_header() -> str:
    """What is not to be seen from the names of the tests."""
    return fdb_store.described()


def pytest_sessionfinish() -> None:
    """Leave nothing behind where others have data too."""
    fdb_store.clear_all()


@pytest.fixture(autouse=True)
def _patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests on a real cluster wait for it."""
    if fdb_store.CLUSTER_FILE and "fdb" in request.node.name:
        be_patient(monkeypatch)


@pytest.fixture(autouse=True, scope="session")
def _no_second_look() -> Iterator[None]:
    """Whoever waits in FoundationDB is woken by the watch, and not because it is looked at again after a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workflow_drivers.foundationdb._watch.LOOK_SECONDS", 3600.0)
        yield


@pytest.fixture(params=SETTINGS, ids=str)
def setting(request: pytest.FixtureRequest) -> Setting:
    """A store, an event loop, and a mode of running."""
    found = request.param
    assert isinstance(found, Setting)
    return found


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loop that a test runs on: that of its setting, if it has one."""
    if "setting" in request.fixturenames:
        return str(request.getfixturevalue("setting").backend)
    return "asyncio"


@pytest.fixture
async def world(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A store and a clock, and someone who runs instances on them to their end."""
    # Times are looked at to the second, and a plain function may be kept waiting for its thread.
    monkeypatch.setattr("workflow_sdk.testing.clock.SHORT_SECONDS", PATIENCE)
    driver = await open_store(setting.store, tmp_path)
    try:
        yield World(setting, driver, tmp_path)
    finally:
        await driver.aclose()
