"""What expressions mean: values, errors that say where, and the budget in which every evaluation ends."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tests.graphs.expressions.rules import SCOPE, Spy, value_of
from workflow_sdk.errors import WorkflowSDKError
from workflow_sdk.graphs.expressions import ExpressionError, parse

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

VALUES: list[tuple[str, Any]] = [
    ("output.kind == 'bug' and output.score > 0.5 and 'urgent' in output.tags", True),
    ("start.id == workload.id", True),
    ("results['fix'].score + results[ctx.name].score", 18),
    ("event.name", "step.done"),
    ("output.items[0]", 1),
    ("output.items[-1]", 3),
    ("output.tags[0][1:3]", "rg"),
    ("output.items[::-1]", [3, 2, 1]),
    ("output.items[:2]", [1, 2]),
    ("output.kind[0]", "b"),
    ("not output.yes or output.no", False),
    ("output.no and output.missing", False),
    ("output.yes or output.missing", True),
    ("0 < output.score < 1", True),
    ("0 < output.score < 0.5 < output.missing", False),
    ("1 < 2 in [2]", True),
    ("output.none is None is None", True),
    ("output.kind if output.no else 'other'", "other"),
    ("1 if output.yes else output.missing", 1),
    ("-output.score * 2 + 7 // 2 - 7 % 4 / 2", -0.7 * 2 + 7 // 2 - 7 % 4 / 2),
    ("--1", 1),
    ("'a' + 'b'", "ab"),
    ("[1] + [2, 'x']", [1, 2, "x"]),
    ("(1, 2)", [1, 2]),
    ("(1, 2) == [1, 2]", True),
    ("{'a': output.kind, 1: [output.none]}", {"a": "bug", 1: [None]}),
    ("{'a': {'b': 2}}['a'].b", 2),
    ("1 == 'a'", False),
    ("1 != 'a'", True),
    ("1 == True", False),
    ("1 in [True]", False),
    ("True in [1]", False),
    ("[1, {'a': 1.0}] == [1.0, {'a': 1}]", True),
    ("[1] == [1, 2]", False),
    ("{'a': 1} == {'b': 1}", False),
    ("{'a': 1} == {'a': 1, 'b': 1}", False),
    ("None == None", True),
    ("'a' in {'a': 1}", True),
    ("1.0 in {1: 1}", False),
    ("'rge' in output.tags[0]", True),
    ("'x' not in output.tags", True),
    ("{'n': 1} in [{'n': 1}]", True),
    ("[i.n for i in workload.items if i.ok if i.n > 1]", [3]),
    ("[i + 1 for i in output.items]", [2, 3, 4]),
    ("any(i.n == 3 for i in workload.items)", True),
    ("any(i.n == 1 or i.missing for i in workload.items)", True),
    ("all([i.n < 3 for i in workload.items])", False),
    ("all([])", True),
    ("any([])", False),
    ("all([True, True])", True),
    ("sum(i.n for i in workload.items if i.ok)", 4),
    ("sum([])", 0),
    ("max(i for i in output.items) - min(output.items)", 2),
    ("max(1, 2.5)", 2.5),
    ("min('b', 'a')", "a"),
    ("len(output.items) + len(output.kind) + len(output.a)", 7),
    ("len(i for i in output.items if i > 1)", 2),
    ("abs(-3)", 3),
    ("round(2.5)", 2),
    ("round(2.567, 2)", 2.57),
    ("round(1234, -2)", 1200),
    ("lower('AbC') + upper('ß')", "abcSS"),
    ("starts_with(output.kind, 'bu')", True),
    ("get(output.a.b, 0)", 5),
    ("get(output.a.c, 0)", 0),
    ("get(output.none.x.y, 'd')", "d"),
    ("get(output.items[7], 0)", 0),
    ("get(output.kind.x, 0)", 0),
    ("get(output.none, 1)", None),
    ("get(output.a.b, output.missing)", 5),
    ("get(results[output.missing].score, 3)", 3),
    ("get(output.missing)", None),
    ("coalesce(output.missing, output.none, output.kind, output.also_missing)", "bug"),
    ("coalesce(output.missing, None)", None),
    ("coalesce(False, True)", False),
    ("args", {"id": 7}),
]


@pytest.mark.parametrize(("text", "expected"), VALUES, ids=[text for text, _ in VALUES])
def test_the_value_of(text: str, expected: Any) -> None:
    found = value_of(text)
    assert found == expected
    assert type(found) is type(expected)


FAILURES: list[tuple[str, str, int]] = [
    ("output.missing", "no key 'missing'", 8),
    ("1 + output.a.x", "no key 'x', only 'b'", 14),
    ("output.none.x", "None has no key 'x'", 13),
    ("output.kind.x", "a text has no key 'x'", 13),
    ("output.items[3]", "no item 3: there are 3", 14),
    ("output.items.x", "a list has no key 'x'", 14),
    ("output.items['0']", "a list has no key '0'", 14),
    ("output[True]", "has no key|no key a bool", 8),
    ("output.items[True]", "has no key", 14),
    ("output.a[[1]]", "no key", 10),
    ("output.a['x' + 'y']", "no key 'xy'", 10),
    ("lower(output.missing)", "no key 'missing'", 14),
    ("output.kind and True", "`and` takes True or False, not a text", 1),
    ("True and 1", "`and` takes True or False, not an int", 10),
    ("output.none or True", "`or` takes True or False, not None", 1),
    ("not output.items", "`not` takes True or False", 1),
    ("1 if output.kind else 2", "`if` takes True or False", 6),
    ("1 < 'a'", "< does not fit an int and a text", 1),
    ("True < False", "< does not fit a bool and a bool", 1),
    ("[1] < [2]", "does not fit", 1),
    ("None >= 1", "does not fit", 1),
    ("1 + True", r"\+ does not fit an int and a bool", 1),
    ("1 + 'a'", "does not fit", 1),
    ("'a' + [1]", "does not fit", 1),
    ("'a' * 3", r"\* does not fit", 1),
    ("'%s' % 3", "% does not fit", 1),
    ("-'a'", "a text is no number", 1),
    ("-True", "a bool is no number", 1),
    ("1 / 0", "division by zero", 1),
    ("1 % 0", "division by zero", 1),
    ("1.5 // 0", "division by zero", 1),
    ("1e308 * 10", "the number is inf", 1),
    ("10 / 1e-323", "the number is inf|too large", 1),
    ("1 in 5", "`in` does not fit", 1),
    ("1 in 'a'", "`in` does not fit", 1),
    ("[i for i in output.a]", "over a list, not a dict", 13),
    ("[i for i in output.kind]", "over a list, not a text", 13),
    ("[i for i in output.items if i]", "`if` takes True or False", 29),
    ("any(output.items)", r"any\(\) takes True and False, not an int", 1),
    ("all(i for i in output.items)", r"all\(\) takes True and False", 1),
    ("sum(output.tags)", "a text is no number", 1),
    ("sum(output.score)", r"sum\(\) takes a list, not a float", 1),
    ("min([])", "empty list", 1),
    ("max([None])", "does not fit", 1),
    ("max(1, 'a')", "does not fit", 1),
    ("len(1)", r"len\(\) takes", 1),
    ("abs('a')", "no number", 1),
    ("round(True)", "no number", 1),
    ("round(1, 'a')", "whole number", 1),
    ("round(5, -1000000000)", "whole number", 1),
    ("lower(1)", r"lower\(\) takes a text", 1),
    ("starts_with('a', 1)", r"starts_with\(\) takes a text", 1),
    ("{output.score: 1}", "a key is a text", 1),
    ("output.items['a':]", "whole numbers", 1),
    ("output.items[::0]", "can't be 0", 1),
    ("output.a[1:]", "has no parts", 1),
    ("coalesce(lower(output.missing), 1)", "no key 'missing'", 23),
    ("nobody(1)", "no function 'nobody' is registered", 1),
]


@pytest.mark.parametrize(("text", "what", "column"), FAILURES, ids=[text for text, _, _ in FAILURES])
def test_what_fails_says_what_and_where(text: str, what: str, column: int) -> None:
    with pytest.raises(ExpressionError, match=what) as caught:
        value_of(text)
    assert f"at column {column} of `{parse(text).text}`" in str(caught.value)


def test_an_error_is_made_of_its_message() -> None:
    error = ExpressionError("text")
    assert str(error) == "text"
    assert error.kind == "expression"
    assert isinstance(error, WorkflowSDKError)


def test_a_name_that_the_scope_has_not_is_missing() -> None:
    with pytest.raises(ExpressionError, match="no 'event' here, at column 1"):
        parse("event.name").evaluate({})
    assert parse("get(event.name, 'x')").evaluate({}) == "x"


def test_a_guard_is_true_or_false() -> None:
    assert parse("output.yes").test(SCOPE) is True
    assert parse("output.no").test(SCOPE) is False
    for text in ("output.kind", "1", "None", "output.items"):
        with pytest.raises(ExpressionError, match="a condition is True or False"):
            parse(text).test(SCOPE)


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        (Decimal("1.5"), Decimal(2)),
        (1, Decimal("1.5")),
        (Decimal("0.1"), 0.5),
        (NOON, NOON + timedelta(1)),
        (datetime(2026, 1, 1), datetime(2026, 1, 2)),  # noqa: DTZ001
        (date(2026, 1, 1), date(2026, 1, 2)),
        (timedelta(1), timedelta(2)),
        (b"a", b"b"),
        (UUID(int=1), UUID(int=2)),
    ],
)
def test_values_of_one_kind_are_in_order(smaller: object, larger: object) -> None:
    scope = {"args": {"a": smaller, "b": larger}}
    for text in (
        "args.a < args.b",
        "args.b >= args.a",
        "args.a != args.b",
        "args.a == args.a",
        "max(args.a, args.b) == args.b",
    ):
        assert parse(text).test(scope), text
    assert not parse("args.a == args.b").test(scope)
    assert not parse("args.a in [args.b, 'x', None]").test(scope)


def test_decimals_are_computed_exactly() -> None:
    scope = {"args": {"a": Decimal("0.1"), "b": Decimal("0.2"), "c": Decimal("2.567")}}
    assert parse("args.a + args.b").evaluate(scope) == Decimal("0.3")
    assert parse("args.b * 3 - 1").evaluate(scope) == Decimal("-0.4")
    assert parse("sum([args.a, 1])").evaluate(scope) == Decimal("1.1")
    assert parse("-args.a").evaluate(scope) == Decimal("-0.1")
    assert parse("abs(-args.a)").evaluate(scope) == Decimal("0.1")
    assert parse("round(args.c, 1)").evaluate(scope) == Decimal("2.6")
    assert parse("round(args.c)").evaluate(scope) == 3
    for text in ("args.a + 0.5", "args.a / 0", "args.a + True"):
        with pytest.raises(ExpressionError):
            parse(text).evaluate(scope)


NAN = float("nan")


@pytest.mark.parametrize(
    "text",
    [
        "args.nan < 1", "args.nan + 1", "args.inf - args.inf", "-args.nan", "abs(args.inf)", "round(args.nan)",
        "sum([args.nan])", "max([args.nan])", "min(1, args.nan)", "args.quiet > 1", "args.loud > 1", "args.loud == 1",
        "args.quiet + 1", "args.vast * args.vast", "args.long * 2", "args.d == args.vaster", "args.vaster < args.d",
        "round(args.vast)", "args.huge + 1", "args.huge % 7",
        "args.huge * 1.5", "-args.huge", "abs(args.huge)", "args.big * args.big", "args.big / 3.5", "args.big + 0.5",
        "round(args.d, 900)", "args.noon < args.naive", "args.strange == args.strange", "args.strange < args.noon",
        "args.strange", "args.naive < args.day", "args.set", "1 in args.set", "args.set == 1", "args.odd_keys",
    ],
)  # fmt: skip
def test_odd_values_are_errors(text: str) -> None:
    class Strange(tzinfo):
        def utcoffset(self, when: datetime | None) -> timedelta:
            raise AssertionError("called")

        dst = utcoffset

        def tzname(self, when: datetime | None) -> str:
            raise AssertionError("called")

    args = {
        "nan": NAN, "inf": float("inf"), "quiet": Decimal("NaN"), "loud": Decimal("sNaN"), "d": Decimal("1.5"),
        "vast": Decimal("1e999999"), "vaster": 1 << 8_000_000, "long": Decimal("1" * 10_000),
        "huge": 1 << 8_000, "big": 1 << 4_000, "noon": NOON,
        "naive": NOON.replace(tzinfo=None), "strange": NOON.replace(tzinfo=Strange()), "day": NOON.date(),
        "set": {1}, "odd_keys": {(1, 2): 1},
    }  # fmt: skip
    with pytest.raises(ExpressionError):
        parse(text).evaluate({"args": args})


def test_odd_values_can_be_looked_past() -> None:
    args = {"nan": NAN, "naive": NOON.replace(tzinfo=None), "noon": NOON, "day": NOON.date(), "huge": 1 << 8_000}
    assert not parse("args.nan == args.nan").test({"args": args})
    assert not parse("args.naive == args.noon").test({"args": args})
    assert not parse("args.day == args.noon").test({"args": args})
    assert parse("args.huge > 1").test({"args": args})
    assert parse("args.huge").evaluate({"args": args}) == 1 << 8_000


@pytest.mark.law(18)
def test_objects_are_never_touched() -> None:
    spy = Spy()
    scope = {"output": {"spy": spy, "list": [spy, "a"]}}
    texts = (
        "output.spy", "output.spy.x", "output.spy['x']", "output.spy[0]", "output.spy == 1", "1 == output.spy",
        "output.spy < 1", "output.spy + 1", "'a' + output.spy", "output.spy in [1]", "1 in output.spy",
        "not output.spy", "output.spy and True", "len(output.spy)", "sum([output.spy])", "max(output.spy, 1)",
        "[x for x in output.spy]", "output.list", "output", "output.list == ['a', 'a']", "{output.spy: 1}",
        "lower(output.spy)", "any([output.spy])", "round(output.spy)", "output.items[output.spy]", "-output.spy",
        "output[output.spy]", "1 if output.spy else 2", "output.list[0:1]", "f(output.spy)", "1 in output.list",
    )  # fmt: skip
    for text in texts:
        with pytest.raises(ExpressionError):
            parse(text).evaluate(scope, {"f": len})
    assert parse("'a' in output.list").evaluate(scope) is True
    assert parse("output.spy is None").evaluate(scope) is False
    assert object.__getattribute__(spy, "touched") == []


@pytest.mark.law(14)
def test_the_value_shares_nothing_with_the_scope() -> None:
    scope = {"output": {"a": [1, {"b": []}], "t": (1, [2])}}
    found: Any = parse("output").evaluate(scope)
    assert found == {"a": [1, {"b": []}], "t": [1, [2]]}
    found["a"][1]["b"].append(1)
    found["t"][1].append(1)
    assert scope == {"output": {"a": [1, {"b": []}], "t": (1, [2])}}


@pytest.mark.law(17)
@pytest.mark.parametrize(
    "text",
    [
        "[x for x in output.many]",
        "sum(x for x in output.many)",
        "any(x < 0 for x in output.many)",
        "[output.text + 'x' for x in output.some]",
        "[output.many + [1] for x in output.some]",
        "[output.many[1:] for x in output.some]",
        "[upper(output.text) for x in output.some]",
        "[output.many == output.same for x in output.some]",
        "['x' in output.text for x in output.some]",
        "[-1 in output.many for x in output.some]",
        "[sum(output.many) for x in output.some]",
        "[f(output.text) for x in output.some]",
    ],
)
def test_an_evaluation_ends_in_its_budget_of_steps(text: str) -> None:
    scope = {
        "output": {"many": list(range(50_000)), "same": list(range(50_000)), "some": [1] * 5_000, "text": "y" * 900_000}
    }
    with pytest.raises(ExpressionError, match="more than 10,000 steps"):
        parse(text).evaluate(scope, {"f": len})


def test_the_budget_is_large_enough_for_ordinary_lists() -> None:
    scope = {"output": {"items": [{"n": n, "ok": True} for n in range(1_000)], "many": list(range(50_000))}}
    assert parse("sum(i.n * 2 + 1 for i in output.items if i.ok and i.n >= 0)").evaluate(scope) == 1_000_000
    assert parse("49999 in output.many and max(output.many) == 49999 and len(output.many) > 1").test(scope)


@pytest.mark.law(17)
@pytest.mark.parametrize(
    "text",
    [
        "output.text + output.text",
        "[output.text, output.text]",
        "{'a': output.text, 'b': output.text}",
        "upper(output.sharp)",
        "output.list + output.list",
        "output.nested",
    ],
)
def test_values_are_within_their_size(text: str) -> None:
    nested: list[Any] = []
    for _ in range(10_000):
        nested = [nested]
    scope = {"output": {"text": "y" * 600_000, "sharp": "ß" * 600_000, "list": [1] * 100_000, "nested": nested}}
    with pytest.raises(ExpressionError, match=re.compile("larger than 1,000,000|too deeply")):
        parse(text).evaluate(scope)


def test_data_that_holds_itself_ends_in_an_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    other: list[Any] = [loop]
    for text in ("output.a", "output.a == output.b", "output.a in output.b"):
        with pytest.raises(ExpressionError):
            parse(text).evaluate({"output": {"a": loop, "b": other}})


def test_numbers_stay_small() -> None:
    squares = " * ".join(["output.n"] * 60)
    with pytest.raises(ExpressionError, match="too large"):
        parse(squares).evaluate({"output": {"n": 1 << 100}})
