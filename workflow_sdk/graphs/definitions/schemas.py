"""JSON schemas of authors' types, as far as they have one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from workflow_sdk.graphs.definitions.plain import Reader
from workflow_sdk.graphs.narrowing import is_dict, is_list, is_mapping

Schema = Mapping[str, Any]


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type, without what is only told to people; {} if nothing is known of it.

    What is no type but a dict is a schema already.
    """
    if hint is None or hint is Any:
        return {}
    found = hint if is_mapping(hint) else _made(hint)
    return cast("dict[str, Any]", _bare(Reader().read(found, "workload")))


def _made(hint: Any) -> Any:
    try:
        if hasattr(hint, "model_json_schema"):
            return hint.model_json_schema()
        return msgspec.json.schema(hint)
    except Exception:  # noqa: BLE001  # an author's type may have none, for whatever reason
        return {}


def _bare(value: Any) -> Any:
    """A schema without the descriptions in it: words for people are no part of what a type is."""
    if is_list(value):
        return [_bare(one) for one in value]
    if not is_dict(value):
        return value
    found = value
    return {
        key: {name: _bare(inner) for name, inner in one.items()} if key in _BY_NAME and is_dict(one) else _bare(one)
        for key, one in found.items()
        if not (key == "description" and isinstance(one, str))
    }


_BY_NAME = frozenset({"properties", "$defs"})
"""Where keys are names of the author's, of which one may be `description`."""
