"""The tests leave nothing behind in a cluster that others use too."""

from __future__ import annotations

from typing import Any

import pytest

from tests import fdb_store
from tests.fdb_store import RUN, clear_all, run_range, settings_for
from workflow_drivers.foundationdb._keys import space_of


class _Database:
    """It notes what is cleared."""

    def __init__(self) -> None:
        self.cleared: list[tuple[bytes, bytes]] = []
        self.options: Any = self

    def set_transaction_timeout(self, milliseconds: int) -> None:
        assert milliseconds > 0

    def open(self, _: str) -> _Database:
        return self

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self.cleared.append((begin, end))


def test_the_stores_of_a_run_lie_together_and_apart_from_others() -> None:
    begin, end = run_range()
    for space in (space_of(settings_for(name).prefix) for name in ("a", "b")):
        assert begin <= space.begin < space.end <= end
    for other in ("workflow_sdk", "test", "test-", f"test-{RUN}", f"test-{RUN}.", "test-0", "test-g"):
        space = space_of(other)
        assert space.end <= begin or end <= space.begin


@pytest.mark.parametrize("began", [True, False])
def test_what_is_cleared_at_the_end(began: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    database = _Database()
    monkeypatch.setattr(fdb_store, "CLUSTER_FILE", "/fdb.cluster")
    monkeypatch.setattr(fdb_store, "BEGAN_THE_RUN", began)
    monkeypatch.setattr(fdb_store, "load", lambda _: (database, None))
    monkeypatch.setattr(fdb_store, "_prefixes", {"one", "two"})
    clear_all()
    own = [(b"\x02one\x00\x00", b"\x02one\x00\xff"), (b"\x02two\x00\x00", b"\x02two\x00\xff")]
    assert database.cleared == ([run_range()] if began else own)


def test_without_a_cluster_there_is_nothing_to_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fdb_store, "CLUSTER_FILE", None)
    clear_all()
