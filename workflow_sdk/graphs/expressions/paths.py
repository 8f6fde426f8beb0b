"""Paths: how a value is found in the scope, key by key, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from workflow_sdk.graphs.expressions.data import CHARACTERS_PER_STEP, LISTS, Frame, Value, kind_of, named
from workflow_sdk.graphs.expressions.faults import Absent, Fault
from workflow_sdk.graphs.expressions.operators import is_key
from workflow_sdk.graphs.expressions.tree import Constant, Item, Node, Root

Run: TypeAlias = Callable[[Frame], Value]
"""Evaluates a part of an expression."""


def found(value: Value, key: Value) -> Value:
    """What is in a value under a key or at an index. Absent, if there is nothing."""
    kind = kind_of(value)
    if kind is dict:
        if is_key(key) and key in value:
            return value[key]
        raise Absent(f"there is no key {_shown(key)}{_there(value)}")
    if (kind in LISTS or kind is str) and type(key) is int:
        if -len(value) <= key < len(value):
            return value[key]
        raise Absent(f"there is no item {_shown(key)}: there are {len(value)}")
    raise Absent(f"{named(value)} has no key {_shown(key)}")


def _there(value: dict[Value, Value]) -> str:
    names = [repr(key) for key in list(value)[:8] if type(key) is str and len(key) < 40]
    return f", only {', '.join(names)}" if names and len(names) == len(value) else ""


def _shown(key: Value) -> str:
    if type(key) is str:
        return repr(key[:100])
    return str(key) if type(key) is int and abs(key) < 1 << 64 else named(key)


def written_out(node: Node) -> tuple[Node, tuple[Constant, ...]]:
    """The last keys of a path, as many as are written out, and what is before them."""
    keys: list[Constant] = []
    while isinstance(node, Item) and isinstance(node.key, Constant) and is_key(node.key.value):
        keys.append(node.key)
        node = node.base
    return node, tuple(reversed(keys))


def looking(root: Root, keys: tuple[Constant, ...]) -> Run:
    """Find what is in the scope under a name and keys that are written out: the commonest part of all."""
    name, values = root.name, tuple(key.value for key in keys)

    def run(frame: Frame) -> Value:
        try:
            value: Value = frame.scope[name]
            for key in values:
                value = value[key] if kind_of(value) is dict else found(value, key)
            return value
        except (KeyError, Fault):
            return again(frame)

    def again(frame: Frame) -> Value:
        """Go the same way slowly, to tell where it ends."""
        try:
            value = frame.scope[name]
        except KeyError:
            raise Absent(f"there is no {name!r} here", root.at) from None
        return _gone(value, keys)

    return run


def _gone(value: Value, keys: tuple[Constant, ...]) -> Value:
    for key in keys:
        try:
            value = found(value, key.value)
        except Fault as fault:
            fault.place(key.at)
            raise
    return value


def going(base: Run, keys: tuple[Constant, ...]) -> Run:
    """Find what is behind a computed value, under keys that are written out."""
    return lambda frame: _gone(base(frame), keys)


def part(frame: Frame, value: Value, bounds: list[Value]) -> Value:
    """The part of a text or list between bounds."""
    if not all(bound is None or type(bound) is int for bound in bounds):
        raise Fault("the bounds of a slice are whole numbers")
    if bounds[2] == 0:
        raise Fault("the step of a slice can't be 0")
    if type(value) is str:
        frame.spend(len(value) // CHARACTERS_PER_STEP)
    elif type(value) in LISTS:
        frame.pass_over(len(value))
    else:
        raise Absent(f"{named(value)} has no parts")
    return value[slice(*bounds)]
