"""Workers that are gone when the test is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.laws.processes.parts import Workers


@pytest.fixture
def workers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workers]:
    """Processes on a file in a directory of the test's own."""
    found = Workers(tmp_path, getattr(request, "param", "synchronous=normal"))
    yield found
    found.kill_all()
    print(found.all_said())
