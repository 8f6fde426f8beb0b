"""What a rewound instance has assigned of what the world may see.

What the code assigns when it is run again must not be taken over from the record as well, or it would count twice. What
is passed over, since something around it answers for it, must be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workflow_sdk.changes.rewinding.loop_tape import turn_of
from workflow_sdk.core.entries import Entry, LoopData
from workflow_sdk.core.keys import CHANGES, FOLDED, InstanceKeys
from workflow_sdk.core.location import segments, split_last
from workflow_sdk.core.status import Kind
from workflow_sdk.driver import Batch

__all__ = ["Assigned", "rewind_changes"]


@dataclass(frozen=True, slots=True)
class Assigned:
    """What is recorded of it."""

    changed: list[bytes]
    """Locations of finished scopes."""
    folded: Mapping[bytes, bytes]
    """Rows of scopes inside of those, and of the turns of loops: what was assigned before they began."""


def rewind_changes(
    batch: Batch,
    keys: InstanceKeys,
    assigned: Assigned,
    entries: Mapping[bytes, Entry],
    reopened: set[bytes],
    loops: Mapping[bytes, LoopData],
) -> None:
    """Have what was assigned count where the code is not run again, and nowhere else.

    `entries` are those that are kept; `reopened` and `loops` are entered again, the latter with the turn in their data.
    """
    space, opened = keys.space, reopened | loops.keys()
    for at in assigned.changed:
        if at not in entries or at in opened:
            batch.clear(space + CHANGES + at)
    for at, raw in assigned.folded.items():
        around, own = split_last(at)
        loop = entries.get(around)
        if _is_turn(own) and (loop is None or loop.kind is Kind.LOOP):
            if loop is None:
                batch.clear(space + FOLDED + at)
            elif around in loops and turn_of(around, at) == loops[around].turn:
                batch.set(space + CHANGES + around, raw)
        elif at not in entries or at in opened:
            batch.clear(space + FOLDED + at)
        elif not _is_passed_over(at, entries, loops):
            batch.clear(space + FOLDED + at)
            batch.set(space + CHANGES + at, raw)


def _is_turn(own: bytes) -> bool:
    """Whether a location ends with a number: it is a turn of a loop, or a branch of a map."""
    return isinstance(next(segments(own)), tuple)


def _is_passed_over(at: bytes, entries: Mapping[bytes, Entry], loops: Mapping[bytes, LoopData]) -> bool:
    """Whether the code does not come to a location, since something around it answers for it."""
    around = at
    while around:
        around, _ = split_last(around)
        entry = entries.get(around)
        if entry is None:
            continue
        data = loops.get(around, entry.data)
        if entry.is_final or (isinstance(data, LoopData) and turn_of(around, at) < data.turn):
            return True
    return False
