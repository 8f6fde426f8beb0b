"""Pictures as text for Graphviz."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from workflow_sdk.graphs.drawing.model import Drawing, Shape
from workflow_sdk.graphs.drawing.sizes import shown_label, sized
from workflow_sdk.graphs.drawing.text import plain

_SHAPES: Final[Mapping[str, str]] = {
    "assign": 'shape="box"',
    "task": 'shape="box"',
    "wait": 'shape="oval"',
    "continue": 'shape="oval"',
    "call": 'shape="component"',
    "child": 'shape="box", peripheries="2"',
    "choose": 'shape="diamond"',
    "repeat": 'shape="hexagon"',
    "sequence": 'shape="folder"',
    "each": 'shape="box3d"',
    "join": 'shape="invtrapezium"',
    "final": 'shape="oval", peripheries="2"',
    "noop": 'shape="box", style="rounded,dashed"',
    "controller": 'shape="box", style="dashed"',
}
_PLAIN: Final = 'shape="box", style="rounded"'
_STYLES: Final[Mapping[str, str]] = {
    "failure": 'style="dashed", color="#cf222e"',
    "any": 'style="dotted"',
    "need": 'style="bold", arrowhead="odot"',
}


def to_dot(drawing: Drawing) -> str:
    """The drawing as a directed graph; names and texts are shown as they are, whatever they contain."""
    ids = {shape.name: f"n{number}" for number, shape in enumerate(drawing.shapes)}
    rows = [f"digraph {_quoted(plain(drawing.title) or 'graph')} {{", '    node [fontname="monospace"];']
    rows += [f"    {ids[shape.name]} [{_shape(shape)}];" for shape in drawing.shapes]
    for line in drawing.lines:
        label = f"label={_quoted(shown_label(line.label))}" if line.label else ""
        options = ", ".join([text for text in (label, _STYLES.get(line.kind, "")) if text])
        rows.append(f"    {ids[line.source]} -> {ids[line.target]}{f' [{options}]' if options else ''};")
    return "\n".join([*rows, "}"]) + "\n"


def _shape(shape: Shape) -> str:
    size = sized(shape, None, False)
    texts = [text for text in (size.caption, size.name, *size.small) if text]
    return f"label={_quoted(*texts)}, {_SHAPES.get(shape.kind, _PLAIN)}"


def _quoted(*texts: str) -> str:
    """Texts below each other, as one string of the language."""
    # Graphviz reads entities such as `&amp;` in any label.
    escaped = [text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for text in texts]
    return '"' + "\\n".join(escaped) + '"'
