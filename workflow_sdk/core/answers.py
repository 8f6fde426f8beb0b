"""The answer to a question, as it is stored for the one who asked."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, TypeGuard

from workflow_sdk.core.wire import Row

__all__ = ["Answer", "AnswerKind", "is_answer", "still_waiting"]

WAITING = b"\x00"
"""What a row begins with that holds no answer yet. It is empty at first."""


class AnswerKind(StrEnum):
    """What became of a question."""

    ANSWERED = "answered"
    UNFIT = "unfit"
    """No wait could take it, and it was set aside."""
    DISCARDED = "discarded"
    """Somebody took it out of the inbox."""


def still_waiting(chance: bytes) -> bytes:
    """The row of a question that is not answered yet. With other bytes each time, it shows that the asker lives."""
    return WAITING + chance


def is_answer(raw: bytes | None) -> TypeGuard[bytes]:
    """Whether a row holds an answer; else it is waited for, or nobody asks any more."""
    return raw is not None and raw != b"" and not raw.startswith(WAITING)


class Answer(Row, frozen=True):
    """What the one who asked gets."""

    WHAT: ClassVar[str] = "an answer"

    value: bytes
    """The encoded answer; if there is none, the encoded text that says why."""
    kind: AnswerKind = AnswerKind.ANSWERED
