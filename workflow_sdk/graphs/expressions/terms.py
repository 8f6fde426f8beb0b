"""`E` and `fn`: expressions written in Python."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from inspect import signature
from typing import ClassVar, Final, NoReturn, cast

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions.reading import TOO_DEEP
from workflow_sdk.graphs.expressions.tree import (
    ALIASES,
    DEPTH_MAX,
    INT_MAX,
    ROOTS,
    Binary,
    Choice,
    Comparison,
    Constant,
    Each,
    Item,
    Listing,
    Logic,
    Node,
    Pairs,
    Root,
    Slice,
    Variable,
    call,
    comparison,
    inverse,
    logic,
    negative,
)
from workflow_sdk.graphs.expressions.writing import canonical


class UnknownNameError(DefinitionError, AttributeError):
    """Expressions can't read this name. It is an AttributeError, too, so that `hasattr` works as ever."""


class MisusedTermError(DefinitionError, TypeError):
    """A term of `E` stands where its value would have to be known. It is a TypeError, too, as of any other object."""


def _operator(symbol: str) -> Callable[[Term, object], Term]:
    return lambda self, other: _made(Binary(symbol, self.__node__, node_of(other)), self, other)


def _reflected(symbol: str) -> Callable[[Term, object], Term]:
    return lambda self, other: _made(Binary(symbol, node_of(other), self.__node__), self, other)


def _compared(term: Term, symbol: str, other: object) -> Term:
    return _made(comparison(term.__node__, ((symbol, node_of(other)),)), term, other)


def _ordered(symbol: str) -> Callable[[Term, object], Term]:
    return lambda self, other: _compared(self, symbol, other)


def _joined(symbol: str) -> Callable[[Term, object], Term]:
    return lambda self, other: _chained(symbol, self, other)


def _joined_to(symbol: str) -> Callable[[Term, object], Term]:
    return lambda self, other: _chained(symbol, other, self)


def _chained(symbol: str, left: object, right: object) -> Term:
    nodes = node_of(left), node_of(right)
    made = _made(logic(symbol, nodes), left, right)
    if isinstance(nodes[0], Logic) and nodes[0].symbol == symbol:
        made.__depth__ -= 1  # a chain of any length is one level
    return made


def _refused(what: str, remedy: str) -> Callable[..., NoReturn]:
    def refuse(self: Term, *others: object) -> NoReturn:
        raise MisusedTermError(f"{what}; {remedy}")

    return refuse


Operator = Callable[["Term", object], "Term"]
Refused = Callable[..., NoReturn]


class Term:
    """A part of an expression. Attributes and keys lead to more of it; operators and `fn` make larger ones."""

    __slots__ = ("__depth__", "__node__")
    __node__: Node
    __depth__: int

    def __init__(self, node: Node, depth: int) -> None:
        self.__node__ = node
        self.__depth__ = depth

    def __getattr__(self, name: str) -> Term:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"{name!r} belongs to Python; write it as a key in square brackets")
        return self[name]

    def __getitem__(self, key: object) -> Term:
        if isinstance(key, slice):
            parts: list[object] = [key.start, key.stop, key.step]  # pyright: ignore[reportUnknownMemberType]
            bounds = (None if part is None else node_of(part) for part in parts)
            return _made(Item(self.__node__, Slice(*bounds)), self, *parts)
        return _made(Item(self.__node__, node_of(key)), self, key)

    def __eq__(self, other: object) -> Term:  # type: ignore[override]  # a tree, not a bool: that is what it is for
        return _compared(self, "==", other)

    def __ne__(self, other: object) -> Term:  # type: ignore[override]  # as above
        return _compared(self, "!=", other)

    __lt__: ClassVar[Operator] = _ordered("<")
    __le__: ClassVar[Operator] = _ordered("<=")
    __gt__: ClassVar[Operator] = _ordered(">")
    __ge__: ClassVar[Operator] = _ordered(">=")
    __add__: ClassVar[Operator] = _operator("+")
    __sub__: ClassVar[Operator] = _operator("-")
    __mul__: ClassVar[Operator] = _operator("*")
    __truediv__: ClassVar[Operator] = _operator("/")
    __floordiv__: ClassVar[Operator] = _operator("//")
    __mod__: ClassVar[Operator] = _operator("%")
    __radd__: ClassVar[Operator] = _reflected("+")
    __rsub__: ClassVar[Operator] = _reflected("-")
    __rmul__: ClassVar[Operator] = _reflected("*")
    __rtruediv__: ClassVar[Operator] = _reflected("/")
    __rfloordiv__: ClassVar[Operator] = _reflected("//")
    __rmod__: ClassVar[Operator] = _reflected("%")
    __and__: ClassVar[Operator] = _joined("and")
    __or__: ClassVar[Operator] = _joined("or")
    __rand__: ClassVar[Operator] = _joined_to("and")
    __ror__: ClassVar[Operator] = _joined_to("or")

    def __neg__(self) -> Term:
        return _made(negative(self.__node__), self)

    def __invert__(self) -> Term:
        return _made(inverse(self.__node__), self)

    def __abs__(self) -> Term:
        return fn.abs(self)

    def __round__(self, digits: object = None) -> Term:
        return fn.round(self) if digits is None else fn.round(self, digits)

    __bool__: ClassVar[Refused] = _refused(
        "an expression is neither true nor false before it is evaluated",
        "write & for `and`, | for `or`, ~ for `not`, (E.a < E.b) & (E.b < E.c) for a chain, each in brackets",
    )
    __contains__: ClassVar[Refused] = _refused("`in` can't be written with E", "write fn.isin(item, E.output.tags)")
    __iter__: ClassVar[Refused] = _refused(
        "an expression can't be gone through", "write fn.each(E.output.items, lambda item: item.id)"
    )
    __len__: ClassVar[Refused] = _refused(
        "the length of an expression is not known yet", "write fn.len(E.output.items)"
    )
    __call__: ClassVar[Refused] = _refused("values have no methods", "call a function, such as fn.lower(E.output.name)")
    __format__: ClassVar[Refused] = _refused(
        "an expression can't be put into a text", 'join them with +, as in "id-" + E.output.id'
    )
    __pow__: ClassVar[Refused] = _refused("expressions have no **", "multiply, or register a function")
    __rpow__: ClassVar[Refused] = _refused("expressions have no **", "multiply, or register a function")

    def __repr__(self) -> str:
        return f"<E: {canonical(self.__node__)}>"


