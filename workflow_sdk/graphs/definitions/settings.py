"""Checks of what a graph is given beside its steps."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.definitions.format import GRAPH
from workflow_sdk.graphs.model import Limits
from workflow_sdk.graphs.narrowing import is_mapping
from workflow_sdk.rows.wire import shown

_WORDS: Final = ("name", "version", "status", "no_match", "when_blocked", "final_failure")


def check_settings(*given: Any) -> None:
    """Raise `DefinitionError` for a name, version, or one of the words that is none."""
    problems = chain.from_iterable(
        GRAPH.fields[key].shape.check(value, f"`{key}` of a graph") for key, value in zip(_WORDS, given, strict=True)
    )
    for problem in problems:
        raise DefinitionError(str(problem))


def check_given(limits: object, **dicts: object) -> None:
    """Raise `DefinitionError` for limits that are none, and for what is no dict with texts as keys."""
    if not isinstance(limits, Limits):
        raise DefinitionError(f"`limits` of a graph: expected Limits(...), not {shown(limits)}")
    for name, value in dicts.items():
        if value is not None and (not is_mapping(value) or not all(isinstance(key, str) for key in value)):
            raise DefinitionError(f"`{name}` of a graph: expected a dict with texts as keys, not {shown(value)}")
