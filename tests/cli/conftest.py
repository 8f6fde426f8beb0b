"""A store in a file, and the command line on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.launcher import close_the_launcher
from tests.cli.line import Line
from workflow_sdk import Driver


@pytest.fixture(scope="session", autouse=True)
def _launcher_is_closed() -> Iterator[None]:
    yield
    close_the_launcher()


@pytest.fixture
def line(tmp_path: Path) -> Line:
    async def leave(driver: Driver) -> None:
        """To open it was enough: most commands want a store that is there."""

    made = Line(f"sqlite:///{tmp_path}/app.db?synchronous=normal", tmp_path)
    made.on_store(leave)
    return made
