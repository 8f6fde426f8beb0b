"""Pictures as SVG: one text that needs nothing else, in the colours of the day or the night.

Colours also stand at each thing itself, for whoever shows the picture without its style.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from workflow_sdk.graphs.drawing.colours import FONT, GROUND, LINES, PLAIN, QUIET, STYLE, TEXT, Colours, colours_of
from workflow_sdk.graphs.drawing.layout import layout_of
from workflow_sdk.graphs.drawing.model import Box, Drawing, NodeStatus, Path, Point, Shape
from workflow_sdk.graphs.drawing.sizes import CAPTION_HEIGHT, NAME_HEIGHT, SMALL_HEIGHT, Sized, shown_label, sized
from workflow_sdk.graphs.drawing.text import plain

_HEAD: Final = 8
"""How long the head of an arrow is."""
_DASHES: Final[Mapping[str, str]] = {
    "failure": ' stroke-dasharray="6 4"',
    "any": ' stroke-dasharray="2 3"',
    "need": ' stroke-dasharray="10 3"',
}
_WORDS: Final[Mapping[str, str]] = {"arc": "", "failure": "after a failure", "any": "in any case", "need": "is needed"}


def to_svg(drawing: Drawing, statuses: Mapping[str, NodeStatus] | None = None) -> str:
    """A picture of the drawing, with the status of each node if *statuses* are given by name.

    Names and texts are shown as they are, whatever they contain; what is too long is cut, and whole in the tooltip.
    """
    has_statuses = statuses is not None
    found = [None if statuses is None else statuses.get(shape.name) for shape in drawing.shapes]
    sizes = [sized(shape, status, has_statuses) for shape, status in zip(drawing.shapes, found, strict=True)]
    placed = layout_of(drawing, sizes)
    parts = [_begin(plain(drawing.title) or "graph", placed.width, placed.height)]
    for path in placed.paths:
        parts += _path(path)
    for box, size, status in zip(placed.boxes, sizes, found, strict=True):
        parts += _box(box, size, status)
    # Labels come last: no line is drawn over them.
    parts += [_label(path) for path in placed.paths if path.label_at is not None]
    parts.append("</svg>\n")
    return "\n".join(parts)


def _begin(title: str, width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="wg" role="img" aria-label={quoteattr(title)} '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="{FONT}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect class="ground" width="{width}" height="{height}" fill="{GROUND[0]}"/>'
    )


def _path(path: Path) -> Iterator[str]:
    colour = LINES[path.kind][0]
    title = " · ".join([text for text in (f"{path.source} → {path.target}", path.label, _WORDS[path.kind]) if text])
    yield f'<g class="{path.kind}"><title>{escape(plain(title))}</title>'
    way = f'<path class="way" d="{_way(path.points)}" fill="none" stroke="{colour}" stroke-width="1.5"'
    yield f"{way}{_DASHES.get(path.kind, '')}/>"
    yield f'<path class="head" d="{_head(path.points)}" fill="{colour}"/></g>'


def _way(points: tuple[Point, ...]) -> str:
    """Straight where it goes straight, and between two rows a curve that stays between them."""
    steps = [f"M{points[0][0]} {points[0][1]}"]
    is_loop = len(points) == 4 and points[0][1] == points[1][1]
    for (x, y), (to_x, to_y) in pairwise(points):
        if x == to_x or is_loop:
            steps.append(f"L{to_x} {to_y}")
        else:
            middle = (y + to_y) // 2
            steps.append(f"C{x} {middle} {to_x} {middle} {to_x} {to_y}")
    return "".join(steps)


def _head(points: tuple[Point, ...]) -> str:
    """A triangle at the end: lines come from above, from below, or back from the right."""
    (_, from_y), (x, y) = points[-2:]
    if y == from_y:
        return f"M{x} {y}l{_HEAD} -4v8z"
    return f"M{x} {y}l-4 {-_HEAD if from_y < y else _HEAD}h8z"


def _label(path: Path) -> str:
    assert path.label_at is not None, "only of those that have one"
    x, y = path.label_at
    return (
        f'<text class="label" x="{x}" y="{y + 4}" font-size="11" fill="{TEXT[0]}" stroke="{GROUND[0]}" '
        f'stroke-width="3" paint-order="stroke">{escape(shown_label(path.label))}</text>'
    )


def _box(box: Box, size: Sized, status: NodeStatus | None) -> Iterator[str]:
    word, colours = colours_of(status.status) if status is not None else colours_of(PLAIN)
    yield f'<g class="is-{word.replace("_", "-")}"><title>{escape(plain(_title(size, status)))}</title>'
    yield _OUTLINES.get(size.shape.kind, _rounded)(box, _edge(colours, size.shape))
    if size.shape.kind == "join":
        yield f'<rect class="bar" x="{box.x}" y="{box.y}" width="{box.width}" height="4" fill="{colours.stroke}"/>'
    yield from _texts(box, size, colours)
    yield "</g>"


def _title(size: Sized, status: NodeStatus | None) -> str:
    texts = [size.shape.name, size.caption, *size.shape.lines]
    if status is not None:
        texts += [size.status, status.note]
    return " · ".join([text for text in texts if text])


def _edge(colours: Colours, shape: Shape) -> str:
    dashes = ' stroke-dasharray="5 3"' if shape.kind in ("controller", "noop") else ""
    width = "2.5" if shape.is_entry else "1.5"
    return f'class="edge" fill="{colours.fill}" stroke="{colours.stroke}" stroke-width="{width}"{dashes}'


def _texts(box: Box, size: Sized, colours: Colours) -> Iterator[str]:
    rows = [("small", 10, CAPTION_HEIGHT, QUIET[0], size.caption)] if size.caption else []
    rows.append(("name", 13, NAME_HEIGHT, TEXT[0], size.name))
    rows += [("small", 11, SMALL_HEIGHT, QUIET[0], text) for text in size.small]
    rows += [("status", 11, SMALL_HEIGHT, colours.text, text) for text in (size.status, size.note) if text]
    x = box.x + box.width // 2
    y = box.y + (box.height - sum([height for _, _, height, _, _ in rows])) // 2
    for word, font, height, colour, text in rows:
        y += height
        weight = ' font-weight="600"' if word == "name" else ""
        yield (
            f'<text class="{word}" x="{x}" y="{y - (height - font) // 2 - 2}" text-anchor="middle" '
            f'font-size="{font}"{weight} fill="{colour}">{escape(text)}</text>'
        )


def _rect(x: int, y: int, width: int, height: int, radius: int, edge: str) -> str:
    return f'<rect {edge} x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}"/>'


def _rounded(box: Box, edge: str) -> str:
    return _rect(box.x, box.y, box.width, box.height, 7, edge)


def _square(box: Box, edge: str) -> str:
    return _rect(box.x, box.y, box.width, box.height, 0, edge)


def _pill(box: Box, edge: str) -> str:
    return _rect(box.x, box.y, box.width, box.height, min(box.height // 2, 16), edge)


def _double(box: Box, edge: str) -> str:
    return _rounded(box, edge) + _rect(box.x + 4, box.y + 4, box.width - 8, box.height - 8, 4, edge)


def _double_pill(box: Box, edge: str) -> str:
    radius = min(box.height // 2, 16)
    return _pill(box, edge) + _rect(box.x + 4, box.y + 4, box.width - 8, box.height - 8, radius - 4, edge)


def _double_sides(box: Box, edge: str) -> str:
    sides = f'<path {edge} d="M{box.x + 6} {box.y}v{box.height}M{box.x + box.width - 6} {box.y}v{box.height}"/>'
    return _square(box, edge) + sides


def _hexagon(box: Box, edge: str) -> str:
    x, y, half = box.x, box.y, box.height // 2
    inner = box.width - 20
    return f'<path {edge} d="M{x} {y + half}l10 {-half}h{inner}l10 {half}l-10 {half}h{-inner}z"/>'


def _stack(box: Box, edge: str) -> str:
    behind = _rect(box.x + 5, box.y, box.width - 5, box.height - 5, 7, edge)
    return behind + _rect(box.x, box.y + 5, box.width - 5, box.height - 5, 7, edge)


_OUTLINES: Final[Mapping[str, Callable[[Box, str], str]]] = {
    "assign": _square,
    "wait": _pill,
    "continue": _pill,
    "call": _double_sides,
    "sequence": _double_sides,
    "child": _double,
    "task": _square,
    "choose": _hexagon,
    "repeat": _hexagon,
    "each": _stack,
    "final": _double_pill,
}
"""Kinds without one of these have round corners."""
