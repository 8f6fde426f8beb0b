"""In which row each node goes: lines lead downwards, but for those that close a cycle.

Nodes are numbers here, and lines are pairs of them; no line leads from a node to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import isqrt
from typing import Final, NamedTuple, TypeAlias

Ends: TypeAlias = tuple[int, int]

ROW_WIDTH_MIN: Final = 4000
"""A row that is no wider than this is never broken."""


def turned_down(count: int, lines: Sequence[Ends], roots: Sequence[int]) -> list[bool]:
    """For each line whether it has to be turned round, so that no cycle is left.

    These are the lines that lead back to where a walk in depth comes from, which begins at *roots*, in order.
    """
    out: list[list[int]] = [[] for _ in range(count)]
    for number, (source, _) in enumerate(lines):
        out[source].append(number)
    is_back = [False] * len(lines)
    left: list[Iterator[int] | None] = [None] * count
    under_way = [False] * count
    for root in chain(roots, range(count)):
        if left[root] is None:
            _walk(root, lines, out, left, under_way, is_back)
    return is_back


def _walk(
    root: int,
    lines: Sequence[Ends],
    out: Sequence[list[int]],
    left: list[Iterator[int] | None],
    under_way: list[bool],
    is_back: list[bool],
) -> None:
    """Walk in depth from one node; without recursion, since a chain may be long."""
    path = [root]
    left[root] = iter(out[root])
    under_way[root] = True
    while path:
        lines_left = left[path[-1]]
        assert lines_left is not None, "it is on the path"
        for number in lines_left:
            target = lines[number][1]
            if under_way[target]:
                is_back[number] = True
            elif left[target] is None:
                left[target] = iter(out[target])
                under_way[target] = True
                path.append(target)
                break
        else:
            under_way[path.pop()] = False


def ranks_of(count: int, lines: Sequence[Ends], held: Sequence[bool]) -> list[int]:
    """How far down each node is: as far as the longest way there has it.

    A node with more lines out than in goes as far down as those allow, so that they are short; unless it is *held* up.
    """
    above, below = _neighbours(count, lines)
    order = _in_order(above, below)
    ranks = [0] * count
    for node in order:
        for under in below[node]:
            if ranks[under] <= ranks[node]:
                ranks[under] = ranks[node] + 1
    for node in reversed(order):
        if len(below[node]) > len(above[node]) and not held[node]:
            ranks[node] = min([ranks[under] for under in below[node]]) - 1
    return ranks


def _neighbours(count: int, lines: Sequence[Ends]) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in lines:
        above[target].append(source)
        below[source].append(target)
    return above, below


def _in_order(above: Sequence[list[int]], below: Sequence[list[int]]) -> list[int]:
    """The nodes, each after all that are above it."""
    missing = [len(nodes) for nodes in above]
    order = [node for node, number in enumerate(missing) if not number]
    for node in order:
        for under in below[node]:
            missing[under] -= 1
            if not missing[under]:
                order.append(under)
    return order


class Rows(NamedTuple):
    """The row of each node, and whether its rank has several of them."""

    row: list[int]
    is_broken: list[bool]
    number: int


def rows_of(ranks: Sequence[int], widths: Sequence[int], row_height: int) -> Rows:
    """One row for each rank; several for a rank so wide that nobody could look at it."""
    by_rank: list[list[int]] = [[] for _ in range(max(ranks) + 1)]
    for node, rank in enumerate(ranks):
        by_rank[rank].append(node)
    row, is_broken, count = [0] * len(ranks), [False] * len(ranks), 0
    for nodes in by_rank:
        total = sum([widths[node] for node in nodes])
        most = max(ROW_WIDTH_MIN, row_width(total * row_height))
        width = 0
        for node in nodes:
            if width and width + widths[node] > most:
                count, width = count + 1, 0
            row[node], width = count, width + widths[node]
        if row[nodes[0]] < count:
            for node in nodes:
                is_broken[node] = True
        count += 1
    return Rows(row, is_broken, count)


def row_width(area: int) -> int:
    """How wide rows are that fill an area of the shape of a screen."""
    return isqrt(area * 8 // 5)
