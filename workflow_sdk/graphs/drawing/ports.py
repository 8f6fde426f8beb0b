"""Where lines meet the upper and the lower sides of boxes: side by side, in the order of where they go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from workflow_sdk.graphs.drawing.coordinates import kept_apart

PORT_GAP: Final = 20
CORNER: Final = 16
"""No line ends nearer than this to a corner."""


def ports(middle: int, width: int, towards: Sequence[int]) -> list[int]:
    """The places on one side of a box for lines that go *towards* these places, which ascend."""
    reach = width // 2 - CORNER
    if len(towards) == 1:
        straight = abs(towards[0] - middle) <= reach // 2
        return [towards[0] if straight else middle]
    gap = min(PORT_GAP, 2 * reach // (len(towards) - 1))
    wanted = [middle + min(max((place - middle) // 2, -reach), reach) for place in towards]
    found = kept_apart(wanted, [1] * len(wanted), [gap] * (len(wanted) - 1))
    last = len(found) - 1
    return [
        min(max(place, middle - reach + number * gap), middle + reach - (last - number) * gap)
        for number, place in enumerate(found)
    ]
