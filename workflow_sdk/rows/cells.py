"""The rows of cells that are changed wherever instances end and are deleted. A cell is an instance of a machine."""

from __future__ import annotations

from typing import ClassVar

from workflow_sdk.rows.keys import CELL, EFFECTS, MACHINES, InstanceKeys
from workflow_sdk.rows.location import pack_one, pack_segment
from workflow_sdk.rows.wire import Count, Row

__all__ = ["CellState", "SequenceRow", "cell_key", "frames_of", "sequence_key"]


class CellState(Row, frozen=True):
    """The state of a cell."""

    WHAT: ClassVar[str] = "the state of a cell"

    state: bytes
    """Canonical bytes, as the codec stores them."""


class SequenceRow(Row, frozen=True):
    """How far the count of a cell was that is deleted: so no intent id comes twice."""

    WHAT: ClassVar[str] = "the sequence of a deleted cell"

    sequence: Count


def cell_key(keys: InstanceKeys) -> bytes:
    """The row of the state of a cell."""
    return keys.space + CELL


def sequence_key(keys: InstanceKeys) -> bytes:
    """The row that counts on for a cell that is deleted."""
    return MACHINES + pack_segment(2) + pack_one(keys.instance_id)


def frames_of(intent_id: str) -> bytes:
    """What the keys of the frames of an intent begin with."""
    return EFFECTS + pack_segment(5) + pack_one(intent_id)
