"""The texts of a box as they are shown, and how large the box has to be for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from workflow_sdk.graphs.drawing.model import NodeStatus, Shape
from workflow_sdk.graphs.drawing.text import cut, plain, units

NAME_UNITS, SMALL_UNITS, LABEL_UNITS = 28, 34, 32
"""What is wider than this is cut."""
LINES_MAX: Final = 6
"""More small texts than these are counted, not shown."""
CAPTION_HEIGHT, NAME_HEIGHT, SMALL_HEIGHT = 14, 20, 16
LABEL_HEIGHT: Final = 16
_PADDING_ACROSS, _PADDING_ALONG = 16, 9
_WIDTH_MIN: Final = 96
_WIDTH_MIN_WITH_STATUS: Final = 166

SIGNS: Final[Mapping[str, str]] = {
    "completed": "✓",
    "failed": "✗",
    "running": "►",
    "waiting": "◔",
    "blocked": "■",
    "denied": "⊘",
    "skipped": "»",
    "cancelled": "⊗",
    "pending": "○",
    "never_reached": "·",
}
"""A sign for each status, which tells them apart where no colour is seen."""


class Sized(NamedTuple):
    """A shape with the texts that are shown of it, and the size of its box."""

    shape: Shape
    caption: str
    name: str
    small: tuple[str, ...]
    status: str
    note: str
    width: int
    height: int


def label_width(label: str) -> int:
    """How many pixels a label takes; 0 for none."""
    return _pixels(shown_label(label), 66)


def shown_label(label: str) -> str:
    """A label as it is shown."""
    return cut(plain(label), LABEL_UNITS)


def sized(shape: Shape, status: NodeStatus | None, with_status: bool) -> Sized:
    """What is shown of a shape.

    Where a picture shows statuses, all boxes have room for one, so that nothing moves while the graph runs.
    """
    small = _small(shape.lines)
    caption, name = _caption(shape), cut(plain(shape.name), NAME_UNITS)
    shown = "" if status is None else _status(status)
    note = "" if status is None else cut(plain(status.note), SMALL_UNITS)
    texts = [_pixels(name, 78), _pixels(caption, 60), *(_pixels(text, 66) for text in (*small, shown, note))]
    least = _WIDTH_MIN_WITH_STATUS if with_status else _WIDTH_MIN
    width = max(least, max(texts) + 2 * _PADDING_ACROSS)
    height = 2 * _PADDING_ALONG + NAME_HEIGHT + SMALL_HEIGHT * (len(small) + with_status + bool(note))
    height += CAPTION_HEIGHT if caption else 0
    # Even, so that the middle of a box is a whole number.
    return Sized(shape, caption, name, small, shown, note, width + width % 2, height + height % 2)


def _pixels(text: str, tenths: int) -> int:
    """The width of a text whose unit is so many tenths of a pixel."""
    return -(-units(text) * tenths // 10)


def _small(lines: tuple[str, ...]) -> tuple[str, ...]:
    if len(lines) <= LINES_MAX:
        return tuple([cut(plain(line), SMALL_UNITS) for line in lines])
    return (*_small(lines[: LINES_MAX - 1]), f"… {len(lines) - LINES_MAX + 1} more")


def _caption(shape: Shape) -> str:
    """What the shape is, as far as it is no plain step."""
    kind = "" if shape.kind == "step" else shape.kind
    final = "final" if shape.is_final and shape.kind != "final" else ""
    return " · ".join([word for word in ("entry" if shape.is_entry else "", kind, final) if word])


def _status(status: NodeStatus) -> str:
    word = cut(plain(status.status), 14).replace("_", " ")
    count = f" \N{MULTIPLICATION SIGN}{status.firings}" if status.firings > 1 else ""
    return f"{SIGNS.get(status.status, '?')} {word}{count}"
