"""What can be written: text and `E` give the same expression, and what can't be in one is refused with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import reduce
from operator import add, or_
from typing import Any, cast

import pytest

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions import ROOTS, TEXT_MAX, E, Expression, expression_of, fn, parse


class Kind(StrEnum):
    BUG = "bug"


PAIRS: list[tuple[Any, str, str]] = [
    (E.output.kind == "bug", "output['kind']=='bug'", "output.kind == 'bug'"),
    (E.output["kind"] == Kind.BUG, 'output.kind == "bug"', "output.kind == 'bug'"),
    (E.ctx.budget > 0, "ctx.budget>0", "ctx.budget > 0"),
    (E.results.fix.score, "results['fix'].score", "results.fix.score"),
    (E.results["with space"].x, "results['with space']['x']", "results['with space'].x"),
    (E.results[E.ctx.name].score, "results[ctx.name].score", "results[ctx.name].score"),
    (E.start.id, "start.id", "workload.id"),
    (E.output.items[0], "output.items[0]", "output.items[0]"),
    (E.output.items[-1], "output.items[-1]", "output.items[-1]"),
    (E.output.items[1:], "output.items[1:]", "output.items[1:]"),
    (E.output.items[::2], "output.items[::2]", "output.items[::2]"),
    (E.output.yes & E.output.no & ~E.output.a, "output.yes and (output.no and not output.a)",
     "output.yes and output.no and not output.a"),
    ((E.output.yes | E.output.no) & E.output.a, "(output.yes or output.no) and output.a",
     "(output.yes or output.no) and output.a"),
    (True & E.output.yes | False, "True and output.yes or False", "True and output.yes or False"),
    (E.output.a == None, "output.a is None", "output.a is None"),  # noqa: E711
    (E.output.a != None, "not (output.a is None)", "output.a is not None"),  # noqa: E711
    (fn.is_none(E.error), "error == None", "error is None"),
    (fn.isin("x", E.output.tags), "'x' in output.tags", "'x' in output.tags"),
    (~fn.isin("x", E.output.tags), "not 'x' in output.tags", "'x' not in output.tags"),
    (fn.isin(E.output.kind, ("a", "b")), "output.kind in ('a', 'b')", "output.kind in ['a', 'b']"),
    (fn.choose(E.output.yes, 1, E.output.score), "1 if output.yes else output.score",
     "1 if output.yes else output.score"),
    ((E.output.score + 1) * 2 - -E.args.id / 3, "(output.score+1)*2 - -args.id/3",
     "(output.score + 1) * 2 - -args.id / 3"),
    (1 - (E.args.id - 2) // 3 % 4, "1-(args.id-2)//3%4", "1 - (args.id - 2) // 3 % 4"),
    ("a" + E.output.kind, "'a'+output.kind", "'a' + output.kind"),
    (2 / E.args.id, "2/args.id", "2 / args.id"),
    (E.args.id >= -1, "args.id>=-1", "args.id >= -1"),
    (fn.len(E.output.items) <= 3, "len(output.items) <= 3", "len(output.items) <= 3"),
    (fn.get(E.output.a.b), "get(output.a.b)", "get(output.a.b, None)"),
    (fn.coalesce(E.output.none, "x"), "coalesce(output.none,'x')", "coalesce(output.none, 'x')"),
    (fn.score(E.output, {"a": [1]}), "score(output, {'a':[1]})", "score(output, {'a': [1]})"),
    (fn.each(E.workload["items"], lambda item: item.n, where=lambda item: item.ok),
     "[item.n for item in workload.items if item.ok]", "[item.n for item in workload.items if item.ok]"),
    (fn.any(fn.each(E.output.items, lambda i: i > 2)), "any([i>2 for i in output.items])",
     "any(i > 2 for i in output.items)"),
    (fn.sum(fn.each(E.output.items, lambda i: i)), "sum(i for i in output.items)", "sum(i for i in output.items)"),
]  # fmt: skip


@pytest.mark.parametrize(("term", "text", "canonical"), PAIRS, ids=[canonical for _, _, canonical in PAIRS])
def test_e_and_text_are_the_same_expression(term: Any, text: str, canonical: str) -> None:
    made, read = expression_of(term), parse(text)
    assert isinstance(made, Expression)
    assert made.text == read.text == canonical
    assert made == read
    assert hash(made) == hash(read)
    assert parse(read.text) == read
    assert made.reads == read.reads
    assert repr(term) == f"<E: {canonical}>"


def test_formatting_does_not_matter() -> None:
    assert parse("  output.a==1   and\n  output.b in [1,\n 2]  # why\n") == parse(
        "output.a == 1 and output.b in (1, 2)"
    )
    assert parse("output.a\r\n and output.b\r and output.c") == parse("output.a and output.b and output.c")
    assert parse("((output.a))") == parse("output.a")
    assert parse("output.a") != parse("output.b")


def test_a_text_of_several_lines_is_one_expression() -> None:
    with pytest.raises(DefinitionError, match="several lines"):
        parse("output.a) + (output.b +\n1")


def test_literals_keep_their_values() -> None:
    for text in (
        "'a\\n\\x00\\u2028é\\'\"'",
        "b'\\x00a'",
        "-0.0",
        "1e300",
        "True",
        "None",
        "0x10",
        "1_000",
        "{'$': [{}]}",
    ):
        written = parse(text)
        assert parse(written.text).evaluate({}) == written.evaluate({})
    assert parse("'\\d'").text == r"'\\d'"
    assert parse("'a' 'b'").evaluate({}) == "ab"


REFUSED = [
    ("output.append(1)", "no methods", 1),
    ("1 + output.tags.append(1)", "no methods", 5),
    ("'a'.format(output)", "no methods", 1),
    ("lambda: 1", "lambda", 1),
    ("f'{output}'", "f-string", 1),
    ("(x := 1)", "an assignment", 2),
    ("len(*output)", "a star", 5),
    ("len(**output)", "arguments have no names", 1),
    ("max(output, key=1)", "arguments have no names", 1),
    ("[x for x in output for y in x]", "one list", 1),
    ("[[y for y in x] for x in output]", "one list", 2),
    ("any(all(y for y in x) for x in output)", "one list", 8),
    ("{x for x in output}", "set comprehension", 1),
    ("{x: 1 for x in output}", "dict comprehension", 1),
    ("[a for a, b in output]", "one variable", 8),
    ("[output for output in args]", "has a meaning already", 13),
    ("[x async for x in output]", "async", 1),
    ("{**output}", "two stars", 1),
    ("{1, 2}", "a set", 1),
    ("2 ** 3", r"\*\*", 1),
    ("1 << 3", "<<", 1),
    ("output & ctx", "&", 1),
    ("~output", "~", 1),
    ("+1", "plus sign", 1),
    ("output is ctx", "only for None", 11),
    ("'é' + nope", "unknown name 'nope'", 7),
    ("__import__('os')", "underscore", 1),
    ("true", "write True", 1),
    ("(len)(output)(1)", "have a name", 1),
    ("output(1)", "is data", 1),
    ("len()", "takes one argument", 1),
    ("len(nope)", "unknown name", 5),
    ("round(1, 2, 3)", "1 or 2 arguments", 1),
    ("min()", "one argument or more", 1),
    ("get(1 + 1, 2)", "takes a path first", 1),
    ("1j", "complex", 1),
    ("...", "ellipsis", 1),
    ("1e999", "too large", 1),
    ("0x" + "f" * 2000, "too large", 1),
    ("output[1:2, 3]", "slice", 8),
    ("await output", "Await|await|outside", 1),
    ("score(x for x in output)", "generator", 6),
    ("output.a\n and nope", "line 2, column 6", 6),
    ("output.a and\rnope", "line 2, column 1", 1),
    ("nope and\n 'é'", "line 1, column 1", 1),
]


@pytest.mark.parametrize(("text", "what", "column"), REFUSED, ids=[text[:40] for text, _, _ in REFUSED])
def test_what_is_refused_is_told_with_its_place(text: str, what: str, column: int) -> None:
    with pytest.raises(DefinitionError, match=f"(?i){what}") as caught:
        parse(text)
    assert f"column {column}" in str(caught.value)
    assert "; " in str(caught.value), "the remedy"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a = 1", "compare with =="),
        ("output && ctx", "write `and`"),
        ("!output", "write `not`"),
        ("1 +", "no expression"),
        ("output.a == 1 +", "write it as Python does"),
        ("output; ctx", "no expression"),
        ("import os", "no expression"),
        ("a\0b", "no expression"),
        ("'\ud800'", "no expression"),
        ("(" * 1500 + "1" + ")" * 1500, "deep"),
        ("-" * 4000 + "output", "deep"),
        ("not " * 1000 + "output", "deep"),
        ("output" + ".a" * 1000, "deep"),
        ("1" + "+1" * 2000, "deep"),
        ("[" * 2000, "no expression|deep"),
        ("'" + "x" * TEXT_MAX + "'", "4,096 characters"),
        ("1" + " " * TEXT_MAX, "4,096 characters"),
    ],
    ids=lambda text: text[:20].encode("ascii", "replace").decode().replace("\0", "0"),
)
def test_what_is_no_expression_is_refused(text: str, what: str) -> None:
    with pytest.raises(DefinitionError, match=what):
        parse(text)


def test_a_text_is_a_text() -> None:
    with pytest.raises(DefinitionError, match="not int"):
        parse(1)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="is no expression"):
        expression_of(1)


def test_the_longest_texts_can_be_read_back() -> None:
    dense = "[" + ",".join(["1"] * 2047) + "]"
    assert len(dense) == TEXT_MAX - 1
    assert parse(parse(dense).text) == parse(dense)
    long = "output.kind == '" + "x" * (TEXT_MAX - 17) + "'"
    assert len(long) == TEXT_MAX
    assert parse(long).text == long


def test_a_chain_of_any_length_is_not_deep() -> None:
    chain = reduce(or_, [E.output.n == number for number in range(200)])
    assert expression_of(chain) == parse(" or ".join(f"output.n == {number}" for number in range(200)))


def test_an_e_tree_that_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(DefinitionError, match="deep"):
        reduce(add, [E.output.n] * 1000)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError, match="4,096 characters"):
        expression_of(E.output.n == "x" * TEXT_MAX)
    for value in (float("nan"), float("inf"), 1 << 5000, object(), 1j):
        with pytest.raises(DefinitionError):
            fn.len(value)


@pytest.mark.parametrize(
    ("misuse", "remedy"),
    [
        (lambda: bool(E.output.a), "write &"),
        (lambda: E.output.a and E.output.b, "write &"),
        (lambda: not E.output.a, "write &"),  # pyright: ignore[reportGeneralTypeIssues]
        (lambda: 0 < E.output.a < 1, "for a chain"),
        (lambda: "x" in E.output.tags, "fn.isin"),
        (lambda: list(E.output.tags), "fn.each"),  # pyright: ignore[reportArgumentType]
        (lambda: len(E.output.tags), "fn.len"),  # pyright: ignore[reportArgumentType]
        (lambda: E.output.name.lower(), "fn.lower"),
        (lambda: f"id-{E.output.id}", r"\+"),
        (lambda: E.output.a**2, "multiply"),
        (lambda: 2**E.output.a, "multiply"),
        (lambda: bool(E), "E alone"),
    ],
)
def test_what_python_would_do_at_once_is_a_type_error_that_tells_the_remedy(misuse: Any, remedy: str) -> None:
    with pytest.raises(TypeError, match=remedy):
        misuse()


def test_e_reads_the_names_of_the_scope_only() -> None:
    for name in ROOTS:
        assert expression_of(getattr(E, name)).reads == {("workload" if name == "start" else name,)}
    with pytest.raises(DefinitionError, match="unknown name 'outptu'"):
        E.outptu  # noqa: B018
    assert not hasattr(E, "outptu")
    assert not hasattr(E.output, "__deepcopy__")
    with pytest.raises(AttributeError):
        E.output.x = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unhashable"):
        hash(E.output.x)


def test_what_an_expression_reads_and_calls() -> None:
    read = parse(
        "score(output.a['b c'].d, output.items[0].x) + results[ctx.name].y > get(args.x.y, 0) and error is None"
    )
    assert read.reads == {
        ("output", "a", "b c", "d"),
        ("output", "items"),
        ("results",),
        ("ctx", "name"),
        ("args", "x", "y"),
        ("error",),
    }
    assert read.functions == {"score"}
    assert parse("len([x.y for x in output.items])").reads == {("output", "items")}
    assert parse("len(output)").functions == frozenset()


def test_an_expression_does_not_change() -> None:
    read = parse("output.a")
    with pytest.raises(AttributeError):
        read.text = "output.b"  # type: ignore[misc]
    assert read.is_native is False
    assert repr(read) == "parse('output.a')"


def test_constants_are_expressions() -> None:
    assert expression_of(True).test({}) is True
    assert expression_of(False) == parse("False")
    assert expression_of(None).evaluate({}) is None
    assert expression_of(parse("True")) == expression_of("True")


def test_what_a_term_can_not_be_used_for_is_a_mistake_in_the_definition_and_in_python() -> None:
    for use in (bool, len, list, lambda term: term.lower(), lambda term: 1 in term, lambda term: term**2):
        use = cast("Callable[[Any], object]", use)
        for error in (DefinitionError, TypeError):
            with pytest.raises(error):
                use(E.output.name)


def test_abs_and_round_of_python_are_those_of_expressions() -> None:
    assert expression_of(abs(E.output.n) > round(E.output.n, 1)) == parse("abs(output.n) > round(output.n, 1)")
    assert expression_of(round(E.output.n)) == parse("round(output.n)")
