"""From the URL of a store to its cluster and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from urllib.parse import unquote

from workflow_sdk.driver import url_options
from workflow_sdk.errors import DefinitionError

SCHEME = "fdb://"
KNOWN = ("api_version", "automatic_idempotency", "prefix", "timeout")

# Older versions have all that is needed, too, but 710 is the oldest one that its makers still maintain.
API_VERSION_MIN = 710
IDEMPOTENCY_API_VERSION_MIN = 730

PREFIX_BYTES_MAX = 100
"""How long the prefix can be: it stands before every key, and the length of keys is limited."""

YES_OR_NO = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """Which cluster, which keys in it, and how it is used."""

    cluster_file: str | None = None
    """None: where FoundationDB's client looks for it."""
    prefix: str = "workflow_sdk"
    api_version: int = 730
    timeout: float = 10.0
    """Seconds after which an operation that has not come to an end is an error."""
    automatic_idempotency: bool = False
    names_api_version: bool = field(default=False, compare=False)
    """Whether the URL names the API version. The default gives way to what the process has chosen before."""

    def __str__(self) -> str:
        return f"{SCHEME}{self.cluster_file or ''}?prefix={self.prefix}"


DEFAULTS = Settings()


def parse(url: str) -> Settings:
    """The settings in a URL. Raises DefinitionError, which says what is wrong, if it can't be read."""
    location = url.removeprefix(SCHEME).partition("?")[0]
    if not url.startswith(SCHEME) or (location and not location.startswith("/")):
        raise DefinitionError(f"write fdb:// or fdb:///absolute/fdb.cluster, not {url!r}")
    if not location:
        return _with_options(None, url)
    name = unquote(location, errors="surrogateescape")
    if name.endswith("/") or "\0" in name:
        raise DefinitionError(f"{url!r} names no cluster file")
    return _with_options(str(Path(name)), url)


def _with_options(cluster_file: str | None, url: str) -> Settings:
    values = url_options(url, KNOWN)
    found = Settings(
        cluster_file,
        _prefix(values.get("prefix", DEFAULTS.prefix)),
        _api_version(values.get("api_version"), DEFAULTS.api_version),
        _seconds(values.get("timeout"), DEFAULTS.timeout),
        _yes_or_no(values.get("automatic_idempotency", "no")),
        "api_version" in values,
    )
    if found.automatic_idempotency and found.api_version < IDEMPOTENCY_API_VERSION_MIN:
        raise DefinitionError(f"automatic_idempotency needs api_version={IDEMPOTENCY_API_VERSION_MIN} or later")
    return found


def _prefix(text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= PREFIX_BYTES_MAX:
        raise DefinitionError(f"prefix is a text of 1 to {PREFIX_BYTES_MAX} bytes, not {text!r}")
    return text


def _api_version(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < API_VERSION_MIN:
        raise DefinitionError(f"api_version is a number from {API_VERSION_MIN} on, not {text!r}")
    return int(text)


def _seconds(text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not isfinite(seconds) or seconds <= 0:
        raise DefinitionError(f"timeout is a number of seconds above 0, not {text!r}")
    return seconds


def _yes_or_no(text: str) -> bool:
    if text not in YES_OR_NO:
        raise DefinitionError(f"automatic_idempotency is yes or no, not {text!r}")
    return YES_OR_NO[text]
