"""From the URL of a store to the `foundationdb` package: settings, what is used of it with types, and how it is loaded.

No other module of the driver imports the package. It defines most of its names, and loads the C library, only when an
API version is chosen, which can be done once in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, cast
from urllib.parse import unquote

from workflow_sdk.driver import url_options
from workflow_sdk.errors import DefinitionError, StorageError

SCHEME = "fdb://"

# Older versions have all that is needed, too, but 710 is the oldest one that its makers still maintain.
API_VERSION_MIN = 710
IDEMPOTENCY_API_VERSION_MIN = 730

PREFIX_BYTES_MAX = 100  # it stands before every key, and the length of keys is limited


@dataclass(frozen=True, slots=True)
class Settings:
    """Which cluster, which keys in it, and how it is used."""

    cluster_file: str | None = None  # None: where FoundationDB's client looks for it
    prefix: str = "workflow_sdk"
    api_version: int = 730
    timeout: float = 10.0  # seconds after which an operation that has not come to an end is an error
    automatic_idempotency: bool = False
    names_api_version: bool = field(default=False, compare=False)
    """Whether the URL names the API version. The default gives way to what the process has chosen before."""

    def __str__(self) -> str:
        return f"{SCHEME}{self.cluster_file or ''}?prefix={self.prefix}"


def parse(url: str) -> Settings:
    """The settings in a URL. Raises DefinitionError, which says what is wrong, if it can't be read."""
    location = url.removeprefix(SCHEME).partition("?")[0]
    if not url.startswith(SCHEME) or (location and not location.startswith("/")):
        raise DefinitionError(f"write fdb:// or fdb:///absolute/fdb.cluster, not {url!r}")
    name = unquote(location, errors="surrogateescape")
    if name.endswith("/") or "\0" in name:
        raise DefinitionError(f"{url!r} names no cluster file")
    options = {option: _read_option(option, text) for option, text in url_options(url, _OPTIONS).items()}
    found = Settings(str(Path(name)) if name else None, names_api_version="api_version" in options, **options)
    if found.automatic_idempotency and found.api_version < IDEMPOTENCY_API_VERSION_MIN:
        raise DefinitionError(f"automatic_idempotency needs api_version={IDEMPOTENCY_API_VERSION_MIN} or later")
    return found


def _read_option(option: str, text: str) -> Any:
    what, reader = _OPTIONS[option]
    with suppress(ValueError):
        if (value := reader(text)) is not None:
            return value
    raise DefinitionError(f"{option} is {what}, not {text!r}")


def _prefix(text: str) -> str | None:
    return text if 0 < len(text.encode()) <= PREFIX_BYTES_MAX else None


def _api_version(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) >= API_VERSION_MIN else None


def _seconds(text: str) -> float | None:
    seconds = float(text)
    return seconds if isfinite(seconds) and seconds > 0 else None


_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "api_version": (f"a number from {API_VERSION_MIN} on", _api_version),
    "automatic_idempotency": ("yes or no", {"yes": True, "no": False}.get),
    "prefix": (f"a text of 1 to {PREFIX_BYTES_MAX} bytes", _prefix),
    "timeout": ("a number of seconds above 0", _seconds),
}
"""What each option is, and how it is read. The reader returns None, or raises ValueError, if it is something else."""


class Future(Protocol):
    """A result to come. Its callbacks run in the network thread, or at once if it is ready."""

    def is_ready(self) -> bool: ...
    def on_ready(self, callback: Callable[[Any], object], /) -> None: ...
    def cancel(self) -> None: ...
    def wait(self) -> Any:
        """Return the result, or raise the error. Only for futures that are ready: others block the thread."""
        ...


class Value(Future, Protocol):
    """The future value of a key."""

    @property
    def value(self) -> bytes | None: ...


