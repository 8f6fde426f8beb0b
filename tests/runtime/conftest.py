"""A store in each of the places where a runtime can run, instead of the settings of a single run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runtime.parts import STORES, Store
from tests.support import open_store
from workflow_sdk import Driver


@pytest.fixture(params=STORES, ids=str)
def place(request: pytest.FixtureRequest) -> Store:
    """A kind of store, and an event loop."""
    found = request.param
    assert isinstance(found, Store)
    return found


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loop of the place, or of the setting of a test that has one."""
    for name in ("place", "setting"):
        if name in request.fixturenames:
            return str(request.getfixturevalue(name).backend)
    return "asyncio"


@pytest.fixture
async def driver(place: Store, tmp_path: Path) -> AsyncIterator[Driver]:
    """An open store."""
    opened = await open_store(place.store, tmp_path)
    try:
        yield opened
    finally:
        await opened.aclose()
