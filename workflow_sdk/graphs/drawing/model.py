"""What is drawn, and where it goes: plain values, which know nothing of what a graph means."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

ShapeKind: TypeAlias = Literal[
    "step",
    "noop",
    "assign",
    "task",
    "wait",
    "call",
    "child",
    "continue",
    "choose",
    "repeat",
    "sequence",
    "each",
    "join",
    "final",
    "controller",
]
LineKind: TypeAlias = Literal["arc", "failure", "any", "need"]
Point: TypeAlias = tuple[int, int]


class Shape(Struct, frozen=True):
    """A node to be drawn. `lines` are small texts below its name, such as its options."""

    name: str
    kind: ShapeKind = "step"
    lines: tuple[str, ...] = ()
    is_entry: bool = False
    is_final: bool = False


class Line(Struct, frozen=True):
    """A line from one shape to another, with a text such as that of a guard."""

    source: str
    target: str
    label: str = ""
    kind: LineKind = "arc"


class Drawing(Struct, frozen=True):
    """Shapes, each with a name of its own, and the lines between them. Their order is that of the picture."""

    shapes: tuple[Shape, ...] = ()
    lines: tuple[Line, ...] = ()
    title: str = ""


class NodeStatus(Struct, frozen=True):
    """What became of a node: `completed`, `failed`, `running` and so on, how often it has fired, and why."""

    status: str
    firings: int = 0
    note: str = ""


class Box(Struct, frozen=True):
    """Where a shape is: its left upper corner and its size, in pixels. `rank` counts from the top of its part."""

    name: str
    x: int
    y: int
    width: int
    height: int
    rank: int


class Path(Struct, frozen=True):
    """Where a line goes, from its source to its target.

    Its label begins at `label_at`, which is half way up the text; `label_width` is kept free for it.
    """

    source: str
    target: str
    points: tuple[Point, ...]
    label: str
    label_at: Point | None
    kind: LineKind
    label_width: int = 0


class Layout(Struct, frozen=True):
    """Boxes in the order of the shapes, and paths in the order of the lines.

    No two boxes overlap, and no path goes through a box that it does not belong to.
    """

    boxes: tuple[Box, ...]
    paths: tuple[Path, ...]
    width: int
    height: int

    def to_data(self) -> dict[str, Any]:
        """The same as dicts, lists, texts and numbers."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data
