"""Whose the names are after a history was rewound.

When a loop ends, its names go to the scope around it. A loop that goes on again needs them back: those that stand only
under it, since nobody else finds them there, and they are to go with its turns. Names under which nothing stands any
more are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workflow_sdk.core.entries import Entry
from workflow_sdk.core.keys import NAMES, InstanceKeys
from workflow_sdk.core.location import Segment, pack_pair, pack_segment, segments
from workflow_sdk.core.names import NameRow
from workflow_sdk.core.status import Kind
from workflow_sdk.driver import Batch

__all__ = ["regain_names"]


@dataclass(slots=True)
class _Use:
    """Where a name stands."""

    loops: dict[bytes, int]
    """The loops that have all of its places in their turns, and the last of those turns."""
    wanted: bool = False
    """Whether one of the places is in no loop that is over: the code asks for the name again."""


def regain_names(
    batch: Batch,
    keys: InstanceKeys,
    texts: dict[int, str],
    entries: dict[bytes, Entry],
    locations: Iterable[bytes],
    reopened: set[bytes],
) -> None:
    """Give the loops that are open again their names back. `locations`: everything that names stand for."""
    uses: dict[int, _Use] = {}
    for location in locations:
        _note(uses, location, entries, reopened)
    taken: set[tuple[bytes, str]] = set()
    for index in sorted(texts, key=lambda index: (index not in uses or not uses[index].wanted, index)):
        key, text, use = keys.space + NAMES + pack_segment(index), texts[index], uses.get(index)
        if use is None:
            batch.clear(key)
        elif use.loops:
            owner = max(use.loops, key=len)
            # Loops in a loop may have had indexes of their own for the same text. Only one can be found.
            batch.set(key, NameRow(text, owner, (owner, text) in taken, use.loops[owner]).pack())
            taken.add((owner, text))


def _note(uses: dict[int, _Use], location: bytes, entries: dict[bytes, Entry], reopened: set[bytes]) -> None:
    """Note where the names in one location stand."""
    loops: dict[bytes, int] = {}
    wanted, at = False, b""
    for segment in segments(location):
        index = segment[0] if isinstance(segment, tuple) else segment
        use = uses.get(index)
        if use is None:
            use = uses[index] = _Use(dict(loops))
        else:
            use.loops = {loop: max(turn, loops[loop]) for loop, turn in use.loops.items() if loop in loops}
        use.wanted |= wanted
        around = entries.get(at)
        if isinstance(segment, tuple) and around is not None and around.kind is Kind.LOOP:
            wanted = at in reopened
            if wanted:
                loops[at] = segment[1]
        at += _packed(segment)


def _packed(segment: Segment) -> bytes:
    return pack_pair(*segment) if isinstance(segment, tuple) else pack_segment(segment)
