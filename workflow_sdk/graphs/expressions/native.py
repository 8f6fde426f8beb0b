"""Guards that are Python functions, and the read-only view of the scope that they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction, signature
from pathlib import PurePath
from types import CoroutineType
from typing import ClassVar, TypeAlias

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions.data import LISTS, Value, copied, kind_of, named
from workflow_sdk.graphs.expressions.expression import NO_FUNCTIONS, Expression, finished, parse
from workflow_sdk.graphs.expressions.faults import ExpressionError, Fault
from workflow_sdk.graphs.expressions.terms import Term
from workflow_sdk.graphs.expressions.tree import Constant


class View:
    """Plain data that can be read and not changed. Keys are attributes, too, and there are no methods in their way."""

    __slots__ = ("__data__",)
    __data__: Value

    def __init__(self, data: Value) -> None:
        object.__setattr__(self, "__data__", data)

    def __getattr__(self, name: str) -> Value:
        if type(self.__data__) in LISTS:
            raise AttributeError(f"a list has no key {name!r}")
        try:
            return viewed(self.__data__[name])
        except KeyError:
            raise AttributeError(f"there is no key {name!r}") from None

    def __getitem__(self, key: Value) -> Value:
        return viewed(self.__data__[key])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a guard can't change what it reads")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a guard can't change what it reads")

    def __iter__(self) -> Iterator[Value]:
        return map(viewed, self.__data__)

    def __len__(self) -> int:
        return len(self.__data__)

    def __contains__(self, item: object) -> bool:
        return bare(item) in self.__data__

    def __eq__(self, other: object) -> bool:
        return bool(self.__data__ == bare(other))

    __hash__: ClassVar[None]  # type: ignore[assignment]  # as of lists and dicts

    def __repr__(self) -> str:
        return repr(self.__data__)


def place_of(fn: object) -> str:
    """What a function is called, and where it is written: `the lambda at claims.py, line 12`."""
    name = str(getattr(fn, "__qualname__", type(fn).__qualname__))
    what = "the lambda" if name.endswith("<lambda>") else f"the function {name!r}"
    code = getattr(fn, "__code__", None)
    return f"{what} at {PurePath(code.co_filename).name}, line {code.co_firstlineno}" if code is not None else what


def viewed(value: Value) -> Value:
    """A value as a guard sees it."""
    return View(value) if type(value) is dict or type(value) in LISTS else value


def bare(value: Value) -> Value:
    """What a guard gives back, without the views in it."""
    if type(value) is View:
        return value.__data__
    if kind_of(value) is dict:
        return {key: bare(each) for key, each in value.items()}
    return [bare(each) for each in value] if type(value) in LISTS else value


@dataclass(frozen=True, slots=True, repr=False)
class Native:
    """A Python function in the place of an expression. It runs, but what holds it can't be exported as data."""

    call: Callable[[Value], object]
    """The function. It is given the view of a scope."""

    is_native: ClassVar[bool] = True
    """It can't be exported as data."""
    reads: ClassVar[frozenset[tuple[str, ...]]] = frozenset()
    """Unknown, and so empty."""
    functions: ClassVar[frozenset[str]] = frozenset()
    """Unknown, and so empty."""

    @property
    def place(self) -> str:
        """What the function is, and where its author finds it."""
        return place_of(self.call)

    @property
    def name(self) -> str:
        """The name of the function, with its module."""
        own = getattr(self.call, "__qualname__", type(self.call).__qualname__)
        return f"{getattr(self.call, '__module__', '?')}.{own}"

    def evaluate(
        self, scope: Mapping[str, object], functions: Mapping[str, Callable[..., object]] = NO_FUNCTIONS
    ) -> object:
        """What the function gives back: plain data. ExpressionError if it raises, or gives back anything else."""
        try:
            return copied(self.run(scope, functions))
        except Fault as fault:
            raise ExpressionError(f"{self.name} gave back what can't be used: {fault.what}") from None

    def test(self, scope: Mapping[str, object], functions: Mapping[str, Callable[..., object]] = NO_FUNCTIONS) -> bool:
        """Whether it holds in a scope. ExpressionError if the answer is neither True nor False."""
        value = self.run(scope, functions)
        if type(value) is not bool:
            raise ExpressionError(f"a condition is True or False, not {named(value)}, from {self.name}")
        return value

    def run(self, scope: Mapping[str, object], functions: Mapping[str, Callable[..., object]]) -> Value:
        """The value itself, which may be a part of the scope. Only for who copies it."""
        try:
            value = self.call(View(_with_aliases(scope)))
            if isinstance(value, CoroutineType):
                value.close()
            return bare(value)
        except Exception as error:
            raise ExpressionError(f"{self.name} raised {type(error).__name__}: {error}") from error

    def __repr__(self) -> str:
        return f"<Native {self.name}>"


def _with_aliases(scope: Mapping[str, object]) -> Mapping[str, object]:
    if "workload" not in scope or "start" in scope:
        return scope
    return {**scope, "start": scope["workload"]}


Guard: TypeAlias = Expression | Native
"""What decides, or makes a value: an expression, or a function."""


def expression_of(given: object) -> Guard:
    """The expression that is meant by a term of `E`, a text, a constant (True, False, None) or a Python function."""
    if isinstance(given, Expression | Native):
        return given
    if isinstance(given, Term):
        return finished(given.__node__)
    if isinstance(given, str):
        return parse(given)
    if given is None or isinstance(given, bool):
        return finished(Constant(given))
    if callable(given):
        return _native(given)
    raise DefinitionError(f"a {type(given).__name__} is no expression; write one with E, as a text, or as a function")


def _native(call: Callable[..., object]) -> Native:
    if iscoroutinefunction(call):
        raise DefinitionError("a guard is a plain function, which can't wait; wait in a step")
    try:
        signature(call).bind(None)
    except TypeError:
        raise DefinitionError("a guard takes one argument, the scope: lambda s: s.output.kind == 'bug'") from None
    except ValueError:  # a builtin that does not tell what it takes
        pass
    return Native(call)
