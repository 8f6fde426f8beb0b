"""How an evaluation fails: inside as a `Fault`, outside as an `ExpressionError`."""

from __future__ import annotations

from typing import ClassVar

from workflow_sdk.errors import WorkflowSDKError


class ExpressionError(WorkflowSDKError):
    """An expression could not be evaluated. The message says what was wrong, and where in the text."""

    kind: ClassVar[str] = "expression"


class Fault(Exception):
    """What went wrong inside an expression. `at` is the position in the text, as soon as it is known."""

    def __init__(self, what: str, at: int | None = None) -> None:
        self.what = what
        self.at = at
        super().__init__(what)

    def place(self, at: int) -> None:
        """Say where it happened. The innermost place counts."""
        if self.at is None:
            self.at = at


class Absent(Fault):
    """A path leads to nothing. `get` and `coalesce` go on from here."""
