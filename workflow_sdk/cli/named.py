"""What `module:object` names on the command line: a runtime, or a codec."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click

__all__ = ["author_error", "find", "made"]


def find(target: str, example: str) -> object:
    """What `module:attribute` names. The module may also be in the working directory."""
    module_name, colon, path = target.partition(":")
    if not module_name or not colon or not path:
        kind = example.partition(":")[2]
        raise click.UsageError(f"write module:{kind}, such as {example}, not {target!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a script has its own directory there
    found: Any = _import(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise click.UsageError(f"the module {module_name!r} has no {path!r}") from None
    return found


def made(target: str, make: Callable[[], object], what: str) -> object:
    """What the author's function returns."""
    try:
        return make()
    except Exception as error:  # as may any function of an author
        raise author_error(f"{target} has made no {what}", error) from error


def author_error(what: str, error: Exception) -> click.ClickException:
    """One line, with the place."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return click.ClickException(f"{what}: {type(error).__name__}: {error}{place}")


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise click.UsageError(f"there is no module {name!r}") from None
        raise author_error(f"the module {name!r} can't be imported", error) from error
    except Exception as error:  # an author's module may raise anything
        raise author_error(f"the module {name!r} can't be imported", error) from error
