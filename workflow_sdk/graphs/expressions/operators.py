"""What the operators of expressions mean. Each takes the frame, which counts what large values cost."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from typing import Final, NoReturn, TypeAlias
from uuid import UUID

from workflow_sdk.graphs.expressions.data import (
    CHARACTERS_PER_STEP,
    LISTS,
    SCALARS,
    SIZE_MAX,
    Frame,
    Value,
    fixed,
    kind_of,
    named,
)
from workflow_sdk.graphs.expressions.faults import Fault
from workflow_sdk.graphs.expressions.tree import INT_MAX

Operator: TypeAlias = Callable[[Frame, Value, Value], Value]

DECIMAL: Final = Context(prec=28, traps=[DivisionByZero, InvalidOperation, Overflow])
"""The same everywhere: the context of a thread could be another one on another machine."""

_REAL: Final = frozenset({int, float})
_DECIMAL: Final = frozenset({int, Decimal})
_DECIMAL_BYTES_MAX: Final = 1_000
NUMBERS: Final = frozenset({int, float, Decimal})
_EXACT: Final = frozenset({str, bool, type(None), bytes, date, timedelta, UUID})
"""Alike only to values of the same type, which can be asked without harm."""

_IN_ORDER: Final = frozenset({str, bytes, date, timedelta, UUID})


def number(value: Value) -> Value:
    """The value, if it is a number that can be computed with."""
    if type(value) not in NUMBERS:
        raise Fault(f"{named(value)} is no number")
    return in_bounds(value)


def in_bounds(value: Value) -> Value:
    """The number, if it is neither too large nor infinite nor no number at all."""
    found = kind_of(value)
    if found is int:
        if not -INT_MAX < value < INT_MAX:
            raise Fault("the number is too large")
    elif found is float:
        if value - value != 0:
            raise Fault(f"the number is {value}")
    elif not value.is_finite():
        raise Fault(f"the number is {value}")
    elif value.__sizeof__() > _DECIMAL_BYTES_MAX:  # a Decimal has no cheaper way to tell how many digits it has
        raise Fault("the number has too many digits")
    return value


def arithmetic(symbol: str) -> Operator:
    """`+ - * / // %`; of texts and lists there is only `+`."""
    plain, exact = _ARITHMETIC[symbol]

    def run(frame: Frame, left: Value, right: Value) -> Value:
        kind = kind_of(left)
        other = kind_of(right)
        try:
            if kind in _REAL and other in _REAL:
                return in_bounds(plain(in_bounds(left), in_bounds(right)))
            if kind in _DECIMAL and other in _DECIMAL:
                return in_bounds(exact(in_bounds(left), in_bounds(right)))
        except ZeroDivisionError:
            raise Fault("division by zero") from None
        except ArithmeticError:
            raise Fault("the number is too large") from None
        if symbol == "+":
            return joined(frame, left, right)
        _unfit(symbol, left, right)

    return run


def _divided(left: Value, right: Value) -> Value:
    return left / right


def _floor_divided(left: Value, right: Value) -> Value:
    return left // right


_ARITHMETIC: Final[dict[str, tuple[Callable[[Value, Value], Value], Callable[[Value, Value], Value]]]] = {
    "+": (operator.add, DECIMAL.add),
    "-": (operator.sub, DECIMAL.subtract),
    "*": (operator.mul, DECIMAL.multiply),
    "/": (_divided, DECIMAL.divide),
    "//": (_floor_divided, DECIMAL.divide_int),
    "%": (operator.mod, DECIMAL.remainder),
}


def _unfit(symbol: str, left: Value, right: Value) -> NoReturn:
    raise Fault(f"{symbol} does not fit {named(left)} and {named(right)}")


def joined(frame: Frame, left: Value, right: Value) -> Value:
    """Two texts or two lists as one."""
    if type(left) is str and type(right) is str:
        size = len(left) + len(right)
        check_size(size)
        frame.spend(size // CHARACTERS_PER_STEP)
        return left + right
    if type(left) not in LISTS or type(right) not in LISTS:
        _unfit("+", left, right)
    size = len(left) + len(right)
    check_size(8 * size)
    frame.pass_over(size)
    return [*left, *right]


def check_size(size: int) -> None:
    """A Fault if a value of this size is too large."""
    if size > SIZE_MAX:
        raise Fault(f"the value is larger than {SIZE_MAX:,} bytes")


def negated(value: Value) -> Value:
    """`-value`."""
    checked = number(value)
    return DECIMAL.minus(checked) if type(checked) is Decimal else -checked


def equal(frame: Frame, left: Value, right: Value) -> bool:
    """Whether two values are the same. Values of unlike kinds are not, and a bool is no number."""
    kind = kind_of(left)
    other = kind_of(right)
    if kind is other and kind in _EXACT:
        return bool(left == right)
    if kind in NUMBERS and other in NUMBERS:
        return _same_number(left, right)
    if kind in LISTS and other in LISTS:
        return _same_list(frame, left, right)
    if kind is dict and other is dict:
        return _same_dict(frame, left, right)
    return _same_time(left, right)


def _same_time(left: Value, right: Value) -> bool:
    """Whether two datetimes are the same; what is left is unlike, if it is plain data at all."""
    if type(left) is datetime and type(right) is datetime:
        return fixed(left) == fixed(right)
    for value in (left, right):
        if kind_of(value) not in _PLAIN:
            raise Fault(f"{named(value)} can't be compared")
    return False


_PLAIN: Final = SCALARS | LISTS | {dict}


def _check_mixed(left: Value, right: Value) -> None:
    """A Fault if a Decimal meets an int that is so large that turning it into a Decimal would take minutes."""
    if type(left) is Decimal and type(right) is int:
        in_bounds(right)
    if type(left) is int and type(right) is Decimal:
        in_bounds(left)


def _same_number(left: Value, right: Value) -> bool:
    _check_mixed(left, right)
    try:
        return bool(left == right)
    except ArithmeticError:  # a Decimal that signals
        raise Fault("the number is NaN") from None


def _same_list(frame: Frame, left: Value, right: Value) -> bool:
    if len(left) != len(right):
        return False
    frame.spend(1 + len(left) // 10)
    return all(equal(frame, one, other) for one, other in zip(left, right, strict=True))


def _same_dict(frame: Frame, left: Value, right: Value) -> bool:
    if len(left) != len(right):
        return False
    frame.spend(1 + len(left) // 10)
    for key, value in left.items():
        if type(key) not in SCALARS:
            raise Fault(f"a key is {named(key)}")
        if key not in right or not equal(frame, value, right[key]):
            return False
    return True


def unequal(frame: Frame, left: Value, right: Value) -> bool:
    """`left != right`."""
    return not equal(frame, left, right)


def ordering(symbol: str) -> Operator:
    """`< <= > >=`, of two numbers, texts or times."""
    compare = _ORDERS[symbol]

    def run(frame: Frame, left: Value, right: Value) -> Value:
        kind = kind_of(left)
        other = kind_of(right)
        if kind in _REAL and other in _REAL and left == left and right == right:
            return compare(left, right)
        if kind is other and kind in _IN_ORDER:
            return compare(left, right)
        return _compared(symbol, left, right)

    return run


def _compared(symbol: str, left: Value, right: Value) -> bool:
    kind = kind_of(left)
    other = kind_of(right)
    if kind in NUMBERS and other in NUMBERS:
        _check_mixed(left, right)
        try:
            if left == left and right == right:
                return bool(_ORDERS[symbol](left, right))
        except ArithmeticError:  # a Decimal that signals
            pass
        raise Fault(f"{symbol} does not fit NaN, which is no number")
    if not (kind is datetime and other is datetime):
        _unfit(symbol, left, right)
    if (left.tzinfo is None) != (right.tzinfo is None):
        raise Fault(f"{symbol} does not fit a datetime with a time zone and one without")
    return bool(_ORDERS[symbol](fixed(left), fixed(right)))


_ORDERS: Final[dict[str, Callable[[Value, Value], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def contains(frame: Frame, item: Value, within: Value) -> bool:
    """`item in within`: an item of a list, a key of a dict, or a part of a text."""
    kind = kind_of(within)
    if kind in LISTS:
        frame.pass_over(len(within))
        if type(item) is str:
            return any(type(each) is str and each == item for each in within)
        return any(equal(frame, item, each) for each in within)
    if kind is dict:
        return is_key(item) and item in within
    if kind is str and type(item) is str:
        frame.spend(len(within) // CHARACTERS_PER_STEP)
        return item in within
    raise Fault(f"`in` does not fit {named(item)} and {named(within)}")


def lacks(frame: Frame, item: Value, within: Value) -> bool:
    """`item not in within`."""
    return not contains(frame, item, within)


def is_key(value: Value) -> bool:
    """Whether a value can be the key of a dict: texts and whole numbers can."""
    return type(value) is str or type(value) is int


BINARY: Final[dict[str, Operator]] = {
    **{symbol: arithmetic(symbol) for symbol in _ARITHMETIC},
    **{symbol: ordering(symbol) for symbol in _ORDERS},
    "==": equal,
    "!=": unequal,
    "in": contains,
    "not in": lacks,
}
