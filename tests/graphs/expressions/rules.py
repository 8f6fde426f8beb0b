"""What the tests of expressions share."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NoReturn

from workflow_sdk.graphs.expressions import parse

__all__ = ["SCOPE", "Spy", "value_of"]

SCOPE: dict[str, Any] = {
    "workload": {"id": "o-1", "items": [{"n": 1, "ok": True}, {"n": 2, "ok": False}, {"n": 3, "ok": True}]},
    "ctx": {"budget": 3, "name": "fix"},
    "args": {"id": 7},
    "output": {
        "kind": "bug",
        "score": 0.7,
        "tags": ["urgent", "small"],
        "none": None,
        "items": [1, 2, 3],
        "yes": True,
        "no": False,
        "a": {"b": 5},
    },
    "error": None,
    "event": {"name": "step.done"},
    "results": {"fix": {"score": 9}, "with space": {"x": 1}},
    "state": {},
}


def value_of(text: str, functions: Any = None, **more: object) -> Any:
    """The value of a text in the scope, which it must not change."""
    scope = {**deepcopy(SCOPE), **more}
    before = deepcopy(SCOPE)
    try:
        return parse(text).evaluate(scope, functions or {})
    finally:
        assert all(scope[name] == before[name] for name in before if name not in more)


class Spy:
    """An object that nobody may touch: whoever does is told of in `touched`."""

    touched: list[str]

    def __init__(self) -> None:
        object.__setattr__(self, "touched", [])

    def _touch(self, *args: object) -> NoReturn:
        object.__getattribute__(self, "touched").append("touched")
        raise AssertionError("touched")

    __getattribute__ = __call__ = __eq__ = __hash__ = __lt__ = __gt__ = __le__ = __ge__ = _touch
    __add__ = __radd__ = __mul__ = __rmul__ = __iter__ = __len__ = __bool__ = __getitem__ = __contains__ = _touch
    __repr__ = __str__ = __format__ = __deepcopy__ = __reduce__ = __index__ = __float__ = _touch
