"""One part of a picture: nodes that hang together, from their rows to the points of each line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from workflow_sdk.graphs.drawing.coordinates import across, straighten
from workflow_sdk.graphs.drawing.crossings import put_in_order
from workflow_sdk.graphs.drawing.lanes import Lane, apart_from_long, lanes_of
from workflow_sdk.graphs.drawing.levels import LABEL_GAP, Levels, Link
from workflow_sdk.graphs.drawing.model import Point
from workflow_sdk.graphs.drawing.ports import ports
from workflow_sdk.graphs.drawing.ranks import ranks_of, rows_of, turned_down
from workflow_sdk.graphs.drawing.sizes import LABEL_HEIGHT

BOX_GAP: Final = 28
ROW_GAP, LABEL_ROW_GAP = 44, 26
"""Between two rows of boxes, and between one and a row of labels."""
_SLOPE, _SLOPE_MAX = 9, 100
"""A line that goes far to the side has more room for it: one pixel for so many, at most so many."""
LOOP_REACH, LOOP_STEP = 22, 9
"""How far the first line from a box to itself goes beside it, and each further one beyond."""


class Node(NamedTuple):
    """What there is to know of a box: its size, and the label widths of the lines to itself, by their numbers."""

    width: int
    height: int
    is_entry: bool
    loops: tuple[tuple[int, int], ...]


class Route(NamedTuple):
    """The points of a line, and where its label begins."""

    points: tuple[Point, ...]
    label_at: Point | None


class Part(NamedTuple):
    """Corners and ranks of the boxes, in the order of the nodes, and the route of each line by its number."""

    width: int
    height: int
    corners: list[Point]
    ranks: list[int]
    routes: dict[int, Route]


def place_part(nodes: Sequence[Node], lines: Sequence[tuple[int, int, int, int, str]]) -> Part:
    """Place nodes that hang together. Lines are number, source, target, width of the label, and kind."""
    ends = [(source, target) for _, source, target, _, _ in lines]
    is_back = turned_down(len(nodes), ends, _roots(nodes, ends))
    down = [
        (target, source) if back else (source, target) for (source, target), back in zip(ends, is_back, strict=True)
    ]
    ranks = ranks_of(len(nodes), down, [node.is_entry for node in nodes])
    rooms = [_room(node) for node in nodes]
    rows = rows_of(ranks, [sum(room) for room in rooms], max([node.height for node in nodes]) + ROW_GAP)
    links = [
        Link(number, upper, lower, width, kind, back)
        for (number, _, _, width, kind), (upper, lower), back in zip(lines, down, is_back, strict=True)
    ]
    short, long = apart_from_long(links, rows)
    levels = Levels(rooms, rows, short)
    put_in_order(levels)
    drawn = _Drawn(nodes, levels, across(levels), short, long)
    return drawn.part(ranks)


def _roots(nodes: Sequence[Node], ends: Sequence[tuple[int, int]]) -> list[int]:
    """Where a reader begins: at the entry, then at what no line leads to."""
    has_lines_in = [False] * len(nodes)
    for _, target in ends:
        has_lines_in[target] = True
    entries = [number for number, node in enumerate(nodes) if node.is_entry]
    return entries + [number for number, has_any in enumerate(has_lines_in) if not has_any]


def _room(node: Node) -> tuple[int, int]:
    """What a box needs to the left and to the right of its middle."""
    half = (node.width + BOX_GAP) // 2
    return half, half + _loop_room(node)


def _loop_room(node: Node) -> int:
    if not node.loops:
        return 0
    label = max([width for _, width in node.loops])
    return LOOP_REACH + LOOP_STEP * (len(node.loops) - 1) + (LABEL_GAP + label if label else 0)


class _Drawn:
    """Levels with all coordinates, from which boxes and routes are read."""

    def __init__(
        self, nodes: Sequence[Node], levels: Levels, at: list[int], short: Sequence[Link], long: Sequence[Link]
    ) -> None:
        self._nodes, self._levels, self._short, self._long = nodes, levels, short, long
        self._at = at
        self._lane_of, self._lanes = lanes_of(long, levels.level)
        self._lanes_at = self._right()
        starts, ends = self._all_ports()
        straighten(levels, at, starts, ends)
        left = min([at[row[0]] - levels.left[row[0]] for row in levels.stops])
        self._at = [place - left for place in at]
        self._upper_ports = {number: place - left for number, place in starts.items()}
        self._lower_ports = {number: place - left for number, place in ends.items()}
        self._lanes_at = self._right()
        self._width = self._lanes_at + _lanes_width(self._lanes)
        self._top, self._bottom = self._down()

    def _right(self) -> int:
        levels = self._levels
        return max([self._at[row[-1]] + levels.right[row[-1]] for row in levels.stops])

    def part(self, ranks: list[int]) -> Part:
        """All of it."""
        routes: dict[int, Route] = {}
        for link in self._short:
            routes[link.number] = self._route(link)
        for link in self._long:
            routes[link.number] = self._lane_route(link)
        corners = [self._corner(number) for number in range(len(self._nodes))]
        for node, (x, y) in zip(self._nodes, corners, strict=True):
            routes.update(_loop_routes(node, x + node.width, y + node.height // 2))
        return Part(self._width, self._bottom[-1], corners, ranks, routes)

    def _corner(self, number: int) -> Point:
        node, level = self._nodes[number], self._levels.level[number]
        return self._at[number] - node.width // 2, (self._top[level] + self._bottom[level] - node.height) // 2

    def _down(self) -> tuple[list[int], list[int]]:
        """Where each level begins and ends."""
        levels = self._levels
        is_boxes = [any(stop < levels.boxes for stop in row) for row in levels.stops]
        slopes = self._slopes()
        tops: list[int] = []
        bottoms: list[int] = []
        y = 0
        for level, row in enumerate(levels.stops):
            if level:
                y += ROW_GAP if is_boxes[level] and is_boxes[level - 1] else LABEL_ROW_GAP
                y += min(slopes[level - 1] // _SLOPE, _SLOPE_MAX)
            tops.append(y)
            y += max([_band(self._nodes[stop]) for stop in row if stop < levels.boxes], default=LABEL_HEIGHT)
            bottoms.append(y)
        return tops, bottoms

    def _slopes(self) -> list[int]:
        """How far lines go to the side below each level."""
        slopes = [0] * self._levels.count
        for stop, below in enumerate(self._levels.below):
            if below:
                level = self._levels.level[stop]
                far = max([abs(self._at[under] - self._at[stop]) for under in below])
                slopes[level] = max(slopes[level], far)
        for link in self._long:
            for stop, level in ((link.upper, 0), (link.lower, -1)):
                level += self._levels.level[stop]
                slopes[level] = max(slopes[level], self._lane_at(link) - self._at[stop])
        return slopes

    def _all_ports(self) -> tuple[dict[int, int], dict[int, int]]:
        """Where each line leaves its upper box and meets its lower one, by its number."""
        out: list[list[tuple[int, int]]] = [[] for _ in self._nodes]
        into: list[list[tuple[int, int]]] = [[] for _ in self._nodes]
        for link in self._short:
            way = self._levels.ways[link.number]
            out[link.upper].append((self._at[way[1]], link.number))
            into[link.lower].append((self._at[way[-2]], link.number))
        for link in self._long:
            out[link.upper].append((self._lane_at(link), link.number))
            into[link.lower].append((self._lane_at(link), link.number))
        return self._side(out), self._side(into)

    def _side(self, lines: Sequence[list[tuple[int, int]]]) -> dict[int, int]:
        found: dict[int, int] = {}
        for node, middle, towards in zip(self._nodes, self._at, lines, strict=False):
            if towards:
                towards.sort()
                places = ports(middle, node.width, [place for place, _ in towards])
                found.update(zip([number for _, number in towards], places, strict=True))
        return found

    def _route(self, link: Link) -> Route:
        way, at, level = self._levels.ways[link.number], self._at, self._levels.level
        inner = [(at[stop], self._top[level[stop]], self._bottom[level[stop]]) for stop in way[1:-1]]
        label_stop = self._levels.label_stops.get(link.number)
        if label_stop is None:
            return Route(self._points(link, inner), None)
        row = level[label_stop]
        label_at = at[label_stop] + LABEL_GAP, (self._top[row] + self._bottom[row]) // 2
        return Route(self._points(link, inner), label_at)

    def _lane_at(self, link: Link) -> int:
        return self._lanes_at + self._lanes[self._lane_of[link.number]].offset

    def _lane_route(self, link: Link) -> Route:
        x, first = self._lane_at(link), self._levels.level[link.upper] + 1
        last = self._levels.level[link.lower] - 1
        points = self._points(link, [(x, self._top[first], self._bottom[last])])
        if not link.label_width:
            return Route(points, None)
        return Route(points, (x + LABEL_GAP, (self._top[first] + self._bottom[first]) // 2))

    def _points(self, link: Link, inner: Sequence[tuple[int, int, int]]) -> tuple[Point, ...]:
        """From the source to the target, straight along each level and aslant only between them."""
        start, end = self._upper_ports[link.number], self._lower_ports[link.number]
        upper, lower = self._levels.level[link.upper], self._levels.level[link.lower]
        points = [(start, self._corner(link.upper)[1] + self._nodes[link.upper].height), (start, self._bottom[upper])]
        for x, top, bottom in inner:
            points += [(x, top), (x, bottom)]
        points += [(end, self._top[lower]), (end, self._corner(link.lower)[1])]
        kept = _without_needless(points)
        return tuple(reversed(kept)) if link.is_turned else tuple(kept)


def _lanes_width(lanes: Sequence[Lane]) -> int:
    if not lanes:
        return 0
    return lanes[-1].offset + LABEL_GAP + lanes[-1].label_width + BOX_GAP


def _band(node: Node) -> int:
    """How high a row has to be for a box, and for the labels beside it."""
    return max(node.height, LABEL_HEIGHT * sum([width > 0 for _, width in node.loops]))


def _loop_routes(node: Node, right: int, middle: int) -> Mapping[int, Route]:
    """Lines from a box to itself, at its right side, one around the other; their labels are one below the other."""
    routes: dict[int, Route] = {}
    count = len(node.loops)
    label_x = right + LOOP_REACH + LOOP_STEP * (count - 1) + LABEL_GAP
    label_y = middle - LABEL_HEIGHT * (sum([width > 0 for _, width in node.loops]) - 1) // 2
    for place, (number, width) in enumerate(node.loops):
        half, x = max(node.height * (place + 1) // (2 * count + 3), 1), right + LOOP_REACH + LOOP_STEP * place
        points = ((right, middle - half), (x, middle - half), (x, middle + half), (right, middle + half))
        routes[number] = Route(points, (label_x, label_y) if width else None)
        label_y += LABEL_HEIGHT if width else 0
    return routes


def _without_needless(points: Sequence[Point]) -> list[Point]:
    """Without repeated points, and without those on the way straight down."""
    kept: list[Point] = []
    for point in points:
        if kept and point == kept[-1]:
            continue
        if len(kept) > 1 and kept[-1][0] == kept[-2][0] == point[0]:
            kept.pop()
        kept.append(point)
    return kept
