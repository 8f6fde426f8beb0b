"""Ids for instances that were given none."""

from __future__ import annotations

from secrets import randbits
from uuid import UUID

__all__ = ["uuid7"]


def uuid7(now: float) -> UUID:
    """A version 7 UUID (RFC 9562): milliseconds since 1970, and 74 random bits. Ids sort by time."""
    milliseconds = int(now * 1000) & (1 << 48) - 1
    return UUID(int=milliseconds << 80 | 7 << 76 | randbits(12) << 64 | 2 << 62 | randbits(62))
