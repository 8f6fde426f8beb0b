"""A store in each of the places where a runtime can run; a runtime has no mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.hosts import Opening
from tests.settings import SETTINGS, Setting
from tests.support import open_store
from workflow_sdk import Driver


@pytest.fixture(params=SETTINGS, ids=str)
def place(request: pytest.FixtureRequest) -> Setting:
    """A kind of store, and who runs the event loop."""
    found = request.param
    assert isinstance(found, Setting)
    return found


@pytest.fixture
def driver(place: Setting, tmp_path: Path) -> Opening[Driver]:
    """An open store."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Driver]:
        found = await open_store(place.store, tmp_path)
        try:
            yield found
        finally:
            await found.aclose()

    return Opening(opened)
