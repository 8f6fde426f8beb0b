"""What is wrong with a value, and where in it: the exception that walks of a value raise among themselves.

The codec turns it into a `CodecError`; nothing outside `core` sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

PATH_SEGMENTS_MAX: Final = 12
TEXT_CHARS_MAX: Final = 80


class Problem(Exception):
    """A value can't be written or read. Every container that it passes on its way out adds its segment to the path."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.segments: list[str] = []

    def under(self, segment: str) -> Problem:
        """Say that this happened under `segment`, which lies around what is known so far."""
        self.segments.append(segment)
        return self

    def __str__(self) -> str:
        path = path_text(reversed(self.segments))
        return self.reason + (f" at {path}" if path else "") + (f"; {self.remedy}" if self.remedy else "")


def path_text(segments: Iterable[str]) -> str:
    """The path, shortened in the middle where it is very long."""
    parts = list(segments)
    if len(parts) > PATH_SEGMENTS_MAX:
        half = PATH_SEGMENTS_MAX // 2
        parts = [*parts[:half], " ... ", *parts[-half:]]
    return "".join(parts)


def short(value: object) -> str:
    """A bounded, printable form of a value of the author's; never raises."""
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001  # an author's __repr__ may raise anything, and an error message must not
        text = f"<{type(value).__name__}>"
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 3] + "..."


def error_text(error: BaseException) -> str:
    """The class and message of an author's exception, bounded; never raises."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # an author's __str__ may raise anything
        message = ""
    message = ascii(message)[1:-1]
    return f"{type(error).__name__}: {message[:200]}" if message else type(error).__name__


def key_segment(key: object) -> str:
    """The path segment of a mapping's key."""
    return f"[{short(key)}]"


def is_a(value: object, classes: Any) -> bool:
    """`isinstance`, for values whose type stays open: what they hold is not known to a type checker either way."""
    return isinstance(value, classes)


def type_text(cls: type) -> str:
    """A class as a reader knows it: `int`, `app.models.Order`."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
