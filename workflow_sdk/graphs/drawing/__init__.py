"""Pictures of graphs: where everything goes, and that as SVG, Mermaid and DOT.

It knows nothing of what a graph means: somebody else makes a `Drawing` of one. The same drawing gives the same bytes.
"""

from __future__ import annotations

from workflow_sdk.graphs.drawing.dot import to_dot
from workflow_sdk.graphs.drawing.layout import layout
from workflow_sdk.graphs.drawing.mermaid import to_mermaid
from workflow_sdk.graphs.drawing.model import Box, Drawing, Layout, Line, NodeStatus, Path, Shape
from workflow_sdk.graphs.drawing.svg import to_svg

__all__ = [
    "Box",
    "Drawing",
    "Layout",
    "Line",
    "NodeStatus",
    "Path",
    "Shape",
    "layout",
    "to_dot",
    "to_mermaid",
    "to_svg",
]
