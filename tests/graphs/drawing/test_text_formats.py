"""Mermaid and DOT: what they look like, and that no name gets out of its quotes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from tests.graphs.drawing.drawings import HOSTILE, KINDS, LINE_KINDS, TRIAGE
from workflow_sdk.graphs.drawing import Drawing, Line, Shape, to_dot, to_mermaid

HERE = Path(__file__).parent

MERMAID_NODE = re.compile(r'    n\d+[\[({/\\]+"[^"\n`%{}<>|\[\]]*(?:<br/>[^"\n`%{}<>|\[\]]*)*"[\])}/\\]+')
MERMAID_LINE = re.compile(r'    n\d+ (?:-->|-\.->|==>|--o)(?:\|"[^"\n`%{}<>|\[\]]+"\|)? n\d+')
QUOTED = r'"(?:[^"\\\n]|\\.)*"'
DOT_ROW = re.compile(rf"    n\d+(?: -> n\d+)?(?: \[\w+={QUOTED}(?:, \w+={QUOTED})*\])?;")


def check_mermaid(drawing: Drawing) -> None:
    rows = to_mermaid(drawing).splitlines()
    if drawing.title:
        assert rows[0] == rows[2] == "---"
        rows = rows[3:]
    assert rows[0] == "flowchart TD"
    shapes, lines = rows[1 : len(drawing.shapes) + 1], rows[len(drawing.shapes) + 1 :]
    assert [row for row in shapes if not MERMAID_NODE.fullmatch(row)] == []
    assert [row for row in lines if not MERMAID_LINE.fullmatch(row)] == []
    assert len(lines) == len(drawing.lines)


def check_dot(drawing: Drawing) -> None:
    first, second, *rows, last = to_dot(drawing).splitlines()
    assert re.fullmatch(rf"digraph {QUOTED} \{{", first)
    assert second == '    node [fontname="monospace"];'
    assert [row for row in rows if not DOT_ROW.fullmatch(row)] == []
    assert len(rows) == len(drawing.shapes) + len(drawing.lines)
    assert last == "}"


def named(name: str) -> Drawing:
    shapes = (Shape(name, "step", (name,)), Shape(f"other {name}"))
    return Drawing(shapes, tuple([Line(name, f"other {name}", name, kind) for kind in LINE_KINDS]), name)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_stays_in_its_quotes(name: str) -> None:
    check_mermaid(named(name))
    check_dot(named(name))


@settings(max_examples=effort(300))
@given(st.text(max_size=12))
def test_any_name_stays_in_its_quotes(name: str) -> None:
    check_mermaid(named(name))
    check_dot(named(name))
    to_mermaid(named(name)).encode()
    to_dot(named(name)).encode()


def test_every_kind_is_drawn() -> None:
    drawing = Drawing(tuple([Shape(kind, kind) for kind in KINDS]))
    check_mermaid(drawing)
    check_dot(drawing)


@pytest.mark.parametrize("drawing", [TRIAGE, Drawing()], ids=["triage", "empty"])
def test_the_formats_are_kept(drawing: Drawing) -> None:
    check_mermaid(drawing)
    check_dot(drawing)


def test_the_triage_as_mermaid() -> None:
    assert to_mermaid(TRIAGE) == (HERE / "triage.mmd").read_text()


def test_the_triage_as_dot() -> None:
    assert to_dot(TRIAGE) == (HERE / "triage.dot").read_text()
