"""Registered functions, Python guards, and arguments with expressions in them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from tests.graphs.expressions.rules import SCOPE
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions import (
    E,
    ExpressionError,
    Native,
    expression_of,
    fn,
    function,
    function_name,
    parse,
    template_of,
)


@function
def score(output: dict[str, Any], factor: int = 1) -> float:
    return float(output["score"] * factor)


@function(name="worst")
def _of_all(items: list[int]) -> int:
    items.sort()
    return items.pop()


FUNCTIONS: dict[str, Any] = {"score": score, "worst": _of_all}


def test_a_function_keeps_its_name_and_can_still_be_called() -> None:
    assert score({"score": 2}, 3) == 6
    assert function_name(score) == "score"
    assert function_name(_of_all) == "worst"
    assert function_name(len) is None


def test_a_registered_function_is_called_with_copies() -> None:
    before = deepcopy(SCOPE)
    assert parse("score(output) < 1 and worst(output.items) == 3").test(SCOPE, FUNCTIONS)
    assert expression_of(fn.score(E.output, 2) == 1.4).test(SCOPE, FUNCTIONS)
    assert before == SCOPE


def test_what_a_function_raises_names_it() -> None:
    with pytest.raises(ExpressionError, match=r"score\(\) raised KeyError: 'score', at column 1") as caught:
        parse("score(args)").evaluate(SCOPE, FUNCTIONS)
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_result_of_a_function_is_plain_data() -> None:
    async def late() -> int:
        return 1

    results: list[Any] = [object(), {1}, "x" * 1_000_001, [object()], late()]
    for result in results:
        with pytest.raises(ExpressionError, match=r"odd\(\) gave back what can't be used"):
            parse("odd()").evaluate({}, {"odd": lambda result=result: result})


def test_listed_functions_can_not_be_replaced() -> None:
    assert parse("len('abc')").evaluate({}, {"len": lambda value: 0}) == 3


async def _late() -> None: ...


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: function(lambda x: x), "plain name"),
        (lambda: function(name="not a name")(lambda x: x), "plain name"),
        (lambda: function(name="class")(lambda x: x), "plain name"),
        (lambda: function(name="_x")(lambda x: x), "plain name"),
        (lambda: function(name="len")(lambda x: x), "has a meaning"),
        (lambda: function(name="output")(lambda x: x), "has a meaning"),
        (lambda: function(name="size")(len), "wrap it"),
        (lambda: function(_late), "can't wait"),
        (lambda: function("x"), "name="),  # type: ignore[call-overload]
    ],
)
def test_a_function_that_expressions_could_not_call_is_refused(make: Any, what: str) -> None:
    with pytest.raises(DefinitionError, match=what):
        make()


# Python guards.


@pytest.mark.parametrize(
    "guard",
    [
        lambda s: s.output.kind == "bug",
        lambda s: s["output"]["kind"] == "bug",
        lambda s: "urgent" in s.output.tags and len(s.output.tags) == 2,
        lambda s: [item.n for item in s.workload.items] == [1, 2, 3],
        lambda s: s.start.id == "o-1" and s.output.items[1:] == [2, 3],
        lambda s: s.output.a == {"b": 5} and s.output.a != s.args,
        lambda s: min(s.output.tags) == "small" and not hasattr(s.output, "missing"),
    ],
)
def test_a_python_guard_reads_the_scope_by_attribute_and_key(guard: Any) -> None:
    native = expression_of(guard)
    assert isinstance(native, Native)
    assert native.is_native
    assert native.test(SCOPE) is True
    assert not native.reads
    assert not native.functions
    assert native == expression_of(guard)
    assert hash(native) == hash(expression_of(guard))


def _set(scope: Any) -> bool:
    scope.output.kind = "x"
    return True


def _delete(scope: Any) -> bool:
    del scope.output.kind
    return True


def _put(scope: Any) -> bool:
    scope["output"]["kind"] = "x"
    return True


@pytest.mark.parametrize("guard", [_set, _delete, _put, lambda s: s.output.tags.append(1)])
def test_a_python_guard_changes_nothing(guard: Any) -> None:
    before = deepcopy(SCOPE)
    with pytest.raises(ExpressionError):
        expression_of(guard).test(SCOPE)
    assert before == SCOPE


@pytest.mark.parametrize(
    ("guard", "what"),
    [
        (lambda s: s.output.missing, "no key 'missing'"),
        (lambda s: s.output.none.x, "NoneType"),
        (lambda s: s["nope"], "KeyError"),
        (lambda s: s.output.tags.x, "a list has no key"),
        (lambda s: 1, "True or False, not an int"),
        (lambda s: s.output, "True or False, not a dict"),
    ],
)
def test_what_a_python_guard_raises_is_an_expression_error(guard: Any, what: str) -> None:
    native = expression_of(guard)
    with pytest.raises(ExpressionError, match=what) as caught:
        native.test(SCOPE)
    assert "<lambda>" in str(caught.value)


def test_the_value_of_a_python_function_is_a_copy() -> None:
    native = expression_of(lambda s: {"a": [s.output.a, s.output.tags]})
    found: Any = native.evaluate(SCOPE)
    assert found == {"a": [{"b": 5}, ["urgent", "small"]]}
    found["a"][0]["b"] = 6
    assert SCOPE["output"]["a"] == {"b": 5}
    with pytest.raises(ExpressionError, match="can't be used"):
        expression_of(lambda s: object()).evaluate(SCOPE)


def test_guards_that_could_not_be_called_are_refused() -> None:
    with pytest.raises(DefinitionError, match="one argument"):
        expression_of(lambda: True)
    with pytest.raises(DefinitionError, match="can't wait"):
        expression_of(_late)
    assert "partial" in expression_of(partial(_set)).name  # type: ignore[union-attr]


# Templates.


def test_texts_are_literals_and_only_expressions_are_evaluated() -> None:
    args = {"id": E.workload.id, "text": "output.id", "deep": [1, {"tag": {"$": "output.tags[0]"}}, (2, None)]}
    template = template_of(args)
    assert template.evaluate(SCOPE) == {"id": "o-1", "text": "output.id", "deep": [1, {"tag": "urgent"}, [2, None]]}
    assert template.reads == {("workload", "id"), ("output", "tags")}
    assert template.functions == frozenset()
    assert not template.is_native
    data: Any = template.to_data()
    assert data["id"] == {"$": "workload.id"}
    assert data["deep"] == [1, {"tag": {"$": "output.tags[0]"}}, [2, None]]
    assert template_of(data).to_data() == data
    assert template_of(data).evaluate(SCOPE) == template.evaluate(SCOPE)


def test_a_template_is_a_copy_and_gives_copies() -> None:
    args: dict[str, Any] = {"list": [1], "all": E.output}
    template = template_of(args)
    args["list"].append(2)
    found: Any = template.evaluate(SCOPE)
    assert found["list"] == [1]
    found["list"].append(3)
    found["all"]["a"]["b"] = 0
    again: Any = template.evaluate(SCOPE)
    assert again["list"] == [1]
    assert again["all"]["a"]["b"] == 5


def test_a_dict_with_only_the_mark_can_be_written() -> None:
    template = template_of({"$": "{'$': 'literal'}"})
    assert template.evaluate({}) == {"$": "literal"}
    assert template_of(template.to_data()).evaluate({}) == {"$": "literal"}
    assert template_of({"$": "'a'", "b": 1}).evaluate({}) == {"$": "'a'", "b": 1}
    with pytest.raises(DefinitionError, match=r"args\.a: behind"):
        template_of({"a": {"$": 1}})


@dataclass
class Thing:
    id: int = 1


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"a": [Thing()]}, r"args\.a\[0\] is a Thing"),
        ({"a": {1, 2}}, "args.a is a set"),
        ({1: 2}, "no text"),
        ({"a": E}, "E alone"),
        ({"a": {"$": "nope"}}, "args.a: unknown name 'nope'"),
        ({"a": "x" * 1_000_001}, "larger than"),
    ],
)
def test_args_that_are_no_plain_data_are_refused(args: Any, what: str) -> None:
    with pytest.raises(DefinitionError, match=what):
        template_of(args)


def test_args_of_every_plain_type() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert template_of({"at": now, "n": None, "b": b"x"}).evaluate({}) == {"at": now, "n": None, "b": b"x"}
    assert template_of(None).evaluate({}) is None
    assert template_of(E.output.kind).evaluate(SCOPE) == "bug"
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(DefinitionError, match="hold themselves"):
        template_of(loop)


def test_a_template_with_a_function_can_not_be_exported() -> None:
    template = template_of({"a": lambda s: s.output.kind, "b": fn.score(E.output)})
    assert template.is_native
    assert template.functions == {"score"}
    assert template.evaluate(SCOPE, FUNCTIONS) == {"a": "bug", "b": 0.7}
    assert "functions" in repr(template)
    with pytest.raises(DefinitionError, match="can't be exported"):
        template.to_data()


def test_what_a_template_can_not_evaluate_is_an_error() -> None:
    with pytest.raises(ExpressionError, match="no key 'missing'"):
        template_of({"a": E.output.missing}).evaluate(SCOPE)
    with pytest.raises(ExpressionError, match="larger than"):
        template_of([E.output.a] * 2).evaluate({"output": {"a": "x" * 600_000}})
