"""Where in an author's code an operation is called."""

from __future__ import annotations

import dis
from inspect import CO_COROUTINE, currentframe
from types import CodeType, FrameType

_ENGINE = __name__.partition(".")[0]
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_ALWAYS_ELSEWHERE = frozenset(
    {
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"),
    }
)
"""What no instruction follows."""


def is_called_in_a_loop() -> bool:
    """Whether the code that awaits this operation can come back to the same `await`, without leaving its function.

    So it is for the function of the scope, and for those that it awaits and that await the operation. It looks at the
    code, not at what it does: that takes a while, and is for the rare case.
    """
    frame = currentframe()
    while frame is not None and _is_engine(frame):
        frame = frame.f_back
    while frame is not None and frame.f_code.co_flags & CO_COROUTINE and not _is_engine(frame):
        if _comes_back(frame.f_code, frame.f_lasti):
            return True
        frame = frame.f_back
    return False


def _is_engine(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _ENGINE


def _comes_back(code: CodeType, offset: int) -> bool:
    """Whether the `await` that the function is at can follow on itself. Ways through `except` don't count."""
    instructions = list(dis.get_instructions(code))
    at = {instruction.offset: number for number, instruction in enumerate(instructions)}
    awaits = [n for n, i in enumerate(instructions) if i.opname == "GET_AWAITABLE" and i.offset <= offset]
    if not awaits:
        return False
    start = awaits[-1]
    seen: set[int] = set()
    todo = [start + 1]
    while todo:
        number = todo.pop()
        if number == start:
            return True
        if number in seen or number >= len(instructions):
            continue
        seen.add(number)
        instruction = instructions[number]
        if instruction.opcode in _JUMPS:
            todo.append(at[instruction.argval])
        if instruction.opname not in _ALWAYS_ELSEWHERE:
            todo.append(number + 1)
    return False