class Reads(Protocol):
    """A transaction, or its snapshot, whose reads do not conflict with writes of others."""

    def get(self, key: bytes, /) -> Value: ...
    def get_range(
        self, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> Iterable[Any]: ...
    def _get_range(
        self, begin: Any, end: Any, limit: int, streaming_mode: int, iteration: int, reverse: bool, /
    ) -> Future: ...


class Transaction(Reads, Protocol):
    """Reads and writes that take effect together."""

    @property
    def snapshot(self) -> Reads: ...
    @property
    def options(self) -> Any: ...
    def get_read_version(self) -> Future: ...
    def set(self, key: bytes, value: bytes, /) -> None: ...
    def clear(self, key: bytes, /) -> None: ...
    def clear_range(self, begin: bytes, end: bytes, /) -> None: ...
    def set_versionstamped_key(self, key: bytes, value: bytes, /) -> None: ...
    def add_read_conflict_key(self, key: bytes, /) -> None: ...
    def watch(self, key: bytes, /) -> Future: ...
    def add_read_conflict_range(self, begin: bytes, end: bytes, /) -> None: ...
    def add_write_conflict_key(self, key: bytes, /) -> None: ...
    def add_write_conflict_range(self, begin: bytes, end: bytes, /) -> None: ...
    def commit(self) -> Future: ...
    def on_error(self, error: Any, /) -> Future: ...
    def cancel(self) -> None: ...


class Database(Protocol):
    """A connection to a cluster. The binding has one for each cluster file, which all threads share."""

    def create_transaction(self) -> Transaction: ...


class Binding(Protocol):
    """The module `fdb` after an API version was chosen."""

    @property
    def FDBError(self) -> type[Exception]: ...
    @property
    def KeySelector(self) -> Any: ...
    @property
    def StreamingMode(self) -> Any: ...
    def open(self, cluster_file: str | None = None, event_model: str | None = None) -> Database: ...


def code_of(error: BaseException) -> int:
    """The number of an error of the binding's."""
    return int(cast("Any", error).code)


_loading = Lock()

INSTALL = (
    "fdb:// needs FoundationDB's client library, libfdb_c, which pip does not install: take the package "
    "`foundationdb-clients` of your cluster's version from https://github.com/apple/foundationdb/releases, and the "
    "Python package of the same version: pip install 'foundationdb==<that version>'"
)


def load(settings: Settings) -> tuple[Binding, Settings]:
    """The binding, and the settings with its API version: what the process has chosen, if the URL names none.

    Raises DefinitionError if that version can't be had any more, and StorageError, which says what to install.
    """
    import fdb

    module = cast("Any", fdb)
    needed = IDEMPOTENCY_API_VERSION_MIN if settings.automatic_idempotency else API_VERSION_MIN
    with _loading:
        chosen = int(module.get_api_version()) if module.is_api_version_selected() else None
        if chosen is not None and chosen >= needed and not settings.names_api_version:
            settings = replace(settings, api_version=chosen)
        if chosen not in (None, settings.api_version):
            raise DefinitionError(
                f"api_version={settings.api_version} can't be had: this process has chosen {chosen} "
                "for FoundationDB before, and it can be chosen only once"
            )
        try:
            if chosen is None:
                _accept_older_library(module)
            module.api_version(settings.api_version)
        except RuntimeError as error:
            # The library does not know this API version, or the package does not.
            raise StorageError(
                f"the API version {settings.api_version} can't be used: {error} Give the one of the cluster, or an "
                "older one, as `api_version`; the client library is to be of the cluster's version"
            ) from error
        except Exception as error:
            raise StorageError(f"{INSTALL} ({error})") from error
    return cast("Binding", module), settings


def _accept_older_library(module: Any) -> None:
    """Let the package work with a C library that is older than the package, as the cluster may need one.

    The package tells the library its own version, which an older library refuses, and looks for all functions of that
    version. What it does with transactions has been the same for many versions.
    """
    import fdb.impl

    impl = cast("Any", fdb.impl)
    library = impl._capi  # noqa: SLF001  # the binding has no public way to ask for the library's version
    known = int(library.fdb_get_max_api_version())
    if known >= getattr(module, "LATEST_API_VERSION", 0):  # packages before 7.3 do not say theirs
        return
    module.LATEST_API_VERSION = known
    for name in impl.init_c_api.__code__.co_names:
        if name.startswith("fdb_") and not hasattr(library, name):
            setattr(library, name, partial(_missing, name))


def _missing(name: str, *args: object) -> Any:
    raise NotImplementedError(f"the FoundationDB client library is too old for {name}")
