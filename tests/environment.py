"""The environment of processes that tests start."""

from __future__ import annotations

import os

__all__ = ["clean_environment"]

_PREFIXES = ("PYTHON", "PYTEST")
_NAMES = {
    *("WORKFLOW_STORE", "WORKFLOW_CODEC"),
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CLICOLOR", "CLICOLOR_FORCE"),
}


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what changes Python, pytest, the command line or a terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES) and name not in _NAMES}
    return kept | more
