"""What a client does so that a commit without an answer can be made sure of."""

from __future__ import annotations

from dataclasses import replace
from random import getrandbits

from tests.drivers.fdb_double.cluster import Cluster, Commit, Range
from tests.drivers.fdb_double.errors import FDBError

__all__ = ["arrive", "make_sure", "with_conflict"]


def with_conflict(commit: Commit) -> Commit:
    """The commit, conflicting with itself: the client adds a key of its own if it does not anyway."""
    if _shared(commit) is not None:
        return commit
    key = b"\xff/SC/" + getrandbits(64).to_bytes(8, "big")
    own = (key, key + b"\x00")
    return replace(commit, read_conflicts=[*commit.read_conflicts, own], write_conflicts=[*commit.write_conflicts, own])


def make_sure(cluster: Cluster, commit: Commit) -> None:
    """Before it says 1021, the client commits something that the lost commit conflicts with."""
    shared = _shared(commit)
    assert shared is not None
    key = (shared, shared + b"\x00")
    cluster.commit(Commit(cluster.read_version(), [key], [key], []))


def arrive(cluster: Cluster, commit: Commit) -> None:
    """A commit comes that nobody waits for any more."""
    try:
        cluster.commit(commit)
    except FDBError as error:
        if error.code not in (1007, 1020):
            raise


def _shared(commit: Commit) -> bytes | None:
    """A key that is both read and written."""
    for read in commit.read_conflicts:
        for write in commit.write_conflicts:
            if _meet(read, write):
                return max(read[0], write[0])
    return None


def _meet(one: Range, other: Range) -> bool:
    return one[0] < other[1] and other[0] < one[1]
