"""From the URL of a store to its file and settings."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from urllib.parse import unquote

from workflow_sdk.driver import url_options
from workflow_sdk.errors import DefinitionError

SCHEME = "sqlite://"
SYNCHRONOUS = ("full", "normal")
MODES = ("rwc", "rw")
"""The modes of SQLite's own URIs: read, write, and create the file or not."""
INLINE = {"auto": True, "no": False}
KNOWN = ("busy_timeout", "inline", "mode", "synchronous")


@dataclass(frozen=True, slots=True)
class Settings:
    """Which file, and how it is used."""

    path: Path
    synchronous: str = "full"
    busy_timeout: float = 30.0
    """How many seconds another process may keep the file locked before it is an error."""
    mode: str = "rwc"
    inline: bool = True
    """Whether reads and commits may be made in the event loop if they are short."""

    @property
    def creates(self) -> bool:
        """Whether a store is made where there is none."""
        return self.mode == "rwc"


def parse(url: str) -> Settings:
    """The settings in a URL. Raises DefinitionError, which says what is wrong, if it can't be read."""
    location = url.removeprefix(SCHEME).partition("?")[0]
    if not url.startswith(SCHEME) or not location.startswith("/"):
        raise DefinitionError(f"write sqlite:///relative.db or sqlite:////absolute/app.db, not {url!r}")
    name = unquote(location[1:], errors="surrogateescape")
    if name == ":memory:":
        raise DefinitionError(f"{url!r} would be private to one connection; for a store in memory use memory://")
    if not name or name.endswith("/") or "\0" in name:
        raise DefinitionError(f"{url!r} names no file")
    # Absolute from now on: the process may change its directory while the store is open.
    return _with_options(Settings(Path(name).absolute()), url)


def _with_options(settings: Settings, url: str) -> Settings:
    values = url_options(url, KNOWN)
    synchronous = values.get("synchronous", settings.synchronous).lower()
    if synchronous not in SYNCHRONOUS:
        raise DefinitionError(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {values['synchronous']!r}")
    mode = values.get("mode", settings.mode)
    if mode not in MODES:
        raise DefinitionError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    inline = values.get("inline", "auto")
    if inline not in INLINE:
        raise DefinitionError(f"inline is one of {', '.join(INLINE)}, not {inline!r}")
    busy_timeout = _seconds(values.get("busy_timeout"), settings.busy_timeout)
    return Settings(settings.path, synchronous, busy_timeout, mode, INLINE[inline])


def _seconds(text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not isfinite(seconds) or seconds < 0:
        raise DefinitionError(f"busy_timeout is a number of seconds, not {text!r}")
    return seconds
