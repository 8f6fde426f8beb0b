"""Lanes: beside the boxes, for lines so long that a place on each level would cost too much time and room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from workflow_sdk.graphs.drawing.levels import LABEL_GAP, LINE_ROOM, Link, sharing_of
from workflow_sdk.graphs.drawing.ranks import Rows

STOPS_EACH, STOPS_FREE = 3, 500
"""How many stops a part may have for each of its boxes and lines, and besides."""


class Lane(NamedTuple):
    """How far a lane is from the first one's left side, and what is free at its right for labels."""

    offset: int
    label_width: int


def apart_from_long(links: Sequence[Link], rows: Rows) -> tuple[list[Link], list[Link]]:
    """The lines that go from level to level, and those that are too long for it, which are taken out first."""
    spans = {link.number: rows.row[link.lower] - rows.row[link.upper] for link in links}
    costs = [(_cost(group, spans), group) for group in _shared(links, rows)]
    left = sum([cost for cost, _ in costs])
    most = STOPS_EACH * (len(rows.row) + len(links)) + STOPS_FREE
    long: dict[int, Link] = {}
    for cost, group in sorted(costs, key=lambda each: -each[0]):
        if left <= most:
            break
        left -= cost
        long.update((link.number, link) for link in group if spans[link.number] > 1)
    return [link for link in links if link.number not in long], list(long.values())


def _cost(group: Sequence[Link], spans: Mapping[int, int]) -> int:
    """How many stops lines need that share them."""
    return max([spans[link.number] for link in group]) - 1


def _shared(links: Sequence[Link], rows: Rows) -> Iterable[list[Link]]:
    """The lines, those together that share their stops."""
    groups: dict[tuple[object, ...], list[Link]] = {}
    for link in links:
        share = sharing_of(link, rows.is_broken)
        key = (link.number,) if share is None else (*share, link.kind, link.is_turned)
        groups.setdefault(key, []).append(link)
    return groups.values()


def lanes_of(links: Sequence[Link], level: Sequence[int]) -> tuple[dict[int, int], list[Lane]]:
    """The lane of each long line, by its number, and the lanes. Lines that share one are not side by side."""
    chosen: dict[int, int] = {}
    widths: list[int] = []
    free: list[tuple[int, int]] = []  # from which level on, and which lane
    for link in sorted(links, key=lambda link: (level[link.upper], level[link.lower], link.number)):
        if free and free[0][0] < level[link.upper]:
            lane = heappop(free)[1]
        else:
            lane = len(widths)
            widths.append(0)
        chosen[link.number] = lane
        widths[lane] = max(widths[lane], link.label_width)
        heappush(free, (level[link.lower], lane))
    lanes: list[Lane] = []
    offset = 0
    for width in widths:
        lanes.append(Lane(offset + LINE_ROOM, width))
        offset += 2 * LINE_ROOM + (LABEL_GAP + width if width else 0)
    return chosen, lanes
