"""Boxes, paths and labels keep out of each other's way, whatever the graph is like."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings

from tests.chaos import effort
from tests.graphs.drawing.drawings import TRIAGE, Rectangle, drawings, labels_of, overlap, segments
from workflow_sdk.graphs.drawing import Box, Drawing, Layout, Line, Shape, layout
from workflow_sdk.graphs.drawing import lanes as lanes_module
from workflow_sdk.graphs.drawing import ranks as ranks_module


def area(box: Box) -> Rectangle:
    return box.x, box.y, box.x + box.width, box.y + box.height


def check(drawing: Drawing) -> Layout:
    """All that is promised of any layout."""
    found = layout(drawing)
    areas = {box.name: area(box) for box in found.boxes}
    labels = labels_of(found)
    assert [box.name for box in found.boxes] == [shape.name for shape in drawing.shapes]
    assert [(path.source, path.target, path.label, path.kind) for path in found.paths] == [
        (line.source, line.target, line.label, line.kind) for line in drawing.lines
    ]
    assert not [pair for pair in combinations([*areas.values(), *labels], 2) if overlap(*pair)]
    assert len(labels) == len([line for line in drawing.lines if line.label])
    for path in found.paths:
        for part in segments(path):
            hit = [name for name, box in areas.items() if name not in (path.source, path.target) and overlap(part, box)]
            assert hit == [], path
            assert part[0] >= 0
            assert part[1] >= 0
            assert part[2] <= found.width
            assert part[3] <= found.height
        check_ends(path.points[0], areas[path.source])
        check_ends(path.points[-1], areas[path.target])
        if path.source != path.target:
            own = (areas[path.source], areas[path.target])
            assert not [box for box in own for part in segments(path)[1:-1] if overlap(part, box)]
    for rectangle in (*areas.values(), *labels):
        assert rectangle[2] <= found.width
        assert rectangle[3] <= found.height
    return found


def check_ends(point: tuple[int, int], box: Rectangle) -> None:
    """A line begins and ends on the edge of its boxes."""
    x, y = point
    assert box[0] <= x <= box[2]
    assert box[1] <= y <= box[3]
    assert x == box[2] or y in (box[1], box[3])


@settings(max_examples=effort(400))
@given(drawings())
def test_nothing_is_in_the_way_of_anything(drawing: Drawing) -> None:
    check(drawing)


@settings(max_examples=effort(200))
@given(drawings(20))
def test_nothing_is_in_the_way_where_ranks_are_broken_and_lines_take_lanes(drawing: Drawing) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_module, "ROW_WIDTH_MIN", 300)
        patch.setattr(ranks_module, "row_width", lambda area: 0)
        patch.setattr(lanes_module, "STOPS_EACH", 0)
        patch.setattr(lanes_module, "STOPS_FREE", 3)
        check(drawing)


@settings(max_examples=effort(200))
@given(drawings())
def test_the_same_drawing_gives_the_same_layout(drawing: Drawing) -> None:
    assert layout(drawing).to_data() == layout(drawing).to_data()


def test_nothing_gives_an_empty_layout() -> None:
    found = layout(Drawing())
    assert (found.boxes, found.paths) == ((), ())
    assert found.width > 0
    assert found.height > 0


def test_one_node() -> None:
    assert len(check(Drawing((Shape("only"),))).boxes) == 1


def test_lines_lead_downwards_from_rank_to_rank() -> None:
    found = check(TRIAGE)
    ranks = {box.name: box.rank for box in found.boxes}
    tops = {box.name: box.y for box in found.boxes}
    assert ranks == {"classify": 0, "fix": 1, "reply": 2, "test": 2, "notify": 2, "merge": 3, "summary": 4}
    assert all(ranks[path.source] < ranks[path.target] for path in found.paths)
    assert tops["classify"] < tops["fix"] < tops["test"] < tops["merge"] < tops["summary"]


def test_only_the_line_that_closes_a_cycle_leads_back() -> None:
    names = ["a", "b", "c"]
    lines = (Line("a", "b"), Line("b", "c"), Line("c", "a", "again"))
    found = check(Drawing(tuple(map(Shape, names)), lines))
    leads_down = [path.points[0][1] < path.points[-1][1] for path in found.paths]
    assert leads_down == [True, True, False]


def test_a_chain_is_straight() -> None:
    names = [f"n{number}" for number in range(30)]
    lines = tuple([Line(one, other) for one, other in pairwise(names)])
    found = check(Drawing(tuple(map(Shape, names)), lines))
    assert [len(path.points) for path in found.paths] == [2] * 29


def test_a_tree_has_no_crossing() -> None:
    names = [f"n{number}" for number in range(40)]
    lines = tuple([Line(names[(number - 1) // 3], names[number]) for number in range(1, 40)])
    found = check(Drawing(tuple(map(Shape, names)), lines))
    for one, other in combinations(found.paths, 2):
        if one.points[0][1] == other.points[0][1]:
            left, right = sorted([one, other], key=lambda path: path.points[0])
            assert left.points[-1][0] < right.points[-1][0]


def test_lines_between_the_same_two_are_apart() -> None:
    found = check(Drawing((Shape("a"), Shape("b")), (Line("a", "b"),) * 3 + (Line("b", "a"),)))
    assert len({path.points for path in found.paths}) == 4


def test_unconnected_nodes_are_in_rows() -> None:
    found = check(Drawing(tuple([Shape(f"n{number}") for number in range(200)])))
    assert found.width < 3000
    assert found.height < 3000


def test_a_rank_of_a_thousand_is_broken_into_rows() -> None:
    names = [f"n{number}" for number in range(1000)]
    lines = [Line("first", name) for name in names] + [Line(name, "last") for name in names]
    found = layout(Drawing((Shape("first"), *map(Shape, names), Shape("last")), tuple(lines)))
    assert found.width < 8000
    assert found.height < 8000
    assert {box.rank for box in found.boxes} == {0, 1, 2}


def test_long_lines_beside_a_chain_take_lanes() -> None:
    names = [f"n{number}" for number in range(150)]
    lines = [Line(one, other) for one, other in pairwise(names)]
    lines += [Line(names[number], names[number + 100], "skip") for number in range(50)]
    check(Drawing(tuple(map(Shape, names)), tuple(lines)))


def test_two_shapes_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two shapes are called 'a'"):
        layout(Drawing((Shape("a"), Shape("a"))))


def test_a_line_to_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="from 'a' to 'b' has no shape 'b'"):
        layout(Drawing((Shape("a"),), (Line("a", "b"),)))


def test_data_is_plain() -> None:
    found = layout(Drawing((Shape("a"),), (Line("a", "a", "more"),)))
    data = found.to_data()
    assert [*data["boxes"]] == [{"name": "a", "x": 41, "y": 18, "width": 96, "height": 38, "rank": 0}]
    assert data["paths"][0]["points"][0] == (137, 30)
    assert data["paths"][0]["label"] == "more"
