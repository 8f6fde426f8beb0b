"""What is wrong with a definition, all of it at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.model import Problem

TOLD_MAX: Final = 100
"""How many problems are told at most."""


class InvalidGraphError(DefinitionError):
    """A definition of a graph is not valid. `problems` has everything that is wrong with it, and where."""

    def __init__(self, what: str, problems: Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        """Each with the step or the place in the document."""
        told = "; ".join(map(str, self.problems[:TOLD_MAX]))
        more = len(self.problems) - TOLD_MAX
        super().__init__(f"{what}: {told}{f'; and {more} more' if more > 0 else ''}")
