"""Checks of what a graph is given beside its steps."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.definitions.format import GRAPH

_WORDS: Final = ("name", "version", "status", "no_match", "when_blocked", "final_failure")


def check_settings(*given: Any) -> None:
    """Raise `DefinitionError` for a name, version, or one of the words that is none."""
    problems = chain.from_iterable(
        GRAPH.fields[key].shape.check(value, f"`{key}` of a graph") for key, value in zip(_WORDS, given, strict=True)
    )
    for problem in problems:
        raise DefinitionError(str(problem))
