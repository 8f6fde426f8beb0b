"""From a text to its tree: Python's own parser, and then a whitelist of what it finds."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from typing import Any, Final, NoReturn

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions.tree import (
    ALIASES,
    ARITIES,
    DEPTH_MAX,
    INT_MAX,
    ROOTS,
    TAKING_GENERATORS,
    TEXT_MAX,
    Binary,
    Choice,
    Constant,
    Each,
    Item,
    Listing,
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

_INFINITE: Final = float("inf")
TOO_DEEP: Final = f"is nested more than {DEPTH_MAX} deep; compute a part of it in a step or a function"

_ARITHMETIC: Final[dict[type[ast.AST], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_COMPARISONS: Final[dict[type[ast.AST], str]] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
_REMEDIES: Final[dict[type[ast.AST], tuple[str, str]]] = {
    ast.Lambda: ("a lambda", "pass the whole guard as a Python function instead of a text"),
    ast.JoinedStr: ("an f-string", "join texts with +"),
    ast.NamedExpr: ("an assignment", "write the value where it is used"),
    ast.Starred: ("a star", "write the items one by one"),
    ast.SetComp: ("a set comprehension", "write a list comprehension"),
    ast.DictComp: ("a dict comprehension", "make the dict in a step or a function"),
    ast.GeneratorExp: ("a generator", "put it into square brackets"),
    ast.Set: ("a set", "write a list in square brackets"),
    ast.Slice: ("a slice in several dimensions", "use one slice after the other"),
    ast.Await: ("await", "wait in a step"),
    ast.BitAnd: ("&", "write `and`"),
    ast.BitOr: ("|", "write `or`"),
    ast.BitXor: ("^", "compare with !="),
    ast.Invert: ("~", "write `not`"),
    ast.UAdd: ("a plus sign without a left side", "leave it out"),
    ast.Pow: ("**", "multiply, or register a function"),
    ast.LShift: ("<<", "multiply"),
    ast.RShift: (">>", "divide"),
    ast.MatMult: ("@", "register a function"),
}
_MISTAKEN_NAMES: Final = {
    "true": "write True",
    "false": "write False",
    "null": "write None",
    "none": "write None",
}
_MISTAKEN_SIGNS: Final = (
    (r"&&", "write `and`"),
    (r"\|\|", "write `or`"),
    (r"!(?!=)", "write `not`"),
    (r"(?<![=!<>:])=(?!=)", "compare with =="),
)


def read(text: str) -> Node:
    """The tree of a text. DefinitionError says what can't be in it, where, and what to write instead."""
    if type(text) is not str:
        raise DefinitionError(f"an expression is a text, not {type(text).__name__}")
    if len(text) > TEXT_MAX:
        raise DefinitionError(f"an expression has at most {TEXT_MAX:,} characters, this one has {len(text):,}")
    return _Reader(text).read()


