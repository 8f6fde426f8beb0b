"""Running a workflow as if in another process, where sets have another order, hashes differ, and it is another time.

Within one process the hashes of texts can't change. So the functions of the workflow are compiled anew from their
source, with calls of the functions below around all that goes through a set, asks for the time, or takes a hash.
These functions change something only in a run that is to be in another process, and only between operations, since what
steps do is recorded.
"""

from __future__ import annotations

import ast
import linecache
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import date, datetime, timedelta
from functools import wraps
from types import CodeType, FunctionType
from typing import Any, TypeGuard, cast

from workflow_sdk import Step, Workflow
from workflow_sdk.machines import Machine
from workflow_sdk.operations.scope import Scope, current_scope

SHIFT = timedelta(days=543, hours=13, minutes=1, seconds=1)
"""How far apart the times of two processes are. Second, minute, hour, weekday, month and year all differ."""

_READ_IN_ORDER = frozenset({"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "dict", "min", "max"})
_READ_IN_ORDER_BY = frozenset({"join", "map", "fromkeys", "extend", "chain", "from_iterable", "islice"})
_DIFFERENT = frozenset({"time", "time_ns", "now", "utcnow", "today", "hash", "id"})

_time, _time_ns, _now = time.time, time.time_ns, datetime.now
"""The real functions, even if a test has replaced them."""

_process: ContextVar[int] = ContextVar("workflow_sdk_process", default=0)
_in_transition: ContextVar[bool] = ContextVar("workflow_sdk_in_transition", default=False)
"""Whether the code is that of a machine, which has no scope."""


@contextmanager
def elsewhere(process: int) -> Generator[None]:
    """A context whose code runs as if in the process of this number. In process 0 nothing is changed."""
    token = _process.set(process)
    try:
        yield
    finally:
        _process.reset(token)


@contextmanager
def machines_elsewhere(machines: Iterable[Machine[Any]], process: Callable[[], int]) -> Generator[None]:
    """A context in which machines take their transitions as if in the process that has this number then."""
    before = [(one, one.transition) for one in machines]
    for one, fn in before:
        one.transition = _taken_in(process, fn)
    try:
        yield
    finally:
        for one, fn in before:
            one.transition = fn


def _taken_in(process: Callable[[], int], fn: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fn)
    def taken(state: Any, event: Any, ctx: Any) -> Any:
        token = _in_transition.set(True)
        try:
            with elsewhere(process()):
                return fn(state, event, ctx)
        finally:
            _in_transition.reset(token)

    return taken


def _number() -> int:
    number = _process.get()
    return number if number and (_in_transition.get() or isinstance(current_scope.get(), Scope)) else 0


# What the rewritten functions call.


def _ordered(value: Any) -> Any:
    """The value, or the members of a set in the order of this process."""
    number = _number()
    if not number or type(value) not in (set, frozenset):
        return value
    members = list(value)
    if number % 2:
        members.reverse()
    turn = (number // 2) % max(len(members), 1)
    return members[turn:] + members[:turn]


def _has_own_hash(value: object) -> bool:
    """Whether a value has another hash in every process."""
    if isinstance(value, tuple | frozenset):
        return any(map(_has_own_hash, cast("Iterable[object]", value)))
    return isinstance(value, str | bytes) or type(value).__hash__ is object.__hash__


def _popped(value: Any) -> Any:
    """`value.pop()`, which takes another member of a set in every process."""
    if not isinstance(value, set) or not value or not _number():
        return cast("Any", value).pop()
    member = _ordered(cast("Any", value))[0]
    cast("Any", value).remove(member)
    return member


def _called(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """`fn(*args, **kwargs)`, with the answer of this process if that is a time or a hash."""
    value = fn(*args, **kwargs)
    number = _number()
    if not number:
        return value
    for asked, answer in _ANSWERS:
        if fn is asked:
            return answer(value, number, args)
    if _tells_the_date(fn):
        assert isinstance(value, (date, datetime)), "these are the methods that tell the time"
        return value + number * SHIFT
    return value


_ANSWERS: tuple[tuple[Any, Callable[[Any, int, tuple[Any, ...]], Any]], ...] = (
    (_time, lambda value, number, args: value + number * SHIFT.total_seconds()),
    (_time_ns, lambda value, number, args: value + number * int(SHIFT.total_seconds()) * 10**9),
    (hash, lambda value, number, args: hash((value, number)) if _has_own_hash(args[0]) else value),
    (id, lambda value, number, args: value + 16 * number),
)
"""What functions answer in the process of a number, by their answer in this one and what they were given.

Not a dict: what is looked up in it may be anything that an author calls, and need not have a hash.
"""


def _tells_the_date(fn: object) -> bool:
    """Whether it is a method such as `datetime.now`, of `date` or of a class of that kind."""
    kind = getattr(fn, "__self__", None)
    return type(fn) is type(_now) and isinstance(kind, type) and issubclass(kind, date)


def _name(fn: Callable[..., Any]) -> str:
    return f"__workflow_sdk{fn.__name__}__"


_GIVEN: dict[str, Callable[..., Any]] = {_name(fn): fn for fn in (_ordered, _popped, _called)}
"""The functions above by their names in the code that is compiled."""


# The rewriting.


class _Rewriter(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.For) or (isinstance(node, ast.comprehension) and not node.is_async):
            node.iter = _call(_ordered, node.iter)
        elif _is_unpacked(node):
            node.value = _call(_ordered, node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        super().generic_visit(node)
        fn = node.func
        if isinstance(fn, ast.Attribute):
            if fn.attr == "pop" and not (node.args or node.keywords):
                return ast.copy_location(_call(_popped, fn.value), node)
            name, reads_in_order = fn.attr, _READ_IN_ORDER_BY
        elif isinstance(fn, ast.Name):
            name, reads_in_order = fn.id, _READ_IN_ORDER
        else:
            return node
        if name in reads_in_order:
            node.args = [arg if isinstance(arg, ast.Starred) else _call(_ordered, arg) for arg in node.args]
        elif name in _DIFFERENT:
            return ast.copy_location(_call(_called, fn, *node.args, keywords=node.keywords), node)
        return node


def _is_unpacked(node: ast.AST) -> TypeGuard[ast.Starred | ast.Assign]:
    if isinstance(node, ast.Assign):
        return any(isinstance(target, (ast.Tuple, ast.List)) for target in node.targets)
    return isinstance(node, ast.Starred) and isinstance(node.ctx, ast.Load)


def _call(fn: Callable[..., Any], *args: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.Call:
    node = ast.Call(ast.Name(_name(fn), ast.Load()), list(args), keywords or [])
    return ast.fix_missing_locations(ast.copy_location(node, args[0]))


_Place = tuple[str, int]
"""The qualified name of a function, and its first line."""


def _compiled(filename: str, module_globals: dict[str, Any]) -> dict[_Place, CodeType]:
    """The code of the functions of a file after the rewriting; nothing if its source can't be had."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename, module_globals)))
        code = compile(_Rewriter().visit(tree), filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[_Place, CodeType] = {}
    twice: set[_Place] = set()
    todo = [code]
    while todo:
        for constant in todo.pop().co_consts:
            if isinstance(constant, CodeType):
                todo.append(constant)
                place = constant.co_qualname, constant.co_firstlineno
                if found.setdefault(place, constant) is not constant:
                    twice.add(place)
    return {place: code for place, code in found.items() if place not in twice}


def _uses_what_is_given(code: CodeType) -> bool:
    return not _GIVEN.keys().isdisjoint(code.co_names) or any(
        isinstance(constant, CodeType) and _uses_what_is_given(constant) for constant in code.co_consts
    )


def _functions(workflows: Sequence[Workflow[Any, Any]]) -> Iterator[FunctionType]:
    """The functions of the workflows, all functions of their modules, and the functions that these enclose."""
    todo: list[object] = list(workflows)
    modules = {id(fn.__globals__): fn.__globals__ for fn in filter(None, map(_function, workflows))}
    todo += [value for module in modules.values() for value in list(module.values())]
    seen: set[int] = set()
    while todo:
        fn = _function(todo.pop())
        if fn is None or id(fn) in seen or id(fn.__globals__) not in modules:
            continue
        seen.add(id(fn))
        yield fn
        for cell in fn.__closure__ or ():
            with suppress(ValueError):  # it is empty still
                todo.append(cell.cell_contents)


def _function(found: object) -> FunctionType | None:
    """The function of a workflow, a machine or a step, or the function that it is."""
    if isinstance(found, Workflow):
        _ = found.fingerprint  # remembers that of the code as it was written
    if isinstance(found, Machine):
        found = found.transition
    fn = found.fn if isinstance(found, Workflow | Step) else found
    return fn if isinstance(fn, FunctionType) else None


_rewritten: dict[FunctionType, tuple[CodeType, int]] = {}
"""For each function that is rewritten, its own code, and how many tests need the other one."""


@contextmanager
def rewritten(workflows: Sequence[Workflow[Any, Any]]) -> Generator[None]:
    """A context in which the functions of these workflows can run as if in another process.

    The functions above stay in the modules afterwards: a function that was made in the context may be called later.
    """
    files: dict[str, dict[_Place, CodeType]] = {}
    changed: list[FunctionType] = []
    try:
        for fn in list(_functions(workflows)):
            code, count = _rewritten.get(fn, (fn.__code__, 0))
            if code.co_filename not in files:
                files[code.co_filename] = _compiled(code.co_filename, fn.__globals__)
            new = files[code.co_filename].get((code.co_qualname, code.co_firstlineno))
            if new is None or new.co_freevars != code.co_freevars or not _uses_what_is_given(new):
                continue
            fn.__globals__.update(_GIVEN)
            if not count:
                fn.__code__ = new
            _rewritten[fn] = code, count + 1
            changed.append(fn)
        yield
    finally:
        for fn in changed:
            code, count = _rewritten.pop(fn)
            if count > 1:
                _rewritten[fn] = code, count - 1
            else:
                fn.__code__ = code
