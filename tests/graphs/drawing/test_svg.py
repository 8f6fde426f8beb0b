"""Pictures are whole, safe and legible, whatever the names are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from tests.environment import clean_environment
from tests.graphs.drawing.drawings import HOSTILE, KINDS, TRIAGE, drawings
from workflow_sdk.graphs.drawing import Drawing, Line, NodeStatus, Shape, to_svg
from workflow_sdk.graphs.drawing.sizes import NAME_UNITS, SIGNS

NAMESPACE = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[3]


def texts(picture: str, word: str = "") -> list[str]:
    """The texts that are shown."""
    found = ET.fromstring(picture).iter(f"{NAMESPACE}text")
    return [text.text or "" for text in found if not word or text.get("class") == word]


def titles(picture: str) -> list[str]:
    return [title.text or "" for title in ET.fromstring(picture).iter(f"{NAMESPACE}title")]


@settings(max_examples=effort(200))
@given(drawings(), st.sampled_from([*SIGNS, "other"]))
def test_any_drawing_is_a_picture_with_and_without_status(drawing: Drawing, status: str) -> None:
    names = [shape.name for shape in drawing.shapes]
    for picture in (to_svg(drawing), to_svg(drawing, {name: NodeStatus(status, 2) for name in names})):
        root = ET.fromstring(picture)
        assert root.get("role") == "img"
        assert len(titles(picture)) == 1 + len(drawing.shapes) + len(drawing.lines)
        assert texts(picture, "name") == names


@settings(max_examples=effort(300))
@given(st.text(st.characters(), max_size=20))
def test_any_text_is_shown_as_text(text: str) -> None:
    drawing = Drawing((Shape(text, lines=(text,)),), (Line(text, text, text),), text)
    picture = to_svg(drawing, {text: NodeStatus(text, 1, text)})
    picture.encode()
    allowed = {"svg", "title", "style", "rect", "g", "path", "text"}
    assert {element.tag.removeprefix(NAMESPACE) for element in ET.fromstring(picture).iter()} <= allowed


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_is_no_markup(name: str) -> None:
    picture = to_svg(
        Drawing((Shape(name, "task", (name,)),), (Line(name, name, name),), name), {name: NodeStatus(name)}
    )
    assert "<script" not in picture
    # The caption, the name, its small text, the status and the label: no more, no less.
    assert len(texts(picture)) == 5 - (not name)


def test_a_name_that_looks_like_markup_is_whole() -> None:
    assert texts(to_svg(Drawing((Shape("</text><b>&"),))), "name") == ["</text><b>&"]


def test_what_xml_forbids_is_replaced() -> None:
    assert texts(to_svg(Drawing((Shape("a\x00b\ud800c\nd"),))), "name") == ["a\ufffdb\ufffdc d"]


def test_nothing_is_loaded_and_nothing_runs() -> None:
    picture = to_svg(TRIAGE, {})
    for word in ("href", "url(", "@import", "<script", "onload", "<foreignObject"):
        assert word not in picture
    assert picture.count("http") == 1, "the namespace"


def test_a_long_name_is_cut_and_whole_in_its_title() -> None:
    for name in ("a" * 200, "工" * 200):
        picture = to_svg(Drawing((Shape(name),)))
        (shown,) = texts(picture, "name")
        assert shown.endswith("…")
        assert len(shown) <= NAME_UNITS
        assert name in titles(picture)[1]


@pytest.mark.parametrize("status", SIGNS)
def test_a_status_has_a_colour_a_sign_and_a_word(status: str) -> None:
    drawing = Drawing((Shape("a"),))
    picture = to_svg(drawing, {"a": NodeStatus(status, 3, "for this reason")})
    plain = to_svg(drawing, {})
    assert texts(picture, "status") == [
        f"{SIGNS[status]} {status.replace('_', ' ')} \N{MULTIPLICATION SIGN}3",
        "for this reason",
    ]
    edges = [next(ET.fromstring(each).iter(f"{NAMESPACE}g"))[1] for each in (picture, plain)]
    assert edges[0].get("fill") != edges[1].get("fill")
    assert f".is-{status.replace('_', '-')} " in picture


def test_signs_differ() -> None:
    assert len(set(SIGNS.values())) == len(SIGNS)


def test_one_firing_is_not_counted() -> None:
    assert texts(to_svg(Drawing((Shape("a"),)), {"a": NodeStatus("completed", 1)}), "status") == ["✓ completed"]


def test_boxes_stay_while_a_graph_runs() -> None:
    before = to_svg(TRIAGE, {})
    after = to_svg(TRIAGE, {shape.name: NodeStatus("never_reached", 10) for shape in TRIAGE.shapes})
    assert ET.fromstring(before).get("viewBox") == ET.fromstring(after).get("viewBox")


def test_without_its_style_a_picture_has_colours_too() -> None:
    root = ET.fromstring(to_svg(TRIAGE))
    for element in root.iter():
        tag = element.tag.removeprefix(NAMESPACE)
        if tag in ("rect", "path", "text"):
            assert element.get("fill"), ET.tostring(element)


def test_the_style_has_both_day_and_night_and_touches_nothing_else() -> None:
    (style,) = ET.fromstring(to_svg(TRIAGE)).iter(f"{NAMESPACE}style")
    assert style.text is not None
    assert "prefers-color-scheme:dark" in style.text
    selectors = [part.rpartition("{")[0] for part in style.text.split("}") if "{" in part]
    assert all(selector.rpartition("{")[2].startswith(".wg") for selector in selectors)


def test_every_kind_has_a_picture_that_tells_it() -> None:
    pictures = [to_svg(Drawing((Shape("same", kind),))) for kind in KINDS]
    assert len(set(pictures)) == len(KINDS)
    for kind, picture in zip(KINDS[1:], pictures[1:], strict=True):
        assert texts(picture, "small") == [kind]


def test_many_small_texts_are_counted() -> None:
    picture = to_svg(Drawing((Shape("a", lines=tuple("12345678")),)))
    assert texts(picture, "small") == ["1", "2", "3", "4", "5", "… 3 more"]


PROGRAM = """
import hashlib
from tests.graphs.drawing.drawings import TRIAGE
from workflow_sdk.graphs.drawing import NodeStatus, layout, to_dot, to_mermaid, to_svg
status = {shape.name: NodeStatus("failed", 2) for shape in TRIAGE.shapes}
everything = (to_svg(TRIAGE), to_svg(TRIAGE, status), to_mermaid(TRIAGE), to_dot(TRIAGE), repr(layout(TRIAGE)))
print(hashlib.sha256("".join(everything).encode()).hexdigest())
"""


@pytest.mark.law(4)
def test_every_process_gives_the_same_bytes() -> None:
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env=clean_environment(PYTHONHASHSEED=seed, PYTHONPATH=f"{ROOT}:{ROOT / 'drivers'}"),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(found[0]) == 65
    assert found[0] == found[1]
