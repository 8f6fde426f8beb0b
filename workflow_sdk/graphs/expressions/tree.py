"""The tree of an expression: what `E` and a text have in common.

Two ways to write the same thing give the same tree: `x == None` is `x is None`, `not (a in b)` is `a not in b`, a tuple
is a list, and `start` is `workload`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from workflow_sdk.errors import DefinitionError

ROOTS: Final = ("workload", "start", "ctx", "args", "output", "error", "event", "results", "state")
"""The names that an expression can begin with."""

ALIASES: Final = {"start": "workload"}

TEXT_MAX: Final = 4_096
DEPTH_MAX: Final = 100
INT_MAX: Final = 1 << 4_096
"""Whole numbers in arithmetic are smaller than this, so that every operation takes microseconds."""

Literal: TypeAlias = str | int | float | bool | bytes | None


class Constant(Struct, frozen=True):
    """A value that is written out."""

    value: Literal
    at: int = 0


class Root(Struct, frozen=True):
    """One of the names of the scope."""

    name: str
    at: int = 0


class Variable(Struct, frozen=True):
    """The item of a comprehension."""

    name: str
    at: int = 0


class Slice(Struct, frozen=True):
    """The part `lower:upper:step` of a list or text."""

    lower: Node | None
    upper: Node | None
    step: Node | None


class Item(Struct, frozen=True):
    """What is in `base` under a key, at an index, or in a slice."""

    base: Node
    key: Node | Slice
    at: int = 0


class Unary(Struct, frozen=True):
    """`-x` or `not x`."""

    symbol: str
    operand: Node
    at: int = 0


class Binary(Struct, frozen=True):
    """Arithmetic."""

    symbol: str
    left: Node
    right: Node
    at: int = 0


class Comparison(Struct, frozen=True):
    """A comparison, or a chain of them."""

    first: Node
    others: tuple[tuple[str, Node], ...]
    at: int = 0


class Logic(Struct, frozen=True):
    """Two or more parts that are joined by `and` or by `or`."""

    symbol: str
    parts: tuple[Node, ...]
    at: int = 0


class Choice(Struct, frozen=True):
    """`then if test else otherwise`."""

    test: Node
    then: Node
    otherwise: Node
    at: int = 0


class Listing(Struct, frozen=True):
    """A list that is written out."""

    parts: tuple[Node, ...]
    at: int = 0


class Pairs(Struct, frozen=True):
    """A dict that is written out."""

    keys: tuple[Node, ...]
    values: tuple[Node, ...]
    at: int = 0


class Each(Struct, frozen=True):
    """A comprehension over one list."""

    element: Node
    variable: str
    over: Node
    conditions: tuple[Node, ...]
    at: int = 0


class Call(Struct, frozen=True):
    """The call of a listed or registered function."""

    name: str
    args: tuple[Node, ...]
    at: int = 0


Node: TypeAlias = (
    Constant | Root | Variable | Item | Unary | Binary | Comparison | Logic | Choice | Listing | Pairs | Each | Call
)


def negative(operand: Node, at: int = 0) -> Node:
    """`-operand`; that of a number is a number."""
    if isinstance(operand, Constant) and type(operand.value) in (int, float):
        return Constant(-operand.value, at)  # type: ignore[operator]  # one of the two
    return Unary("-", operand, at)


_OPPOSITE: Final = {"in": "not in", "is": "is not"}


def inverse(operand: Node, at: int = 0) -> Node:
    """`not operand`."""
    if isinstance(operand, Comparison) and len(operand.others) == 1:
        symbol, right = operand.others[0]
        if symbol in _OPPOSITE:
            return Comparison(operand.first, ((_OPPOSITE[symbol], right),), at)
    return Unary("not", operand, at)


def logic(symbol: str, parts: tuple[Node, ...], at: int = 0) -> Node:
    """The parts joined by `and` or `or`; those that are joined the same way already become parts of the whole."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, Logic) and part.symbol == symbol else (part,)
    return Logic(symbol, tuple(flat), at)


_WITH_NONE: Final = {"==": "is", "!=": "is not"}


def comparison(first: Node, others: tuple[tuple[str, Node], ...], at: int = 0) -> Node:
    """A comparison; one with None is a question of identity."""
    if len(others) == 1 and _is_none(others[0][1]):
        symbol, right = others[0]
        others = ((_WITH_NONE.get(symbol, symbol), right),)
    return Comparison(first, others, at)


def _is_none(node: Node) -> bool:
    return isinstance(node, Constant) and node.value is None


def is_path(node: Node) -> bool:
    """Whether a node is a place in the scope or in an item: a name, and keys behind it."""
    while isinstance(node, Item):
        node = node.base
    return isinstance(node, (Root, Variable))


_ANY_NUMBER: Final = 1_000
ARITIES: Final = {
    "len": (1, 1),
    "min": (1, _ANY_NUMBER),
    "max": (1, _ANY_NUMBER),
    "sum": (1, 1),
    "any": (1, 1),
    "all": (1, 1),
    "abs": (1, 1),
    "round": (1, 2),
    "lower": (1, 1),
    "upper": (1, 1),
    "starts_with": (2, 2),
    "coalesce": (1, _ANY_NUMBER),
    "get": (1, 2),
}
"""The functions that every expression can call, with the smallest and the largest number of arguments."""

TAKING_GENERATORS: Final = frozenset({"len", "min", "max", "sum", "any", "all"})


def call(name: str, args: tuple[Node, ...], at: int = 0) -> Node:
    """A call. DefinitionError if it can't be made with these arguments."""
    if name.startswith("_"):
        raise DefinitionError(f"the name of a function does not begin with an underscore: {name}")
    if name in ARITIES:
        least, most = ARITIES[name]
        if not least <= len(args) <= most:
            raise DefinitionError(f"{name}() takes {_counted(least, most)}, not {len(args)}")
    if name == "get":
        if not is_path(args[0]):
            raise DefinitionError("get() takes a path first, such as get(output.a.b, 0)")
        args = args if len(args) == 2 else (args[0], Constant(None, at))
    return Call(name, args, at)


def _counted(least: int, most: int) -> str:
    if most == _ANY_NUMBER:
        return "one argument or more"
    if least == most:
        return "one argument" if least == 1 else f"{least} arguments"
    return f"{least} or {most} arguments"
