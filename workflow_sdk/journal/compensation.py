"""Compensations: what has to be undone if the workflow fails. Each is stored in the commit that completes its step."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar

from msgspec import Struct, structs
from msgspec.structs import replace

from workflow_sdk.errors import CodecError
from workflow_sdk.journal.unwritten import Unwritten
from workflow_sdk.rows.keys import ARCHIVE, COMPENSATIONS, sequence_key
from workflow_sdk.rows.location import subtree
from workflow_sdk.rows.wire import Count, ErrorRow, Row
from workflow_sdk.values import Codec


class Progress(IntEnum):
    """How far a compensation has come. The numbers are part of the stored format."""

    OPEN = 1
    RETRYING = 2
    DONE = 3
    EXHAUSTED = 4


class HandlerRef(Row, frozen=True):
    """A handler by its name, with the arguments that a `partial` of it holds."""

    name: str
    args: tuple[bytes, ...] = ()
    kwargs: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(
        cls, handler: Callable[..., Any], codec: Codec, name_of: Callable[[Callable[..., Any]], str | None]
    ) -> HandlerRef | None:
        """The reference to a handler; None if no name leads to it, so that only the workflow's code can make it again.

        `name_of` gives the name that leads back to a function, or None.
        """
        args: tuple[object, ...] = ()
        kwargs: dict[str, object] = {}
        while isinstance(handler, partial):
            args = (*handler.args, *args)
            kwargs = {**handler.keywords, **kwargs}
            handler = handler.func
        name = name_of(handler)
        if name is None:
            return None
        try:
            packed = tuple(codec.encode(arg) for arg in args)
            return cls(name, packed, tuple((key, codec.encode(value)) for key, value in kwargs.items()))
        except CodecError:
            return None


class _CompensationRow(Row, frozen=True):
    """A compensation as it is stored: without its place in the order, which is the end of its key."""

    WHAT: ClassVar[str] = "a compensation"

    location: bytes
    path: str
    handler: HandlerRef | None
    result: bytes
    tagged: bool
    progress: Progress
    attempts: Count
    retry_at: float | None
    error: ErrorRow | None


class Compensation(Struct, frozen=True):
    """One thing to undo."""

    sequence: int
    """The place of the step in the order of completion: the newest is undone first."""
    location: bytes
    """The location of the step."""
    path: str
    handler: HandlerRef | None
    """The name of the handler; None if it has to be found by walking the workflow's code over its history."""
    result: bytes
    """The step's value, which the handler is given."""
    tagged: bool
    """Whether `result` can be read without the step's type hint."""
    progress: Progress = Progress.OPEN
    attempts: int = 0
    retry_at: float | None = None
    error: ErrorRow | None = None
    """The last failure."""

    def pack(self) -> bytes:
        return _CompensationRow(
            self.location,
            self.path,
            self.handler,
            self.result,
            self.tagged,
            self.progress,
            self.attempts,
            self.retry_at,
            self.error,
        ).pack()

    @classmethod
    def unpack(cls, sequence: int, raw: bytes) -> Compensation:
        return cls(sequence, *structs.astuple(_CompensationRow.unpack(raw)))

    def failed(self, error: ErrorRow, retry_at: float | None) -> Compensation:
        """The compensation after one more failed attempt. Without `retry_at`, that was the last attempt."""
        progress = Progress.EXHAUSTED if retry_at is None else Progress.RETRYING
        return replace(self, progress=progress, attempts=self.attempts + 1, retry_at=retry_at, error=error)

    def done(self) -> Compensation:
        """The compensation after its handler has run."""
        return replace(self, progress=Progress.DONE, attempts=self.attempts + 1, retry_at=None)


class Compensations:
    """Registers the compensations of one instance. The next commit writes them."""

    __slots__ = ("_space", "_unwritten", "count", "next_sequence")

    def __init__(self, space: bytes, unwritten: Unwritten) -> None:
        self._space = space
        self._unwritten = unwritten
        self.count: int = 0
        """How many were registered since the last checkpoint; after a load, at most 1 of those before. It tells whether
        there are any."""
        self.next_sequence: int = 0
        """The sequence number that `new_sequence` gives next."""

    def new_sequence(self) -> int:
        """Return the sequence number of a step that completes now. No other step gets this number, stored or not."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def register(self, compensation: Compensation) -> None:
        """Register something to undo, with a sequence number of its own."""
        self.count += 1
        self.update(compensation)

    def row_of(self, compensation: Compensation) -> tuple[bytes, bytes]:
        """The row of a compensation whose values are known only during the commit that stores it."""
        return self._space + sequence_key(compensation.sequence), compensation.pack()

    def update(self, compensation: Compensation) -> None:
        """Have the next commit store a compensation as it is now."""
        self._unwritten.write(sequence_key(compensation.sequence), compensation.pack())

    def forget(self) -> None:
        """Delete all compensations: no step that has finished before now is undone any more."""
        self.count = 0
        self._unwritten.clear(subtree(self._space + COMPENSATIONS))
        self._unwritten.clear(subtree(self._space + ARCHIVE))
