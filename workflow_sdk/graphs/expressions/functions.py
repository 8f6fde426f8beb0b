"""The functions that every expression can call, and those that authors register."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal
from functools import wraps
from inspect import iscoroutinefunction
from keyword import iskeyword
from types import CoroutineType, FunctionType
from typing import Any, Final, TypeVar, overload
from weakref import WeakValueDictionary

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions.data import (
    CHARACTERS_PER_STEP,
    LISTS,
    Copier,
    Frame,
    Value,
    copied,
    named,
)
from workflow_sdk.graphs.expressions.faults import Fault
from workflow_sdk.graphs.expressions.operators import BINARY, DECIMAL, check_size, in_bounds, number
from workflow_sdk.graphs.expressions.terms import Term
from workflow_sdk.graphs.expressions.terms import fn as terms
from workflow_sdk.graphs.expressions.tree import ARITIES, ROOTS

F = TypeVar("F", bound=Callable[..., object])

_NAME: Final = "__expression_function__"
_RESERVED: Final = {*ARITIES, *ROOTS, "isin", "is_none", "choose", "each"}


REGISTERED: Final[WeakValueDictionary[str, Callable[..., object]]] = WeakValueDictionary()
"""Functions that were marked, by their names: the last of each name. Those that a graph is given come first."""


@overload
def function(fn: F, /) -> F: ...
@overload
def function(*, name: str | None = None) -> Callable[[F], F]: ...
def function(fn: F | None = None, /, *, name: str | None = None) -> F | Callable[[F], F]:
    """Mark a pure function, so that expressions can call it by its name. Called with a term of `E`, it makes a term.

    Of two that have the same name, a graph calls the one that it is given in `functions=`, or else the last. A graph
    that is read from data calls only those that it is given.

    It is given copies of plain data and gives back plain data. It has to be quick, and to give the same answer to the
    same arguments always: expressions are evaluated again after a crash.
    """
    if fn is None:
        return lambda given: _marked(given, name)
    return _marked(fn, name)


def _marked(fn: F, name: str | None) -> F:
    if not callable(fn):
        raise DefinitionError(f"@function is for a function, not {type(fn).__name__}; write @function(name=...)")
    if iscoroutinefunction(fn):
        raise DefinitionError(f"@function is for a plain function: an expression can't wait for {_own_name(fn)}")
    chosen = _own_name(fn) if name is None else name
    if not chosen.isidentifier() or iskeyword(chosen) or chosen.startswith("_"):
        raise DefinitionError(f"an expression can't call {chosen!r}: give it a plain name with @function(name=...)")
    if chosen in _RESERVED:
        raise DefinitionError(f"{chosen!r} has a meaning in expressions; give another name with @function(name=...)")
    try:
        setattr(fn, _NAME, chosen)
        REGISTERED[chosen] = fn
    except (AttributeError, TypeError):
        raise DefinitionError(f"{chosen!r} can't be marked; wrap it in a function of your own") from None
    return _of_terms(fn, chosen) if type(fn) is FunctionType else fn


def _of_terms(fn: Callable[..., object], name: str) -> Any:
    """The function, which makes a term if it is called with one: `urgency(E.workload) > 3`."""

    @wraps(fn)
    def called(*args: Any, **named: Any) -> Any:
        if any(isinstance(one, Term) for one in args):
            return getattr(terms, name)(*args)
        return fn(*args, **named)

    REGISTERED[name] = called
    return called


def _own_name(fn: Callable[..., object]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def function_name(fn: Callable[..., object]) -> str | None:
    """The name by which expressions call a function; None if it was not marked with `@function`."""
    name = getattr(fn, _NAME, None)
    return name if isinstance(name, str) else None


def call_registered(frame: Frame, name: str, args: list[Value]) -> Value:
    """Call a registered function with copies. What it raises is a Fault that names it."""
    found = frame.functions.get(name)
    if found is None:
        raise Fault(f"no function {name!r} is registered")
    copier = Copier()
    try:
        given = [copier.copied(each) for each in args]
    except RecursionError:
        raise Fault(f"an argument of {name}() is nested too deeply") from None
    frame.spend(1 + copier.size // CHARACTERS_PER_STEP)
    try:
        result = found(*given)
    except Exception as error:
        raise Fault(f"{name}() raised {type(error).__name__}: {_message(error)}") from error
    if isinstance(result, CoroutineType):
        result.close()
    try:
        return copied(result)
    except Fault as fault:
        raise Fault(f"{name}() gave back what can't be used: {fault.what}") from None


def _message(error: Exception) -> str:
    try:
        return str(error)[:500]
    except Exception:  # noqa: BLE001  # an author's __str__ may raise anything
        return "its message can't be shown"


def _items(frame: Frame, value: Value, name: str) -> list[Value]:
    if type(value) not in LISTS:
        raise Fault(f"{name}() takes a list, not {named(value)}")
    frame.pass_over(10 * len(value))
    found: list[Value] = value
    return found


def _text(frame: Frame, value: Value, name: str) -> str:
    if type(value) is not str:
        raise Fault(f"{name}() takes a text, not {named(value)}")
    frame.spend(len(value) // CHARACTERS_PER_STEP)
    return value


def _len(frame: Frame, value: Value) -> Value:
    if type(value) in (str, bytes, dict, list, tuple):
        return len(value)
    raise Fault(f"len() takes a text, list or dict, not {named(value)}")


def _extreme(name: str, symbol: str) -> Callable[..., Value]:
    before = BINARY[symbol]

    def run(frame: Frame, *values: Value) -> Value:
        items = _items(frame, values[0], name) if len(values) == 1 else list(values)
        if not items:
            raise Fault(f"{name}() of an empty list")
        best = items[0]
        before(frame, best, best)  # an only item has to be comparable, too
        for each in items[1:]:
            if before(frame, each, best):
                best = each
        return best

    return run


def _sum(frame: Frame, values: Value) -> Value:
    total: Value = 0
    add = BINARY["+"]
    for each in _items(frame, values, "sum"):
        total = add(frame, total, number(each))
    return total


def decides(name: str, verdict: bool) -> Callable[[Value], bool]:
    """Whether an item decides `any` (which a True does) or `all` (which a False does)."""

    def run(value: Value) -> bool:
        if type(value) is not bool:
            raise Fault(f"{name}() takes True and False, not {named(value)}")
        return value is verdict

    return run


def _verdict(name: str, verdict: bool) -> Callable[..., Value]:
    decided = decides(name, verdict)

    def run(frame: Frame, values: Value) -> Value:
        return verdict if any(map(decided, _items(frame, values, name))) else not verdict

    return run


def _abs(frame: Frame, value: Value) -> Value:
    checked = number(value)
    return DECIMAL.abs(checked) if type(checked) is Decimal else abs(checked)


_DIGITS_MAX: Final = 1_000


def _round(frame: Frame, value: Value, digits: Value = None) -> Value:
    checked = number(value)
    if digits is not None and (type(digits) is not int or abs(digits) > _DIGITS_MAX):
        raise Fault(f"round() takes a whole number of digits of at most {_DIGITS_MAX:,}")
    if type(checked) is not Decimal:
        return in_bounds(round(checked, digits))
    if abs(checked.adjusted()) > _DIGITS_MAX:
        raise Fault("the number is too large or too small for round()")
    if digits is None:
        return int(checked.to_integral_value(ROUND_HALF_EVEN))
    return _quantized(checked, digits)


def _quantized(value: Decimal, digits: int) -> Decimal:
    try:
        return value.quantize(Decimal((0, (1,), -digits)), ROUND_HALF_EVEN, DECIMAL)
    except ArithmeticError:
        raise Fault(f"round() can't give {digits} digits of so large a number") from None


def _case(name: str, change: Callable[[str], str]) -> Callable[..., Value]:
    def run(frame: Frame, value: Value) -> Value:
        changed = change(_text(frame, value, name))
        check_size(len(changed))
        return changed

    return run


def _starts_with(frame: Frame, value: Value, beginning: Value) -> Value:
    return _text(frame, value, "starts_with").startswith(_text(frame, beginning, "starts_with"))


LISTED: Final[dict[str, Callable[..., Any]]] = {
    "len": _len,
    "min": _extreme("min", "<"),
    "max": _extreme("max", ">"),
    "sum": _sum,
    "any": _verdict("any", True),
    "all": _verdict("all", False),
    "abs": _abs,
    "round": _round,
    "lower": _case("lower", str.lower),
    "upper": _case("upper", str.upper),
    "starts_with": _starts_with,
}
"""What can be called without being registered; `get` and `coalesce`, which take paths, are compiled."""
