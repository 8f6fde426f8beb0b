"""The driver and the Python of the real binding fit together, as far as that can be seen without its library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("backend", "library"), [("asyncio", 900), ("trio", 900), ("asyncio", 730)])
def test_the_real_binding_is_called_as_it_is(backend: str, library: int) -> None:
    """The library may be newer than the package, or older."""
    command = [sys.executable, "-W", "error", "-W", "ignore::ImportWarning"]  # older ones bring an old `six` along
    done = subprocess.run(
        [*command, "-m", "tests.drivers.fdb_double.library", backend, str(library)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
        env=clean_environment(),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    calls = set(done.stdout.split())
    assert {
        "fdb_select_api_version_impl",
        "fdb_run_network",
        "fdb_transaction_add_conflict_range",
        "fdb_transaction_clear_range",
        "fdb_transaction_set_option",
        "fdb_transaction_watch",
        "fdb_future_cancel",
        "fdb_transaction_destroy",
    } <= calls
    assert "fdb_future_block_until_ready" not in calls
