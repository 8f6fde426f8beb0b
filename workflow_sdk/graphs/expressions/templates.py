"""Arguments as they are written in a graph: literals, with expressions among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions.data import LISTS, SCALARS, Value, copied, kind_of, named
from workflow_sdk.graphs.expressions.expression import NO_FUNCTIONS, Expression, parse
from workflow_sdk.graphs.expressions.faults import ExpressionError, Fault
from workflow_sdk.graphs.expressions.native import Native, expression_of
from workflow_sdk.graphs.expressions.terms import Names, Term

MARK: Final = "$"
"""In data, `{"$": "output.id"}` is an expression. All other texts are literals."""


class _List(Struct, frozen=True):
    """A list with expressions in it."""

    parts: tuple[_Part, ...]


class _Dict(Struct, frozen=True):
    """A dict with expressions in it."""

    parts: tuple[tuple[Value, _Part], ...]


class _Literal(Struct, frozen=True):
    """Plain data without expressions."""

    value: Value


_Part: TypeAlias = _List | _Dict | _Literal | Expression | Native


class Template:
    """Plain data in which some parts are expressions. It does not change."""

    __slots__ = ("_root", "functions", "is_native", "reads")

    def __init__(self, root: _Part) -> None:
        found = list(_expressions(root))
        self._root = root
        self.reads: Final = frozenset[tuple[str, ...]]().union(*(each.reads for each in found))
        """The paths that its expressions read."""
        self.functions: Final = frozenset[str]().union(*(each.functions for each in found))
        """The names of the registered functions that they call."""
        self.is_native: Final = any(each.is_native for each in found)
        """Whether there is a Python function among them, so that it can't be exported."""

    def evaluate(
        self, scope: Mapping[str, object], functions: Mapping[str, Callable[..., object]] = NO_FUNCTIONS
    ) -> object:
        """The data, with the values of the expressions in a scope. ExpressionError if one of them has none."""
        try:
            return copied(_evaluated(self._root, scope, functions))
        except Fault as fault:
            raise ExpressionError(f"{fault.what}, in these arguments: {self!r}") from None

    def to_data(self) -> object:
        """Plain data that `template_of` makes an equal template of. DefinitionError if there is a function in it."""
        return _data(self._root)

    def __repr__(self) -> str:
        return "Template(with functions)" if self.is_native else f"template_of({str(self.to_data())[:300]})"


def template_of(args: object) -> Template:
    """A template of arguments as an author wrote them. DefinitionError says where they are no plain data.

    Terms of `E`, functions, and dicts with the one key "$" are expressions; everything else is taken literally. A dict
    that has itself only the key "$" is written as an expression: `{"$": "{'$': 'literal'}"}`.
    """
    try:
        root = _part(args, "args")
        if isinstance(root, _Literal):
            root = _Literal(copied(root.value))  # and too large is too large already now
        return Template(root)
    except RecursionError:
        raise DefinitionError("args are nested too deeply, or hold themselves") from None
    except Fault as fault:
        raise DefinitionError(f"args: {fault.what}") from None


def _part(value: Value, where: str) -> _Part:
    if isinstance(value, Names):
        raise DefinitionError(f"{where}: E alone is no expression; write what it is to read, such as E.output")
    if isinstance(value, Term | Expression | Native) or callable(value):
        return expression_of(value)
    found = kind_of(value)
    if found is dict:
        return _marked(value[MARK], where) if list(value) == [MARK] else _dict(value, where)
    if found in LISTS:
        return _list(value, where)
    if found not in SCALARS:
        raise DefinitionError(f"{where} is {named(value)}; give its fields as a dict")
    return _Literal(value)


def _list(value: list[Value], where: str) -> _Part:
    parts = tuple(_part(each, f"{where}[{index}]") for index, each in enumerate(value))
    literals = [part.value for part in parts if isinstance(part, _Literal)]
    return _Literal(literals) if len(literals) == len(parts) else _List(parts)


def _dict(value: dict[Value, Value], where: str) -> _Part:
    if any(type(key) is not str for key in value):
        raise DefinitionError(f"{where} has a key that is no text")
    parts = tuple((key, _part(each, f"{where}.{key}")) for key, each in value.items())
    literals = {key: part.value for key, part in parts if isinstance(part, _Literal)}
    if len(literals) == len(parts):
        return _Literal(literals)
    return _Dict(parts)


def _marked(text: Value, where: str) -> Expression:
    if type(text) is not str:
        literal = 'a dict that has only the key "$" is written as {"$": "{\'$\': ...}"}'
        raise DefinitionError(f'{where}: behind "$" there is the text of an expression, not {named(text)}; {literal}')
    try:
        return parse(text)
    except DefinitionError as error:
        raise DefinitionError(f"{where}: {error}") from None


def _expressions(part: _Part) -> Iterator[Expression | Native]:
    if isinstance(part, Expression | Native):
        yield part
    elif isinstance(part, _List):
        for each in part.parts:
            yield from _expressions(each)
    elif isinstance(part, _Dict):
        for _, each in part.parts:
            yield from _expressions(each)


def _evaluated(part: _Part, scope: Mapping[str, object], functions: Mapping[str, Callable[..., object]]) -> Value:
    if isinstance(part, _Literal):
        return part.value
    if isinstance(part, _List):
        return [_evaluated(each, scope, functions) for each in part.parts]
    if isinstance(part, _Dict):
        return {key: _evaluated(each, scope, functions) for key, each in part.parts}
    return part.run(scope, functions)


def _data(part: _Part) -> Value:
    if isinstance(part, _Literal):
        return copied(part.value)
    if isinstance(part, _List):
        return [_data(each) for each in part.parts]
    if isinstance(part, _Dict):
        return {key: _data(each) for key, each in part.parts}
    if isinstance(part, Native):
        raise DefinitionError(f"{part.place} is Python code, which can't be exported; write an expression")
    return {MARK: part.text}
