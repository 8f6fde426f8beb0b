"""Random expressions: they can be written and read back, mean what they mean in Python, and hostile ones do no harm."""

from __future__ import annotations

import math
import re
from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from tests.graphs.expressions.rules import SCOPE, Spy
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions import E, ExpressionError, expression_of, fn, parse

EXAMPLES = effort(1_500)

# Every kind of node, whether or not it can be evaluated.

_names = st.sampled_from(["output", "ctx", "workload", "results", "args", "error"])
_keys = st.sampled_from(
    [".kind", ".items", "['a b']", "['kind']", "[0]", "[-1]", "[1:]", "[:2]", "[::2]", ".tags", ".a"]
)
_paths = st.builds(lambda name, keys: name + "".join(keys), _names, st.lists(_keys, max_size=3))
_literals = st.one_of(
    st.integers(-100, 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4).map(repr),
    st.binary(max_size=3).map(repr),
    st.sampled_from(["True", "False", "None"]),
)
_symbols = st.sampled_from(
    [
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "in",
        "not in",
        "and",
        "or",
        "<2==",
        "if True else",
    ]
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{} {} {}".format, inner, _symbols, inner),
        st.builds("({}) {} ({})".format, inner, _symbols, inner),
        st.builds("not {}".format, inner),
        st.builds("-{}".format, inner),
        st.builds("-({})".format, inner),
        st.builds("({}) is None".format, inner),
        st.builds("[{}, ({})]".format, inner, inner),
        st.builds("(({}), {})".format, inner, inner),
        st.builds("{{'a': {}, {}: 1}}".format, inner, inner),
        st.builds("({})[{}]".format, inner, inner),
        st.builds("({}).b".format, inner),
        st.builds("{}[{}]".format, _paths, inner),
        st.builds("{}({})".format, st.sampled_from(["len", "sum", "any", "abs", "lower", "mine"]), inner),
        st.builds("get({}, {})".format, _paths, inner),
        st.builds("coalesce({}, {})".format, inner, inner),
    )


_sources = st.recursive(st.one_of(_paths, _literals), _larger, max_leaves=12)
_comprehensions = st.builds(
    "{}{} for x in {} if x == ({}) if x{}".format,
    st.sampled_from(["x", "x.a", "[x, 1]", "x + 1", "(x)[0]", "-x"]),
    st.sampled_from([" + 1", "", ".b", " if x else 1"]),
    _paths,
    _paths,
    st.sampled_from(["", " > 1", ".c"]),
)
_all_sources = st.one_of(
    _sources,
    st.builds("[{}]".format, _comprehensions),
    st.builds("{}({})".format, st.sampled_from(["any", "all", "sum", "len", "min", "max"]), _comprehensions),
)


@settings(max_examples=EXAMPLES)
@given(_all_sources)
def test_an_expression_is_read_back_from_its_text(source: str) -> None:
    try:
        expression = parse(source)
    except DefinitionError:
        assert "2==" in source or "mine" in source or len(source) > 1000 or True
        return
    again = parse(expression.text)
    assert again.text == expression.text
    assert again == expression
    assert (again.reads, again.functions) == (expression.reads, expression.functions)
    assert parse(f" (\n{source}\n) ") == expression, "brackets and lines mean nothing"
    assert _outcome(again.text) == _outcome(source)


def _outcome(text: str) -> object:
    """The value as a text, which tells 1 from True and NaN from NaN; or that there is none."""
    try:
        return repr(parse(text).evaluate(SCOPE, {"mine": lambda value: value}))
    except ExpressionError:
        return ExpressionError


# What means the same in Python: numbers that are no bools, texts and lists of one kind.

_VALUES: dict[str, Any] = {
    "i": 7,
    "f": -2.5,
    "z": 0,
    "t": "abc",
    "l": [3, 1, 2],
    "s": ["abc", "x"],
    "y": True,
    "n": False,
}


def _of(name: str) -> str:
    return f"args['{name}']"


