"""Levels: the rows of boxes, and between them those of labels; a line that crosses a level has a place there.

Each place is a *stop*, a number. So boxes, lines and labels are all put in order and kept apart by the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from workflow_sdk.graphs.drawing.ranks import Rows

LINE_ROOM: Final = 9
"""What is kept free on each side of a line."""
LABEL_GAP: Final = 6
"""Between a line and its label, which is at the line's right."""

Key: TypeAlias = tuple[str, int, str, bool, int]


class Link(NamedTuple):
    """A line from an upper box to a lower one. It was turned round if the line itself leads upwards."""

    number: int
    upper: int
    lower: int
    label_width: int
    kind: str
    is_turned: bool


class Levels:
    """Stops by level, what each of them needs to its left and right, and the way of each line over them.

    The first stops are those of the boxes.
    """

    def __init__(self, rooms: Sequence[tuple[int, int]], rows: Rows, links: Sequence[Link]) -> None:
        self.left: list[int] = [left for left, _ in rooms]
        self.right: list[int] = [right for _, right in rooms]
        self.boxes: int = len(rooms)
        self.above: list[list[int]] = [[] for _ in rooms]
        self.below: list[list[int]] = [[] for _ in rooms]
        self.ways: dict[int, list[int]] = {}
        self.label_stops: dict[int, int] = {}
        self._shared: dict[Key, int] = {}
        self._linked: dict[tuple[int, int], None] = {}
        sharing = [sharing_of(link, rows.is_broken) for link in links]
        label_rows = [_label_row(link, share, rows.row) for link, share in zip(links, sharing, strict=True)]
        self._number_levels(rows.number, label_rows)
        self.level: list[int] = [self._level_of_row[row] for row in rows.row]
        for link, share, label_row in zip(links, sharing, label_rows, strict=True):
            self._add(link, share, -1 if label_row < 0 else self._level_of_row[label_row] + 1)
        self.stops: list[list[int]] = self._by_level()

    def _by_level(self) -> list[list[int]]:
        stops: list[list[int]] = [[] for _ in range(self.count)]
        for stop, level in enumerate(self.level):
            stops[level].append(stop)
        return stops

    def _number_levels(self, rows: int, label_rows: Sequence[int]) -> None:
        """A row of labels only where there are any."""
        has_labels = [False] * rows
        for row in label_rows:
            if row >= 0:
                has_labels[row] = True
        self._level_of_row: list[int] = []
        level = 0
        for row in range(rows):
            self._level_of_row.append(level)
            level += 1 + has_labels[row]
        self.count = level

    def _add(self, link: Link, share: tuple[str, int] | None, label_level: int) -> None:
        """Give a line its stops, and link each with the next."""
        way = [link.upper]
        for level in range(self.level[link.upper] + 1, self.level[link.lower]):
            if level == label_level:
                stop = self._stop(level, LABEL_GAP + link.label_width)
                self.label_stops[link.number] = stop
            elif share is None:
                stop = self._stop(level)
            else:
                key = (*share, link.kind, link.is_turned, level)
                stop = self._shared.get(key, -1)
                if stop < 0:
                    stop = self._shared[key] = self._stop(level)
            way.append(stop)
        way.append(link.lower)
        self.ways[link.number] = way
        for ends in pairwise(way):
            if share is None or ends not in self._linked:
                self._linked[ends] = None
                self.below[ends[0]].append(ends[1])
                self.above[ends[1]].append(ends[0])

    def _stop(self, level: int, label: int = 0) -> int:
        self.left.append(LINE_ROOM)
        self.right.append(LINE_ROOM + label)
        self.above.append([])
        self.below.append([])
        self.level.append(level)
        return len(self.left) - 1


def sharing_of(link: Link, is_broken: Sequence[bool]) -> tuple[str, int] | None:
    """With which other lines a line shares its way past the rows of a rank that is broken into several.

    Those to a node there come down together and part above its row; those from there are joined below it. Else a
    thousand lines would go past each of these rows.
    """
    if is_broken[link.upper]:
        return ("to", link.lower)
    if is_broken[link.lower]:
        return ("from", link.upper)
    return None


def _label_row(link: Link, share: tuple[str, int] | None, row: Sequence[int]) -> int:
    """Below which row the label of a line is: near its source, where the line is not shared; -1 without a label."""
    if not link.label_width:
        return -1
    is_low = link.is_turned if share is None else share[0] == "from"
    return row[link.lower] - 1 if is_low else row[link.upper]
