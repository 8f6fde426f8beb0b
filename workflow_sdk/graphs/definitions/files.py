"""Definitions in files: JSON and YAML, which is told by the ending of the name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.definitions.yaml_text import read_yaml

ENDINGS: Final = (".json", ".yaml", ".yml")
BYTES_MAX: Final = 256 * 1024 * 1024


def read_file(path: Path) -> Any:
    """The plain data in a file. DefinitionError, with the name of the file, if it can't be read."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise DefinitionError(f"it is larger than {BYTES_MAX:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
        return read_json(text) if path.suffix == ".json" else read_yaml(text)
    except DefinitionError as error:
        raise DefinitionError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise DefinitionError(f"{path}: no UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise DefinitionError(f"{path}: {error.strerror or error}") from None


def read_json(text: str) -> Any:
    """The plain data of a JSON text. DefinitionError, if it is none, or if a key comes twice."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except RecursionError:
        raise DefinitionError("no JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise DefinitionError(f"no JSON: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for at, key in enumerate(names) if key in names[:at])
        raise DefinitionError(f"the key {twice!r:.60} comes twice in one object")
    return made


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def files_in(directory: Path) -> Iterable[Path]:
    """The definitions in a directory, by name."""
    if not directory.is_dir():
        raise DefinitionError(f"{directory} is no directory")
    return sorted(path for path in directory.iterdir() if path.suffix in ENDINGS and path.is_file())