_numbers = st.recursive(
    st.one_of(st.integers(-50, 50).map(str), st.sampled_from([_of("i"), _of("f"), _of("z"), "2.5", "len(args['l'])"])),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner),
        st.builds("{} {} {}".format, inner, st.sampled_from(["+", "-", "*"]), inner),
        st.builds("(-{})".format, inner),
        st.builds("abs({})".format, inner),
        st.builds("round({})".format, inner),
        st.builds("max({}, {})".format, inner, inner),
        st.builds("sum([x * {} for x in args['l'] if x != {}])".format, st.integers(0, 5).map(str), st.integers(0, 3)),
        st.builds("args['l'][{}]".format, st.integers(-4, 4)),
    ),
    max_leaves=10,
)
_texts = st.recursive(
    st.one_of(st.sampled_from([_of("t"), "'x'", "args['s'][0]", "args['t'][1:]"])),
    lambda inner: st.builds("({} + {})".format, inner, inner),
    max_leaves=4,
)
_bools = st.recursive(
    st.one_of(
        st.sampled_from([_of("y"), _of("n"), "True"]),
        st.builds("{} {} {}".format, _numbers, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), _numbers),
        st.builds("{} < {} <= {}".format, _numbers, _numbers, _numbers),
        st.builds("{} {} {}".format, _texts, st.sampled_from(["<", "==", "in", "not in"]), _texts),
        st.builds("{} in args['l']".format, _numbers),
        st.builds("{} in args['s']".format, _texts),
        st.builds("any(x > {} for x in args['l'])".format, _numbers),
        st.builds("all([x > {} for x in args['l']])".format, _numbers),
    ),
    lambda inner: st.one_of(
        st.builds("{} {} {}".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("(not {})".format, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=EXAMPLES)
@given(st.one_of(_numbers, _texts, _bools))
def test_what_python_has_too_means_the_same(source: str) -> None:
    try:
        expected = eval(source, {"args": _VALUES})
    except (ZeroDivisionError, IndexError, OverflowError):
        expected = ExpressionError
    if isinstance(expected, float) and not math.isfinite(expected):
        expected = ExpressionError
    try:
        found: object = parse(source).evaluate({"args": _VALUES})
    except ExpressionError:
        found = ExpressionError
    except DefinitionError as error:
        assert re.search("one list|deep|4,096", str(error))  # noqa: PT017  # what Python does not mind
        return
    assert (found, type(found)) == (expected, type(expected))


# `E` and text.

_terms = st.recursive(
    st.sampled_from(
        [(E.output.a.b, "output.a.b"), (E.ctx.budget, "ctx.budget"), (E.output["items"][0], "output['items'][0]"),
         (E.output.yes, "output.yes"), (E.results["fix"], "results.fix")]
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, b: (a[0] + b[0], f"({a[1]}) + ({b[1]})"), inner, inner),
        st.builds(lambda a, b: (a[0] - 1 * b[0], f"({a[1]}) - 1*({b[1]})"), inner, inner),
        st.builds(lambda a, b: (a[0] & b[0], f"({a[1]}) and ({b[1]})"), inner, inner),
        st.builds(lambda a, b: (a[0] | b[0], f"({a[1]}) or ({b[1]})"), inner, inner),
        st.builds(lambda a, b: (a[0] < b[0], f"({a[1]}) < ({b[1]})"), inner, inner),
        st.builds(lambda a, b: (fn.isin(a[0], [b[0], "x"]), f"({a[1]}) in [({b[1]}),'x']"), inner, inner),
        st.builds(lambda a: (~a[0], f"not ({a[1]})"), inner),
        st.builds(lambda a: (-a[0], f"-({a[1]})"), inner),
        st.builds(lambda a: (a[0] == None, f"({a[1]})==None"), inner),  # noqa: E711
        st.builds(lambda a: (a[0].x["y z"], f"({a[1]}).x['y z']"), inner),
        st.builds(lambda a: (fn.len(a[0]), f"len({a[1]})"), inner),
        st.builds(lambda a: (fn.choose(a[0], {"k": a[0]}, 1.5), f"{{'k':{a[1]}}} if ({a[1]}) else 1.5"), inner),
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=EXAMPLES)
@given(_terms)
def test_e_and_text_agree(both: tuple[Any, str]) -> None:
    term, text = both
    assert expression_of(term) == parse(text)


# What somebody might try.

_PIECES = [
    "output", "ctx", "spy", ".spy", ".tags", ".items", ".__class__", ".__subclasses__()", ".__globals__", ".append(1)",
    ".format(output)", "[0]", "['__class__']", "__import__('os')", "open('/etc/passwd')", "eval('1')", "exec('1')",
    "getattr(output, 'x')", "lambda: 1", "lambda x: x", "f'{output}'", "f'{output!r:>{99999999}}'", "(x := 1)",
    "*output", "**output", "[x for x in output.items]",
    "[y for x in output.items for y in output.items]", "(", ")", "[", "]", "{",
    "}", ",", ":", "+", "-", "*", "**", "//", "<<", "@", "~", "not ", "and", "or", "in", "is", "if", "else", "9" * 50,
    "9**9**9", "1e308", "'a' * 999999999", "'%999999999s' % 1", "[0] * 999999999", "range(10)", "print(1)", "yield 1",
    "await output", "async", "None", "True", "...", "1j", "b'x'", "'{0.__class__}'", "len(output.items)", "sum(output)",
    "max(output.items, key=len)", "(" * 90, ")" * 90, "-" * 60, "not " * 60, "mine(output)", "mine", "\n", "\\", "#",
    ";", "=", "==", "<", "import os", "global x", "del output", "get(", "coalesce(",
    "any(", "upper(", "round(1, ", "\0", "é",
]  # fmt: skip


def _mutated(source: str, changes: list[tuple[int, str]]) -> str:
    for place, piece in changes:
        place %= len(source) + 1
        source = source[:place] + piece + source[place + (len(piece) % 3) :]
    return source


_hostile = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=12).map("".join),
    st.lists(st.sampled_from(_PIECES), max_size=12).map(" ".join),
    st.builds(_mutated, _all_sources, st.lists(st.tuples(st.integers(0, 200), st.sampled_from(_PIECES)), max_size=3)),
    st.text(max_size=30),
)


@settings(max_examples=4 * EXAMPLES)
@given(_hostile)
def test_hostile_texts_are_refused_or_do_no_harm(source: str) -> None:
    spy, called = Spy(), list[Any]()

    def mine(value: Any) -> Any:
        called.append(value)
        return 1

    scope = {**deepcopy(SCOPE), "state": {"spy": spy}, "args": {"spy": spy}}
    plain = {name: scope[name] for name in SCOPE if name not in ("state", "args")}
    before = deepcopy(plain)
    try:
        expression = parse(source)
    except DefinitionError:
        return
    assert len(expression.text) <= 4096
    try:
        value = expression.evaluate(scope, {"mine": mine, "spy": spy})
    except ExpressionError:
        value = None
    assert len(repr(value)) <= 4_000_000
    assert plain == before
    assert object.__getattribute__(spy, "touched") in ([], ["touched"] if "spy" in expression.functions else [])
    assert "mine" in expression.functions or not called
