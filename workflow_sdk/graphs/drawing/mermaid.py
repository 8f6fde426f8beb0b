"""Pictures as text for Mermaid, which Markdown pages draw."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from workflow_sdk.graphs.drawing.model import Drawing, Shape
from workflow_sdk.graphs.drawing.sizes import shown_label, sized
from workflow_sdk.graphs.drawing.text import plain

_BRACKETS: Final[Mapping[str, tuple[str, str]]] = {
    "noop": ("(", ")"),
    "assign": ("[/", "/]"),
    "wait": ("([", "])"),
    "continue": ("([", "])"),
    "call": ("[[", "]]"),
    "child": ("[[", "]]"),
    "sequence": ("[[", "]]"),
    "choose": ("{", "}"),
    "repeat": ("{{", "}}"),
    "join": ("[\\", "/]"),
    "final": ("(((", ")))"),
    "controller": ("[(", ")]"),
}
"""Kinds without some of these are plain boxes."""
_ARROWS: Final[Mapping[str, str]] = {"arc": "-->", "failure": "-.->", "any": "==>", "need": "--o"}
# What Mermaid might read as something of its own; two signs stand for "&" and ";" while it works.
_SPECIAL: Final = re.compile(r"[^\w .,=()'!/*+\u0080-\U0010ffff-]|[\ufb02\u00b6]")


def to_mermaid(drawing: Drawing) -> str:
    """The drawing as a flowchart; names and texts are shown as they are, whatever they contain."""
    ids = {shape.name: f"n{number}" for number, shape in enumerate(drawing.shapes)}
    rows = ["---", f"title: {json.dumps(plain(drawing.title))}", "---"] if drawing.title else []
    rows.append("flowchart TD")
    rows += [f"    {ids[shape.name]}{_shape(shape)}" for shape in drawing.shapes]
    for line in drawing.lines:
        label = _escaped(shown_label(line.label))
        text = f'|"{label}"|' if label.strip() else ""
        rows.append(f"    {ids[line.source]} {_ARROWS[line.kind]}{text} {ids[line.target]}")
    return "\n".join(rows) + "\n"


def _shape(shape: Shape) -> str:
    size = sized(shape, None, False)
    texts = [_escaped(text) for text in (size.caption, size.name, *size.small) if text]
    opening, closing = _BRACKETS.get(shape.kind, ("[", "]"))
    text = "<br/>".join(texts) or " "
    return f'{opening}"{text}"{closing}'


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: "#quot;" if found[0] == '"' else f"#{ord(found[0])};", text)
