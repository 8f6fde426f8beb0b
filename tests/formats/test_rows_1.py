"""The fields of every row are part of the format: `rows_1.txt` lists them, and from now on it is only added to.

A new field comes last and has a default, so that rows without it are read; a new kind of row gets a line of its own.

    python -m tests.formats.test_rows_1
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

import workflow_sdk
from workflow_sdk.rows.wire import Packed

FILE = Path(__file__).with_name("rows_1.txt")


def rows() -> dict[str, tuple[str, ...]]:
    """The fields of every kind of row, by name."""
    for module in pkgutil.walk_packages(workflow_sdk.__path__, "workflow_sdk."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: dict[str, tuple[str, ...]] = {}
    todo: list[type[Any]] = [Packed]
    while todo:
        for cls in todo.pop().__subclasses__():
            todo.append(cls)
            if cls.__module__.startswith("workflow_sdk.") and cls.__name__ != "Row":
                found[cls.__name__.lstrip("_")] = tuple(
                    f"{field.name}{'' if field.required else '?'}" for field in fields(cls)
                )
    return found


def written() -> dict[str, tuple[str, ...]]:
    """What the file lists."""
    text = FILE.read_text() if FILE.exists() else ""
    lines = [line.split() for line in text.splitlines() if line]
    return {name.rstrip(":"): tuple(names) for name, *names in lines}


@pytest.mark.parametrize("name", written())
def test_fields_are_only_added(name: str) -> None:
    now = rows()[name]
    before = written()[name]
    assert tuple(field.rstrip("?") for field in now[: len(before)]) == tuple(field.rstrip("?") for field in before)
    assert all(not was.endswith("?") or field.endswith("?") for was, field in zip(before, now, strict=False))
    assert all(field.endswith("?") for field in now[len(before) :]), "rows without it could not be read any more"


def test_every_row_is_listed() -> None:
    assert rows() == written(), "python -m tests.formats.test_rows_1 lists what is new"


if __name__ == "__main__":
    FILE.write_text("".join(f"{name}: {' '.join(names)}\n" for name, names in sorted(rows().items())))
