"""How wide texts are, cut where they are too long, and without what no picture can show.

Nothing is asked of a font or of Python's tables of characters, which change with its version: all is drawn in a font
of fixed width, where a character takes one unit and a wide one takes two.
"""

from __future__ import annotations

import re
from typing import Final

ELLIPSIS: Final = "…"

_WIDE: Final = re.compile(
    "[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
    "\U0001f300-\U0001faff\U00020000-\U0003fffd]"
)
_SPACES: Final = re.compile(r"[\t\n\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029 ]+")
_FORBIDDEN: Final = re.compile(
    # Controls, halves of characters, what XML knows no sign for, and what would turn the text around it.
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def plain(text: str) -> str:
    """The text on one line, with a sign for each character that can't be shown."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text
    return _FORBIDDEN.sub("\ufffd", _SPACES.sub(" ", text))


def units(text: str) -> int:
    """How wide a plain text is."""
    return len(text) if text.isascii() else len(text) + len(_WIDE.findall(text))


def cut(text: str, most: int) -> str:
    """The plain text, or as much of it as fits with an ellipsis."""
    if units(text) <= most:
        return text
    kept, room = 0, most - 1
    for character in text:
        room -= units(character)
        if room < 0:
            break
        kept += 1
    return text[:kept] + ELLIPSIS
