"""The answer to a question, as it is stored for the one who asked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

from workflow_sdk.core.wire import damaged, pack_record, shapes, unpack_record

__all__ = ["Answer", "AnswerKind", "is_answer", "still_waiting"]

WAITING = b"\x00"
"""What a row begins with that holds no answer yet. It is empty at first."""
_ANSWER = shapes((bytes,))
_NO_ANSWER = shapes((bytes,), (str,))


class AnswerKind(StrEnum):
    """What became of a question."""

    ANSWERED = "answered"
    UNFIT = "unfit"
    """No wait could take it, and it was set aside."""
    DISCARDED = "discarded"
    """Somebody took it out of the inbox."""


_KINDS = frozenset(kind.value for kind in AnswerKind)


def still_waiting(chance: bytes) -> bytes:
    """The row of a question that is not answered yet. With other bytes each time, it shows that the asker lives."""
    return WAITING + chance


def is_answer(raw: bytes | None) -> TypeGuard[bytes]:
    """Whether a row holds an answer; else it is waited for, or nobody asks any more."""
    return raw is not None and raw != b"" and not raw.startswith(WAITING)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the one who asked gets."""

    value: bytes
    """The encoded answer; if there is none, the encoded text that says why."""
    kind: AnswerKind = AnswerKind.ANSWERED

    def pack(self) -> bytes:
        return pack_record([self.value] if self.kind is AnswerKind.ANSWERED else [self.value, self.kind.value])

    @classmethod
    def unpack(cls, raw: bytes) -> Answer:
        fields = unpack_record(raw)
        shape = tuple(map(type, fields))
        if shape in _ANSWER:
            return cls(fields[0])
        if shape not in _NO_ANSWER or fields[1] not in _KINDS:
            raise damaged("an answer")
        return cls(fields[0], AnswerKind(fields[1]))
