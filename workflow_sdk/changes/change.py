"""A change: a decision that reads rows and writes rows. It is made again if others change what it has read.

A change is a generator. It yields what it wants to read, and is sent what the store has; it yields its writes, one or a
list at a time; it returns its value. So it can read one row, decide, and read the next, without an event loop, and one
change can be a part of another with `yield from`:

    @change
    def retire(id: str) -> Steps[bool]:
        head = yield from read(Head, key_of(id))
        if head is None:
            return False
        yield Set(key_of(id), replace(head, status=Status.RETIRED).pack())
        yield Signal(signal_of(id))
        return True

`apply` in `workflow_sdk.changes.apply` makes a change in one commit. If a row that was read with `Get` has changed when
the commit is applied, the whole change is made again. So a change must have no side effects: it may run many times.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial, wraps
from typing import Any, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

from workflow_sdk.driver import Clear, Write
from workflow_sdk.rows.wire import Packed

T = TypeVar("T")
R = TypeVar("R", bound=Packed)
P = ParamSpec("P")


class Get(NamedTuple):
    """Read a row. The commit succeeds only if the row is unchanged then."""

    key: bytes


class Hold(NamedTuple):
    """Have the commit succeed only if these rows are unchanged since they were read: before, or else now."""

    keys: tuple[bytes, ...]


class Look(NamedTuple):
    """Read a row without a check: others may change it before the commit, so nothing critical may depend on it."""

    key: bytes


class Scan(NamedTuple):
    """Read the rows from `begin`, up to `end` and without it. Others may change them meanwhile.

    A `Get` of a row in a range that was read whole needs no second read.
    """

    begin: bytes
    end: bytes
    limit: int | None = None
    reverse: bool = False


class Assume(NamedTuple):
    """Assume that a row holds a value, without reading it. The commit succeeds only if that is right.

    The first time, the answer is that value. If the commit conflicts, the change is made again, and the row is read as
    with `Get`. A change that assumes has to write something: without a commit, nothing finds out that it was wrong.
    """

    key: bytes
    value: bytes | None


class Signal(NamedTuple):
    """Set a row to a value that it has never had, so that everybody who watches the row is told."""

    key: bytes


class Draw(NamedTuple):
    """Draw a random number, at least 0 and less than `below`."""

    below: int


class Retries(NamedTuple):
    """Ask how often this change was made before, and was not applied since others had changed what it read."""


Writing: TypeAlias = Write | Signal
Effect: TypeAlias = Get | Hold | Look | Scan | Assume | Draw | Retries | Writing | list[Writing]
"""Several writes may be yielded at once."""

Steps: TypeAlias = Generator[Effect, Any, T]
"""The body of a change whose value is a `T`."""


class Change(Generic[T]):
    """A change that can be made any number of times. Each time, its body runs anew."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[], Steps[T]]) -> None:
        self.begin: Callable[[], Steps[T]] = begin

    def __iter__(self) -> Steps[T]:
        """Run the body. So `yield from change` makes it a part of another change."""
        return self.begin()


def change(fn: Callable[P, Steps[T]]) -> Callable[P, Change[T]]:
    """Decorate a generator function, so that it returns a `Change`."""

    @wraps(fn)
    def make(*args: P.args, **kwargs: P.kwargs) -> Change[T]:
        return Change(partial(fn, *args, **kwargs))

    return make


@change
def write(writes: Sequence[Write]) -> Steps[None]:
    """Make these writes, whatever is stored."""
    yield [*writes]


@change
def clear(keys: Sequence[bytes]) -> Steps[None]:
    """Clear rows."""
    yield [Clear(key) for key in keys]


# Functions that yield one effect, so that its answer has a type.


def get(key: bytes) -> Steps[bytes | None]:
    """Read a row as `Get` does: it has to be unchanged when the commit is applied."""
    raw: bytes | None = yield Get(key)
    return raw


def look(key: bytes) -> Steps[bytes | None]:
    """Read a row as `Look` does: others may change it meanwhile."""
    raw: bytes | None = yield Look(key)
    return raw


def read(kind: type[R], key: bytes) -> Steps[R | None]:
    """Read a row as `Get` does, and unpack it; None if it is not there."""
    raw: bytes | None = yield Get(key)
    return None if raw is None else kind.unpack(raw)


def scan(
    begin: bytes, end: bytes, *, limit: int | None = None, reverse: bool = False
) -> Steps[list[tuple[bytes, bytes]]]:
    """Read the rows of a range as `Scan` does: others may change them meanwhile."""
    rows: list[tuple[bytes, bytes]] = yield Scan(begin, end, limit, reverse)
    return rows


def pages(begin: bytes, end: bytes, size: int) -> Generator[Effect, Any, list[tuple[bytes, bytes]]]:
    """Read the rows of a range, a page of this size at a time since they may be large, and return all of them."""
    found: list[tuple[bytes, bytes]] = []
    while rows := (yield from scan(begin, end, limit=size)):
        found += rows
        if len(rows) < size:
            break
        begin = rows[-1][0] + b"\x00"
    return found
