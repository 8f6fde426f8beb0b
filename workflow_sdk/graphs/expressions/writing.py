"""The canonical text of a tree: the same for every way to write an expression."""

from __future__ import annotations

import re
from collections.abc import Callable
from keyword import iskeyword
from typing import Any, Final

from workflow_sdk.graphs.expressions.tree import (
    TAKING_GENERATORS,
    TEXT_MAX,
    Binary,
    Call,
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
    Unary,
    Variable,
)

CHOICE, OR, AND, NOT, COMPARISON, SUM, PRODUCT, MINUS, ATOM = range(9)
"""How tightly each kind binds, as in Python."""

_PRODUCTS: Final = ("*", "/", "//", "%")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def canonical(node: Node) -> str:
    """The text of a tree. Spaces that mean nothing are left out only where the text would else be too long."""
    text = Writer(" ").at(node, CHOICE)
    return text if len(text) <= TEXT_MAX else Writer("").at(node, CHOICE)


def quoted(text: str) -> str:
    """A text as a literal; the same in every version of Python, which `repr` does not promise."""
    quote = '"' if "'" in text and '"' not in text else "'"
    return quote + _ESCAPED.sub(_escape, text).replace(quote, "\\" + quote) + quote


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _SHORT.get(found[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def is_plain_name(key: object) -> bool:
    """Whether a key can stand behind a dot."""
    return type(key) is str and _NAME.fullmatch(key) is not None and not iskeyword(key)


class Writer:
    """Writes nodes, with `space` around what needs none."""

    def __init__(self, space: str) -> None:
        self.space = space
        self.comma: str = f",{space}"

    def at(self, node: Node, least: int) -> str:
        """The text of a node, in brackets if it binds less tightly than `least`."""
        binding, text = _WRITERS[type(node)](self, node)
        return text if binding >= least else f"({text})"

    def several(self, nodes: tuple[Node, ...]) -> str:
        """Nodes with commas between them."""
        return self.comma.join(self.at(node, CHOICE) for node in nodes)

    def within_each(self, node: Each) -> str:
        """A comprehension without its brackets."""
        conditions = "".join(f" if {self.at(each, OR)}" for each in node.conditions)
        return f"{self.at(node.element, CHOICE)} for {node.variable} in {self.at(node.over, OR)}{conditions}"


def _constant(writer: Writer, node: Constant) -> tuple[int, str]:
    value = node.value
    if type(value) is str:
        return ATOM, quoted(value)
    return MINUS if type(value) in (int, float) else ATOM, repr(value)


def _name(writer: Writer, node: Root | Variable) -> tuple[int, str]:
    return ATOM, node.name


def _item(writer: Writer, node: Item) -> tuple[int, str]:
    base, key = writer.at(node.base, ATOM), node.key
    if isinstance(key, Slice):
        parts = ["" if part is None else writer.at(part, CHOICE) for part in (key.lower, key.upper, key.step)]
        return ATOM, f"{base}[{':'.join(parts if key.step is not None else parts[:2])}]"
    if isinstance(key, Constant) and is_plain_name(key.value):
        return ATOM, f"{base}.{key.value!s}"
    return ATOM, f"{base}[{writer.at(key, CHOICE)}]"


def _unary(writer: Writer, node: Unary) -> tuple[int, str]:
    if node.symbol == "not":
        return NOT, f"not {writer.at(node.operand, NOT)}"
    return MINUS, f"-{writer.at(node.operand, MINUS)}"


def _binary(writer: Writer, node: Binary) -> tuple[int, str]:
    binding = PRODUCT if node.symbol in _PRODUCTS else SUM
    left, right = writer.at(node.left, binding), writer.at(node.right, binding + 1)
    return binding, f"{left}{writer.space}{node.symbol}{writer.space}{right}"


def _comparison(writer: Writer, node: Comparison) -> tuple[int, str]:
    text = writer.at(node.first, SUM)
    for symbol, other in node.others:
        space = " " if symbol.isalpha() or " " in symbol else writer.space
        text += f"{space}{symbol}{space}{writer.at(other, SUM)}"
    return COMPARISON, text


def _logic(writer: Writer, node: Logic) -> tuple[int, str]:
    binding = AND if node.symbol == "and" else OR
    return binding, f" {node.symbol} ".join(writer.at(part, binding + 1) for part in node.parts)


def _choice(writer: Writer, node: Choice) -> tuple[int, str]:
    then, test, otherwise = writer.at(node.then, OR), writer.at(node.test, OR), writer.at(node.otherwise, CHOICE)
    return CHOICE, f"{then} if {test} else {otherwise}"


def _listing(writer: Writer, node: Listing) -> tuple[int, str]:
    return ATOM, f"[{writer.several(node.parts)}]"


def _pairs(writer: Writer, node: Pairs) -> tuple[int, str]:
    colon = f":{writer.space}"
    pairs = zip(node.keys, node.values, strict=True)
    return ATOM, f"{{{writer.comma.join(writer.at(k, CHOICE) + colon + writer.at(v, CHOICE) for k, v in pairs)}}}"


def _each(writer: Writer, node: Each) -> tuple[int, str]:
    return ATOM, f"[{writer.within_each(node)}]"


def _call(writer: Writer, node: Call) -> tuple[int, str]:
    only = node.args[0] if len(node.args) == 1 else None
    if isinstance(only, Each) and node.name in TAKING_GENERATORS:
        return ATOM, f"{node.name}({writer.within_each(only)})"
    return ATOM, f"{node.name}({writer.several(node.args)})"


_WRITERS: Final[dict[type, Callable[[Writer, Any], tuple[int, str]]]] = {
    Constant: _constant,
    Root: _name,
    Variable: _name,
    Item: _item,
    Unary: _unary,
    Binary: _binary,
    Comparison: _comparison,
    Logic: _logic,
    Choice: _choice,
    Listing: _listing,
    Pairs: _pairs,
    Each: _each,
    Call: _call,
}
