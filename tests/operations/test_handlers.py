"""Law 18: which functions have a name that a stored row may use."""

from __future__ import annotations

import sys
from functools import partial
from os import mkdir
from types import ModuleType
from typing import Any

import pytest

from tests.laws import undoing
from workflow_sdk import Context, DefinitionError, step, workflow
from workflow_sdk.errors import HistoryDivergedError
from workflow_sdk.journal.compensation import HandlerRef
from workflow_sdk.operations.handlers import KnownHandlers, find_handler

pytestmark = pytest.mark.law(18)

HERE = __name__


@workflow
async def trip(ctx: Context) -> None:
    raise NotImplementedError


async def undo(result: str) -> None:
    raise NotImplementedError


@step(retries=1)
async def stepped(result: str) -> None:
    raise NotImplementedError


class Shop:
    async def method(self, result: str) -> None:
        raise NotImplementedError

    @classmethod
    async def of_the_class(cls, result: str) -> None:
        raise NotImplementedError

    @staticmethod
    async def static(result: str) -> None:
        raise NotImplementedError

    @staticmethod
    @step
    async def step_of_the_class(result: str) -> None:
        raise NotImplementedError


KNOWN = KnownHandlers([trip])
OTHERS = KnownHandlers([])


@pytest.mark.parametrize("handler", [undo, Shop.static, Shop.method])
def test_functions_of_the_module_of_a_workflow_are_known(handler: Any) -> None:
    name = f"{HERE}:{handler.__qualname__}"
    assert OTHERS.name_of(handler) is None
    assert OTHERS.find(name) is None
    assert KNOWN.name_of(handler) == name
    assert KNOWN.find(name) is handler


@pytest.mark.parametrize("handler", [stepped, Shop.step_of_the_class, undoing.undo])
def test_steps_are_known_in_every_module(handler: Any) -> None:
    name = f"{handler.__module__}:{handler.__qualname__}"
    for known in (KNOWN, OTHERS):
        assert known.name_of(handler) == name
        assert known.find(name) is handler


def test_a_function_that_was_given_is_known() -> None:
    async def local(result: str) -> None:
        raise NotImplementedError

    shop = Shop()
    given: list[Any] = [local, partial(undo, "result"), shop.method, Shop.of_the_class]
    known = KnownHandlers([], given)
    handlers: list[Any] = [local, undo, shop.method, Shop.of_the_class]
    for handler in handlers:
        name = known.name_of(handler)
        assert name is not None
        assert known.find(name) == handler
    assert known.name_of(Shop().method) is None
    assert list(known) == handlers


class Callable_:
    def __call__(self, result: str) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("given", [lambda result: None, Callable_(), Shop, trip, "app:undo", None])
def test_what_is_given_has_to_be_a_function_with_a_name(given: Any) -> None:
    with pytest.raises(DefinitionError, match="name of their own"):
        KnownHandlers([], [given])


def test_two_functions_of_one_name_are_refused() -> None:
    def make() -> Any:
        async def local(result: str) -> None:
            raise NotImplementedError

        return local

    with pytest.raises(DefinitionError, match="two handlers"):
        KnownHandlers([], [make(), make()])
    same = make()
    assert KnownHandlers([], [same, same]).name_of(same) is not None


def test_other_functions_have_no_name() -> None:
    async def local(result: str) -> None:
        raise NotImplementedError

    async def named_like_another(result: str) -> None:
        raise NotImplementedError

    named_like_another.__qualname__ = "undo"
    handlers: list[Any] = [local, lambda result: None, Shop().method, Shop.of_the_class, named_like_another, mkdir, 3]
    for handler in handlers:
        assert KNOWN.name_of(handler) is None


@pytest.mark.parametrize(
    "name",
    [
        "os:mkdir",
        "posix:mkdir",
        "builtins:exec",
        f"{HERE}:mkdir",
        f"{HERE}:sys.exit",
        f"{HERE}:undoing.name",
        f"{HERE}:undoing.undo",
        f"{HERE}:Shop",
        f"{HERE}:Shop.of_the_class",
        f"{HERE}:Shop.__init__",
        f"{HERE}:Shop.mro",
        f"{HERE}:trip",
        f"{HERE}:trip.fn",
        f"{HERE}:undo.__call__",
        f"{HERE}:stepped.fn",
        f"{HERE}:KNOWN.find",
        f"{HERE}:pytest",
        f"{HERE}:nothing",
        f"{HERE}:",
        f"{HERE}",
        f"{HERE}:.",
        f"{HERE}:undo.",
        f":{HERE}:undo",
        "",
        ":",
        "tests.laws.undoing:name",
    ],
)
def test_no_other_name_leads_to_a_function(name: str) -> None:
    assert KNOWN.find(name) is None
    with pytest.raises(HistoryDivergedError, match="handlers="):
        find_handler(KNOWN, HandlerRef(name))


def test_looking_up_a_name_runs_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name != "__dict__":
                asked.append(name)
            return super().__getattribute__(name)

    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            raise RuntimeError

    lazy = Lazy("lazy")
    vars(lazy)["proxy"] = Proxy()
    vars(lazy)["__getattr__"] = asked.append
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    asked.clear()
    for name in ("lazy:proxy", "lazy:proxy.deeper", "lazy:absent"):
        assert KNOWN.find(name) is None
    assert asked == []


def test_one_more_workflow_makes_its_module_known() -> None:
    known = KnownHandlers([], [Shop.of_the_class])
    more = known.beside(trip)
    assert known.name_of(undo) is None
    assert more.name_of(undo) == f"{HERE}:undo"
    assert more.name_of(Shop.of_the_class) is not None
    assert more.beside(trip) is more
    assert KnownHandlers.of([], more) is more
