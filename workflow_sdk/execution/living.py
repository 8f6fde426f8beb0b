"""Which workers of this process are alive."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["lives_here", "living"]

REMEMBERED_MAX = 10_000
"""Workers of this process that have ended and are remembered."""

_living: set[str] = set()
_ended: OrderedDict[str, None] = OrderedDict()


@contextmanager
def living(worker: str) -> Generator[None]:
    """A worker of this process is alive as long as this lasts."""
    _living.add(worker)
    try:
        yield
    finally:
        _living.discard(worker)
        _ended[worker] = None
        while len(_ended) > REMEMBERED_MAX:
            _ended.popitem(last=False)


def lives_here(worker: str) -> bool | None:
    """Whether a worker of this process is alive; None if it is not one of this process, or ended long ago."""
    return True if worker in _living else False if worker in _ended else None


def _forget() -> None:
    _living.clear()
    _ended.clear()


if hasattr(os, "register_at_fork"):
    # The workers of the parent are not those of the child.
    os.register_at_fork(after_in_child=_forget)
