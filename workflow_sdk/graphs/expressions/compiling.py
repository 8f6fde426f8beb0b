"""From a tree to functions that evaluate it: one for each node, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any, Final

from workflow_sdk.graphs.expressions.data import LISTS, STEPS_MAX, Frame, Value, named
from workflow_sdk.graphs.expressions.faults import Absent, Fault
from workflow_sdk.graphs.expressions.functions import LISTED, call_registered, decides
from workflow_sdk.graphs.expressions.operators import BINARY, Operator, equal, is_key, negated
from workflow_sdk.graphs.expressions.paths import Run, found, going, looking, part, written_out
from workflow_sdk.graphs.expressions.tree import (
    Binary,
    Call,
    Choice,
    Comparison,
    Constant,
    Each,
    Item,
    Listing,
    Logic,
    Node,
    Pairs,
    Root,
    Slice,
    Unary,
    Variable,
    is_path,
)


class Program:
    """An expression that can be run, and what is known of it without running it."""

    def __init__(self, tree: Node) -> None:
        self.functions: set[str] = set()
        self.reads: set[tuple[str, ...]] = set()
        self.steps: int = 0
        """The most steps that a run takes outside of comprehensions and of what is counted by size."""
        self.run: Run = self.compile(tree)
        # Every step that a text can hold fits into the budget, so that only what repeats is counted while it runs.
        self.allowance: int = STEPS_MAX - self.steps

    def compile(self, node: Node) -> Run:
        """The function that evaluates a node."""
        self.steps += 1
        return _COMPILERS[type(node)](self, node)

    def all_of(self, nodes: tuple[Node, ...]) -> tuple[Run, ...]:
        """The functions that evaluate nodes."""
        return tuple(map(self.compile, nodes))


def _constant(program: Program, node: Constant) -> Run:
    value = node.value
    program.steps -= 1
    return lambda frame: value


def _root(program: Program, node: Root) -> Run:
    program.reads.add((node.name,))
    return looking(node, ())


def _variable(program: Program, node: Variable) -> Run:
    program.steps -= 1
    return lambda frame: frame.item


def _item(program: Program, node: Item) -> Run:
    if isinstance(node.key, Slice):
        return _slice(program, node.base, node.key)
    base, keys = written_out(node)
    if not keys:
        return _computed(program, node.base, node.key)
    if isinstance(base, Root):
        names = list(takewhile(lambda key: type(key) is str, (key.value for key in keys)))
        program.reads.add((base.name, *names))  # type: ignore[arg-type]  # texts
        return looking(base, keys)
    return going(program.compile(base), keys)


def _computed(program: Program, base: Node, key: Node) -> Run:
    value_of, key_of, at = program.compile(base), program.compile(key), key.at

    def run(frame: Frame) -> Value:
        value, chosen = value_of(frame), key_of(frame)
        try:
            return found(value, chosen)
        except Fault as fault:
            fault.place(at)
            raise

    return run


def _slice(program: Program, base: Node, key: Slice) -> Run:
    value_of, at = program.compile(base), base.at
    bounds = [program.compile(part or Constant(None)) for part in (key.lower, key.upper, key.step)]

    def run(frame: Frame) -> Value:
        value = value_of(frame)
        chosen = [bound(frame) for bound in bounds]
        try:
            return part(frame, value, chosen)
        except Fault as fault:
            fault.place(at)
            raise

    return run


def _unary(program: Program, node: Unary) -> Run:
    operand, at = program.compile(node.operand), node.at

    def inverted(frame: Frame) -> Value:
        value = operand(frame)
        if type(value) is not bool:
            raise Fault(f"`not` takes True or False, not {named(value)}", at)
        return not value

    def negative(frame: Frame) -> Value:
        value = operand(frame)
        try:
            return negated(value)
        except Fault as fault:
            fault.place(at)
            raise

    return inverted if node.symbol == "not" else negative


def _binary(program: Program, node: Binary) -> Run:
    return _operation(program.compile(node.left), node.symbol, program.compile(node.right), node.at)


def _operation(left: Run, symbol: str, right: Run, at: int) -> Run:
    operate = BINARY[symbol]

    def run(frame: Frame) -> Value:
        try:
            return operate(frame, left(frame), right(frame))
        except Fault as fault:
            fault.place(at)
            raise

    return run


def _comparison(program: Program, node: Comparison) -> Run:
    first, at = program.compile(node.first), node.at
    others = [(symbol, program.compile(other), other) for symbol, other in node.others]
    if len(others) > 1:
        return _chain(first, [(_with_none(symbol), other) for symbol, other, _ in others], at)
    symbol, other, written = others[0]
    if symbol == "is":
        return lambda frame: first(frame) is None
    if symbol == "is not":
        return lambda frame: first(frame) is not None
    if symbol == "==" and isinstance(written, Constant) and type(written.value) is str:
        return _same_text(first, written.value, at)
    return _operation(first, symbol, other, at)


def _with_none(symbol: str) -> Operator:
    if symbol in BINARY:
        return BINARY[symbol]
    return (
        (lambda frame, left, right: left is None) if symbol == "is" else (lambda frame, left, right: left is not None)
    )


def _same_text(value_of: Run, text: str, at: int) -> Run:
    """A comparison with a written text: the commonest of all."""

    def run(frame: Frame) -> Value:
        value = value_of(frame)
        if type(value) is str:
            return value == text
        try:
            return equal(frame, value, text)
        except Fault as fault:
            fault.place(at)
            raise

    return run


def _chain(first: Run, others: list[tuple[Operator, Run]], at: int) -> Run:
    def run(frame: Frame) -> Value:
        left = first(frame)
        try:
            for operate, other in others:
                right = other(frame)
                if not operate(frame, left, right):
                    return False
                left = right
        except Fault as fault:
            fault.place(at)
            raise
        return True

    return run


def _logic(program: Program, node: Logic) -> Run:
    parts, symbol = list(zip(program.all_of(node.parts), (part.at for part in node.parts), strict=True)), node.symbol
    decides_it = symbol == "or"

    def run(frame: Frame) -> Value:
        for value_of, at in parts:
            value = value_of(frame)
            if value is decides_it:
                return value
            if type(value) is not bool:
                raise Fault(f"`{symbol}` takes True or False, not {named(value)}", at)
        return not decides_it

    return run


def _choice(program: Program, node: Choice) -> Run:
    test, then, otherwise = program.all_of((node.test, node.then, node.otherwise))
    at = node.test.at

    def run(frame: Frame) -> Value:
        return then(frame) if _decided(test(frame), at) else otherwise(frame)

    return run


def _decided(value: Value, at: int) -> bool:
    if type(value) is not bool:
        raise Fault(f"`if` takes True or False, not {named(value)}", at)
    return value


def _listing(program: Program, node: Listing) -> Run:
    parts = program.all_of(node.parts)
    return lambda frame: [part(frame) for part in parts]


def _pairs(program: Program, node: Pairs) -> Run:
    keys, values, at = program.all_of(node.keys), program.all_of(node.values), node.at

    def run(frame: Frame) -> Value:
        made: dict[Value, Value] = {}
        for key_of, value_of in zip(keys, values, strict=True):
            key = key_of(frame)
            if not is_key(key):
                raise Fault(f"a key is a text or a whole number, not {named(key)}", at)
            made[key] = value_of(frame)
        return made

    return run


def _each(program: Program, node: Each) -> Run:
    made = _making(program, node)
    return lambda frame: list(made(frame))


def _making(program: Program, node: Each) -> Callable[[Frame], Iterator[Value]]:
    """The items of a comprehension, one after the other, each of which costs what one turn of it takes."""
    over, at = program.compile(node.over), node.over.at
    before = program.steps
    element, conditions = program.compile(node.element), program.all_of(node.conditions)
    places = [condition.at for condition in node.conditions]
    cost = 1 + program.steps - before
    program.steps = before
    tests = list(zip(conditions, places, strict=True))

    def made(frame: Frame) -> Iterator[Value]:
        items = over(frame)
        if type(items) not in LISTS:
            raise Fault(f"a comprehension goes over a list, not {named(items)}", at)
        for item in items:
            frame.spend(cost)
            frame.item = item
            if all(_decided(test(frame), place) for test, place in tests):
                yield element(frame)

    return made


def _call(program: Program, node: Call) -> Run:
    if node.name in ("get", "coalesce"):
        return _first_there(program, node)
    only = node.args[0] if len(node.args) == 1 else None
    if node.name in ("any", "all") and isinstance(only, Each):
        return _deciding(program, node.name, only, node.at)
    args, at, name = program.all_of(node.args), node.at, node.name
    listed = LISTED.get(name)
    if listed is None:
        program.functions.add(name)

    def run(frame: Frame) -> Value:
        values = [arg(frame) for arg in args]
        try:
            return call_registered(frame, name, values) if listed is None else listed(frame, *values)
        except Fault as fault:
            fault.place(at)
            raise

    return run


def _deciding(program: Program, name: str, over: Each, at: int) -> Run:
    """`any` or `all` of a comprehension, which ends at the first item that decides it."""
    verdict = name == "any"
    made, decided = _making(program, over), decides(name, verdict)

    def run(frame: Frame) -> Value:
        try:
            return verdict if any(map(decided, made(frame))) else not verdict
        except Fault as fault:
            fault.place(at)
            raise

    return run


_ABSENT: Final = object()


def _first_there(program: Program, node: Call) -> Run:
    """`get`: the value at a path, or else the default. `coalesce`: the first value that is there and not None."""
    tried = [_trying(program.compile(arg)) if is_path(arg) else program.compile(arg) for arg in node.args]
    if node.name == "get":
        path, default = tried[0], program.compile(node.args[1])
        return lambda frame: default(frame) if (value := path(frame)) is _ABSENT else value

    def run(frame: Frame) -> Value:
        for value_of in tried:
            value = value_of(frame)
            if value is not None and value is not _ABSENT:
                return value
        return None

    return run


def _trying(path: Run) -> Run:
    def run(frame: Frame) -> Value:
        try:
            return path(frame)
        except Absent:
            return _ABSENT

    return run


_COMPILERS: Final[dict[type, Callable[[Program, Any], Run]]] = {
    Constant: _constant,
    Root: _root,
    Variable: _variable,
    Item: _item,
    Unary: _unary,
    Binary: _binary,
    Comparison: _comparison,
    Logic: _logic,
    Choice: _choice,
    Listing: _listing,
    Pairs: _pairs,
    Each: _each,
    Call: _call,
}