class _Reader:
    """Reads one text. `variable` is the name of the item, inside a comprehension."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
        # In brackets, the lines of a text may be broken anywhere.
        self.source = f"({self.text}\n)" if "\n" in self.text else self.text
        self.lines = self.source.split("\n")
        self.variable: str | None = None
        self.depth = 0

    def read(self) -> Node:
        if not self.text:
            raise DefinitionError("an expression can't be empty; write True for one that always holds")
        body = self._parsed().body
        if self.source is not self.text and (body.lineno, body.col_offset) == (1, 0):
            self.refuse(body, "a text of several lines is not one expression", "put it into brackets")
        return self.node(body)

    def _parsed(self) -> ast.Expression:
        try:
            with warnings.catch_warnings():
                # A backslash that escapes nothing is a backslash, in every version of Python.
                warnings.simplefilter("ignore")
                return ast.parse(self.source, mode="eval")
        except SyntaxError as error:
            raise DefinitionError(self._not_python(error)) from None
        except (RecursionError, MemoryError):
            raise DefinitionError(f"{self._shown()} {TOO_DEEP}") from None
        except (ValueError, OverflowError) as error:
            raise DefinitionError(f"{self._shown()} is no expression: {error}") from None

    def _not_python(self, error: SyntaxError) -> str:
        where = self.where(error.lineno or 1, (error.offset or 1) - 1)
        if "too many nested" in error.msg:
            return f"{self._shown()} {TOO_DEEP}"
        remedy = next(
            (remedy for sign, remedy in _MISTAKEN_SIGNS if re.search(sign, self.text)), "write it as Python does"
        )
        return f"{self._shown()} is no expression, {where}: {error.msg}; {remedy}"

    def node(self, given: ast.expr) -> Node:
        """One node of Python's tree as one of ours."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise DefinitionError(f"{self._shown()} {TOO_DEEP}")
        build = _BUILDERS.get(type(given))
        if build is None:
            self.refuse_kind(given, given)
        found = build(self, given, self.column(given))
        self.depth -= 1
        return found

    def nodes(self, given: list[ast.expr]) -> tuple[Node, ...]:
        return tuple(self.node(each) for each in given)

    def optional(self, given: ast.expr | None) -> Node | None:
        return None if given is None else self.node(given)

    def column(self, given: ast.expr, *, end: bool = False) -> int:
        """Where a node begins or ends in its line, in characters: Python's parser counts bytes."""
        number, offset = (given.end_lineno, given.end_col_offset) if end else (given.lineno, given.col_offset)
        line = self.lines[(number or 1) - 1]
        return (offset or 0) if line.isascii() else len(line.encode()[:offset].decode())

    def where(self, line: int, column: int) -> str:
        if self.source is self.text:
            return f"column {column + 1}"
        return f"line {line}, column {column + 1 - (line == 1)}"

    def refuse(self, given: ast.expr, what: str, remedy: str) -> NoReturn:
        """Say what can't be written, where, and what to do."""
        where = self.where(given.lineno, self.column(given))
        raise DefinitionError(f"{what}, {where} of {self._shown()}; {remedy}")

    def refuse_kind(self, kind: ast.AST, given: ast.expr) -> NoReturn:
        """Say that expressions don't have this kind of thing."""
        name, remedy = _REMEDIES.get(type(kind), (f"a Python {type(kind).__name__}", "make the value in a step"))
        self.refuse(given, f"{name} can't be in an expression", remedy)

    def _shown(self) -> str:
        shown = self.text if len(self.text) <= 200 else f"{self.text[:200]}..."
        return repr(shown)


def _constant(reader: _Reader, given: ast.Constant, at: int) -> Node:
    value = given.value
    if value is not None and type(value) not in (str, int, float, bool, bytes):
        reader.refuse(given, f"{type(value).__name__} is no plain value", "use text, numbers, True, False and None")
    if value == _INFINITE or (type(value) is int and value >= INT_MAX):
        reader.refuse(given, "the number is too large", "use a smaller one")
    return Constant(value, at)  # type: ignore[arg-type]  # checked above


def _name(reader: _Reader, given: ast.Name, at: int) -> Node:
    name = given.id
    if name == reader.variable:
        return Variable(name, at)
    if name not in ROOTS:
        known = f"an expression can read {', '.join(ROOTS)}"
        reader.refuse(given, f"unknown name {name!r}", _MISTAKEN_NAMES.get(name, known))
    return Root(ALIASES.get(name, name), at)


def _attribute(reader: _Reader, given: ast.Attribute, at: int) -> Node:
    name_at = reader.column(given, end=True) - len(given.attr)
    return Item(reader.node(given.value), Constant(given.attr, name_at), at)


def _subscript(reader: _Reader, given: ast.Subscript, at: int) -> Node:
    base, key = reader.node(given.value), given.slice
    if isinstance(key, ast.Slice):
        bounds = (reader.optional(part) for part in (key.lower, key.upper, key.step))
        return Item(base, Slice(*bounds), at)
    return Item(base, reader.node(key), at)


def _unary(reader: _Reader, given: ast.UnaryOp, at: int) -> Node:
    if isinstance(given.op, ast.Not):
        return inverse(reader.node(given.operand), at)
    if not isinstance(given.op, ast.USub):
        reader.refuse_kind(given.op, given)
    return negative(reader.node(given.operand), at)


