"""What has to be undone if the workflow fails: data, written in the commit that completes the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Any

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.wire import NOTHING, damaged, number, pack_record, shapes, unpack_record
from workflow_sdk.errors import CodecError

__all__ = ["Compensation", "HandlerRef", "Progress"]

_HANDLER = shapes((str,), (list,), (list,))
_ARGUMENT = shapes((str,), (bytes,))
_COMPENSATION = shapes(
    (bytes,), (str,), (list, NOTHING), (bytes,), (bool,), (int,), (int,), (float, int, NOTHING), (list,)
)


class Progress(IntEnum):
    """How far a compensation is. The numbers stand on the wire."""

    OPEN = 1
    RETRYING = 2
    DONE = 3
    EXHAUSTED = 4


_PROGRESS = frozenset(Progress)


@dataclass(frozen=True, slots=True)
class HandlerRef:
    """A handler by its name, with the arguments that a `partial` of it holds."""

    name: str
    args: tuple[bytes, ...] = ()
    kwargs: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(
        cls, handler: Callable[..., Any], codec: Codec, name_of: Callable[[Callable[..., Any]], str | None]
    ) -> HandlerRef | None:
        """The reference to a handler, or None if only the code that made it can give it again.

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

    def pack(self) -> list[object]:
        return [self.name, list(self.args), [list(item) for item in self.kwargs]]

    @classmethod
    def unpack(cls, fields: list[Any]) -> HandlerRef:
        if tuple(map(type, fields)) not in _HANDLER:
            raise damaged("a compensation")
        name, args, kwargs = fields
        if not all(type(arg) is bytes for arg in args):
            raise damaged("a compensation")
        if not all(type(item) is list and tuple(map(type, item)) in _ARGUMENT for item in kwargs):
            raise damaged("a compensation")
        return cls(name, tuple(args), tuple((key, value) for key, value in kwargs))


@dataclass(frozen=True, slots=True)
class Compensation:
    """One thing to undo."""

    sequence: int
    """Its place in the order of completion: the newest is undone first."""
    location: bytes
    """Of the step."""
    path: str
    handler: HandlerRef | None
    """None: found by walking the workflow's code over its history."""
    result: bytes
    """The step's value, which the handler is given."""
    tagged: bool
    """Whether `result` can be read without the step's type hint."""
    progress: Progress = Progress.OPEN
    attempts: int = 0
    retry_at: float | None = None
    error: list[object] = field(default_factory=list[object])
    """The last failure, an ErrorInfo as `failures.pack_error_info` gives it."""

    def pack(self) -> bytes:
        handler = None if self.handler is None else self.handler.pack()
        head = [self.location, self.path, handler, self.result, self.tagged]
        return pack_record([*head, int(self.progress), self.attempts, self.retry_at, self.error])

    @classmethod
    def unpack(cls, sequence: int, raw: bytes) -> Compensation:
        fields = unpack_record(raw)
        if tuple(map(type, fields)) not in _COMPENSATION:
            raise damaged("a compensation")
        location, path, handler, result, tagged, progress, attempts, retry_at, error = fields
        if progress not in _PROGRESS or attempts >> 62:
            raise damaged("a compensation")
        ref = None if handler is None else HandlerRef.unpack(handler)
        when = None if retry_at is None else number(retry_at)
        return cls(sequence, location, path, ref, result, tagged, Progress(progress), attempts, when, error)

    def failed(self, error: list[object], retry_at: float | None) -> Compensation:
        """After one more failed attempt; without a `retry_at` it was the last."""
        progress = Progress.EXHAUSTED if retry_at is None else Progress.RETRYING
        return replace(self, progress=progress, attempts=self.attempts + 1, retry_at=retry_at, error=error)

    def done(self) -> Compensation:
        """After the handler has run."""
        return replace(self, progress=Progress.DONE, attempts=self.attempts + 1, retry_at=None)
