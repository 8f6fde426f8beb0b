"""A store in a file, and the command line on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.line import Line


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(f"sqlite:///{tmp_path}/app.db?synchronous=normal", tmp_path)
