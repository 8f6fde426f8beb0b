"""The order of the stops on each level, so that few lines cross."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Final

from workflow_sdk.graphs.drawing.levels import Levels

ROUNDS: Final = 8
SWAPS_STOPS_MAX: Final = 1500
"""Where there are more stops, neighbours are not swapped one by one: it takes long, and nobody sees the difference."""
STOPS_MANY: Final = 12_000
"""Where there are more stops, half of the rounds have to do."""

_SCALE: Final = 1 << 20
"""Means are whole numbers in parts of a place."""


def put_in_order(levels: Levels) -> None:
    """Put the stops of each level in the best order that a fixed number of rounds has found."""
    place = [0] * len(levels.level)
    levels.stops = _first_order(levels)
    _number(levels.stops, place)
    best, fewest = [list(row) for row in levels.stops], _crossings(levels, place)
    swaps = len(place) <= SWAPS_STOPS_MAX
    for number in range(ROUNDS if len(place) <= STOPS_MANY else ROUNDS // 2):
        if not fewest:
            break
        _sweep(levels, place, is_mirrored=number % 4 > 1)
        if swaps:
            _swap_neighbours(levels, place)
        found = _crossings(levels, place)
        if found < fewest:
            best, fewest = [list(row) for row in levels.stops], found
    levels.stops = best


def _first_order(levels: Levels) -> list[list[int]]:
    """As a walk in depth from above finds them: a tree then has no crossing at all."""
    rows: list[list[int]] = [[] for _ in range(levels.count)]
    seen = [False] * len(levels.level)
    for row in levels.stops:
        for root in row:
            path = [root]
            while path:
                stop = path.pop()
                if not seen[stop]:
                    seen[stop] = True
                    rows[levels.level[stop]].append(stop)
                    path += reversed(levels.below[stop])
    return rows


def _number(rows: Sequence[Sequence[int]], place: list[int]) -> None:
    for row in rows:
        for number, stop in enumerate(row):
            place[stop] = number


def _sweep(levels: Levels, place: list[int], *, is_mirrored: bool) -> None:
    """Once down and once up, put each stop at the mean of those that it is linked with."""
    for row in levels.stops[1:]:
        _sort(row, levels.above, place, is_mirrored=is_mirrored)
    for row in levels.stops[-2::-1]:
        _sort(row, levels.below, place, is_mirrored=is_mirrored)


def _sort(row: list[int], linked: Sequence[Sequence[int]], place: list[int], *, is_mirrored: bool) -> None:
    """Sort a level. A stop without links keeps its place, as far as it can; equals are turned round if mirrored."""
    keys: dict[int, int] = {}
    for number, stop in enumerate(row):
        others = linked[stop]
        if not others:
            keys[stop] = number * _SCALE
        elif len(others) == 1:
            keys[stop] = place[others[0]] * _SCALE
        else:
            keys[stop] = sum([place[other] for other in others]) * _SCALE // len(others)
    if is_mirrored:
        row.reverse()
    row.sort(key=keys.__getitem__)
    for number, stop in enumerate(row):
        place[stop] = number


def _crossings(levels: Levels, place: Sequence[int]) -> int:
    """How many pairs of links cross."""
    found = 0
    for row in levels.stops:
        ends: list[int] = []
        for stop in row:
            here = [place[under] for under in levels.below[stop]]
            for end in here:
                found += len(ends) - bisect_right(ends, end)
            for end in here:
                insort(ends, end)
    return found


def _swap_neighbours(levels: Levels, place: list[int]) -> None:
    """Swap neighbours where that leaves fewer crossings."""
    for row in (*levels.stops, *levels.stops[::-1]):
        ends = {
            stop: (
                sorted([place[other] for other in levels.above[stop]]),
                sorted([place[other] for other in levels.below[stop]]),
            )
            for stop in row
        }
        for number in range(len(row) - 1):
            one, other = row[number], row[number + 1]
            if _gain(ends[one], ends[other]) > 0:
                row[number], row[number + 1] = other, one
                place[one], place[other] = number + 1, number


def _gain(one: tuple[list[int], list[int]], other: tuple[list[int], list[int]]) -> int:
    """By how many crossings there are fewer if two neighbours are swapped."""
    gain = 0
    for mine, theirs in zip(one, other, strict=True):
        for end in mine:
            # Theirs to the left cross mine now; theirs to the right would.
            for their in theirs:
                gain += (their < end) - (their > end)
    return gain
