"""What annotations say, for everything that can be called."""

from __future__ import annotations

import collections.abc
import functools
import gc
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import pytest

from workflow_sdk.values.hints import parameter_hint, remember_locals, return_hint

P = TypeVar("P")


@dataclass
class Order:
    id: str


def plain(a: int, b: list[Order]) -> Order:
    raise NotImplementedError


async def waits(a: int) -> Order | None:
    raise NotImplementedError


def promises() -> Awaitable[list[int]]:
    raise NotImplementedError


def started(a: str) -> Coroutine[Any, Any, Order]:
    raise NotImplementedError


def nothing(a, b=None):  # type: ignore[no-untyped-def]  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
    return a  # pyright: ignore[reportUnknownVariableType]


def none() -> None: ...


def lost() -> Nowhere:  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    raise NotImplementedError


def half_lost(a: int, b: Nowhere) -> dict[str, Order]:  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    raise NotImplementedError


def many(a: int, *rest: str) -> bytes:
    raise NotImplementedError


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


class Service:
    def method(self, a: int) -> Order:
        raise NotImplementedError

    @classmethod
    def of_class(cls, a: str) -> bytes:
        raise NotImplementedError

    @staticmethod
    def static(a: float) -> set[int]:
        raise NotImplementedError

    async def __call__(self, a: Order) -> list[Order]:
        raise NotImplementedError


class Step:
    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, *args: Any) -> Any:
        raise NotImplementedError


class Hostile:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest looks at its parameters
            raise AttributeError(name)
        raise RuntimeError(name)


class Pair(NamedTuple):
    a: int
    b: Order


class Holder(Generic[P]):
    def get(self) -> P:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("fn", "hint"),
    [
        (plain, Order),
        (waits, Order | None),
        (promises, list[int]),
        (started, Order),
        (nothing, Any),
        (none, type(None)),
        (lost, Any),
        (half_lost, dict[str, Order]),
        (lambda: 1, Any),
        (functools.partial(plain, 1), Order),
        (functools.partial(functools.partial(waits), 1), Order | None),
        (Service().method, Order),
        (Service.of_class, bytes),
        (Service.static, set[int]),
        (Service(), list[Order]),
        (wrapped(plain), Order),
        (wrapped(wrapped(waits)), Order | None),
        (Step(plain), Order),
        (Step(wrapped(plain)), Order),
        (Order, Order),
        (Pair, Pair),
        (functools.lru_cache(plain), Order),
        (functools.partial(Order, "x"), Order),
        (len, Any),
        (print, Any),
        (Hostile(), Any),
        (None, Any),
        (5, Any),
    ],
)
def test_what_a_call_gives(fn: object, hint: object) -> None:
    assert return_hint(fn) == hint
    assert return_hint(fn) == hint  # from the cache, too


@pytest.mark.parametrize(
    ("fn", "index", "hint"),
    [
        (plain, 0, int),
        (plain, 1, list[Order]),
        (plain, 2, Any),
        (plain, -1, Any),
        (functools.partial(plain, 1), 0, list[Order]),
        (nothing, 0, Any),
        (half_lost, 0, int),
        (half_lost, 1, Any),
        (many, 0, int),
        (many, 1, str),
        (many, 5, str),
        (Service().method, 0, int),
        (Service.of_class, 0, str),
        (Service.static, 0, float),
        (Service(), 0, Order),
        (wrapped(plain), 1, list[Order]),
        (Step(plain), 0, int),
        (Order, 0, str),
        (len, 0, Any),
        (Hostile(), 0, Any),
    ],
)
def test_what_a_parameter_takes(fn: object, index: int, hint: object) -> None:
    assert parameter_hint(fn, index) == hint


def test_functions_with_one_code_and_other_closures_are_not_mixed_up() -> None:
    def make(kind: type) -> Callable[[], Any]:
        def made() -> list[kind]:  # type: ignore[valid-type]  # pyright: ignore[reportInvalidTypeForm]
            return [kind()]

        return made

    functions = [make(kind) for kind in (int, str, bytes)]
    for _ in range(2):
        assert [return_hint(fn) for fn in functions] == [list[int], list[str], list[bytes]]


def test_functions_with_one_code_and_other_annotations_are_not_mixed_up() -> None:
    def make(kind: object) -> Callable[[], Any]:
        def made() -> Any: ...

        made.__annotations__["return"] = kind
        return made

    kinds: list[object] = [list[int], list[str], int, collections.abc.Awaitable[bytes]]
    functions = [make(kind) for kind in kinds]
    for _ in range(2):
        assert [return_hint(fn) for fn in functions] == [list[int], list[str], int, bytes]


def test_what_is_local_to_the_enclosing_function_is_found_once_it_is_remembered() -> None:
    @dataclass
    class Local:
        x: int

    def gives(a: list[Local]) -> Local | None:
        raise NotImplementedError

    assert return_hint(gives) is Any

    def again(a: list[Local]) -> Local | None:
        raise NotImplementedError

    remember_locals(again, locals())
    assert return_hint(again) == Local | None
    assert parameter_hint(again, 0) == list[Local]


def test_what_is_remembered_later_counts_from_then_on() -> None:
    @dataclass
    class Local:
        x: int

    def gives() -> list[Local]:
        raise NotImplementedError

    assert return_hint(gives) is Any
    remember_locals(gives, locals())
    assert return_hint(gives) == list[Local]


def test_functions_that_are_gone_are_not_taken_for_new_ones() -> None:
    seen: list[object] = []
    for kind in (int, str, bytes, float) * 5:

        def gives() -> list[kind]:  # type: ignore[valid-type]  # pyright: ignore[reportInvalidTypeForm]
            return [kind()]  # noqa: B023  # that it closes over it is the point

        seen.append(return_hint(gives) == list[kind])  # type: ignore[valid-type]
        del gives
        gc.collect()
    assert all(seen)


def test_a_type_variable_is_left_as_it_is() -> None:
    assert return_hint(Holder[int]().get) is P
