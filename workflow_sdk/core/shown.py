"""Values of an author's in messages."""

from __future__ import annotations

__all__ = ["shown"]


def shown(value: object, most: int = 200) -> str:
    """The `repr` of a value, at most so many characters of it. It never raises.

    That of an int of thousands of digits does, and that of an author's class may: then it is the type.
    """
    try:
        return repr(value)[:most]
    except Exception:  # noqa: BLE001  # an author's __repr__ may raise anything, and an error message must not
        return f"<{type(value).__name__}>"