def _binary(reader: _Reader, given: ast.BinOp, at: int) -> Node:
    symbol = _ARITHMETIC.get(type(given.op))
    if symbol is None:
        reader.refuse_kind(given.op, given)
    return Binary(symbol, reader.node(given.left), reader.node(given.right), at)


def _compare(reader: _Reader, given: ast.Compare, at: int) -> Node:
    first = reader.node(given.left)
    others: list[tuple[str, Node]] = []
    for operator, other in zip(given.ops, given.comparators, strict=True):
        symbol, right = _COMPARISONS[type(operator)], reader.node(other)
        if symbol.startswith("is") and not (isinstance(right, Constant) and right.value is None):
            reader.refuse(other, f"`{symbol}` is only for None", "compare with == or !=")
        others.append((symbol, right))
    return comparison(first, tuple(others), at)


def _logic(reader: _Reader, given: ast.BoolOp, at: int) -> Node:
    return logic("and" if isinstance(given.op, ast.And) else "or", reader.nodes(given.values), at)


def _choice(reader: _Reader, given: ast.IfExp, at: int) -> Node:
    return Choice(reader.node(given.test), reader.node(given.body), reader.node(given.orelse), at)


def _listing(reader: _Reader, given: ast.List | ast.Tuple, at: int) -> Node:
    return Listing(reader.nodes(given.elts), at)


def _pairs(reader: _Reader, given: ast.Dict, at: int) -> Node:
    keys = [key for key in given.keys if key is not None]
    if len(keys) < len(given.keys):
        reader.refuse(given, "two stars can't be in an expression", "write the pairs one by one")
    return Pairs(reader.nodes(keys), reader.nodes(given.values), at)


def _each(reader: _Reader, given: ast.ListComp | ast.GeneratorExp, at: int) -> Node:
    loop = given.generators[0]
    if len(given.generators) > 1 or reader.variable is not None:
        reader.refuse(given, "a comprehension goes over one list", "flatten the lists in a step or a function")
    if loop.is_async:
        reader.refuse(given, "a comprehension can't be async", "leave `async` out")
    variable = loop.target
    if not isinstance(variable, ast.Name):
        reader.refuse(variable, "a comprehension has one variable", "read the parts of it by key or index")
    if variable.id in ROOTS or variable.id in ARITIES:
        reader.refuse(variable, f"{variable.id!r} has a meaning already", "choose another name for the variable")
    over = reader.node(loop.iter)
    reader.variable = variable.id
    element, conditions = reader.node(given.elt), reader.nodes(loop.ifs)
    reader.variable = None
    return Each(element, variable.id, over, conditions, at)


def _call(reader: _Reader, given: ast.Call, at: int) -> Node:
    function = given.func
    if isinstance(function, ast.Attribute):
        reader.refuse(
            given, f"values have no methods: .{function.attr}()", "call a function such as len(...) or lower(...)"
        )
    if not isinstance(function, ast.Name):
        reader.refuse(given, "only functions that have a name can be called", "register one with @function")
    if function.id in ROOTS or function.id == reader.variable:
        reader.refuse(given, f"{function.id!r} is data, which can't be called", "read a key of it")
    if given.keywords:
        reader.refuse(given, "arguments have no names in an expression", "give them by position")
    args = _arguments(reader, function.id, given.args)
    try:
        return call(function.id, args, at)
    except DefinitionError as error:
        reader.refuse(given, str(error), "see the list of functions")


def _arguments(reader: _Reader, name: str, given: list[ast.expr]) -> tuple[Node, ...]:
    if len(given) == 1 and isinstance(given[0], ast.GeneratorExp) and name in TAKING_GENERATORS:
        return (_each(reader, given[0], reader.column(given[0])),)
    return reader.nodes(given)


_BUILDERS: Final[dict[type[ast.AST], Callable[[_Reader, Any, int], Node]]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.BoolOp: _logic,
    ast.IfExp: _choice,
    ast.List: _listing,
    ast.Tuple: _listing,
    ast.Dict: _pairs,
    ast.ListComp: _each,
    ast.Call: _call,
}
