"""Which workers died while they ran an instance, and what each of them was executing then (law 16).

A worker that takes an instance over from another one notes that death. From then on, until the instance has got past
what it was at, whoever runs it notes every operation before it calls the code of it. So the next death counts against
exactly those operations: that others park or end meanwhile changes nothing.

A worker may be taken for dead and live. It takes its death back as soon as it learns of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

from workflow_sdk.core.wire import Row

__all__ = ["Blame", "Death", "Deaths", "Try", "worker_of_lease", "worst"]


class Death(Row, frozen=True):
    """A worker that died, as far as anybody knows."""

    lease: str
    """The name of its lease."""
    noted: bool
    """Whether it had noted what it was executing."""


class Try(Row, frozen=True):
    """An operation whose code was called and has not come to an end."""

    WHAT: ClassVar[str] = "what was executed when a worker died"

    path: str
    leases: tuple[str, ...]
    """The leases under which that was done, and those of deaths of which nobody knows what they were executing."""


class Deaths(Row, frozen=True):
    """The deaths of an instance, as they are stored."""

    WHAT: ClassVar[str] = "the deaths of an instance"

    deaths: tuple[Death, ...] = ()


class Blame(NamedTuple):
    """The operation under which most workers have died."""

    path: str | None
    """None, if nobody knows which operation it was."""
    leases: tuple[str, ...]
    """Of the workers that died."""


def worker_of_lease(name: str) -> str:
    """The worker that had the lease of this name."""
    return name.rpartition("/")[0]


def worst(deaths: Iterable[Death], tries: Mapping[bytes, Try]) -> Blame:
    """What most of them died of. A death of which nobody knows more than that it happened counts by itself."""
    dead = {death.lease: death for death in deaths}
    found = Blame(None, tuple(name for name, death in dead.items() if not death.noted))
    for tried in tries.values():
        leases = tuple(name for name in tried.leases if name in dead)
        if len(leases) >= len(found.leases):
            found = Blame(tried.path, leases)
    return found
