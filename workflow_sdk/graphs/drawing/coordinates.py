"""How far to the right each stop is: near those that it is linked with, and never over a neighbour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from workflow_sdk.graphs.drawing.levels import Levels

ROUNDS: Final = 4
_FAR_LEFT, _FAR_RIGHT = -(1 << 40), 1 << 40
_BOX_WEIGHT, _LINE_WEIGHT, _LOOSE_WEIGHT, _SHARED_WEIGHT = 3, 8, 1, 10_000_000
"""How much it counts where a box, a line, something without links, and a line that is shared by others want to be."""


def across(levels: Levels) -> list[int]:
    """The middle of each stop; boxes, labels and lines of a level are apart by what each of them needs."""
    at = [0] * len(levels.level)
    for row in levels.stops:
        _pack(row, levels, at)
    is_shared = [
        stop >= levels.boxes and (len(levels.above[stop]) > 1 or len(levels.below[stop]) > 1)
        for stop in range(len(levels.level))
    ]
    pulled_up, pulled_down = _pulls(levels, levels.above, is_shared), _pulls(levels, levels.below, is_shared)
    _align_shared(levels, at, is_shared)
    for _ in range(ROUNDS):
        for row in levels.stops[1:]:
            _settle(row, levels, at, pulled_up)
        for row in levels.stops[-2::-1]:
            _settle(row, levels, at, pulled_down)
    both = [above + below for above, below in zip(pulled_up, pulled_down, strict=True)]
    for row in levels.stops:
        _settle(row, levels, at, both)
    return at


def _pulls(levels: Levels, linked: Sequence[list[int]], is_shared: Sequence[bool]) -> list[list[int]]:
    """By what each stop is drawn. A line that others share and their boxes don't draw each other: they would wander."""
    return [
        [other for other in others if is_shared[other] == shared]
        for others, shared in zip(linked, is_shared, strict=True)
    ]


def _align_shared(levels: Levels, at: list[int], is_shared: Sequence[bool]) -> None:
    """Begin with shared lines straight: else the boxes of one row after the other push them further and further out."""
    has_boxes = _with_boxes(levels)
    is_done = [False] * len(at)
    for way in sorted(levels.ways.values(), key=len, reverse=True):
        fresh = [stop for stop in way if is_shared[stop] and not is_done[stop]]
        # A row of labels is short: where a line is in it says little.
        telling = [at[stop] for stop in fresh if has_boxes[levels.level[stop]]]
        if telling:
            _put(fresh, _median(telling), at)
        for stop in fresh:
            is_done[stop] = True


def _with_boxes(levels: Levels) -> list[bool]:
    """For each level whether it has boxes, or only labels and lines."""
    return [any(stop < levels.boxes for stop in row) for row in levels.stops]


def _put(stops: Sequence[int], place: int, at: list[int]) -> None:
    for stop in stops:
        at[stop] = place


def _pack(row: Sequence[int], levels: Levels, at: list[int]) -> None:
    """Side by side, around the middle."""
    total = sum([levels.left[stop] + levels.right[stop] for stop in row])
    edge = -(total // 2)
    for stop in row:
        at[stop] = edge + levels.left[stop]
        edge += levels.left[stop] + levels.right[stop]


def _settle(row: Sequence[int], levels: Levels, at: list[int], linked: Sequence[Sequence[int]]) -> None:
    """Bring the stops of a level to the medians of those that they are linked with."""
    wanted = [_median([at[other] for other in linked[stop]]) if linked[stop] else at[stop] for stop in row]
    weights = [_weight(stop, levels, linked) for stop in row]
    apart = [levels.right[one] + levels.left[other] for one, other in pairwise(row)]
    for stop, found in zip(row, kept_apart(wanted, weights, apart), strict=True):
        at[stop] = found


def _weight(stop: int, levels: Levels, linked: Sequence[Sequence[int]]) -> int:
    if stop >= levels.boxes:
        is_shared = len(levels.above[stop]) > 1 or len(levels.below[stop]) > 1
        return _SHARED_WEIGHT if is_shared else _LINE_WEIGHT
    return _BOX_WEIGHT if linked[stop] else _LOOSE_WEIGHT


def _median(places: list[int]) -> int:
    if len(places) == 1:
        return places[0]
    places.sort()
    half = len(places) // 2
    return places[half] if len(places) % 2 else (places[half - 1] + places[half]) // 2


def kept_apart(wanted: Sequence[int], weights: Sequence[int], apart: Sequence[int]) -> list[int]:
    """The places nearest to those *wanted* (by weighted squares) that are in this order and so far *apart*.

    Neighbours that come too near each other make a block, which moves as one to the mean of what its members want;
    a block that comes too near the one before joins it.
    """
    blocks: list[tuple[int, int, int]] = []  # what its members want, all in all; their weight; their number
    offset = 0
    offsets: list[int] = []
    for number, want in enumerate(wanted):
        if number:
            offset += apart[number - 1]
        offsets.append(offset)
        total, weight, members = (want - offset) * weights[number], weights[number], 1
        while blocks and blocks[-1][0] // blocks[-1][1] >= total // weight:
            before = blocks.pop()
            total, weight, members = total + before[0], weight + before[1], members + before[2]
        blocks.append((total, weight, members))
    bases = [total // weight for total, weight, members in blocks for _ in range(members)]
    return [base + offset for base, offset in zip(bases, offsets, strict=True)]


def straighten(levels: Levels, at: list[int], starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
    """Let each line bend as seldom as its neighbours allow, and rather not where it starts and ends."""
    before, after = _neighbours(levels)
    for number, way in levels.ways.items():
        if len(way) > 2:
            runs = _runs(way[1:-1], levels, at, before, after)
            for place, run in enumerate(runs):
                wanted = [starts[number]] if place == 0 else []
                wanted += [ends[number]] if place == len(runs) - 1 else []
                _put(run.stops, _straight(run, wanted, at), at)


class _Run(NamedTuple):
    """Stops of a line that can all be at one place, and between which two places."""

    stops: list[int]
    lowest: int
    highest: int


def _runs(inner: Sequence[int], levels: Levels, at: list[int], before: list[int], after: list[int]) -> list[_Run]:
    """As few runs as there can be."""
    runs: list[_Run] = []
    for stop in inner:
        left, right = before[stop], after[stop]
        lowest = _FAR_LEFT if left < 0 else at[left] + levels.right[left] + levels.left[stop]
        highest = _FAR_RIGHT if right < 0 else at[right] - levels.left[right] - levels.right[stop]
        if runs and max(lowest, runs[-1].lowest) <= min(highest, runs[-1].highest):
            last = runs[-1]
            last.stops.append(stop)
            runs[-1] = _Run(last.stops, max(lowest, last.lowest), min(highest, last.highest))
        else:
            runs.append(_Run([stop], lowest, highest))
    return runs


def _straight(run: _Run, wanted: Sequence[int], at: Sequence[int]) -> int:
    """The place of a run: the last of those wanted that is free, else the nearest to where it is."""
    for place in reversed(wanted):
        if run.lowest <= place <= run.highest:
            return place
    return min(max(_median([at[stop] for stop in run.stops]), run.lowest), run.highest)


def _neighbours(levels: Levels) -> tuple[list[int], list[int]]:
    before, after = [-1] * len(levels.level), [-1] * len(levels.level)
    for row in levels.stops:
        for one, other in pairwise(row):
            before[other], after[one] = one, other
    return before, after
