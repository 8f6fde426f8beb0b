"""Where everything goes: layered from top to bottom, part beside part.

What hangs together is laid out by itself: cycles are opened, each node goes into the row of its rank, lines that cross
rows get places of their own there, the order of each row is improved until few lines cross, and each thing is brought
near what it is linked with. The parts are then put side by side, in rows, as words on a page; a rank that is too wide
to be looked at takes several rows in the same way.

All is done in whole numbers and in the order of the drawing, so that the same drawing gives the same layout anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from workflow_sdk.graphs.drawing.model import Box, Drawing, Layout, Line, Path
from workflow_sdk.graphs.drawing.parts import Node, Part, Route, place_part
from workflow_sdk.graphs.drawing.ranks import ROW_WIDTH_MIN, row_width
from workflow_sdk.graphs.drawing.sizes import Sized, label_width, sized

PART_GAP: Final = 36

Thing = TypeVar("Thing")


def layout(drawing: Drawing) -> Layout:
    """Where the shapes and lines of a drawing go.

    Raises ValueError if two shapes have one name, or if a line leads from or to none.
    """
    return layout_of(drawing, [sized(shape, None, False) for shape in drawing.shapes])


def layout_of(drawing: Drawing, sizes: Sequence[Sized]) -> Layout:
    """The layout for boxes of these sizes."""
    numbers = _numbered(drawing)
    lines = [(numbers[line.source], numbers[line.target]) for line in drawing.lines]
    widths = [label_width(line.label) for line in drawing.lines]
    groups = list(_groups(len(sizes), lines))
    placed = [_place(group, drawing, sizes, lines, widths) for group in groups]
    corners, width, height = _packed(placed, [any(sizes[n].shape.is_entry for n in group.nodes) for group in groups])
    boxes: dict[int, Box] = {}
    paths: dict[int, Path] = {}
    for group, part, (x, y) in zip(groups, placed, corners, strict=True):
        for node, (left, top), rank in zip(group.nodes, part.corners, part.ranks, strict=True):
            size = sizes[node]
            boxes[node] = Box(size.shape.name, x + left, y + top, size.width, size.height, rank)
        for number, route in part.routes.items():
            paths[number] = _path(drawing.lines[number], route, x, y, widths[number])
    return Layout(_in_order(boxes), _in_order(paths), width, height)


def _path(line: Line, route: Route, x: int, y: int, label_width: int) -> Path:
    """The path of a line in a part whose corner is there."""
    points = tuple([(x + across, y + down) for across, down in route.points])
    label_at = None if route.label_at is None else (x + route.label_at[0], y + route.label_at[1])
    return Path(line.source, line.target, points, line.label, label_at, line.kind, label_width)


def _in_order(found: Mapping[int, Thing]) -> tuple[Thing, ...]:
    return tuple([found[number] for number in range(len(found))])


def _numbered(drawing: Drawing) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    for number, shape in enumerate(drawing.shapes):
        if numbers.setdefault(shape.name, number) != number:
            raise ValueError(f"two shapes are called {shape.name!r}")
    for line in drawing.lines:
        for name in (line.source, line.target):
            if name not in numbers:
                raise ValueError(f"the line from {line.source!r} to {line.target!r} has no shape {name!r}")
    return numbers


class _Group(NamedTuple):
    """Nodes that hang together, and the lines between them."""

    nodes: list[int]
    lines: list[int]


def _groups(count: int, lines: Sequence[tuple[int, int]]) -> Iterator[_Group]:
    """In the order of their first nodes."""
    first = list(range(count))

    def root(node: int) -> int:
        while first[node] != node:
            first[node] = first[first[node]]
            node = first[node]
        return node

    for source, target in lines:
        one, other = root(source), root(target)
        first[max(one, other)] = min(one, other)
    groups: dict[int, _Group] = {}
    for node in range(count):
        groups.setdefault(root(node), _Group([], [])).nodes.append(node)
    for number, (source, _) in enumerate(lines):
        groups[root(source)].lines.append(number)
    yield from groups.values()


def _place(
    group: _Group,
    drawing: Drawing,
    sizes: Sequence[Sized],
    lines: Sequence[tuple[int, int]],
    widths: Sequence[int],
) -> Part:
    local = {node: number for number, node in enumerate(group.nodes)}
    loops: dict[int, list[tuple[int, int]]] = {}
    others: list[tuple[int, int, int, int, str]] = []
    for number in group.lines:
        source, target = lines[number]
        if source == target:
            loops.setdefault(source, []).append((number, widths[number]))
        else:
            others.append((number, local[source], local[target], widths[number], drawing.lines[number].kind))
    nodes = [
        Node(sizes[node].width, sizes[node].height, sizes[node].shape.is_entry, tuple(loops.get(node, ())))
        for node in group.nodes
    ]
    return place_part(nodes, others)


def _packed(parts: Sequence[Part], has_entry: Sequence[bool]) -> tuple[list[tuple[int, int]], int, int]:
    """Where each part goes, in rows from left to right: those with an entry first, then the high ones.

    Beside a high part, low ones are one under the other.
    """
    area = sum([(part.width + PART_GAP) * (part.height + PART_GAP) for part in parts])
    most = max([ROW_WIDTH_MIN // 3, row_width(area), *(part.width for part in parts)])
    corners = [(0, 0)] * len(parts)
    top = bottom = left = right = width = PART_GAP // 2
    below = bottom
    for number in sorted(range(len(parts)), key=lambda each: (not has_entry[each], -parts[each].height)):
        part = parts[number]
        if below + part.height <= bottom and left + part.width <= right:
            y = below  # under the part before, beside a higher one
        elif right > PART_GAP and right + part.width > most:
            left, top = PART_GAP // 2, bottom + PART_GAP
            right, y = left + part.width, top
        else:
            # Boxes have room on both sides already.
            left = right + PART_GAP // 4
            right, y = left + part.width, top
        corners[number] = (left, y)
        below = y + part.height + PART_GAP
        bottom, width = max(bottom, y + part.height), max(width, right)
    return corners, width + PART_GAP // 2, bottom + PART_GAP // 2
