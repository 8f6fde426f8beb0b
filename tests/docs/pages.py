"""Reading the blocks of the pages."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["FENCE", "PAGES", "ROOT", "as_pattern", "file_name"]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block, with its language."""

_FILE_NAME = re.compile(r"# (\w+\.py)\n")


def file_name(source: str) -> str | None:
    """The name of the file that a block is, if its first line says so: `# test_orders.py`."""
    found = _FILE_NAME.match(source)
    return None if found is None else found[1]


def as_pattern(output: str) -> str:
    """A regular expression for the output that a page shows; `...` in it stands for anything."""
    lines = (re.escape(line.rstrip()).replace(r"\.\.\.", ".*") for line in output.strip().splitlines())
    return "\n".join(lines)