class Names:
    """The names of the scope, each of which begins a path: `E.output.kind`, `E.ctx.budget`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Term:
        if name not in ROOTS:
            raise UnknownNameError(f"unknown name {name!r}; an expression can read {', '.join(ROOTS)}")
        return Term(Root(ALIASES.get(name, name)), 1)

    def __bool__(self) -> NoReturn:
        raise MisusedTermError("E alone is no expression; write what it is to read, such as E.output.kind")

    def __repr__(self) -> str:
        return "E"


class Calls:
    """The functions: `fn.len(E.output.items)`, and `fn.score(...)` for one that is registered as `score`.

    Four more write what Python's syntax has no operator for that a term could catch.
    """

    __slots__ = ()

    def isin(self, item: object, within: object) -> Term:
        """`item in within`."""
        return _made(Comparison(node_of(item), (("in", node_of(within)),)), item, within)

    def is_none(self, value: object) -> Term:
        """`value is None`."""
        return _made(Comparison(node_of(value), (("is", Constant(None)),)), value)

    def choose(self, test: object, then: object, otherwise: object) -> Term:
        """`then if test else otherwise`."""
        return _made(Choice(node_of(test), node_of(then), node_of(otherwise)), test, then, otherwise)

    def each(
        self, over: object, element: Callable[[Term], object], where: Callable[[Term], object] | None = None
    ) -> Term:
        """`[element(item) for item in over if where(item)]`. The variable is named as the parameter of `element`."""
        name = next(iter(signature(element).parameters), "item")
        item = Term(Variable(name), 1)
        made = element(item)
        conditions = () if where is None else (where(item),)
        nodes = tuple(node_of(condition) for condition in conditions)
        return _made(Each(node_of(made), name, node_of(over), nodes), over, made, *conditions)

    def __getattr__(self, name: str) -> Callable[..., Term]:
        if name.startswith("_"):
            raise AttributeError(f"the name of a function does not begin with an underscore: {name}")
        return lambda *args: _made(call(name, tuple(node_of(arg) for arg in args)), *args)

    def __repr__(self) -> str:
        return "fn"


E: Final = Names()
"""Where expressions begin: `E.output.kind == "bug"`."""

fn: Final = Calls()
"""The functions of expressions: `fn.len(E.output.items) > 3`."""


def node_of(value: object) -> Node:
    """The tree of a term, or of a value that can be written out."""
    if isinstance(value, Term):
        return value.__node__
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, list | tuple):
        return Listing(tuple(map(node_of, cast(list[object], value))))
    if isinstance(value, dict):
        pairs = cast(dict[object, object], value)
        return Pairs(tuple(map(node_of, pairs)), tuple(map(node_of, pairs.values())))
    return _constant(value)


def _constant(value: object) -> Node:
    if type(value) is float and not value - value == 0:
        raise DefinitionError(f"{value} can't be written in an expression")
    if type(value) is int and not -INT_MAX < value < INT_MAX:
        raise DefinitionError("the number is too large for an expression")
    if value is None or (isinstance(value, str | bytes | bool | int | float) and type(value) in _LITERALS):
        return Constant(value)
    raise DefinitionError(
        f"a {type(value).__name__} can't be written in an expression; put it into the workload or the context"
    )


_LITERALS: Final = frozenset({str, bytes, bool, int, float})


def _made(node: Node, *parts: object) -> Term:
    """A term of parts. Building stops before it could not be read back."""
    depth = 1 + max(_depth(part) for part in parts)
    if depth > 2 * DEPTH_MAX:
        raise DefinitionError(f"the expression {TOO_DEEP}")
    return Term(node, depth)


def _depth(value: object) -> int:
    if isinstance(value, Term):
        return value.__depth__
    if isinstance(value, dict):
        value = list(cast(dict[object, object], value).values())
    if isinstance(value, list | tuple):
        return 1 + max(map(_depth, cast(list[object], value)), default=0)
    return 1
