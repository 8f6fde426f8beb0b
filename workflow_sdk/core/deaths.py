"""Which workers died while they ran an instance, and what each of them was executing then (law 16).

A worker that takes an instance over from another one notes that death. From then on, until the instance has got past
what it was at, whoever runs it notes every operation before it calls the code of it. So the next death counts against
exactly those operations: that others park or end meanwhile changes nothing.

A worker may be taken for dead and live. It takes its death back as soon as it learns of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from workflow_sdk.core.codec.problem import is_a
from workflow_sdk.core.wire import damaged, pack_record, unpack_record

__all__ = ["Blame", "Death", "Try", "lease_name", "pack_deaths", "unpack_deaths", "worker_of_lease", "worst"]


class Death(NamedTuple):
    """A worker that died, as far as anybody knows."""

    lease: str
    """The name of its lease."""
    noted: bool
    """Whether it had noted what it was executing."""


class Try(NamedTuple):
    """An operation whose code was called and has not come to an end, as a row stores it."""

    path: str
    leases: tuple[str, ...]
    """The leases under which that was done, and those of deaths of which nobody knows what they were executing."""

    def pack(self) -> bytes:
        """As it is stored."""
        return pack_record([self.path, list(self.leases)])

    @classmethod
    def unpack(cls, raw: bytes) -> Try:
        """From what is stored."""
        parts = unpack_record(raw)
        if len(parts) != 2 or type(parts[0]) is not str or not _are_names(parts[1]):
            raise damaged("what was executed when a worker died")
        return cls(parts[0], tuple(parts[1]))


class Blame(NamedTuple):
    """The operation under which most workers have died."""

    path: str | None
    """None, if nobody knows which operation it was."""
    leases: tuple[str, ...]
    """Of the workers that died."""


def _are_names(value: Any) -> bool:
    return type(value) is list and all(type(name) is str for name in cast("list[object]", value))


def lease_name(lease: bytes) -> str:
    """What a lease is called where deaths are counted: no other claim has this name."""
    worker, epoch, _ = unpack_record(lease)
    return f"{worker}/{epoch}"


def worker_of_lease(name: str) -> str:
    """The worker that had the lease of this name."""
    return name.rpartition("/")[0]


def pack_deaths(deaths: Iterable[Death]) -> bytes | None:
    """The field of an instance; None if nobody has died."""
    found = list(deaths)
    return pack_record([len(found), [[*death] for death in found]]) if found else None


def unpack_deaths(raw: bytes | None) -> list[Death]:
    """The deaths that a field holds. It once was only their number."""
    if raw is None:
        return []
    parts = unpack_record(raw)
    if len(parts) == 1:
        return [Death(f"/{number}", noted=False) for number in range(int(parts[0]))]
    found: list[Death] = []
    rows: list[Any] = parts[1]
    for row in rows:
        if not is_a(row, list) or tuple(map(type, row)) != (str, bool):
            raise damaged("the deaths of an instance")
        found.append(Death(*row))
    return found


def worst(deaths: Iterable[Death], tries: Mapping[bytes, Try]) -> Blame:
    """What most of them died of. A death of which nobody knows more than that it happened counts by itself."""
    dead = {death.lease: death for death in deaths}
    found = Blame(None, tuple(name for name, death in dead.items() if not death.noted))
    for tried in tries.values():
        leases = tuple(name for name in tried.leases if name in dead)
        if len(leases) >= len(found.leases):
            found = Blame(tried.path, leases)
    return found
