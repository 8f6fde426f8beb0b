"""Drawings that several tests use."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from workflow_sdk.graphs.drawing import Drawing, Layout, Line, Path, Shape
from workflow_sdk.graphs.drawing.model import LineKind, ShapeKind
from workflow_sdk.graphs.drawing.sizes import LABEL_HEIGHT

__all__ = ["HOSTILE", "KINDS", "TRIAGE", "Rectangle", "drawings", "labels_of", "overlap", "segments"]

KINDS: tuple[ShapeKind, ...] = (
    "step", "noop", "assign", "task", "wait", "call", "child", "continue", "choose", "repeat", "sequence", "each",
    "join", "final", "controller",
)  # fmt: skip
LINE_KINDS: tuple[LineKind, ...] = ("arc", "failure", "any", "need")
HOSTILE = (
    "</text><script>alert(1)</script>", 'a "quoted" \\ name', "[x](y){z}|w|", "end", "a\nb\tc", "\x00\x1b\ud800",
    "工作流", "%%{init: {}}%%", "&amp; #quot; `tick`", "", "x" * 300, "style a:b#c;", "--> n1", "\u202eabc",
)  # fmt: skip

TRIAGE = Drawing(
    (
        Shape("classify", "step", ("retries=3",), is_entry=True),
        Shape("fix"),
        Shape("reply", "task", ("roles: support",)),
        Shape("test", "call"),
        Shape("notify"),
        Shape("merge", "join"),
        Shape("summary", "final", is_final=True),
    ),
    (
        Line("classify", "fix", "output.kind == 'bug'"),
        Line("classify", "reply"),
        Line("fix", "test"),
        Line("fix", "notify", "ctx.loud"),
        Line("fix", "reply", "failed", kind="failure"),
        Line("test", "merge", kind="need"),
        Line("notify", "merge", kind="need"),
        Line("merge", "summary", kind="any"),
    ),
    "triage",
)

Rectangle = tuple[int, int, int, int]


@st.composite
def drawings(draw: st.DrawFn, most: int = 14) -> Drawing:
    """Any graph: with cycles, lines from a node to itself, several between the same two, and parts apart."""
    count = draw(st.integers(0, most))
    names = [f"n{number}" for number in range(count)]
    shapes = [
        Shape(name, draw(st.sampled_from(KINDS)), ("an option of it",) * draw(st.integers(0, 3)), draw(st.booleans()))
        for name in names
    ]
    if not names:
        return Drawing()
    line = st.builds(
        Line,
        st.sampled_from(names),
        st.sampled_from(names),
        st.sampled_from(["", "", "yes", "output.score > 0.5 and more"]),
        st.sampled_from(LINE_KINDS),
    )
    return Drawing(tuple(shapes), tuple(draw(st.lists(line, max_size=2 * most))))


def overlap(one: Rectangle, other: Rectangle) -> bool:
    """Whether two rectangles (left, top, right, bottom) have any area in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def labels_of(layout: Layout) -> list[Rectangle]:
    """What labels cover."""
    return [
        (x, y - LABEL_HEIGHT // 2, x + path.label_width, y + LABEL_HEIGHT // 2)
        for path in layout.paths
        if path.label_at is not None
        for x, y in [path.label_at]
    ]


def segments(path: Path) -> list[Rectangle]:
    """The rectangles that the parts of a path are drawn in: a curve stays inside, too. A line is one pixel wide."""
    return [
        (min(x, to_x), min(y, to_y), max(x, to_x) + (x == to_x), max(y, to_y) + (y == to_y))
        for (x, y), (to_x, to_y) in pairwise(path.points)
    ]
