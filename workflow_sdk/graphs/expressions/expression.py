"""An expression that was built: it can be read, compared, written down and evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions.compiling import Program
from workflow_sdk.graphs.expressions.data import Frame, Value, copied, named
from workflow_sdk.graphs.expressions.faults import ExpressionError, Fault
from workflow_sdk.graphs.expressions.paths import Run
from workflow_sdk.graphs.expressions.reading import read
from workflow_sdk.graphs.expressions.tree import TEXT_MAX, Node
from workflow_sdk.graphs.expressions.writing import canonical

NO_FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expression:
    """An expression over plain data. Two expressions are equal if they mean the same, however they were written."""

    text: str
    """The canonical text, from which `parse` makes an equal expression."""
    reads: frozenset[tuple[str, ...]]
    """The paths that it reads, such as `("output", "kind")`. A path ends before an index or a computed key."""
    functions: frozenset[str]
    """The names of the registered functions that it calls."""
    _run: Run
    _allowance: int

    is_native: ClassVar[bool] = False
    """An expression can be exported as data."""

    def evaluate(
        self, scope: Mapping[str, object], functions: Mapping[str, Callable[..., object]] = NO_FUNCTIONS
    ) -> object:
        """The value in a scope: plain data that shares nothing with the scope. ExpressionError if there is none."""
        try:
            return copied(self.run(scope, functions))
        except Fault as fault:
            raise ExpressionError(f"{fault.what}, in {self._shown()}") from fault.__cause__

    def test(self, scope: Mapping[str, object], functions: Mapping[str, Callable[..., object]] = NO_FUNCTIONS) -> bool:
        """Whether it holds in a scope. ExpressionError if the value is neither True nor False."""
        value = self.run(scope, functions)
        if type(value) is not bool:
            raise ExpressionError(f"a condition is True or False, not {named(value)}, in {self._shown()}")
        return value

    def run(self, scope: Mapping[str, object], functions: Mapping[str, Callable[..., object]]) -> Value:
        """The value itself, which may be a part of the scope. Only for who copies it."""
        try:
            return self._run(Frame(scope, functions, self._allowance))
        except Fault as fault:
            raise ExpressionError(self._told(fault)) from fault.__cause__
        except (RecursionError, MemoryError):
            raise ExpressionError(f"a value is nested too deeply or too large, in {self._shown()}") from None

    def _told(self, fault: Fault) -> str:
        if fault.at is None:
            return f"{fault.what}, in {self._shown()}"
        return f"{fault.what}, at column {fault.at + 1} of {self._shown()}"

    def _shown(self) -> str:
        return f"`{self.text}`" if len(self.text) <= 500 else f"`{self.text[:500]}...`"

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Expression) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"parse({self.text!r})"


def parse(text: str) -> Expression:
    """The expression that a text means. DefinitionError says what can't be in it, where, and what to write instead."""
    return finished(read(text))


def finished(tree: Node) -> Expression:
    """The expression of a tree. It is read back from its canonical text, so that `E` and texts can't differ."""
    text = canonical(tree)
    if len(text) > TEXT_MAX:
        raise DefinitionError(f"an expression has at most {TEXT_MAX:,} characters, this one has {len(text):,}")
    program = Program(read(text))
    return Expression(text, frozenset(program.reads), frozenset(program.functions), program.run, program.allowance)
